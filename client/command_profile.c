/* profile: see command.h. */
#include <stdlib.h>

#include "client/command_ask.h"
#include "proto/wire.h"

struct options {
    bool again;
    bool counters;
    double seconds;
};

static error_t parse(int key, char *argument, struct argp_state *state, void *input)
{
    struct options *options = input;
    char *end = NULL;
    switch (key) {
    case 'a':
        options->again = true;
        return 0;
    case 'c':
        options->counters = true;
        return 0;
    case 's':
        options->seconds = strtod(argument, &end);
        if (end == argument || *end != '\0' || !(options->seconds > 0)) {
            argp_error(state, "--seconds must be a number above 0, not \"%s\"", argument);
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

enum mf_status mf_command_profile_run(struct mf_command_context *context, int argc, char **argv)
{
    static const struct argp_option argp_options[] = {
        {"again", 'a', NULL, 0, "Measure also what is known", 0},
        {"counters", 'c', NULL, 0,
         "Count also what kernels that use host memory move over the link, by the GPU's counters",
         0},
        {"seconds", 's', "N", 0, "Measure at most so long (60); the rest is estimated", 0},
        {0}};
    struct options options = {0};
    struct mf_command_model model;
    struct mf_channel *channel = NULL;
    Memferry__V1__Profile *profile = NULL;
    enum mf_status status = MF_STATUS_OK;
    struct mf_command_line line = {
        .context = context,
        .arguments = "MODEL",
        .help = "Measures what each layer of the model costs on this machine under every way of "
                "holding its state. What is known is not measured again. Ctrl-C keeps what was "
                "measured.",
        .values_min = 1,
        .values_max = 1,
        .options = argp_options,
        .parse = parse,
        .input = &options,
        .model = &model};
    mf_command_model_init(&model);
    mf_command_parse(&line, argc, argv);
    MF_TRY_GOTO(mf_command_model_resolve(&model, line.values[0]), out);
    MF_TRY_GOTO(mf_command_channel(context, &channel), out);
    mf_command_cancel_on_interrupt(channel);
    MF_TRY_GOTO(mf_command_ask_measure(context, &model, options.seconds, options.again,
                                       options.counters, &profile),
                out);
    if (context->json) {
        mf_command_print_json(context, mf_library_json_encode(&profile->base));
    } else {
        mf_render_profile(&context->render, profile);
    }
out:
    mf_wire_free(profile);
    mf_command_model_reset(&model);
    return status;
}
