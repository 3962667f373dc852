/* plan, explain: see command.h. */
#include "client/command_ask.h"
#include "proto/wire.h"

static error_t parse_all(int key, char *argument, struct argp_state *state, void *input)
{
    (void)argument;
    (void)state;
    if (key != 'a') {
        return ARGP_ERR_UNKNOWN;
    }
    *(bool *)input = true;
    return 0;
}

enum mf_status mf_command_plan_run(struct mf_command_context *context, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"all", 'a', NULL, 0, "A row for every unit instead of one for equal layers", 0}, {0}};
    bool all = false;
    struct mf_command_model model;
    struct mf_channel *channel = NULL;
    Memferry__V1__GetPlanResponse *got = NULL;
    enum mf_status status = MF_STATUS_OK;
    struct mf_command_line line = {
        .context = context,
        .arguments = "MODEL",
        .help = "The fastest training step of the model that fits the memory budget: how every "
                "layer is held, and what that is predicted to cost. Comes from the store when it "
                "is there; what is not measured yet is measured first (--effort).",
        .values_min = 1,
        .values_max = 1,
        .options = options,
        .parse = parse_all,
        .input = &all,
        .model = &model};
    mf_command_model_init(&model);
    mf_command_parse(&line, argc, argv);
    MF_TRY_GOTO(mf_command_model_resolve(&model, line.values[0]), out);
    MF_TRY_GOTO(mf_command_channel(context, &channel), out);
    mf_command_cancel_on_interrupt(channel);
    MF_TRY_GOTO(mf_command_ask_best_plan(context, &model, &got), out);
    if (context->json) {
        mf_command_print_json(context, mf_library_json_encode(&got->base));
    } else {
        mf_render_plan(&context->render, got->plan, got, all);
    }
out:
    mf_wire_free(got);
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
