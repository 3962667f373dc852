/* profile: see command.h. */
#include <stdlib.h>

#include "client/command_ask.h"
#include "client/command_file.h"
#include "proto/wire.h"

#define PROFILES (&memferry__v1__profile_service__descriptor)

struct options {
    bool again;
    bool counters;
    double seconds;
    const char *export_path;
    const char *import_path;
};

enum { KEY_EXPORT = 0x300, KEY_IMPORT };

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

static enum mf_status export_profile(struct mf_command_context *context, const char *hardware,
                                     const char *path)
{
    Memferry__V1__ExportProfileRequest request = MEMFERRY__V1__EXPORT_PROFILE_REQUEST__INIT;
    Memferry__V1__ExportProfileResponse *answer = NULL;
    request.hardware = (char *)hardware;
    MF_TRY(mf_command_call(context, PROFILES, "ExportProfile", &request.base,
                           MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&answer));
    enum mf_status status = mf_command_file_write(path, answer->json);
    if (status == MF_STATUS_OK && !context->quiet) {
        fprintf(stderr, "%s: a machine with %d measurements; memferry profile --import reads it\n",
                path, answer->measurement_count);
    }
    mf_wire_free(answer);
    return status;
}

static enum mf_status import_profile(struct mf_command_context *context, const char *path)
{
    Memferry__V1__ImportProfileRequest request = MEMFERRY__V1__IMPORT_PROFILE_REQUEST__INIT;
    Memferry__V1__ImportProfileResponse *answer = NULL;
    char *text = NULL;
    MF_TRY(mf_command_file_read(path, &text));
    request.json = text;
    enum mf_status status = mf_command_call(context, PROFILES, "ImportProfile", &request.base,
                                            MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&answer);
    free(text);
    MF_TRY(status);
    if (context->json) {
        mf_command_print_json(context, mf_library_json_encode(&answer->base));
    } else {
        fprintf(context->render.out,
                "%s: %d measurements of %s; memferry plan MODEL --hardware %s\n",
                answer->hardware->name, answer->measurement_count, answer->hardware->device_name,
                answer->hardware->name);
    }
    mf_wire_free(answer);
    return MF_STATUS_OK;
}

static enum mf_status measure(struct mf_command_context *context, struct mf_command_model *model,
                              const struct options *options, const char *name)
{
    struct mf_channel *channel = NULL;
    Memferry__V1__Profile *profile = NULL;
    MF_TRY(mf_command_model_resolve(model, name));
    MF_TRY(mf_command_channel(context, &channel));
    mf_command_cancel_on_interrupt(channel);
    MF_TRY(mf_command_ask_measure(context, model, options->seconds, options->again,
                                  options->counters, &profile));
    if (context->json) {
        mf_command_print_json(context, mf_library_json_encode(&profile->base));
    } else {
        mf_render_profile(&context->render, profile);
    }
    mf_wire_free(profile);
    return MF_STATUS_OK;
}

/* Ends the process with exit code 2 when what was asked for does not go together. */
static void check(const struct mf_command_line *line, const struct options *options)
{
    int asked =
        (line->value_count > 0) + (options->export_path != NULL) + (options->import_path != NULL);
    const char *wrong =
        asked != 1 ? "give one of MODEL, --export FILE and --import FILE"
        : line->model->hardware[0] != '\0' && options->export_path == NULL
            ? "only --export takes --hardware: another machine cannot be measured from here"
            : NULL;
    if (wrong != NULL) {
        fprintf(stderr, "memferry profile: %s\n", wrong);
        exit(MF_COMMAND_EXIT_USAGE);
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
        {"export", KEY_EXPORT, "FILE", 0,
         "Write this machine (or --hardware NAME) and all that was measured on it; - is standard "
         "output",
         0},
        {"import", KEY_IMPORT, "FILE", 0,
         "Take over what --export wrote on another machine, so that plans for that machine rest on "
         "its measurements",
         0},
        {0}};
    struct options options = {0};
    struct mf_command_model model;
    struct mf_command_line line = {
        .context = context,
        .arguments = "MODEL\n--export FILE\n--import FILE",
        .help = "Measures what each layer of the model costs on this machine under every way of "
                "holding its state. What is known is not measured again. Ctrl-C keeps what was "
                "measured.",
        .values_min = 0,
        .values_max = 1,
        .options = argp_options,
        .parse = parse,
        .input = &options,
        .model = &model};
    mf_command_model_init(&model);
    mf_command_parse(&line, argc, argv);
    check(&line, &options);
    enum mf_status status =
        options.export_path != NULL   ? export_profile(context, model.hardware, options.export_path)
        : options.import_path != NULL ? import_profile(context, options.import_path)
                                      : measure(context, &model, &options, line.values[0]);
    mf_command_model_reset(&model);
    return status;
}
