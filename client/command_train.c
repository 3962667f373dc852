/* train, watch: see command.h. Following the job is command_job.c. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "client/command_job.h"
#include "client/command_train_data.h"
#include "core/json.h"

#define RUN_CONFIG_BYTES_MAX (1ll << 20)

struct train_options {
    const char *config;
    const char *resume;
    const char *device_memory;
    const char *host_memory;
    const char *strategy;
    bool detach;
};

enum { KEY_DETACH = 0x300, KEY_RESUME, KEY_DEVICE_MEMORY, KEY_HOST_MEMORY, KEY_STRATEGY };

static error_t parse_train(int key, char *argument, struct argp_state *state, void *input)
{
    struct train_options *options = input;
    int64_t bytes = 0;
    switch (key) {
    case 'c':
        options->config = argument;
        return 0;
    case KEY_RESUME:
        options->resume = argument;
        return 0;
    case 'd':
        options->detach = true;
        return 0;
    case KEY_DEVICE_MEMORY:
    case KEY_HOST_MEMORY:
        if (mf_format_parse_bytes(argument, &bytes) != MF_STATUS_OK) {
            argp_error(state, "%s", mf_status_text());
        }
        *(key == KEY_DEVICE_MEMORY ? &options->device_memory : &options->host_memory) = argument;
        return 0;
    case KEY_STRATEGY:
        options->strategy = argument;
        return 0;
    case ARGP_KEY_END:
        if (options->config == NULL) {
            argp_error(state, "-c FILE is needed");
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void override(json_t *config, const char *key, const char *value)
{
    json_t *block = json_object_get(config, "memferry");
    if (value == NULL) {
        return;
    }
    if (!json_is_object(block)) {
        block = json_object();
        json_object_set_new(config, "memferry", block);
    }
    json_object_set_new(block, key, json_string(value));
}

/* The config as text, with what the command line says about it; malloc'ed. `folder` gets the
 * absolute folder of the file: relative paths in it start there. */
static enum mf_status read_config(const struct train_options *options, bool quiet,
                                  char folder[static PATH_MAX], int64_t *print_every, char **out)
{
    json_t *config = NULL;
    if (realpath(options->config, folder) == NULL) {
        return mf_status_set(errno == ENOENT ? MF_STATUS_NOT_FOUND : MF_STATUS_IO, "%s: %s",
                             options->config, strerror(errno));
    }
    MF_TRY(mf_json_load(folder, RUN_CONFIG_BYTES_MAX, &config));
    *strrchr(folder, '/') = '\0';
    if (folder[0] == '\0') {
        snprintf(folder, PATH_MAX, "/");
    }
    if (!json_is_object(config)) {
        json_decref(config);
        return mf_status_set(MF_STATUS_INVALID, "%s must hold a JSON object", options->config);
    }
    enum mf_status status = mf_command_train_data_prepare(config, folder, quiet);
    if (status != MF_STATUS_OK) {
        json_decref(config);
        return status;
    }
    override(config, "device_memory", options->device_memory);
    override(config, "host_memory", options->host_memory);
    override(config, "strategy", options->strategy);
    *print_every = json_integer_value(json_object_get(config, "steps_per_print"));
    *out = json_dumps(config, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(config);
    MF_ASSERT(*out != NULL);
    return MF_STATUS_OK;
}

static enum mf_status resolve_resume(const char *text, char path[static PATH_MAX])
{
    if (text == NULL || strcmp(text, "latest") == 0) {
        snprintf(path, PATH_MAX, "%s", text != NULL ? text : "");
        return MF_STATUS_OK;
    }
    if (realpath(text, path) == NULL) {
        return mf_status_set(MF_STATUS_NOT_FOUND, "--resume %s: %s", text, strerror(errno));
    }
    return MF_STATUS_OK;
}

enum mf_status mf_command_train_run(struct mf_command_context *context, int argc, char **argv)
{
    static const struct argp_option argp_options[] = {
        {"config", 'c', "FILE", 0, "The run config (docs/RUNS.md)", 0},
        {"resume", KEY_RESUME, "latest|DIR", 0,
         "Go on from the newest complete checkpoint of the run folder, or from this one", 0},
        {"detach", 'd', NULL, 0, "Leave the job to the daemon once it runs; prints its id", 0},
        {"device-memory", KEY_DEVICE_MEMORY, "SIZE", 0, "Instead of what the config says", 0},
        {"host-memory", KEY_HOST_MEMORY, "SIZE", 0, "Instead of what the config says", 0},
        {"strategy", KEY_STRATEGY, "NAME", 0, "Instead of what the config says", 0},
        {0}};
    struct train_options options = {0};
    struct mf_command_job job = {.context = context, .method = "Run", .stoppable = true};
    struct mf_command_line line = {
        .context = context,
        .arguments = "",
        .help = "Runs a training job in the daemon and follows it: the plan, a line a step, "
                "checkpoints, samples. Ctrl-C stops the job after its present step and saves a "
                "checkpoint; a second Ctrl-C leaves the job running. With --format json one "
                "object a line, as RunResponse in training.proto.",
        .options = argp_options,
        .parse = parse_train,
        .input = &options};
    mf_command_parse(&line, argc, argv);

    Memferry__V1__RunRequest request = MEMFERRY__V1__RUN_REQUEST__INIT;
    char folder[PATH_MAX];
    char resume[PATH_MAX];
    char *config = NULL;
    MF_TRY(resolve_resume(options.resume, resume));
    MF_TRY(read_config(&options, context->quiet, folder, &job.print_every, &config));
    job.detach = options.detach;
    request.config_json = config;
    request.base_folder = folder;
    request.resume = resume;
    job.request = &request.base;
    enum mf_status status = mf_command_job_follow(&job);
    free(config);
    return status;
}

enum mf_status mf_command_train_watch(struct mf_command_context *context, int argc, char **argv)
{
    struct mf_command_job job = {.context = context, .method = "Watch"};
    struct mf_command_line line = {
        .context = context,
        .arguments = "SESSION",
        .help = "Follows a job that runs in the daemon. Ctrl-C ends only the watching.",
        .values_min = 1,
        .values_max = 1};
    mf_command_parse(&line, argc, argv);

    Memferry__V1__WatchRequest request = MEMFERRY__V1__WATCH_REQUEST__INIT;
    request.session_id = (char *)line.values[0];
    job.request = &request.base;
    return mf_command_job_follow(&job);
}
