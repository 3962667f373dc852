/* compare, estimate, diff: see command.h. */
#include <string.h>

#include "client/command_ask.h"
#include "proto/wire.h"

#define ROWS_MAX 8

struct comparison {
    struct mf_command_model model;
    struct mf_render_compare_row rows[ROWS_MAX];
    Memferry__V1__GetPlanResponse *answers[ROWS_MAX];
    size_t count;
    size_t fitting;
};

static void comparison_reset(struct comparison *comparison)
{
    for (size_t i = 0; i < comparison->count; i++) {
        mf_wire_free(comparison->answers[i]);
    }
    mf_command_model_reset(&comparison->model);
}

/* A failure that says nothing of the strategy asked for. */
static bool ends_all(enum mf_status status)
{
    return status == MF_STATUS_UNAVAILABLE || status == MF_STATUS_CANCELLED ||
           status == MF_STATUS_CORRUPT || status == MF_STATUS_DENIED;
}

/* Asks for the plan of every strategy, or of the one the user named. */
static enum mf_status ask_all(struct mf_command_context *context, struct comparison *comparison,
                              Memferry__V1__Effort effort)
{
    const ProtobufCEnumDescriptor *strategies = &memferry__v1__strategy__descriptor;
    struct mf_command_model *model = &comparison->model;
    int wanted = model->strategy_given ? (int)model->constraints.strategy : 0;
    for (unsigned i = 0; i < strategies->n_values && comparison->count < ROWS_MAX; i++) {
        int strategy = strategies->values[i].value;
        if (strategy == 0 || (wanted != 0 && strategy != wanted)) {
            continue;
        }
        size_t index = comparison->count++;
        struct mf_render_compare_row *row = &comparison->rows[index];
        row->strategy = model->constraints.strategy = (Memferry__V1__Strategy)strategy;
        model->effort = effort;
        enum mf_status status =
            mf_command_ask_best_plan(context, model, &comparison->answers[index]);
        if (ends_all(status)) {
            return status;
        }
        row->got = comparison->answers[index];
        if (status != MF_STATUS_OK) {
            row->error = *mf_status_error();
        } else {
            comparison->fitting++;
        }
    }
    return MF_STATUS_OK;
}

static json_t *error_json(const struct mf_error *error)
{
    json_t *object = json_object();
    json_t *numbers = json_object();
    json_object_set_new(object, "status", json_string(mf_status_name(error->status)));
    json_object_set_new(object, "reason", json_string(error->reason));
    json_object_set_new(object, "text", json_string(error->text));
    for (size_t i = 0; i < error->number_count; i++) {
        json_object_set_new(numbers, error->numbers[i].name, json_integer(error->numbers[i].value));
    }
    json_object_set_new(object, "numbers", numbers);
    return object;
}

static json_t *comparison_json(const struct comparison *comparison)
{
    char name[MF_LIBRARY_JSON_ENUM_MAX];
    json_t *rows = json_array();
    for (size_t i = 0; i < comparison->count; i++) {
        const struct mf_render_compare_row *row = &comparison->rows[i];
        json_t *object = row->got != NULL ? mf_library_json_encode(&row->got->base) : json_object();
        json_object_set_new(object, "strategy",
                            json_string(MF_RENDER_ENUM(strategy, row->strategy, name)));
        json_object_set_new(object, "error",
                            row->got != NULL ? json_null() : error_json(&row->error));
        json_array_append_new(rows, object);
    }
    json_t *document = json_object();
    json_object_set_new(document, "strategies", rows);
    return document;
}

/* The first row's error when no strategy fits. */
static enum mf_status verdict(const struct comparison *comparison)
{
    if (comparison->fitting > 0 || comparison->count == 0) {
        return MF_STATUS_OK;
    }
    return mf_status_restore(&comparison->rows[0].error);
}

enum mf_status mf_command_compare_run(struct mf_command_context *context, int argc, char **argv)
{
    struct comparison comparison = {0};
    struct mf_channel *channel = NULL;
    enum mf_status status = MF_STATUS_OK;
    struct mf_command_line line = {
        .context = context,
        .arguments = "MODEL",
        .help = "Every strategy for the model under one budget: predicted step, memory, link "
                "traffic, bound; or why a strategy cannot be. With --strategy only that one.",
        .values_min = 1,
        .values_max = 1,
        .model = &comparison.model};
    mf_command_model_init(&comparison.model);
    mf_command_parse(&line, argc, argv);
    MF_TRY_GOTO(mf_command_model_resolve(&comparison.model, line.values[0]), out);
    MF_TRY_GOTO(mf_command_channel(context, &channel), out);
    mf_command_cancel_on_interrupt(channel);
    MF_TRY_GOTO(ask_all(context, &comparison, comparison.model.effort), out);
    if (context->json) {
        mf_command_print_json(context, comparison_json(&comparison));
    } else {
        mf_render_compare(&context->render, comparison.rows, comparison.count);
    }
    status = verdict(&comparison);
out:
    comparison_reset(&comparison);
    return status;
}

/* The smallest budget that works, which a refusal of an impossible one tells; 0 = unknown. */
static int64_t smallest(struct mf_command_context *context, struct mf_command_model *model,
                        int64_t *budget)
{
    Memferry__V1__GetPlanResponse *got = NULL;
    int64_t kept = *budget;
    int64_t bytes = 0;
    *budget = 1;
    if (mf_command_ask_plan(context, model, MEMFERRY__V1__EFFORT__EFFORT_ESTIMATE, &got) ==
        MF_STATUS_OK) {
        mf_wire_free(got);
    } else {
        const struct mf_error *error = mf_status_error();
        for (size_t i = 0; i < error->number_count; i++) {
            if (strcmp(error->numbers[i].name, "smallest_bytes") == 0) {
                bytes = error->numbers[i].value;
            }
        }
    }
    *budget = kept;
    return bytes;
}

static void print_smallest(struct mf_command_context *context, const char *side, int64_t bytes)
{
    char size[MF_FORMAT_MAX];
    char flag[MF_FORMAT_MAX];
    if (bytes > 0) {
        mf_render_fact(&context->render, "smallest", "%s budget that works: %s (--%s-memory %s)",
                       side, mf_format_bytes(bytes, size), side,
                       mf_command_error_size(bytes, flag));
    }
}

enum mf_status mf_command_compare_estimate(struct mf_command_context *context, int argc,
                                           char **argv)
{
    struct comparison comparison = {0};
    struct mf_command_model *model = &comparison.model;
    enum mf_status status = MF_STATUS_OK;
    struct mf_command_line line = {
        .context = context,
        .arguments = "MODEL",
        .help = "What the model needs and how fast it would be trained, from the machine's rates: "
                "no device is used, no weights are needed, and a preset will do. --effort is "
                "always estimate.",
        .values_min = 1,
        .values_max = 1,
        .model = model};
    mf_command_model_init(model);
    mf_command_parse(&line, argc, argv);
    MF_TRY_GOTO(mf_command_model_resolve(model, line.values[0]), out);
    Memferry__V1__Strategy strategy = model->constraints.strategy;
    MF_TRY_GOTO(ask_all(context, &comparison, MEMFERRY__V1__EFFORT__EFFORT_ESTIMATE), out);
    model->constraints.strategy = strategy;
    int64_t device = smallest(context, model, &model->constraints.device_memory_bytes);
    int64_t host = smallest(context, model, &model->constraints.host_memory_bytes);
    if (context->json) {
        json_t *document = comparison_json(&comparison);
        json_object_set_new(document, "smallest_device_memory_bytes", json_integer(device));
        json_object_set_new(document, "smallest_host_memory_bytes", json_integer(host));
        mf_command_print_json(context, document);
    } else {
        if (comparison.rows[0].got != NULL) {
            mf_render_plan_summary(&context->render, comparison.rows[0].got->plan,
                                   comparison.rows[0].got);
        }
        print_smallest(context, "device", device);
        print_smallest(context, "host", host);
        fputc('\n', context->render.out);
        mf_render_compare(&context->render, comparison.rows, comparison.count);
    }
    status = verdict(&comparison);
out:
    comparison_reset(&comparison);
    return status;
}

static enum mf_status show_plan(struct mf_command_context *context, const char *id,
                                Memferry__V1__ShowPlanResponse **out)
{
    Memferry__V1__ShowPlanRequest request = MEMFERRY__V1__SHOW_PLAN_REQUEST__INIT;
    request.id = (char *)id;
    MF_TRY(mf_command_call(context, &memferry__v1__plan_service__descriptor, "ShowPlan",
                           &request.base, MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)out));
    if ((*out)->plan == NULL) {
        return mf_status_set(MF_STATUS_CORRUPT, "the daemon answered without a plan");
    }
    return MF_STATUS_OK;
}

enum mf_status mf_command_compare_diff(struct mf_command_context *context, int argc, char **argv)
{
    Memferry__V1__ShowPlanResponse *a = NULL;
    Memferry__V1__ShowPlanResponse *b = NULL;
    enum mf_status status = MF_STATUS_OK;
    struct mf_command_line line = {.context = context,
                                   .arguments = "PLAN PLAN",
                                   .help = "The predicted numbers and the decisions in which two "
                                           "plans differ. PLAN is an id or its first digits.",
                                   .values_min = 2,
                                   .values_max = 2};
    mf_command_parse(&line, argc, argv);
    MF_TRY_GOTO(show_plan(context, line.values[0], &a), out);
    MF_TRY_GOTO(show_plan(context, line.values[1], &b), out);
    if (context->json) {
        mf_command_print_json(context, mf_render_compare_diff_json(a->plan, b->plan));
    } else {
        mf_render_compare_diff(&context->render, a->plan, b->plan);
    }
out:
    mf_wire_free(a);
    mf_wire_free(b);
    return status;
}
