/* A run config from its text: see run_config.h; its parts are in run_config_*.c. */
#include "server/run_config.h"

#include <string.h>

#include "core/json.h"
#include "core/limits.h"
#include "server/run_config_internal.h"

void mf_run_config_init(struct mf_run_config *config)
{
    *config = (struct mf_run_config){
        .seed = 1,
        .shuffle = true,
        .workload = {.micro_batch = 1, .accumulation = 1, .clip = true},
        .adam = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .skip_nonfinite = true},
        .schedule = {.kind = MF_SCHEDULE_CONSTANT, .peak = 1e-3},
        .strategy = MF_STRATEGY_AUTO,
        .effort = MF_EFFORT_MEASURE,
        .plan_id = "",
        .final_name = "final",
        .save_steps = 500,
        .save_total_limit = 2,
        .logging_steps = 1,
        .steps_per_print = 1,
        .skipped_max = 20,
        .sample_prompt = "",
        .sample_temperature = 0.8,
    };
    mf_arena_init(&config->arena);
}

void mf_run_config_reset(struct mf_run_config *config)
{
    mf_arena_reset(&config->arena);
    memset(config, 0, sizeof(*config));
}

static enum mf_status read_root(struct mf_run_config *config, json_t *root, const char *base,
                                const char *home)
{
    json_t *block = NULL;
    MF_TRY(mf_run_config_zero_only(root));
    MF_TRY(mf_json_require(root, "run config", "memferry"));
    MF_TRY(mf_run_config_fields_object(root, "run config", "memferry", &block));
    MF_TRY(mf_run_config_deepspeed_read(config, root));
    MF_TRY(mf_run_config_zero_read(config, root));
    MF_TRY(mf_run_config_block_read(config, block, base, home));
    MF_TRY(mf_run_config_schedule_read(config, root, block));
    config->adam.learning_rate = config->schedule.peak;
    config->workload.clip = config->adam.clip_norm > 0 || config->adam.skip_nonfinite;
    return MF_STATUS_OK;
}

enum mf_status mf_run_config_read(const char *json, const char *base_folder, const char *home,
                                  struct mf_run_config *out)
{
    json_t *root = NULL;
    size_t count = strlen(json);
    if (base_folder[0] != '/') {
        return mf_status_set(MF_STATUS_INVALID, "base_folder must be an absolute path");
    }
    if (count > MF_CONFIG_FILE_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "the run config has %zu bytes, at most %lld", count,
                             MF_CONFIG_FILE_MAX);
    }
    MF_TRY(mf_json_parse(json, count, "the run config", &root));
    enum mf_status status = read_root(out, root, base_folder, home);
    json_decref(root);
    return status;
}

json_t *mf_run_config_resolved(const struct mf_run_config *config)
{
    return mf_run_config_encode(config);
}
