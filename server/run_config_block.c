/* The "memferry" block of a run config: see run_config_internal.h and docs/RUNS.md. */
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "core/limits.h"
#include "server/run_config_internal.h"

#define WHERE "memferry"
#define AT MF_RUN_CONFIG_AT
#define BYTES_MAX 0x1p62

const char *const mf_run_config_block_efforts[3] = {"cached", "estimate", "measure"};

static const struct mf_run_config_field main_fields[] = {
    {"seed", MF_RUN_CONFIG_SEED, AT(seed), 0, MF_RUN_SEED_MAX, ""},
    {"seq_len", MF_RUN_CONFIG_INT32, AT(workload.seq_len), 0, MF_SEQ_LEN_MAX,
     "tokens; 0 = the model's limit, at most 1024"},
    {"steps", MF_RUN_CONFIG_INT64, AT(steps), 1, MF_RUN_STEPS_MAX, "optimizer steps"},
    {"epochs", MF_RUN_CONFIG_NUMBER, AT(epochs), 1e-6, 1e6, "passes over the data"},
    {"skip_nonfinite", MF_RUN_CONFIG_FLAG, AT(adam.skip_nonfinite), 0, 0, ""},
    {"skipped_max", MF_RUN_CONFIG_INT32, AT(skipped_max), 0, 1e6, "steps in a row; 0 = no limit"},
    {"device_memory", MF_RUN_CONFIG_BYTES, AT(constraints.device_bytes), 0, BYTES_MAX, ""},
    {"host_memory", MF_RUN_CONFIG_BYTES, AT(constraints.host_bytes), 0, BYTES_MAX, ""},
    {"save_steps", MF_RUN_CONFIG_INT64, AT(save_steps), 0, MF_RUN_STEPS_MAX,
     "optimizer steps; 0 = at the end"},
    {"save_total_limit", MF_RUN_CONFIG_INT32, AT(save_total_limit), 0, 1e6, "checkpoints; 0 = all"},
    {"logging_steps", MF_RUN_CONFIG_INT64, AT(logging_steps), 1, MF_RUN_STEPS_MAX,
     "optimizer steps"},
    {"eval_steps", MF_RUN_CONFIG_INT64, AT(eval_steps), 0, MF_RUN_STEPS_MAX,
     "optimizer steps; 0 = at the end"},
    {"eval_batches", MF_RUN_CONFIG_INT64, AT(eval_batches), 0, MF_RUN_STEPS_MAX,
     "micro-batches; 0 = all"},
    {"final", MF_RUN_CONFIG_TEXT, AT(final_name), 0, 64, "a folder's name"},
};
static const struct mf_run_config_field sample_fields[] = {
    {"prompt", MF_RUN_CONFIG_TEXT, AT(sample_prompt), 1, 4096, ""},
    {"tokens", MF_RUN_CONFIG_INT32, AT(sample_tokens), 1, 4096, "tokens"},
    {"temperature", MF_RUN_CONFIG_NUMBER, AT(sample_temperature), 0, 100, "0 = the likeliest"},
    {"top_k", MF_RUN_CONFIG_INT32, AT(sample_top_k), 0, 1e9, "tokens; 0 = all"},
    {"every", MF_RUN_CONFIG_INT64, AT(sample_every), 0, MF_RUN_STEPS_MAX,
     "optimizer steps; 0 = at the end"},
};
#define TABLE(fields)                                                                              \
    {                                                                                              \
        (fields), MF_RUN_CONFIG_COUNT(fields)                                                      \
    }
const struct mf_run_config_table mf_run_config_block_main = TABLE(main_fields);
const struct mf_run_config_table mf_run_config_block_sample = TABLE(sample_fields);

static enum mf_status read_model(struct mf_run_config *config, const json_t *block,
                                 const char *base)
{
    static const char *const inits[] = {"weights", "random"};
    const char *model = NULL;
    bool shapes = false;
    int init = -1;
    MF_TRY(mf_json_require(block, WHERE, "model"));
    MF_TRY(mf_json_string(block, WHERE, "model", &model));
    MF_TRY(mf_run_config_paths_model(config, base, model, &shapes));
    MF_TRY(mf_run_config_fields_choice(block, WHERE, "init", inits, 2, &init));
    if (init == 0 && config->model_kind == MF_RUN_MODEL_PRESET) {
        return mf_status_set(MF_STATUS_INVALID,
                             "memferry: \"init\" is weights, but the preset \"%.100s\" has only "
                             "shapes: name a folder with weights, or set init to random",
                             config->model);
    }
    config->random_init = init < 0 ? shapes : init == 1;
    if (init < 0) {
        mf_run_config_fields_reason(config, "memferry.init", "%s",
                                    !shapes ? "a folder was named: its weights are loaded"
                                    : config->model_kind == MF_RUN_MODEL_PRESET
                                        ? "a preset has only shapes"
                                        : "a config.json was named, not its folder");
    }
    return MF_STATUS_OK;
}

static enum mf_status read_choice(const json_t *pin, const char *where, const char *key,
                                  int (*parse)(const char *), const char *(*name)(int), int count,
                                  int *out)
{
    const char *names[8];
    MF_ASSERT(count <= 8);
    for (int i = 0; i < count; i++) {
        names[i] = name(i);
        MF_ASSERT(parse(names[i]) == i);
    }
    *out = -1;
    return mf_run_config_fields_choice(pin, where, key, names, (size_t)count, out);
}

static const char *forward_name(int choice)
{
    return mf_plan_forward_name((enum mf_weight_forward)choice);
}

static const char *backward_name(int choice)
{
    return mf_plan_backward_name((enum mf_weight_backward)choice);
}

static const char *gradient_name(int choice)
{
    return mf_plan_gradient_name((enum mf_gradient)choice);
}

static const char *optimizer_name(int choice)
{
    return mf_plan_optimizer_name((enum mf_optimizer)choice);
}

static enum mf_status read_pin(const json_t *json, const char *pattern, struct mf_pin *out)
{
    static const char *const keys[] = {"forward", "backward", "gradient", "optimizer"};
    char where[MF_NAME_MAX + 32];
    size_t length = strlen(pattern);
    if (length < 1 || length >= MF_NAME_MAX) {
        return mf_status_set(MF_STATUS_INVALID,
                             "memferry.placement: a pattern has 1 to %d bytes, found %zu",
                             MF_NAME_MAX - 1, length);
    }
    snprintf(where, sizeof(where), "memferry.placement.\"%s\"", pattern);
    MF_TRY(mf_json_only(json, where, keys, 4));
    MF_TRY(read_choice(json, where, "forward", mf_plan_parse_forward, forward_name,
                       MF_WEIGHT_FORWARD_COUNT, &out->forward));
    MF_TRY(read_choice(json, where, "backward", mf_plan_parse_backward, backward_name,
                       MF_WEIGHT_BACKWARD_COUNT, &out->backward));
    MF_TRY(read_choice(json, where, "gradient", mf_plan_parse_gradient, gradient_name,
                       MF_GRADIENT_COUNT, &out->gradient));
    MF_TRY(read_choice(json, where, "optimizer", mf_plan_parse_optimizer, optimizer_name,
                       MF_OPTIMIZER_COUNT, &out->optimizer));
    if (out->forward < 0 && out->backward < 0 && out->gradient < 0 && out->optimizer < 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s says nothing: give forward, backward, gradient or optimizer",
                             where);
    }
    return MF_STATUS_OK;
}

static enum mf_status read_pins(struct mf_run_config *config, const json_t *block)
{
    json_t *placement = NULL;
    json_t *pin = NULL;
    const char *pattern = NULL;
    MF_TRY(mf_run_config_fields_object(block, WHERE, "placement", &placement));
    size_t count = json_object_size(placement);
    if (count > MF_PINS_MAX) {
        return mf_status_set(MF_STATUS_INVALID,
                             "memferry: \"placement\" may have %d patterns, found %zu", MF_PINS_MAX,
                             count);
    }
    config->pins = mf_arena_alloc(&config->arena, count + 1, sizeof(*config->pins));
    json_object_foreach(placement, pattern, pin)
    {
        struct mf_pin *out = &config->pins[config->pin_count];
        MF_TRY(read_pin(pin, pattern, out));
        out->pattern = mf_arena_string(&config->arena, pattern);
        config->pin_count++;
    }
    return MF_STATUS_OK;
}

static enum mf_status read_plan(struct mf_run_config *config, const json_t *block)
{
    const char *names[MF_STRATEGY_COUNT];
    const char *plan = "auto";
    int strategy = (int)config->strategy;
    int effort = (int)config->effort;
    for (int i = 0; i < MF_STRATEGY_COUNT; i++) {
        names[i] = mf_plan_strategy_name((enum mf_strategy)i);
    }
    MF_TRY(
        mf_run_config_fields_choice(block, WHERE, "strategy", names, MF_STRATEGY_COUNT, &strategy));
    MF_TRY(mf_run_config_fields_choice(block, WHERE, "effort", mf_run_config_block_efforts, 3,
                                       &effort));
    MF_TRY(mf_json_string(block, WHERE, "plan", &plan));
    config->strategy = (enum mf_strategy)strategy;
    config->effort = (enum mf_effort)effort;
    if (strcmp(plan, "auto") != 0) {
        size_t length = strspn(plan, "0123456789abcdef");
        if (plan[length] != '\0' || length < 6 || length >= MF_HASH_TEXT_MAX) {
            return mf_status_set(MF_STATUS_INVALID,
                                 "memferry: \"plan\" must be auto or 6 to %d hexadecimal digits of "
                                 "a plan's id, found \"%.80s\"",
                                 MF_HASH_TEXT_MAX - 1, plan);
        }
        config->plan_id = mf_arena_string(&config->arena, plan);
    }
    return read_pins(config, block);
}

static enum mf_status read_sample(struct mf_run_config *config, const json_t *block)
{
    json_t *sample = NULL;
    MF_TRY(mf_run_config_fields_object(block, WHERE, "sample", &sample));
    if (sample == NULL) {
        return MF_STATUS_OK;
    }
    MF_TRY(mf_run_config_fields_only(sample, "memferry.sample", sample_fields,
                                     MF_RUN_CONFIG_COUNT(sample_fields), NULL, 0));
    config->sample_prompt = "\n";
    config->sample_tokens = 128;
    MF_TRY(mf_run_config_fields_read(sample, "memferry.sample", sample_fields,
                                     MF_RUN_CONFIG_COUNT(sample_fields), config));
    if (!config->data_text) {
        return mf_status_set(MF_STATUS_INVALID,
                             "memferry.sample: the prompt is text, but the data are tokens of an "
                             "unknown tokenizer: leave \"sample\" out");
    }
    return MF_STATUS_OK;
}

static enum mf_status read_output(struct mf_run_config *config, const json_t *block,
                                  const char *base, const char *home)
{
    const char *output = NULL;
    const char *name = config->final_name;
    if (strchr(name, '/') != NULL || name[0] == '.' || strncmp(name, "checkpoint-", 11) == 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "memferry: \"final\" must be a folder's name without / and not begin "
                             "with . or checkpoint-, or \"\" for none; found \"%s\"",
                             name);
    }
    MF_TRY(mf_json_string(block, WHERE, "output", &output));
    if (output != NULL) {
        return mf_run_config_paths_one(config, base, "memferry.output", output, &config->output);
    }
    config->output = mf_run_config_paths_output(config, home);
    mf_run_config_fields_reason(config, "memferry.output", "time and model, in the daemon's home");
    return MF_STATUS_OK;
}

/* What belongs together in the block. */
static enum mf_status check(const struct mf_run_config *config)
{
    if ((config->steps > 0) == (config->epochs > 0)) {
        return mf_status_set(MF_STATUS_INVALID, "memferry: give \"steps\" or \"epochs\"%s",
                             config->steps > 0 ? ", not both" : "");
    }
    if (config->eval_steps > 0 && config->validation_path_count == 0 &&
        config->validation_fraction <= 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "memferry: \"eval_steps\" is %lld, but there is nothing to evaluate "
                             "on: give data.validation or data.validation_fraction",
                             (long long)config->eval_steps);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_run_config_block_read(struct mf_run_config *config, const json_t *block,
                                        const char *base, const char *home)
{
    static const char *const extra[] = {"config_version", "model",  "init",   "data",
                                        "schedule",       "plan",   "effort", "strategy",
                                        "placement",      "output", "sample", "reasons"};
    int64_t version = MF_RUN_CONFIG_VERSION;
    MF_TRY(mf_run_config_fields_only(block, WHERE, main_fields, MF_RUN_CONFIG_COUNT(main_fields),
                                     extra, MF_RUN_CONFIG_COUNT(extra)));
    MF_TRY(mf_json_int(block, WHERE, "config_version", 1, MF_RUN_CONFIG_VERSION, &version));
    MF_TRY(mf_run_config_fields_read(block, WHERE, main_fields, MF_RUN_CONFIG_COUNT(main_fields),
                                     config));
    MF_TRY(read_model(config, block, base));
    MF_TRY(mf_run_config_data_read(config, block, base));
    MF_TRY(read_plan(config, block));
    MF_TRY(read_sample(config, block));
    MF_TRY(read_output(config, block, base, home));
    return check(config);
}
