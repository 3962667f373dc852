/* MODEL and its flags: see command_model.h. */
#include "client/command_model.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "client/library_json.h"
#include "core/format.h"
#include "core/limits.h"

enum {
    KEY_DEVICE_MEMORY = 0x200,
    KEY_HOST_MEMORY,
    KEY_MICRO_BATCH,
    KEY_SEQ_LEN,
    KEY_ACCUMULATION,
    KEY_STRATEGY,
    KEY_EFFORT,
    KEY_PIN,
    KEY_NO_CLIP,
    KEY_HARDWARE,
    KEY_BATCH
};

static const struct argp_option options[] = {
    {NULL, 0, NULL, 0, "Workload:", 10},
    {"micro-batch", KEY_MICRO_BATCH, "N|auto", 0,
     "Sequences in one forward and backward (1); auto tries several and takes the one with the "
     "most "
     "tokens a second: those that divide --batch, else powers of two up to 64",
     0},
    {"seq-len", KEY_SEQ_LEN, "N", 0, "Tokens in one sequence (the model's limit, at most 1024)", 0},
    {"accumulation", KEY_ACCUMULATION, "N", 0, "Micro-batches in one optimizer step (1)", 0},
    {"batch", KEY_BATCH, "N", 0,
     "Sequences in one optimizer step, instead of --accumulation: a multiple of the micro-batch",
     0},
    {"no-clip", KEY_NO_CLIP, NULL, 0, "The update need not wait for the gradient's norm", 0},
    {NULL, 0, NULL, 0, "Budget:", 20},
    {"device-memory", KEY_DEVICE_MEMORY, "SIZE", 0, "As 8GiB, 512MiB (all there is)", 0},
    {"host-memory", KEY_HOST_MEMORY, "SIZE", 0, "As 64GiB (all there is)", 0},
    {NULL, 0, NULL, 0, "Plan:", 30},
    {"strategy", KEY_STRATEGY, "NAME", 0, "auto, resident, stream, zero_offload or memferry (auto)",
     0},
    {"effort", KEY_EFFORT, "HOW", 0,
     "cached: only from the store; estimate: use no device; measure: measure what is missing", 0},
    {"hardware", KEY_HARDWARE, "NAME|FILE", 0,
     "Plan for another machine (memferry ls hardware) or for the one that the file describes "
     "(memferry show hardware --format json); nothing is measured, and no session runs such a plan",
     0},
    {"pin", KEY_PIN, "PATTERN=CHOICES", 0,
     "Hold the units whose name matches the glob in this way: any of "
     "forward:resident|stream|direct, backward:keep|stream|direct|late, "
     "gradient:device|copy|direct, optimizer:cpu|gpu|gpu_stream, with commas between. May be "
     "given more than once",
     0},
    {0},
};

static int32_t parse_count(struct argp_state *state, const char *name, const char *text,
                           long highest)
{
    char *end = NULL;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 1 || value > highest) {
        argp_error(state, "--%s must be a whole number in 1..%ld, not \"%s\"", name, highest, text);
    }
    return (int32_t)value;
}

static int64_t parse_size(struct argp_state *state, const char *name, const char *text)
{
    int64_t bytes = 0;
    if (mf_format_parse_bytes(text, &bytes) != MF_STATUS_OK) {
        argp_error(state, "--%s: %s", name, mf_status_text());
    }
    if (bytes <= 0) {
        argp_error(state, "--%s must be more than nothing", name);
    }
    return bytes;
}

/* A choice by its short name; wrong ones are answered with the whole list. */
static int parse_choice(struct argp_state *state, const char *name, const char *text,
                        const ProtobufCEnumDescriptor *choices)
{
    int value = mf_library_json_enum_value(choices, text);
    if (value > 0) {
        return value;
    }
    char list[256] = "";
    size_t length = 0;
    for (unsigned i = 1; i < choices->n_values; i++) {
        char choice[MF_LIBRARY_JSON_ENUM_MAX];
        length += (size_t)snprintf(list + length, sizeof(list) - length, "%s%s", i > 1 ? ", " : "",
                                   mf_library_json_enum(choices, choices->values[i].value, choice));
    }
    argp_error(state, "--%s \"%s\" is none of %s", name, text, list);
    return 0;
}

/* A whole file as text of the arena. */
static enum mf_status read_text(struct mf_command_model *model, const char *path, off_t bytes,
                                const char *what, char **out)
{
    if (bytes > MF_CONFIG_FILE_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "%s has %lld bytes; %s has at most %lld", path,
                             (long long)bytes, what, (long long)MF_CONFIG_FILE_MAX);
    }
    FILE *file = fopen(path, "rbe");
    if (file == NULL) {
        return mf_status_set(MF_STATUS_IO, "%s: %s", path, strerror(errno));
    }
    *out = mf_arena_alloc(&model->arena, (size_t)bytes + 1, 1);
    size_t count = fread(*out, 1, (size_t)bytes, file);
    fclose(file);
    if (count != (size_t)bytes) {
        return mf_status_set(MF_STATUS_IO, "%s cannot be read whole", path);
    }
    return MF_STATUS_OK;
}

static enum mf_status read_hardware(struct mf_command_model *model, const char *text)
{
    struct stat about;
    if (stat(text, &about) != 0 || !S_ISREG(about.st_mode)) {
        if (strchr(text, '/') != NULL || strstr(text, ".json") != NULL) {
            return mf_status_set(MF_STATUS_NOT_FOUND, "there is no file %s", text);
        }
        model->hardware = mf_arena_string(&model->arena, text);
        return MF_STATUS_OK;
    }
    MF_TRY(read_text(model, text, about.st_size, "a description of a machine", &model->hardware));
    model->hardware += strspn(model->hardware, " \t\r\n");
    if (model->hardware[0] != '{') {
        return mf_status_set(MF_STATUS_INVALID, "%s is no JSON object", text);
    }
    return MF_STATUS_OK;
}

/* What --batch means for a micro-batch that is known. */
static void finish_batch(struct mf_command_model *model, struct argp_state *state)
{
    Memferry__V1__Workload *work = &model->workload;
    int32_t micro_batch = work->micro_batch > 0 ? work->micro_batch : 1;
    if ((model->batch > 0 || model->tune_micro_batch) && work->accumulation > 0) {
        argp_error(state, "--accumulation follows from --batch and --micro-batch: leave it away");
    }
    if (model->batch == 0 || model->tune_micro_batch) {
        return;
    }
    if (model->batch % micro_batch != 0) {
        argp_error(state, "--batch %d is no multiple of the micro-batch, %d", model->batch,
                   micro_batch);
    }
    work->accumulation = model->batch / micro_batch;
    model->batch = 0;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct mf_command_model *model = state->input;
    switch (key) {
    case KEY_MICRO_BATCH:
        model->tune_micro_batch = strcmp(text, "auto") == 0;
        model->workload.micro_batch =
            model->tune_micro_batch ? 0
                                    : parse_count(state, "micro-batch", text, MF_MICRO_BATCH_MAX);
        return 0;
    case KEY_BATCH:
        model->batch = parse_count(state, "batch", text, MF_MICRO_BATCH_MAX);
        return 0;
    case ARGP_KEY_END:
        finish_batch(model, state);
        return 0;
    case KEY_SEQ_LEN:
        model->workload.seq_len = parse_count(state, "seq-len", text, MF_SEQ_LEN_MAX);
        return 0;
    case KEY_ACCUMULATION:
        model->workload.accumulation =
            parse_count(state, "accumulation", text, MF_ACCUMULATION_MAX);
        return 0;
    case KEY_NO_CLIP:
        model->workload.no_clip = true;
        return 0;
    case KEY_DEVICE_MEMORY:
        model->constraints.device_memory_bytes = parse_size(state, "device-memory", text);
        return 0;
    case KEY_HOST_MEMORY:
        model->constraints.host_memory_bytes = parse_size(state, "host-memory", text);
        return 0;
    case KEY_STRATEGY:
        model->constraints.strategy = (Memferry__V1__Strategy)parse_choice(
            state, "strategy", text, &memferry__v1__strategy__descriptor);
        model->strategy_given = true;
        return 0;
    case KEY_EFFORT:
        model->effort = (Memferry__V1__Effort)parse_choice(state, "effort", text,
                                                           &memferry__v1__effort__descriptor);
        return 0;
    case KEY_HARDWARE:
        if (read_hardware(model, text) != MF_STATUS_OK) {
            argp_error(state, "--hardware: %s", mf_status_text());
        }
        return 0;
    case KEY_PIN:
        if (mf_command_model_pin(model, text) != MF_STATUS_OK) {
            argp_error(state, "--pin: %s", mf_status_text());
        }
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp *mf_command_model_argp(void)
{
    static const struct argp argp = {.options = options, .parser = parse_option};
    return &argp;
}

void mf_command_model_init(struct mf_command_model *model)
{
    memset(model, 0, sizeof(*model));
    mf_arena_init(&model->arena);
    memferry__v1__model__init(&model->model);
    memferry__v1__workload__init(&model->workload);
    memferry__v1__constraints__init(&model->constraints);
    model->constraints.pins = model->pins;
    model->hardware = (char *)"";
}

void mf_command_model_reset(struct mf_command_model *model)
{
    mf_arena_reset(&model->arena);
}

enum mf_status mf_command_model_fixed(const struct mf_command_model *model)
{
    return !model->tune_micro_batch
               ? MF_STATUS_OK
               : mf_status_set(MF_STATUS_INVALID,
                               "--micro-batch auto is for plan, compare and estimate: kernels are "
                               "measured for one micro-batch, so give a number");
}

/* "forward:stream" into `pin`. */
static enum mf_status pin_choice(Memferry__V1__Pin *pin, const char *text)
{
    const struct {
        const char *name;
        const ProtobufCEnumDescriptor *choices;
        int *out;
    } kinds[] = {
        {"forward:", &memferry__v1__weight_forward__descriptor, (int *)&pin->forward},
        {"backward:", &memferry__v1__weight_backward__descriptor, (int *)&pin->backward},
        {"gradient:", &memferry__v1__gradient__descriptor, (int *)&pin->gradient},
        {"optimizer:", &memferry__v1__optimizer__descriptor, (int *)&pin->optimizer},
    };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        size_t length = strlen(kinds[i].name);
        if (strncmp(text, kinds[i].name, length) == 0) {
            int value = mf_library_json_enum_value(kinds[i].choices, text + length);
            if (value <= 0) {
                return mf_status_set(MF_STATUS_INVALID, "\"%s\" is no choice for %.*s",
                                     text + length, (int)length - 1, kinds[i].name);
            }
            *kinds[i].out = value;
            return MF_STATUS_OK;
        }
    }
    return mf_status_set(
        MF_STATUS_INVALID,
        "\"%s\" does not begin with forward:, backward:, gradient: or optimizer:", text);
}

enum mf_status mf_command_model_pin(struct mf_command_model *model, const char *text)
{
    const char *equals = strrchr(text, '=');
    if (equals == NULL || equals == text || equals[1] == '\0') {
        return mf_status_set(MF_STATUS_INVALID,
                             "\"%s\" is not of the form PATTERN=forward:stream,...", text);
    }
    if (model->constraints.n_pins == MF_COMMAND_MODEL_PINS_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "at most %d pins", MF_COMMAND_MODEL_PINS_MAX);
    }
    Memferry__V1__Pin *pin = mf_arena_alloc(&model->arena, 1, sizeof(*pin));
    memferry__v1__pin__init(pin);
    pin->pattern = mf_arena_string(&model->arena, text);
    pin->pattern[equals - text] = '\0';
    char *rest = mf_arena_string(&model->arena, equals + 1);
    char *place = NULL;
    for (char *part = strtok_r(rest, ",", &place); part != NULL;
         part = strtok_r(NULL, ",", &place)) {
        MF_TRY(pin_choice(pin, part));
    }
    model->pins[model->constraints.n_pins++] = pin;
    return MF_STATUS_OK;
}

enum mf_status mf_command_model_resolve(struct mf_command_model *model, const char *text)
{
    struct stat about;
    char path[PATH_MAX];
    if (stat(text, &about) == 0 && S_ISDIR(about.st_mode) && realpath(text, path) != NULL) {
        model->model.source_case = MEMFERRY__V1__MODEL__SOURCE_FOLDER;
        model->model.folder = mf_arena_string(&model->arena, path);
        return MF_STATUS_OK;
    }
    if (stat(text, &about) == 0 && S_ISREG(about.st_mode)) {
        model->model.source_case = MEMFERRY__V1__MODEL__SOURCE_CONFIG_JSON;
        return read_text(model, text, about.st_size, "a config.json", &model->model.config_json);
    }
    if (text[0] == '/') {
        /* The daemon may run on another machine, which knows the folder. */
        model->model.source_case = MEMFERRY__V1__MODEL__SOURCE_FOLDER;
        model->model.folder = mf_arena_string(&model->arena, text);
        return MF_STATUS_OK;
    }
    if (strchr(text, '/') != NULL || strstr(text, ".json") != NULL) {
        return mf_status_set(MF_STATUS_NOT_FOUND,
                             "there is no folder or file %s; MODEL is a Hugging Face folder, a "
                             "config.json or a preset (memferry ls models)",
                             text);
    }
    model->model.source_case = MEMFERRY__V1__MODEL__SOURCE_PRESET;
    model->model.preset = mf_arena_string(&model->arena, text);
    return MF_STATUS_OK;
}
