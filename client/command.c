/* The table of verbs, what their command lines share, and the end of the program: see command.h. */
#include "client/command.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "client/command_model.h"

#define VERBS_MAX 32

static const struct mf_command commands[] = {
    {"serve", "start the daemon in the foreground", mf_command_daemon_serve},
    {"status", "the daemon and its machine", mf_command_daemon_status},
    {"doctor", "check the installation and say what costs speed", mf_command_daemon_doctor},
    {"estimate", "what a model needs and how fast it would be, measuring nothing",
     mf_command_compare_estimate},
    {"profile", "measure a model's layers on this machine", mf_command_profile_run},
    {"plan", "the fastest training step that fits the memory budget", mf_command_plan_run},
    {"compare", "all strategies for a model side by side", mf_command_compare_run},
    {"explain", "why a unit is held as it is, and what else would cost", mf_command_plan_explain},
    {"diff", "two plans against each other", mf_command_compare_diff},
    {"tokenize", "make a token file of text or conversations", mf_command_tokenize_run},
    {"train", "run a training job and follow it", mf_command_train_run},
    {"watch", "follow a job that runs", mf_command_train_watch},
    {"trace", "write what a session last did, lane by lane", mf_command_trace_run},
    {"ps", "sessions and jobs that run", mf_command_list_ps},
    {"ls", "list models, profiles, plans, sessions or hardware", mf_command_list_ls},
    {"show", "one profile, plan, session or machine", mf_command_show_run},
    {"rm", "forget a plan or a profile, end a session", mf_command_show_rm},
    {"stop", "end the daemon", mf_command_daemon_stop},
    {"version", "versions of the program and the daemon", mf_command_daemon_version},
    {NULL, NULL, NULL},
};

const struct mf_command *mf_command_table(void)
{
    return commands;
}

enum { KEY_HOST = 0x100, KEY_FORMAT, KEY_NO_HEADER };

static const struct argp_option global_options[] = {
    {NULL, 0, NULL, 0, "Everywhere:", 90},
    {"host", KEY_HOST, "ADDRESS", 0,
     "The daemon's address: unix:/path or host:port ($MEMFERRY_HOST)", 0},
    {"format", KEY_FORMAT, "table|json", 0, "How results are written (table)", 0},
    {"no-header", KEY_NO_HEADER, NULL, 0, "Tables without their titles", 0},
    {"quiet", 'q', NULL, 0, "No progress", 0},
    {"verbose", 'v', NULL, 0, "Tell which calls are made and how long they take", 0},
    {NULL, 'h', NULL, OPTION_HIDDEN, NULL, -1},
    {0},
};

static error_t parse_global(int key, char *argument, struct argp_state *state)
{
    struct mf_command_context *context = state->input;
    switch (key) {
    case KEY_HOST:
        context->host = argument;
        return 0;
    case KEY_FORMAT:
        if (strcmp(argument, "json") != 0 && strcmp(argument, "table") != 0) {
            argp_error(state, "--format must be table or json, not \"%s\"", argument);
        }
        context->json = strcmp(argument, "json") == 0;
        return 0;
    case KEY_NO_HEADER:
        context->render.header = false;
        return 0;
    case 'q':
        context->quiet = true;
        return 0;
    case 'v':
        context->verbose = true;
        return 0;
    case 'h':
        argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp global_argp = {.options = global_options, .parser = parse_global};

static error_t parse_line(int key, char *argument, struct argp_state *state)
{
    struct mf_command_line *line = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = line->context;
        if (line->model != NULL) {
            state->child_inputs[1] = line->model;
        }
        return 0;
    case ARGP_KEY_ARG:
        if (line->value_count == line->values_max) {
            argp_error(state, "\"%s\" is one argument too many", argument);
        }
        line->values[line->value_count++] = argument;
        return 0;
    case ARGP_KEY_END:
        if (line->value_count < line->values_min) {
            argp_error(state, "an argument is missing");
        }
        if (line->parse != NULL) {
            line->parse(key, NULL, state, line->input);
        }
        return 0;
    default:
        return line->parse != NULL ? line->parse(key, argument, state, line->input)
                                   : ARGP_ERR_UNKNOWN;
    }
}

void mf_command_parse(struct mf_command_line *line, int argc, char **argv)
{
    static const struct argp_option no_options[] = {{0}};
    struct argp_child children[] = {
        {&global_argp, 0, NULL, 0},
        {line->model != NULL ? mf_command_model_argp() : NULL, 0, NULL, 0},
        {NULL, 0, NULL, 0},
    };
    const struct argp argp = {.options = line->options != NULL ? line->options : no_options,
                              .parser = parse_line,
                              .args_doc = line->arguments,
                              .doc = line->help,
                              .children = children};
    MF_ASSERT(line->values_max <= MF_COMMAND_VALUES_MAX);
    argp_parse(&argp, argc, argv, 0, NULL, line);
}

struct verb_line {
    struct mf_command_context *context;
    int verb; /* index in argv; 0 = none */
};

static error_t parse_verb(int key, char *argument, struct argp_state *state)
{
    struct verb_line *line = state->input;
    (void)argument;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = line->context;
        return 0;
    case ARGP_KEY_ARG:
        /* The rest belongs to the verb's own parser. */
        line->verb = state->next - 1;
        state->next = state->argc;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The help below the options: made from the tables, so that it cannot fall behind them. */
static char *filter_help(int key, const char *text, void *input)
{
    (void)input;
    if (key != ARGP_KEY_HELP_POST_DOC && key != ARGP_KEY_HELP_PRE_DOC) {
        return (char *)text;
    }
    char *made = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&made, &length);
    MF_ASSERT(out != NULL);
    if (key == ARGP_KEY_HELP_PRE_DOC) {
        fputs("Plans and runs the training of models that are larger than the device's memory.\n\n",
              out);
        for (const struct mf_command *verb = commands; verb->name != NULL; verb++) {
            fprintf(out, "  %-10s %s\n", verb->name, verb->summary);
        }
    } else {
        fputs("memferry VERB --help tells more of a verb. MODEL is a Hugging Face folder, a\n"
              "config.json or the name of a preset (memferry ls models).\n\nExit codes:\n",
              out);
#define X(name, code, sentence) fprintf(out, "  %d  %s\n", code, sentence);
        MF_COMMAND_EXIT_MAP(X)
#undef X
    }
    fclose(out);
    return made;
}

static void context_init(struct mf_command_context *context)
{
    memset(context, 0, sizeof(*context));
    const char *kind = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");
    bool terminal = isatty(STDOUT_FILENO) != 0;
    struct winsize size;
    context->render.out = stdout;
    context->render.header = true;
    context->render.now_unix_s = (int64_t)time(NULL);
    context->render.colour = terminal && (no_color == NULL || no_color[0] == '\0') &&
                             (kind == NULL || strcmp(kind, "dumb") != 0);
    if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) {
        context->render.width = size.ws_col;
    }
}

static const struct mf_command *find_command(const char *name)
{
    const char *names[VERBS_MAX];
    size_t count = 0;
    for (const struct mf_command *verb = commands; verb->name != NULL; verb++) {
        if (strcmp(verb->name, name) == 0) {
            return verb;
        }
        MF_ASSERT(count < VERBS_MAX);
        names[count++] = verb->name;
    }
    const char *nearest = mf_format_nearest(name, names, count);
    fprintf(stderr, "memferry: there is no verb \"%s\"%s%s%s\n", name,
            nearest != NULL ? "; did you mean \"" : "", nearest != NULL ? nearest : "",
            nearest != NULL ? "\"?" : "");
    fputs("Try `memferry --help' for all verbs.\n", stderr);
    return NULL;
}

static int finish(struct mf_command_context *context, enum mf_status status)
{
    int code = MF_COMMAND_EXIT_OK;
    if (status != MF_STATUS_OK) {
        struct mf_error error = *mf_status_error();
        error.status = status;
        fflush(stdout);
        mf_command_error_print(&error, stderr);
        code = (int)mf_command_error_exit(&error);
    }
    mf_channel_close(context->channel);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fputs("memferry: the output could not be written\n", stderr);
        code = code == MF_COMMAND_EXIT_OK ? MF_COMMAND_EXIT_FAILED : code;
    }
    return code;
}

int mf_command_main(int argc, char **argv)
{
    const struct argp_child children[] = {{&global_argp, 0, NULL, 0}, {NULL, 0, NULL, 0}};
    const struct argp argp = {.parser = parse_verb,
                              .args_doc = "VERB [ARGUMENT...]",
                              .doc = "\v", /* both parts come from filter_help() */
                              .children = children,
                              .help_filter = filter_help};
    struct mf_command_context context;
    struct verb_line line = {.context = &context};
    context_init(&context);
    argp_err_exit_status = MF_COMMAND_EXIT_USAGE;
    argp_program_version = "memferry " MF_VERSION;
    argv[0] = (char *)"memferry";
    argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &line);

    const struct mf_command *verb = find_command(argv[line.verb]);
    if (verb == NULL) {
        return MF_COMMAND_EXIT_USAGE;
    }
    char name[64];
    snprintf(name, sizeof(name), "memferry %s", verb->name);
    argv[line.verb] = name;
    return finish(&context, verb->run(&context, argc - line.verb, argv + line.verb));
}

enum mf_status mf_command_channel(struct mf_command_context *context, struct mf_channel **out)
{
    if (context->channel == NULL) {
        MF_TRY(mf_channel_open(context->host, &context->channel));
        if (context->verbose) {
            fprintf(stderr, "memferry: the daemon's address is %s\n",
                    mf_channel_address(context->channel));
        }
    }
    *out = context->channel;
    return MF_STATUS_OK;
}

enum mf_status mf_command_call(struct mf_command_context *context,
                               const ProtobufCServiceDescriptor *service, const char *method,
                               const ProtobufCMessage *request, int64_t deadline_ms,
                               ProtobufCMessage **reply)
{
    struct mf_channel *channel = NULL;
    struct timespec begin, end;
    MF_TRY(mf_command_channel(context, &channel));
    clock_gettime(CLOCK_MONOTONIC, &begin);
    enum mf_status status =
        mf_library_call_unary(channel, service, method, request, deadline_ms, reply);
    clock_gettime(CLOCK_MONOTONIC, &end);
    if (context->verbose) {
        double ms = (double)(end.tv_sec - begin.tv_sec) * 1e3 +
                    (double)(end.tv_nsec - begin.tv_nsec) * 1e-6;
        fprintf(stderr, "memferry: %s took %.1f ms: %s\n", method, ms, mf_status_name(status));
    }
    return status;
}

void mf_command_print_json(const struct mf_command_context *context, json_t *owned)
{
    json_dumpf(owned, context->render.out, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    fputc('\n', context->render.out);
    json_decref(owned);
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

void mf_command_cancel_on_interrupt(struct mf_channel *channel)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    mf_channel_set_cancel(channel, &interrupted);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}
