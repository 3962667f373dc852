/*
 * The verbs of the program memferry: a table, what they share, and how they end.
 *
 * What: each verb parses its arguments with argp (help comes from the parser), asks the daemon and
 *   prints: results on stdout, progress and errors on stderr.
 * Who calls it: memferry.c. Owner: the context belongs to mf_command_main(); messages that a verb
 *   receives are its own. Thread: the main one, except where a verb says so. Fails: a verb returns
 *   the status of what failed with its text set; mf_command_main() prints it and gives the exit
 *   code: see MF_COMMAND_EXIT_MAP.
 */
#ifndef MF_CLIENT_COMMAND_H
#define MF_CLIENT_COMMAND_H

#include <argp.h>
#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "client/channel.h"
#include "client/library_call.h"
#include "client/render.h"
#include "core/status.h"

#define MF_COMMAND_EXIT_MAP(X)                                                                     \
    X(OK, 0, "it worked")                                                                          \
    X(FAILED, 1, "it failed, or was stopped before its end")                                       \
    X(USAGE, 2, "the command line is wrong")                                                       \
    X(NO_DAEMON, 3, "no daemon answers")                                                           \
    X(NOT_FOUND, 4, "no such model, plan, profile or session")                                     \
    X(NO_FIT, 5, "it does not fit into device or host memory")                                     \
    X(BUSY, 6, "the daemon is full at the moment")

enum mf_command_exit {
#define X(name, code, sentence) MF_COMMAND_EXIT_##name = code,
    MF_COMMAND_EXIT_MAP(X)
#undef X
};

struct mf_command_context {
    const char *host; /* NULL = mf_address_default() */
    bool json;
    bool quiet;
    bool verbose;
    struct mf_render render;    /* stdout */
    struct mf_channel *channel; /* opened by mf_command_channel() */
};

struct mf_command {
    const char *name;
    const char *summary;
    enum mf_status (*run)(struct mf_command_context *context, int argc, char **argv);
};

/* Returns the exit code. `argv` is changed. */
int mf_command_main(int argc, char **argv);
/* The verbs, in the order of the help; the last has no name. */
const struct mf_command *mf_command_table(void);

#define MF_COMMAND_VALUES_MAX 3

/* What a verb's command line may hold; the global options come with it. */
struct mf_command_line {
    struct mf_command_context *context;
    const char *arguments; /* "MODEL" for the usage line */
    const char *help;      /* sentences; after \v what stands below the options */
    int values_min, values_max;
    const struct argp_option *options; /* NULL = none of its own */
    error_t (*parse)(int key, char *argument, struct argp_state *state, void *input);
    void *input;
    struct mf_command_model *model; /* takes the flags of workload and budget; NULL = none */
    const char *values[MF_COMMAND_VALUES_MAX];
    int value_count;
};

/* Fills `line`; a wrong command line ends the process with exit code 2, --help with 0. */
void mf_command_parse(struct mf_command_line *line, int argc, char **argv);

/* The open channel of this process. */
enum mf_status mf_command_channel(struct mf_command_context *context,
                                  struct mf_channel **out) MF_MUST_USE;
/* A unary call: see mf_library_call_unary(). With --verbose it tells how long it took. */
enum mf_status mf_command_call(struct mf_command_context *context,
                               const ProtobufCServiceDescriptor *service, const char *method,
                               const ProtobufCMessage *request, int64_t deadline_ms,
                               ProtobufCMessage **reply) MF_MUST_USE;
/* Prints `message` as one JSON document. */
void mf_command_print_json(const struct mf_command_context *context, json_t *owned);

/* While calls run, Ctrl-C cancels them instead of ending the process. */
void mf_command_cancel_on_interrupt(struct mf_channel *channel);

/* command_error.c: the exit code of an error, and its text for a person. */
enum mf_command_exit mf_command_error_exit(const struct mf_error *error);
void mf_command_error_print(const struct mf_error *error, FILE *out);
/* "1229MiB": a value for --device-memory that is not less than `bytes`. Returns `out`. */
const char *mf_command_error_size(int64_t bytes, char out[static MF_FORMAT_MAX]);

/* command_*.c: one function a verb. */
enum mf_status mf_command_daemon_serve(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_daemon_status(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_daemon_doctor(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_daemon_stop(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_daemon_version(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_profile_run(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_plan_run(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_plan_explain(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_compare_run(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_compare_estimate(struct mf_command_context *context, int argc,
                                           char **argv);
enum mf_status mf_command_compare_diff(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_train_run(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_train_watch(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_tokenize_run(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_trace_run(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_list_ps(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_list_ls(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_show_run(struct mf_command_context *context, int argc, char **argv);
enum mf_status mf_command_show_rm(struct mf_command_context *context, int argc, char **argv);

#endif
