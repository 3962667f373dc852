/* Reading run configs, our own block and what belongs together: see run_config.h. */
#include "server/run_config_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/format.h"
#include "core/json.h"
#include "core/limits.h"

#define WHERE "memferry"

void mf_run_config_init(struct mf_run_config *config)
{
    *config = (struct mf_run_config){
        .seed = 1,
        .shuffle = true,
        .workload = {.micro_batch = 1, .accumulation = 1, .clip = true},
        .adam = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .clip_norm = 1, .skip_nonfinite = true},
        .schedule = {.kind = MF_SCHEDULE_CONSTANT, .peak = 5e-5},
        .strategy = MF_STRATEGY_AUTO,
        .effort = MF_EFFORT_MEASURE,
        .plan_id = "",
        .logging_steps = 1,
        .skipped_max = 20,
        .sample_prompt = "",
        .sample_temperature = 0.8,
        .sample_top_k = 40,
    };
    mf_arena_init(&config->arena);
}

void mf_run_config_reset(struct mf_run_config *config)
{
    mf_arena_reset(&config->arena);
    memset(config, 0, sizeof(*config));
}

void mf_run_config_warn(struct mf_run_config *config, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (config->warning_count < MF_RUN_WARNINGS_MAX) {
        config->warnings[config->warning_count++] = mf_arena_string(&config->arena, text);
    }
}

static enum mf_status read_data(struct mf_run_config *config, const json_t *block, const char *base)
{
    static const char *const keys[] = {"paths", "format", "validation", "shuffle", "seed"};
    const json_t *data = json_object_get(block, "data");
    const char *format = "auto";
    int64_t seed = (int64_t)config->seed;
    MF_TRY(mf_json_require(block, WHERE, "data"));
    MF_TRY(mf_json_only(data, "memferry.data", keys, 5));
    MF_TRY(mf_json_require(data, "memferry.data", "paths"));
    MF_TRY(mf_run_config_path_list(config, json_object_get(data, "paths"), "memferry.data", "paths",
                                   base, &config->data_paths, &config->data_path_count));
    const json_t *validation = json_object_get(data, "validation");
    if (validation != NULL) {
        MF_TRY(mf_run_config_path_list(config, validation, "memferry.data", "validation", base,
                                       &config->validation_paths, &config->validation_path_count));
    }
    MF_TRY(mf_json_string(data, "memferry.data", "format", &format));
    MF_TRY(mf_json_bool(data, "memferry.data", "shuffle", &config->shuffle));
    MF_TRY(mf_json_int(data, "memferry.data", "seed", 0, INT64_MAX, &seed));
    config->data_seed = (uint64_t)seed;
    int found = mf_tokens_parse_format(format);
    if (found < 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "memferry.data: \"format\" must be auto, bytes, llmc, raw_u16 or "
                             "raw_u32, found \"%s\"",
                             format);
    }
    config->data_format = (enum mf_tokens_format)found;
    return MF_STATUS_OK;
}

static enum mf_status read_schedule(struct mf_run_config *config, const json_t *block)
{
    static const char *const keys[] = {"type", "warmup_steps", "decay_steps", "min_ratio"};
    const json_t *schedule = json_object_get(block, "schedule");
    const char *type = mf_schedule_name(config->schedule.kind);
    if (schedule == NULL) {
        return MF_STATUS_OK;
    }
    MF_TRY(mf_json_only(schedule, "memferry.schedule", keys, 4));
    MF_TRY(mf_json_string(schedule, "memferry.schedule", "type", &type));
    int kind = mf_schedule_parse(type);
    if (kind < 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "memferry.schedule: \"type\" must be constant, "
                             "linear, cosine or wsd, found \"%s\"",
                             type);
    }
    config->schedule.kind = (enum mf_schedule_kind)kind;
    MF_TRY(mf_json_int(schedule, "memferry.schedule", "warmup_steps", 0, 1ll << 40,
                       &config->schedule.warmup_steps));
    MF_TRY(mf_json_int(schedule, "memferry.schedule", "decay_steps", 0, 1ll << 40,
                       &config->schedule.decay_steps));
    return mf_json_number(schedule, "memferry.schedule", "min_ratio", 0, 1,
                          &config->schedule.floor);
}

static enum mf_status read_choice(const json_t *pin, const char *where, const char *key,
                                  int (*parse)(const char *), int *out)
{
    const char *text = NULL;
    *out = -1;
    MF_TRY(mf_json_string(pin, where, key, &text));
    if (text != NULL && (*out = parse(text)) < 0) {
        return mf_status_set(MF_STATUS_INVALID, "%s: \"%s\" cannot be \"%s\"", where, key, text);
    }
    return MF_STATUS_OK;
}

static enum mf_status read_pins(struct mf_run_config *config, const json_t *block)
{
    static const char *const keys[] = {"forward", "backward", "gradient", "optimizer"};
    json_t *placement = json_object_get(block, "placement");
    const char *pattern = NULL;
    json_t *pin = NULL;
    if (placement == NULL) {
        return MF_STATUS_OK;
    }
    if (!json_is_object(placement) || json_object_size(placement) > 256) {
        return mf_status_set(MF_STATUS_INVALID, "memferry: \"placement\" must be an object of at "
                                                "most 256 name patterns");
    }
    config->pins =
        mf_arena_alloc(&config->arena, json_object_size(placement) + 1, sizeof(*config->pins));
    json_object_foreach(placement, pattern, pin)
    {
        struct mf_pin *out = &config->pins[config->pin_count++];
        char where[160];
        snprintf(where, sizeof(where), "memferry.placement.%.100s", pattern);
        MF_TRY(mf_json_only(pin, where, keys, 4));
        out->pattern = mf_arena_string(&config->arena, pattern);
        MF_TRY(read_choice(pin, where, "forward", mf_plan_parse_forward, &out->forward));
        MF_TRY(read_choice(pin, where, "backward", mf_plan_parse_backward, &out->backward));
        MF_TRY(read_choice(pin, where, "gradient", mf_plan_parse_gradient, &out->gradient));
        MF_TRY(read_choice(pin, where, "optimizer", mf_plan_parse_optimizer, &out->optimizer));
    }
    return MF_STATUS_OK;
}

static enum mf_status read_size(const json_t *block, const char *key, int64_t *out)
{
    const json_t *value = json_object_get(block, key);
    if (json_is_string(value)) {
        return mf_format_parse_bytes(json_string_value(value), out);
    }
    return mf_json_int(block, WHERE, key, 0, INT64_MAX, out);
}

static enum mf_status read_plan(struct mf_run_config *config, const json_t *block)
{
    static const char *const efforts[] = {"cached", "estimate", "measure"};
    const char *strategy = "auto";
    const char *effort = "measure";
    const char *plan = "";
    MF_TRY(read_size(block, "device_memory", &config->constraints.device_bytes));
    MF_TRY(read_size(block, "host_memory", &config->constraints.host_bytes));
    MF_TRY(mf_json_string(block, WHERE, "strategy", &strategy));
    MF_TRY(mf_json_string(block, WHERE, "effort", &effort));
    MF_TRY(mf_json_string(block, WHERE, "plan", &plan));
    int found = mf_plan_parse_strategy(strategy);
    int level = 0;
    while (level < 3 && strcmp(effort, efforts[level]) != 0) {
        level++;
    }
    if (found < 0 || level == 3) {
        return mf_status_set(MF_STATUS_INVALID,
                             "memferry: \"strategy\" must be auto, resident, stream, zero_offload "
                             "or memferry (found \"%s\"), \"effort\" cached, estimate or measure "
                             "(found \"%s\")",
                             strategy, effort);
    }
    config->strategy = (enum mf_strategy)found;
    config->effort = (enum mf_effort)level;
    config->plan_id = mf_arena_string(&config->arena, strcmp(plan, "auto") == 0 ? "" : plan);
    return read_pins(config, block);
}

static enum mf_status read_sample(struct mf_run_config *config, const json_t *block)
{
    static const char *const keys[] = {"prompt", "tokens", "temperature", "top_k", "every"};
    const json_t *sample = json_object_get(block, "sample");
    const char *prompt = "\n";
    int64_t tokens = 200;
    int64_t top_k = config->sample_top_k;
    if (sample == NULL) {
        return MF_STATUS_OK;
    }
    MF_TRY(mf_json_only(sample, "memferry.sample", keys, 5));
    MF_TRY(mf_json_string(sample, "memferry.sample", "prompt", &prompt));
    MF_TRY(mf_json_int(sample, "memferry.sample", "tokens", 0, 4096, &tokens));
    MF_TRY(mf_json_number(sample, "memferry.sample", "temperature", 0, 100,
                          &config->sample_temperature));
    MF_TRY(mf_json_int(sample, "memferry.sample", "top_k", 0, INT32_MAX, &top_k));
    MF_TRY(mf_json_int(sample, "memferry.sample", "every", 0, 1ll << 40, &config->sample_every));
    if (prompt[0] == '\0') {
        return mf_status_set(MF_STATUS_INVALID, "memferry.sample: \"prompt\" must not be empty");
    }
    config->sample_prompt = mf_arena_string(&config->arena, prompt);
    config->sample_tokens = (int32_t)tokens;
    config->sample_top_k = (int32_t)top_k;
    return MF_STATUS_OK;
}

static enum mf_status read_files(struct mf_run_config *config, const json_t *block,
                                 const char *base, const char *home)
{
    const char *output = NULL;
    int64_t limit = 0;
    int64_t skipped = config->skipped_max;
    MF_TRY(mf_json_string(block, WHERE, "output", &output));
    config->output = output != NULL ? mf_run_config_path(config, base, output)
                                    : mf_run_config_default_output(config, home);
    MF_TRY(mf_json_int(block, WHERE, "save_steps", 0, 1ll << 40, &config->save_steps));
    MF_TRY(mf_json_int(block, WHERE, "save_total_limit", 0, 1 << 20, &limit));
    MF_TRY(mf_json_int(block, WHERE, "logging_steps", 1, 1ll << 40, &config->logging_steps));
    MF_TRY(mf_json_int(block, WHERE, "eval_steps", 0, 1ll << 40, &config->eval_steps));
    MF_TRY(mf_json_int(block, WHERE, "eval_batches", 0, 1ll << 40, &config->eval_batches));
    MF_TRY(mf_json_int(block, WHERE, "skipped_max", 0, 1 << 20, &skipped));
    config->save_total_limit = (int32_t)limit;
    config->skipped_max = (int32_t)skipped;
    return MF_STATUS_OK;
}

static enum mf_status read_length(struct mf_run_config *config, const json_t *block)
{
    int64_t seq_len = 0;
    MF_TRY(mf_json_int(block, WHERE, "seq_len", 1, MF_SEQ_LEN_MAX, &seq_len));
    MF_TRY(mf_json_int(block, WHERE, "steps", 1, 1ll << 40, &config->steps));
    MF_TRY(mf_json_number(block, WHERE, "epochs", 1e-9, 1e9, &config->epochs));
    config->workload.seq_len = (int32_t)seq_len;
    if ((config->steps > 0) == (config->epochs > 0)) {
        return mf_status_set(MF_STATUS_INVALID, "memferry: give \"steps\" or \"epochs\"%s",
                             config->steps > 0 ? ", not both" : "");
    }
    return MF_STATUS_OK;
}

static enum mf_status read_block(struct mf_run_config *config, const json_t *block,
                                 const char *base, const char *home)
{
    static const char *const keys[] = {"config_version", "model",       "init",
                                       "seed",           "data",        "seq_len",
                                       "steps",          "epochs",      "schedule",
                                       "device_memory",  "host_memory", "strategy",
                                       "effort",         "plan",        "placement",
                                       "output",         "save_steps",  "save_total_limit",
                                       "logging_steps",  "eval_steps",  "eval_batches",
                                       "skipped_max",    "sample"};
    const char *model = NULL;
    const char *init = "weights";
    int64_t version = 1;
    int64_t seed = (int64_t)config->seed;
    MF_TRY(mf_json_only(block, WHERE, keys, sizeof(keys) / sizeof(keys[0])));
    MF_TRY(mf_json_int(block, WHERE, "config_version", 1, 1, &version));
    MF_TRY(mf_json_require(block, WHERE, "model"));
    MF_TRY(mf_json_string(block, WHERE, "model", &model));
    MF_TRY(mf_json_string(block, WHERE, "init", &init));
    MF_TRY(mf_json_int(block, WHERE, "seed", 0, INT64_MAX, &seed));
    if (strcmp(init, "weights") != 0 && strcmp(init, "random") != 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "memferry: \"init\" must be weights or random, found \"%s\"", init);
    }
    config->random_init = strcmp(init, "random") == 0;
    config->seed = (uint64_t)seed;
    mf_run_config_model(config, base, model);
    MF_TRY(read_data(config, block, base));
    MF_TRY(read_length(config, block));
    MF_TRY(read_schedule(config, block));
    MF_TRY(read_plan(config, block));
    MF_TRY(read_files(config, block, base, home));
    return read_sample(config, block);
}

enum mf_status mf_run_config_read(const char *json, const char *base_folder, const char *home,
                                  struct mf_run_config *out)
{
    static const char *const keys[] = {"train_batch_size",
                                       "train_micro_batch_size_per_gpu",
                                       "gradient_accumulation_steps",
                                       "gradient_clipping",
                                       "bf16",
                                       "fp16",
                                       "optimizer",
                                       "scheduler",
                                       "steps_per_print",
                                       "zero_optimization",
                                       "wall_clock_breakdown",
                                       "csv_monitor",
                                       "zero_allow_untested_optimizer",
                                       "prescale_gradients",
                                       "memferry"};
    json_t *root = NULL;
    if (base_folder[0] != '/') {
        return mf_status_set(MF_STATUS_INVALID, "base_folder must be an absolute path");
    }
    MF_TRY(mf_json_parse(json, strlen(json), "the run config", &root));
    enum mf_status status = mf_json_only(root, "run config", keys, sizeof(keys) / sizeof(keys[0]));
    if (status == MF_STATUS_OK) {
        status = mf_json_require(root, "run config", "memferry");
    }
    if (status == MF_STATUS_OK) {
        status = mf_run_config_deepspeed(out, root);
    }
    if (status == MF_STATUS_OK) {
        status = read_block(out, json_object_get(root, "memferry"), base_folder, home);
    }
    json_decref(root);
    return status;
}

json_t *mf_run_config_resolved(const struct mf_run_config *config)
{
    static const char *const efforts[] = {"cached", "estimate", "measure"};
    json_t *paths = json_array();
    for (int32_t i = 0; i < config->data_path_count; i++) {
        json_array_append_new(paths, json_string(config->data_paths[i]));
    }
    json_t *root = json_pack(
        "{s:i, s:i, s:f, s:{s:b}, s:{s:s, s:{s:f, s:[f,f], s:f, s:f}},"
        " s:{s:i, s:s, s:s, s:I, s:{s:o, s:s, s:b, s:I}, s:i,"
        "    s:{s:s, s:I, s:I, s:f}, s:I, s:I, s:s, s:s, s:s, s:s, s:I, s:i, s:I, s:I, s:I, s:i}}",
        "train_micro_batch_size_per_gpu", config->workload.micro_batch,
        "gradient_accumulation_steps", config->workload.accumulation, "gradient_clipping",
        config->adam.clip_norm, "bf16", "enabled", 1, "optimizer", "type", "AdamW", "params", "lr",
        config->schedule.peak, "betas", config->adam.beta1, config->adam.beta2, "eps",
        config->adam.eps, "weight_decay", config->adam.weight_decay, "memferry", "config_version",
        1, "model", config->model, "init", config->random_init ? "random" : "weights", "seed",
        (json_int_t)config->seed, "data", "paths", paths, "format",
        mf_tokens_format_name(config->data_format), "shuffle", config->shuffle, "seed",
        (json_int_t)config->data_seed, "seq_len", config->workload.seq_len, "schedule", "type",
        mf_schedule_name(config->schedule.kind), "warmup_steps",
        (json_int_t)config->schedule.warmup_steps, "decay_steps",
        (json_int_t)config->schedule.decay_steps, "min_ratio", config->schedule.floor,
        "device_memory", (json_int_t)config->constraints.device_bytes, "host_memory",
        (json_int_t)config->constraints.host_bytes, "strategy",
        mf_plan_strategy_name(config->strategy), "effort", efforts[config->effort], "plan",
        config->plan_id, "output", config->output, "save_steps", (json_int_t)config->save_steps,
        "save_total_limit", config->save_total_limit, "logging_steps",
        (json_int_t)config->logging_steps, "eval_steps", (json_int_t)config->eval_steps,
        "eval_batches", (json_int_t)config->eval_batches, "skipped_max", config->skipped_max);
    MF_ASSERT(root != NULL);
    json_t *block = json_object_get(root, "memferry");
    MF_ASSERT(json_object_set_new(block, config->steps > 0 ? "steps" : "epochs",
                                  config->steps > 0 ? json_integer(config->steps)
                                                    : json_real(config->epochs)) == 0);
    return root;
}
