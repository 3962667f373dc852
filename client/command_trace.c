/* trace: the last work of a session as a file that Perfetto opens. See command.h. */
#include "client/command.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/format.h"
#include "memferry/v1/training.pb-c.h"
#include "proto/wire.h"

struct trace_options {
    const char *output;
};

static error_t parse_trace(int key, char *argument, struct argp_state *state, void *input)
{
    struct trace_options *options = input;
    switch (key) {
    case 'o':
        options->output = argument;
        return 0;
    case ARGP_KEY_END:
        if (options->output == NULL) {
            argp_error(state, "-o FILE is needed");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The pieces into `file`; the first failure of either side ends it. */
static enum mf_status receive(struct mf_command_context *context,
                              const Memferry__V1__GetTraceRequest *request, FILE *file,
                              const char *path, int64_t *bytes)
{
    struct mf_library_call_stream stream;
    ProtobufCMessage *reply = NULL;
    MF_TRY(mf_library_call_open(context->channel, &memferry__v1__training_service__descriptor,
                                "GetTrace", &request->base, &stream));
    enum mf_status status = mf_library_call_next(&stream, &reply);
    while (status == MF_STATUS_OK && reply != NULL) {
        const ProtobufCBinaryData *json = &((Memferry__V1__GetTraceResponse *)reply)->json;
        if (fwrite(json->data, 1, json->len, file) != json->len) {
            status = mf_status_set(MF_STATUS_IO, "cannot write %s: %s", path, strerror(errno));
        }
        *bytes += (int64_t)json->len;
        mf_wire_free(reply);
        reply = NULL;
        if (status == MF_STATUS_OK) {
            status = mf_library_call_next(&stream, &reply);
        }
    }
    mf_wire_free(reply);
    mf_library_call_close(&stream);
    return status;
}

enum mf_status mf_command_trace_run(struct mf_command_context *context, int argc, char **argv)
{
    static const struct argp_option argp_options[] = {
        {"output", 'o', "FILE", 0, "Where to write it (needed); - is standard output", 0}, {0}};
    struct trace_options options = {0};
    struct mf_command_line line = {
        .context = context,
        .arguments = "SESSION",
        .help = "Writes the last work of an open session or job as a Chrome trace: a track for "
                "each lane, as predicted and as measured. Open it at ui.perfetto.dev or "
                "chrome://tracing.",
        .options = argp_options,
        .parse = parse_trace,
        .input = &options,
        .values_min = 1,
        .values_max = 1};
    char shown[MF_FORMAT_MAX];
    int64_t bytes = 0;
    mf_command_parse(&line, argc, argv);
    bool to_stdout = strcmp(options.output, "-") == 0;
    MF_TRY(mf_command_channel(context, &context->channel));
    FILE *file = to_stdout ? stdout : fopen(options.output, "wbe");
    if (file == NULL) {
        return mf_status_set(MF_STATUS_IO, "cannot write %s: %s", options.output, strerror(errno));
    }
    Memferry__V1__GetTraceRequest request = MEMFERRY__V1__GET_TRACE_REQUEST__INIT;
    request.session_id = (char *)line.values[0];
    enum mf_status status = receive(context, &request, file, options.output, &bytes);
    if (fflush(file) != 0 && status == MF_STATUS_OK) {
        status =
            mf_status_set(MF_STATUS_IO, "cannot write %s: %s", options.output, strerror(errno));
    }
    if (!to_stdout) {
        fclose(file);
    }
    if (status != MF_STATUS_OK && !to_stdout) {
        unlink(options.output); /* half a trace opens nowhere */
    } else if (status == MF_STATUS_OK && !context->quiet) {
        fprintf(stderr, "%s: %s; open it at ui.perfetto.dev\n", options.output,
                mf_format_bytes(bytes, shown));
    }
    return status;
}
