/* The keys of a run config that are DeepSpeed's: see docs/RUNS.md for the mapping. */
#include "server/run_config_internal.h"

#include <string.h>
#include <strings.h>

#include "core/json.h"
#include "core/limits.h"

static bool is_auto(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_string(value) && strcmp(json_string_value(value), "auto") == 0;
}

static enum mf_status read_count(const json_t *root, const char *key, int64_t high, int64_t *out)
{
    *out = 0;
    if (is_auto(root, key)) {
        return MF_STATUS_OK;
    }
    return mf_json_int(root, "run config", key, 1, high, out);
}

/* train_batch_size = micro-batch * accumulation: any two give the third. */
static enum mf_status read_batch(struct mf_run_config *config, const json_t *root)
{
    int64_t total = 0;
    int64_t micro = 0;
    int64_t accumulation = 0;
    MF_TRY(read_count(root, "train_batch_size", (int64_t)MF_MICRO_BATCH_MAX * MF_ACCUMULATION_MAX,
                      &total));
    MF_TRY(read_count(root, "train_micro_batch_size_per_gpu", MF_MICRO_BATCH_MAX, &micro));
    MF_TRY(read_count(root, "gradient_accumulation_steps", MF_ACCUMULATION_MAX, &accumulation));
    if (micro == 0) {
        micro = total == 0 ? 1 : accumulation == 0 ? total : total / accumulation;
    }
    if (accumulation == 0) {
        accumulation = total == 0 ? 1 : total / (micro > 0 ? micro : 1);
    }
    if (micro < 1 || micro > MF_MICRO_BATCH_MAX || accumulation < 1 ||
        accumulation > MF_ACCUMULATION_MAX || (total != 0 && micro * accumulation != total)) {
        return mf_status_set(MF_STATUS_INVALID,
                             "run config: train_batch_size %lld is not "
                             "train_micro_batch_size_per_gpu %lld times "
                             "gradient_accumulation_steps %lld: leave one of them out",
                             (long long)total, (long long)micro, (long long)accumulation);
    }
    config->workload.micro_batch = (int32_t)micro;
    config->workload.accumulation = (int32_t)accumulation;
    return MF_STATUS_OK;
}

static enum mf_status read_optimizer(struct mf_run_config *config, const json_t *root)
{
    static const char *const keys[] = {"type", "params"};
    static const char *const params[] = {"lr",           "betas",      "eps",
                                         "weight_decay", "torch_adam", "adam_w_mode"};
    const json_t *optimizer = json_object_get(root, "optimizer");
    const char *type = "AdamW";
    struct mf_adam *adam = &config->adam;
    if (optimizer == NULL) {
        return MF_STATUS_OK;
    }
    MF_TRY(mf_json_only(optimizer, "optimizer", keys, 2));
    MF_TRY(mf_json_string(optimizer, "optimizer", "type", &type));
    if (strcasecmp(type, "AdamW") != 0 && strcasecmp(type, "Adam") != 0) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "optimizer \"%s\" is not supported: use \"AdamW\"", type);
    }
    const json_t *values = json_object_get(optimizer, "params");
    if (values == NULL) {
        return MF_STATUS_OK;
    }
    MF_TRY(mf_json_only(values, "optimizer.params", params, 6));
    if (!is_auto(values, "lr")) {
        MF_TRY(mf_json_number(values, "optimizer.params", "lr", 0, 1e6, &config->schedule.peak));
    }
    MF_TRY(mf_json_number(values, "optimizer.params", "eps", 1e-30, 1, &adam->eps));
    if (!is_auto(values, "weight_decay")) {
        MF_TRY(mf_json_number(values, "optimizer.params", "weight_decay", 0, 1e6,
                              &adam->weight_decay));
    }
    const json_t *betas = json_object_get(values, "betas");
    if (betas != NULL) {
        adam->beta1 = json_number_value(json_array_get(betas, 0));
        adam->beta2 = json_number_value(json_array_get(betas, 1));
        if (json_array_size(betas) != 2 || !(adam->beta1 >= 0 && adam->beta1 < 1) ||
            !(adam->beta2 >= 0 && adam->beta2 < 1)) {
            return mf_status_set(MF_STATUS_INVALID, "optimizer.params: \"betas\" must be two "
                                                    "numbers from 0 to below 1");
        }
    }
    return MF_STATUS_OK;
}

/* WarmupLR, WarmupDecayLR and WarmupCosineLR with linear warm-up. */
static enum mf_status read_scheduler(struct mf_run_config *config, const json_t *root)
{
    static const char *const keys[] = {"type", "params"};
    static const char *const params[] = {"warmup_min_lr",   "warmup_max_lr",    "warmup_num_steps",
                                         "total_num_steps", "warmup_min_ratio", "cos_min_ratio",
                                         "warmup_type"};
    static const struct {
        const char *type;
        enum mf_schedule_kind kind;
    } types[] = {{"WarmupLR", MF_SCHEDULE_CONSTANT},
                 {"WarmupDecayLR", MF_SCHEDULE_LINEAR},
                 {"WarmupCosineLR", MF_SCHEDULE_COSINE}};
    const json_t *scheduler = json_object_get(root, "scheduler");
    const char *type = NULL;
    const char *warmup_type = "linear";
    struct mf_schedule *schedule = &config->schedule;
    double warmup_min = 0;
    if (scheduler == NULL) {
        return MF_STATUS_OK;
    }
    MF_TRY(mf_json_only(scheduler, "scheduler", keys, 2));
    MF_TRY(mf_json_require(scheduler, "scheduler", "type"));
    MF_TRY(mf_json_string(scheduler, "scheduler", "type", &type));
    size_t found = 0;
    while (found < 3 && strcmp(type, types[found].type) != 0) {
        found++;
    }
    if (found == 3) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "scheduler \"%s\" is not supported: use "
                             "WarmupLR, WarmupDecayLR or WarmupCosineLR, or "
                             "memferry.schedule",
                             type);
    }
    schedule->kind = types[found].kind;
    const json_t *values = json_object_get(scheduler, "params");
    if (values == NULL) {
        return MF_STATUS_OK;
    }
    MF_TRY(mf_json_only(values, "scheduler.params", params, 7));
    MF_TRY(mf_json_string(values, "scheduler.params", "warmup_type", &warmup_type));
    if (strcmp(warmup_type, "linear") != 0) {
        mf_run_config_warn(config, "scheduler warm-up \"%s\" is done linearly", warmup_type);
    }
    if (!is_auto(values, "warmup_max_lr")) {
        MF_TRY(
            mf_json_number(values, "scheduler.params", "warmup_max_lr", 0, 1e6, &schedule->peak));
    }
    MF_TRY(mf_json_number(values, "scheduler.params", "warmup_min_lr", 0, 1e6, &warmup_min));
    schedule->start = schedule->peak > 0 ? warmup_min / schedule->peak : 0;
    MF_TRY(mf_json_number(values, "scheduler.params", "warmup_min_ratio", 0, 1, &schedule->start));
    MF_TRY(mf_json_number(values, "scheduler.params", "cos_min_ratio", 0, 1, &schedule->floor));
    MF_TRY(mf_json_int(values, "scheduler.params", "warmup_num_steps", 0, 1ll << 40,
                       &schedule->warmup_steps));
    if (!is_auto(values, "total_num_steps")) {
        MF_TRY(mf_json_int(values, "scheduler.params", "total_num_steps", 1, 1ll << 40,
                           &schedule->total_steps));
    }
    return MF_STATUS_OK;
}

static enum mf_status read_precision(const json_t *root)
{
    bool bf16 = true;
    bool fp16 = false;
    const json_t *block = json_object_get(root, "bf16");
    if (block != NULL && !is_auto(block, "enabled")) {
        MF_TRY(mf_json_bool(block, "bf16", "enabled", &bf16));
    }
    block = json_object_get(root, "fp16");
    if (block != NULL && !is_auto(block, "enabled")) {
        MF_TRY(mf_json_bool(block, "fp16", "enabled", &fp16));
    }
    if (fp16 || !bf16) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "memferry trains in bf16 with fp32 master weights: set bf16.enabled "
                             "to true and leave fp16 out");
    }
    return MF_STATUS_OK;
}

enum mf_status mf_run_config_deepspeed(struct mf_run_config *config, const json_t *root)
{
    double clip = 1.0;
    MF_TRY(read_batch(config, root));
    MF_TRY(read_precision(root));
    MF_TRY(read_optimizer(config, root));
    MF_TRY(read_scheduler(config, root));
    if (!is_auto(root, "gradient_clipping")) {
        MF_TRY(mf_json_number(root, "run config", "gradient_clipping", 0, 1e30, &clip));
    }
    config->adam.clip_norm = clip;
    MF_TRY(
        mf_json_int(root, "run config", "steps_per_print", 1, 1ll << 40, &config->logging_steps));
    static const char *const ignored[] = {"zero_optimization", "wall_clock_breakdown",
                                          "csv_monitor", "zero_allow_untested_optimizer",
                                          "prescale_gradients"};
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++) {
        if (json_object_get(root, ignored[i]) != NULL) {
            mf_run_config_warn(config, "\"%s\" is not needed: memferry plans this by itself",
                               ignored[i]);
        }
    }
    return MF_STATUS_OK;
}
