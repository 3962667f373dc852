/* serve, status, doctor, stop, version: see command.h. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/command.h"
#include "proto/wire.h"

#define HARDWARE (&memferry__v1__hardware_service__descriptor)

enum mf_status mf_command_daemon_serve(struct mf_command_context *context, int argc, char **argv)
{
    (void)argc;
    char path[PATH_MAX + 16];
    ssize_t length = readlink("/proc/self/exe", path, PATH_MAX - 1);
    if (context->host != NULL) {
        setenv("MEMFERRY_HOST", context->host, 1);
    }
    argv[0] = (char *)"memferryd";
    if (length > 0) {
        path[length] = '\0';
        char *slash = strrchr(path, '/');
        snprintf(slash, sizeof(path) - (size_t)(slash - path), "/memferryd");
        if (access(path, X_OK) == 0) {
            execv(path, argv);
        }
    }
    execvp("memferryd", argv);
    return mf_status_set(MF_STATUS_NOT_FOUND,
                         "memferryd cannot be started (%s): it is neither beside this program nor "
                         "in PATH",
                         strerror(errno));
}

enum mf_status mf_command_daemon_status(struct mf_command_context *context, int argc, char **argv)
{
    struct mf_command_line line = {.context = context,
                                   .arguments = "",
                                   .help = "What the daemon is doing, and the machine it runs on."};
    mf_command_parse(&line, argc, argv);

    Memferry__V1__GetStatusRequest status_request = MEMFERRY__V1__GET_STATUS_REQUEST__INIT;
    Memferry__V1__GetHardwareRequest hardware_request = MEMFERRY__V1__GET_HARDWARE_REQUEST__INIT;
    Memferry__V1__GetStatusResponse *answer = NULL;
    Memferry__V1__GetHardwareResponse *hardware = NULL;
    enum mf_status status = MF_STATUS_OK;
    MF_TRY_GOTO(mf_command_call(context, HARDWARE, "GetStatus", &status_request.base,
                                MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&answer),
                out);
    MF_TRY_GOTO(mf_command_call(context, HARDWARE, "GetHardware", &hardware_request.base,
                                MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&hardware),
                out);
    if (context->json) {
        json_t *document = mf_library_json_encode(&answer->base);
        json_object_set_new(document, "hardware",
                            hardware->hardware != NULL
                                ? mf_library_json_encode(&hardware->hardware->base)
                                : json_null());
        mf_command_print_json(context, document);
    } else {
        mf_render_daemon_status(&context->render, answer, hardware->hardware);
    }
out:
    mf_wire_free(answer);
    mf_wire_free(hardware);
    return status;
}

enum mf_status mf_command_daemon_doctor(struct mf_command_context *context, int argc, char **argv)
{
    struct mf_command_line line = {
        .context = context,
        .arguments = "",
        .help = "Checks of the installation: what is good, what could be better, what is bad, each "
                "with what it means for speed and what to do. Exit code 1 when something is bad."};
    mf_command_parse(&line, argc, argv);

    Memferry__V1__DoctorRequest request = MEMFERRY__V1__DOCTOR_REQUEST__INIT;
    Memferry__V1__DoctorResponse *answer = NULL;
    MF_TRY(mf_command_call(context, HARDWARE, "Doctor", &request.base, MF_LIBRARY_CALL_SHORT_MS,
                           (ProtobufCMessage **)&answer));
    int bad = 0;
    for (size_t i = 0; i < answer->n_checks; i++) {
        bad += answer->checks[i]->verdict == MEMFERRY__V1__DOCTOR_CHECK__VERDICT__VERDICT_BAD;
    }
    if (context->json) {
        mf_command_print_json(context, mf_library_json_encode(&answer->base));
    } else {
        mf_render_daemon_doctor(&context->render, answer);
    }
    mf_wire_free(answer);
    if (bad > 0) {
        return mf_status_set(MF_STATUS_UNSUPPORTED, "%d check%s bad", bad,
                             bad == 1 ? " is" : "s are");
    }
    return MF_STATUS_OK;
}

static error_t parse_stop(int key, char *argument, struct argp_state *state, void *input)
{
    (void)argument;
    (void)state;
    if (key != 'f') {
        return ARGP_ERR_UNKNOWN;
    }
    *(bool *)input = true;
    return 0;
}

enum mf_status mf_command_daemon_stop(struct mf_command_context *context, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"force", 'f', NULL, 0, "Cancel the calls in flight instead of waiting for them", 0}, {0}};
    bool force = false;
    struct mf_command_line line = {.context = context,
                                   .arguments = "",
                                   .help = "Ends the daemon after the work in flight. Jobs save a "
                                           "checkpoint first.",
                                   .options = options,
                                   .parse = parse_stop,
                                   .input = &force};
    mf_command_parse(&line, argc, argv);

    Memferry__V1__ShutdownRequest request = MEMFERRY__V1__SHUTDOWN_REQUEST__INIT;
    Memferry__V1__ShutdownResponse *answer = NULL;
    request.force = force;
    MF_TRY(mf_command_call(context, HARDWARE, "Shutdown", &request.base, MF_LIBRARY_CALL_SHORT_MS,
                           (ProtobufCMessage **)&answer));
    mf_wire_free(answer);
    if (!context->quiet) {
        fprintf(stderr, "the daemon ends %s\n", force ? "now" : "when the work in flight is done");
    }
    return MF_STATUS_OK;
}

enum mf_status mf_command_daemon_version(struct mf_command_context *context, int argc, char **argv)
{
    struct mf_command_line line = {
        .context = context,
        .arguments = "",
        .help = "The versions of this program and, when it answers, of the daemon."};
    mf_command_parse(&line, argc, argv);

    Memferry__V1__GetStatusRequest request = MEMFERRY__V1__GET_STATUS_REQUEST__INIT;
    Memferry__V1__GetStatusResponse *answer = NULL;
    enum mf_status status = mf_command_call(context, HARDWARE, "GetStatus", &request.base,
                                            MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&answer);
    bool answered = status == MF_STATUS_OK;
    if (context->json) {
        json_t *document = json_object();
        json_object_set_new(document, "version", json_string(MF_VERSION));
        json_object_set_new(document, "daemon_version",
                            answered ? json_string(answer->version) : json_null());
        mf_command_print_json(context, document);
    } else {
        fprintf(context->render.out, "memferry  %s\nmemferryd %s\n", MF_VERSION,
                answered ? answer->version : "does not answer");
    }
    mf_wire_free(answer);
    return MF_STATUS_OK;
}
