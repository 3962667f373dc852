/* See command_ask.h. */
#include "client/command_ask.h"

#include <string.h>

#include "proto/wire.h"

static void show_progress(struct mf_render_progress *progress,
                          const Memferry__V1__MeasureProgress *news)
{
    mf_render_progress_update(progress, "measuring %d/%d, %.0f s: %s", news->done, news->total,
                              news->elapsed_seconds, news->what);
}

enum mf_status mf_command_ask_measure(struct mf_command_context *context,
                                      struct mf_command_model *model, double seconds_max,
                                      bool again, bool counters, Memferry__V1__Profile **out)
{
    struct mf_channel *channel = NULL;
    struct mf_library_call_stream stream = {0};
    struct mf_render_progress progress;
    Memferry__V1__MeasureRequest request = MEMFERRY__V1__MEASURE_REQUEST__INIT;
    enum mf_status status = MF_STATUS_OK;

    request.model = &model->model;
    request.workload = &model->workload;
    request.seconds_max = seconds_max;
    request.again = again;
    request.counters = counters;
    *out = NULL;
    MF_TRY(mf_command_model_fixed(model));
    MF_TRY(mf_command_channel(context, &channel));
    MF_TRY(mf_library_call_open(channel, &memferry__v1__profile_service__descriptor, "Measure",
                                &request.base, &stream));
    mf_render_progress_init(&progress, context->quiet);
    for (;;) {
        Memferry__V1__MeasureResponse *news = NULL;
        MF_TRY_GOTO(mf_library_call_next(&stream, (ProtobufCMessage **)&news), out);
        if (news == NULL) {
            break;
        }
        if (news->event_case == MEMFERRY__V1__MEASURE_RESPONSE__EVENT_PROGRESS) {
            show_progress(&progress, news->progress);
        } else if (news->event_case == MEMFERRY__V1__MEASURE_RESPONSE__EVENT_PROFILE) {
            mf_wire_free(*out);
            *out = news->profile;
            news->event_case = MEMFERRY__V1__MEASURE_RESPONSE__EVENT__NOT_SET;
            news->profile = NULL;
        }
        mf_wire_free(news);
    }
    if (*out == NULL) {
        status = mf_status_set(MF_STATUS_CORRUPT, "the daemon ended measuring without a profile");
    }
out:
    mf_render_progress_clear(&progress);
    mf_library_call_close(&stream);
    if (status != MF_STATUS_OK) {
        mf_wire_free(*out);
        *out = NULL;
    }
    return status;
}

enum mf_status mf_command_ask_plan(struct mf_command_context *context,
                                   struct mf_command_model *model, Memferry__V1__Effort effort,
                                   Memferry__V1__GetPlanResponse **out)
{
    Memferry__V1__GetPlanRequest request = MEMFERRY__V1__GET_PLAN_REQUEST__INIT;
    request.model = &model->model;
    request.workload = &model->workload;
    request.constraints = &model->constraints;
    request.effort = effort;
    request.hardware = model->hardware;
    request.batch = model->batch;
    request.tune_micro_batch = model->tune_micro_batch;
    MF_TRY(mf_command_call(context, &memferry__v1__plan_service__descriptor, "GetPlan",
                           &request.base, MF_LIBRARY_CALL_NO_LIMIT_MS, (ProtobufCMessage **)out));
    if ((*out)->plan == NULL) {
        mf_wire_free(*out);
        *out = NULL;
        return mf_status_set(MF_STATUS_CORRUPT, "the daemon answered without a plan");
    }
    return MF_STATUS_OK;
}

enum mf_status mf_command_ask_best_plan(struct mf_command_context *context,
                                        struct mf_command_model *model,
                                        Memferry__V1__GetPlanResponse **out)
{
    Memferry__V1__Effort effort = model->effort;
    if (effort == MEMFERRY__V1__EFFORT__EFFORT_CACHED ||
        effort == MEMFERRY__V1__EFFORT__EFFORT_ESTIMATE || model->hardware[0] != '\0' ||
        model->tune_micro_batch) {
        return mf_command_ask_plan(context, model, effort, out);
    }
    enum mf_status status =
        mf_command_ask_plan(context, model, MEMFERRY__V1__EFFORT__EFFORT_CACHED, out);
    if (status == MF_STATUS_OK && (*out)->plan->measured) {
        return MF_STATUS_OK;
    }
    if (status != MF_STATUS_OK && status != MF_STATUS_NOT_FOUND) {
        return status;
    }
    mf_wire_free(status == MF_STATUS_OK ? *out : NULL);
    Memferry__V1__Profile *profile = NULL;
    MF_TRY(mf_command_ask_measure(context, model, 0, false, false, &profile));
    mf_wire_free(profile);
    return mf_command_ask_plan(context, model, MEMFERRY__V1__EFFORT__EFFORT_MEASURE, out);
}
