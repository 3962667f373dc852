/* plan, explain: see command.h. */
#include <stdlib.h>
#include <string.h>

#include "client/command_ask.h"
#include "client/command_file.h"
#include "proto/wire.h"

#define PLANS (&memferry__v1__plan_service__descriptor)

struct options {
    bool all;
    const char *export_path;
    const char *import_path;
};

enum { KEY_EXPORT = 0x300, KEY_IMPORT };

static error_t parse_plan(int key, char *argument, struct argp_state *state, void *input)
{
    struct options *options = input;
    (void)state;
    switch (key) {
    case 'a':
        options->all = true;
        return 0;
    case KEY_EXPORT:
        options->export_path = argument;
        return 0;
    case KEY_IMPORT:
        options->import_path = argument;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static enum mf_status export_plan(struct mf_command_context *context, const char *id,
                                  const char *path)
{
    Memferry__V1__ExportPlanRequest request = MEMFERRY__V1__EXPORT_PLAN_REQUEST__INIT;
    Memferry__V1__ExportPlanResponse *answer = NULL;
    request.id = (char *)id;
    MF_TRY(mf_command_call(context, PLANS, "ExportPlan", &request.base, MF_LIBRARY_CALL_SHORT_MS,
                           (ProtobufCMessage **)&answer));
    enum mf_status status = mf_command_file_write(path, answer->json);
    if (status == MF_STATUS_OK && !context->quiet) {
        fprintf(stderr, "%s: plan %.12s; memferry plan --import reads it\n", path, answer->id);
    }
    mf_wire_free(answer);
    return status;
}

/* With a MODEL the plan must be for that one. */
static enum mf_status import_plan(struct mf_command_context *context,
                                  struct mf_command_model *model, const struct options *options,
                                  const char *name)
{
    Memferry__V1__ImportPlanRequest request = MEMFERRY__V1__IMPORT_PLAN_REQUEST__INIT;
    Memferry__V1__ImportPlanResponse *answer = NULL;
    char before[MF_FORMAT_MAX];
    char *text = NULL;
    if (name != NULL) {
        MF_TRY(mf_command_model_resolve(model, name));
        request.model = &model->model;
    }
    MF_TRY(mf_command_file_read(options->import_path, &text));
    request.json = text;
    request.hardware = model->hardware;
    enum mf_status status =
        mf_command_call(context, PLANS, "ImportPlan", &request.base, MF_LIBRARY_CALL_NO_LIMIT_MS,
                        (ProtobufCMessage **)&answer);
    free(text);
    MF_TRY(status);
    if (answer->plan == NULL) {
        status = mf_status_set(MF_STATUS_CORRUPT, "the daemon answered without a plan");
    } else if (context->json) {
        mf_command_print_json(context, mf_library_json_encode(&answer->base));
    } else {
        mf_render_plan(&context->render, answer->plan, NULL, options->all);
        mf_render_fact(&context->render, "imported", "predicted %s where it came from",
                       mf_render_time(answer->step_ns_before, before));
    }
    mf_wire_free(answer);
    return status;
}

static enum mf_status make_plan(struct mf_command_context *context, struct mf_command_model *model,
                                const struct options *options, const char *name)
{
    struct mf_channel *channel = NULL;
    Memferry__V1__GetPlanResponse *got = NULL;
    enum mf_status status = MF_STATUS_OK;
    bool to_stdout = options->export_path != NULL && strcmp(options->export_path, "-") == 0;
    MF_TRY(mf_command_model_resolve(model, name));
    MF_TRY(mf_command_channel(context, &channel));
    mf_command_cancel_on_interrupt(channel);
    MF_TRY(mf_command_ask_best_plan(context, model, &got));
    if (context->json && !to_stdout) {
        mf_command_print_json(context, mf_library_json_encode(&got->base));
    } else if (!to_stdout) {
        if (got->n_trials > 0) {
            mf_render_plan_trials(&context->render, got);
            fputc('\n', context->render.out);
        }
        mf_render_plan(&context->render, got->plan, got, options->all);
    }
    if (options->export_path != NULL) {
        status = export_plan(context, got->plan->id, options->export_path);
    }
    mf_wire_free(got);
    return status;
}

enum mf_status mf_command_plan_run(struct mf_command_context *context, int argc, char **argv)
{
    static const struct argp_option argp_options[] = {
        {"all", 'a', NULL, 0, "A row for every unit instead of one for equal layers", 0},
        {"export", KEY_EXPORT, "FILE", 0,
         "Write the plan too, with the model it is for, as JSON; - is standard output", 0},
        {"import", KEY_IMPORT, "FILE", 0,
         "Take over a plan that --export wrote: it is checked against its model (and against MODEL "
         "when that is given), predicted anew for this machine or --hardware, and kept",
         0},
        {0}};
    struct options options = {0};
    struct mf_command_model model;
    struct mf_command_line line = {
        .context = context,
        .arguments = "MODEL\n[MODEL] --import FILE",
        .help = "The fastest training step of the model that fits the memory budget: how every "
                "layer is held, and what that is predicted to cost. Comes from the store when it "
                "is there; what is not measured yet is measured first (--effort).",
        .values_min = 0,
        .values_max = 1,
        .options = argp_options,
        .parse = parse_plan,
        .input = &options,
        .model = &model};
    mf_command_model_init(&model);
    mf_command_parse(&line, argc, argv);
    if (options.import_path != NULL ? options.export_path != NULL : line.value_count == 0) {
        fprintf(stderr, "memferry plan: %s\n",
                options.import_path != NULL ? "give one of --import and --export"
                                            : "an argument is missing: MODEL");
        exit(MF_COMMAND_EXIT_USAGE);
    }
    enum mf_status status = options.import_path != NULL
                                ? import_plan(context, &model, &options, line.values[0])
                                : make_plan(context, &model, &options, line.values[0]);
    mf_command_model_reset(&model);
    return status;
}

enum mf_status mf_command_plan_explain(struct mf_command_context *context, int argc, char **argv)
{
    struct mf_command_line line = {
        .context = context,
        .arguments = "PLAN UNIT",
        .help = "What each alternative for one unit of a plan would cost, all else equal. PLAN is "
                "an id or its first digits (memferry ls plans), UNIT a name as in memferry show "
                "plan --all.",
        .values_min = 2,
        .values_max = 2};
    mf_command_parse(&line, argc, argv);

    Memferry__V1__ExplainPlanRequest request = MEMFERRY__V1__EXPLAIN_PLAN_REQUEST__INIT;
    Memferry__V1__ExplainPlanResponse *answer = NULL;
    request.id = (char *)line.values[0];
    request.unit = (char *)line.values[1];
    MF_TRY(mf_command_call(context, &memferry__v1__plan_service__descriptor, "ExplainPlan",
                           &request.base, MF_LIBRARY_CALL_NO_LIMIT_MS,
                           (ProtobufCMessage **)&answer));
    if (context->json) {
        mf_command_print_json(context, mf_library_json_encode(&answer->base));
    } else {
        mf_render_explain(&context->render, answer);
    }
    mf_wire_free(answer);
    return MF_STATUS_OK;
}
