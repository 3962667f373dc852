/* libmemferry: plans and measuring. See memferry.h. */
#include <stdlib.h>
#include <string.h>

#include "client/library.h"
#include "client/library_json.h"
#include "memferry/v1/profile.pb-c.h"
#include "proto/wire.h"

/* What the caller gets, first, and what it points into. */
struct owned_plan {
    struct memferry_plan plan;
    struct mf_arena arena;
    struct memferry_unit_plan *units;
    enum memferry_activation *activations;
};

static void read_unit(struct mf_arena *arena, const Memferry__V1__UnitPlan *from,
                      struct memferry_unit_plan *out)
{
    out->name = mf_arena_string(arena, from->name);
    out->kind = mf_arena_string(arena, from->kind);
    out->block = from->block;
    out->rows = from->rows;
    out->columns = from->columns;
    out->params = from->params;
    out->weight_bytes = from->weight_bytes;
    out->forward = (enum memferry_forward)from->forward;
    out->backward = (enum memferry_backward)from->backward;
    out->gradient = (enum memferry_gradient)from->gradient;
    out->optimizer = (enum memferry_optimizer)from->optimizer;
    out->pinned = from->pinned;
    out->why = mf_arena_string(arena, from->why);
    out->tied_to = mf_arena_string(arena, from->tied_to);
    out->compute_ns = from->compute_ns;
    out->h2d_ns = from->h2d_ns;
    out->d2h_ns = from->d2h_ns;
    out->cpu_ns = from->cpu_ns;
}

static void read_prediction(struct owned_plan *owned, const Memferry__V1__Prediction *from)
{
    struct memferry_plan *plan = &owned->plan;
    plan->bound_lane = mf_arena_string(&owned->arena, from != NULL ? from->bound_lane : "");
    if (from == NULL) {
        return;
    }
    plan->step_ns = from->step_ns;
    plan->bound_ns = from->bound_ns;
    plan->stall_ns = from->stall_ns;
    plan->device_peak_bytes = from->device_peak_bytes;
    plan->host_peak_bytes = from->host_peak_bytes;
    plan->h2d_bytes = from->h2d_bytes;
    plan->d2h_bytes = from->d2h_bytes;
    plan->direct_bytes = from->direct_bytes;
}

static struct memferry_plan *read_plan(const Memferry__V1__Plan *from, const char *how,
                                       const char *miss)
{
    struct owned_plan *owned = calloc(1, sizeof(*owned));
    MF_ASSERT(owned != NULL);
    struct memferry_plan *plan = &owned->plan;
    struct mf_arena *arena = &owned->arena;
    mf_arena_init(arena);
    plan->id = mf_arena_string(arena, from->id);
    plan->model_name = mf_arena_string(arena, from->model_name);
    plan->how = mf_arena_string(arena, how);
    plan->miss = mf_arena_string(arena, miss);
    plan->measured = from->measured;
    plan->link_emulated = from->link_emulated;
    plan->ring_slots = from->ring_slots;
    plan->deferred_blocks = from->deferred_blocks;
    plan->speculate = from->speculate;
    mf_library_read_workload(from->workload, &plan->workload);
    if (from->constraints != NULL) {
        plan->strategy = (enum memferry_strategy)from->constraints->strategy;
        plan->device_memory_bytes = from->constraints->device_memory_bytes;
        plan->host_memory_bytes = from->constraints->host_memory_bytes;
    }
    /* The contract has 0 and 1 for auto. */
    if (from->constraints != NULL &&
        from->constraints->strategy == MEMFERRY__V1__STRATEGY__STRATEGY_AUTO) {
        plan->strategy = MEMFERRY_STRATEGY_AUTO;
    }
    read_prediction(owned, from->prediction);
    owned->units = mf_arena_alloc(arena, from->n_units + 1, sizeof(*owned->units));
    for (size_t i = 0; i < from->n_units; i++) {
        read_unit(arena, from->units[i], &owned->units[i]);
    }
    owned->activations =
        mf_arena_alloc(arena, from->n_activations + 1, sizeof(*owned->activations));
    for (size_t i = 0; i < from->n_activations; i++) {
        owned->activations[i] = (enum memferry_activation)from->activations[i];
    }
    plan->unit_count = from->n_units;
    plan->units = owned->units;
    plan->block_count = from->n_activations;
    plan->activations = owned->activations;
    return plan;
}

void memferry_plan_free(struct memferry_plan *plan)
{
    if (plan != NULL) {
        struct owned_plan *owned = (struct owned_plan *)plan;
        mf_arena_reset(&owned->arena);
        free(owned);
    }
}

static enum mf_status finish_plan(enum mf_status status, const Memferry__V1__Plan *plan,
                                  const char *how, const char *miss, struct memferry_plan **out)
{
    if (status == MF_STATUS_OK && plan == NULL) {
        return mf_status_set(MF_STATUS_CORRUPT, "the daemon answered without a plan");
    }
    if (status == MF_STATUS_OK) {
        *out = read_plan(plan, how, miss);
    }
    return status;
}

enum memferry_status memferry_plan_get(struct memferry_connection *connection,
                                       const struct memferry_model *model,
                                       const struct memferry_workload *workload,
                                       const struct memferry_constraints *constraints,
                                       enum memferry_effort effort, struct memferry_plan **out,
                                       struct memferry_error *error)
{
    struct mf_arena arena;
    Memferry__V1__GetPlanRequest request = MEMFERRY__V1__GET_PLAN_REQUEST__INIT;
    Memferry__V1__GetPlanResponse *answer = NULL;
    *out = NULL;
    mf_arena_init(&arena);
    request.model = mf_library_model(&arena, model);
    request.workload = mf_library_workload(&arena, workload);
    request.constraints = mf_library_constraints(&arena, constraints);
    request.effort = (Memferry__V1__Effort)effort;
    enum mf_status status = mf_library_call_unary(
        connection->channel, &memferry__v1__plan_service__descriptor, "GetPlan", &request.base,
        MF_LIBRARY_CALL_NO_LIMIT_MS, (ProtobufCMessage **)&answer);
    status =
        finish_plan(status, answer != NULL ? answer->plan : NULL, answer != NULL ? answer->how : "",
                    answer != NULL ? answer->miss : "", out);
    mf_wire_free(answer);
    mf_arena_reset(&arena);
    return mf_library_end(status, error);
}

enum memferry_status memferry_plan_show(struct memferry_connection *connection, const char *id,
                                        struct memferry_plan **out, struct memferry_error *error)
{
    Memferry__V1__ShowPlanRequest request = MEMFERRY__V1__SHOW_PLAN_REQUEST__INIT;
    Memferry__V1__ShowPlanResponse *answer = NULL;
    *out = NULL;
    request.id = (char *)id;
    enum mf_status status = mf_library_call_unary(
        connection->channel, &memferry__v1__plan_service__descriptor, "ShowPlan", &request.base,
        MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&answer);
    status = finish_plan(status, answer != NULL ? answer->plan : NULL, "", "", out);
    mf_wire_free(answer);
    return mf_library_end(status, error);
}

/* One message of the stream; *ended when it was the last. */
static enum mf_status measure_next(struct mf_library_call_stream *stream,
                                   memferry_progress *progress, void *context, char **profile_json,
                                   bool *ended)
{
    Memferry__V1__MeasureResponse *news = NULL;
    enum mf_status status = MF_STATUS_OK;
    MF_TRY(mf_library_call_next(stream, (ProtobufCMessage **)&news));
    *ended = news == NULL;
    if (news == NULL) {
        return MF_STATUS_OK;
    }
    if (news->event_case == MEMFERRY__V1__MEASURE_RESPONSE__EVENT_PROGRESS && progress != NULL) {
        const Memferry__V1__MeasureProgress *at = news->progress;
        double done = at->total > 0 ? (double)at->done / at->total : 0;
        if (!progress(context, at->what, done)) {
            status = mf_status_set(MF_STATUS_CANCELLED, "cancelled by the caller");
        }
    } else if (news->event_case == MEMFERRY__V1__MEASURE_RESPONSE__EVENT_PROFILE &&
               profile_json != NULL) {
        json_t *document = mf_library_json_encode(&news->profile->base);
        *profile_json = json_dumps(document, JSON_COMPACT | JSON_PRESERVE_ORDER);
        json_decref(document);
    }
    mf_wire_free(news);
    return status;
}

enum memferry_status memferry_measure(struct memferry_connection *connection,
                                      const struct memferry_model *model,
                                      const struct memferry_workload *workload,
                                      const struct memferry_measure_options *options,
                                      memferry_progress *progress, void *context,
                                      char **profile_json, struct memferry_error *error)
{
    struct mf_arena arena;
    struct mf_library_call_stream stream = {0};
    Memferry__V1__MeasureRequest request = MEMFERRY__V1__MEASURE_REQUEST__INIT;
    bool ended = false;
    if (profile_json != NULL) {
        *profile_json = NULL;
    }
    mf_arena_init(&arena);
    request.model = mf_library_model(&arena, model);
    request.workload = mf_library_workload(&arena, workload);
    request.seconds_max = options != NULL ? options->seconds_max : 0;
    request.again = options != NULL && options->again;
    enum mf_status status =
        mf_library_call_open(connection->channel, &memferry__v1__profile_service__descriptor,
                             "Measure", &request.base, &stream);
    while (status == MF_STATUS_OK && !ended) {
        status = measure_next(&stream, progress, context, profile_json, &ended);
    }
    enum memferry_status result = mf_library_end(status, error);
    if (result != MEMFERRY_OK && profile_json != NULL) {
        free(*profile_json);
        *profile_json = NULL;
    }
    mf_library_call_close(&stream);
    mf_arena_reset(&arena);
    return result;
}
