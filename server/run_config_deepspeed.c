/* DeepSpeed's keys that mean the same here: see run_config_internal.h and docs/RUNS.md. */
#include <string.h>
#include <strings.h>

#include "core/json.h"
#include "core/limits.h"
#include "server/run_config_internal.h"

#define WHERE "run config"
#define AT MF_RUN_CONFIG_AT
/* What Transformers puts where a DeepSpeed config says "auto". */
#define AUTO_LR 5e-5
#define AUTO_CLIP 1.0

struct batch {
    int64_t total, micro, accumulation; /* 0 = not said */
};

static enum mf_status read_count(json_t *root, const char *key, int64_t high, int64_t *out)
{
    return mf_run_config_fields_auto(root, key) ? MF_STATUS_OK
                                                : mf_json_int(root, WHERE, key, 1, high, out);
}

static enum mf_status divide(int64_t total, const char *key, int64_t by, int64_t *out)
{
    if (total % by != 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "run config: train_batch_size %lld is no multiple of %s %lld",
                             (long long)total, key, (long long)by);
    }
    *out = total / by;
    return MF_STATUS_OK;
}

/* train_batch_size = micro-batch * accumulation: any two give the third. */
static enum mf_status complete_batch(struct mf_run_config *config, struct batch *batch)
{
    static const char micro_key[] = "train_micro_batch_size_per_gpu";
    static const char accumulation_key[] = "gradient_accumulation_steps";
    if (batch->micro == 0 && batch->accumulation > 0 && batch->total > 0) {
        MF_TRY(divide(batch->total, accumulation_key, batch->accumulation, &batch->micro));
        mf_run_config_fields_reason(config, micro_key,
                                    "train_batch_size %lld / gradient_accumulation_steps %lld",
                                    (long long)batch->total, (long long)batch->accumulation);
    } else if (batch->micro == 0) {
        batch->micro = batch->total > 0 ? batch->total : 1;
        mf_run_config_fields_reason(config, micro_key, "%s",
                                    batch->total > 0 ? "all of train_batch_size" : "default");
    }
    if (batch->accumulation == 0 && batch->total > 0) {
        MF_TRY(divide(batch->total, micro_key, batch->micro, &batch->accumulation));
        mf_run_config_fields_reason(config, accumulation_key,
                                    "train_batch_size %lld / train_micro_batch_size_per_gpu %lld",
                                    (long long)batch->total, (long long)batch->micro);
    } else if (batch->accumulation == 0) {
        batch->accumulation = 1;
        mf_run_config_fields_reason(config, accumulation_key, "default");
    }
    if (batch->total == 0) {
        mf_run_config_fields_reason(config, "train_batch_size",
                                    "micro-batch times accumulation, on one device");
    } else if (batch->total != batch->micro * batch->accumulation) {
        return mf_status_set(MF_STATUS_INVALID,
                             "run config: train_batch_size %lld is not "
                             "train_micro_batch_size_per_gpu %lld times "
                             "gradient_accumulation_steps %lld, which is %lld: leave one of them "
                             "out",
                             (long long)batch->total, (long long)batch->micro,
                             (long long)batch->accumulation,
                             (long long)(batch->micro * batch->accumulation));
    }
    if (batch->micro > MF_MICRO_BATCH_MAX || batch->accumulation > MF_ACCUMULATION_MAX) {
        return mf_status_set(MF_STATUS_INVALID,
                             "run config: train_batch_size %lld makes micro-batches of %lld (at "
                             "most %d) and %lld of them a step (at most %d)",
                             (long long)batch->total, (long long)batch->micro, MF_MICRO_BATCH_MAX,
                             (long long)batch->accumulation, MF_ACCUMULATION_MAX);
    }
    return MF_STATUS_OK;
}

static enum mf_status read_batch(struct mf_run_config *config, json_t *root)
{
    struct batch batch = {0};
    MF_TRY(read_count(root, "train_batch_size", (int64_t)MF_MICRO_BATCH_MAX * MF_ACCUMULATION_MAX,
                      &batch.total));
    MF_TRY(read_count(root, "train_micro_batch_size_per_gpu", MF_MICRO_BATCH_MAX, &batch.micro));
    MF_TRY(
        read_count(root, "gradient_accumulation_steps", MF_ACCUMULATION_MAX, &batch.accumulation));
    MF_TRY(complete_batch(config, &batch));
    config->workload.micro_batch = (int32_t)batch.micro;
    config->workload.accumulation = (int32_t)batch.accumulation;
    return MF_STATUS_OK;
}

static enum mf_status read_precision(json_t *root)
{
    static const char *const bf16_keys[] = {"enabled", "auto_cast", "check_grad_overflow",
                                            "immediate_grad_update",
                                            "bf16_master_weights_and_grads"};
    static const char *const fp16_keys[] = {"enabled",
                                            "auto_cast",
                                            "loss_scale",
                                            "hysteresis",
                                            "initial_scale_power",
                                            "loss_scale_window",
                                            "min_loss_scale",
                                            "consecutive_hysteresis",
                                            "fp16_master_weights_and_grads"};
    json_t *bf16 = NULL;
    json_t *fp16 = NULL;
    bool use_bf16 = true;
    bool use_fp16 = false;
    bool low_master = false;
    MF_TRY(mf_run_config_fields_object(root, WHERE, "bf16", &bf16));
    MF_TRY(mf_run_config_fields_object(root, WHERE, "fp16", &fp16));
    if (bf16 != NULL) {
        mf_run_config_fields_auto(bf16, "enabled");
        MF_TRY(mf_json_only(bf16, "bf16", bf16_keys, MF_RUN_CONFIG_COUNT(bf16_keys)));
        MF_TRY(mf_json_bool(bf16, "bf16", "enabled", &use_bf16));
        MF_TRY(mf_json_bool(bf16, "bf16", "bf16_master_weights_and_grads", &low_master));
    }
    if (fp16 != NULL) {
        mf_run_config_fields_auto(fp16, "enabled");
        MF_TRY(mf_json_only(fp16, "fp16", fp16_keys, MF_RUN_CONFIG_COUNT(fp16_keys)));
        MF_TRY(mf_json_bool(fp16, "fp16", "enabled", &use_fp16));
    }
    if (use_fp16 || !use_bf16 || low_master) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "%s: memferry trains in bf16 with fp32 master weights, which needs no "
                             "loss scale: set bf16.enabled to true and leave the rest out",
                             use_fp16    ? "fp16.enabled is true"
                             : !use_bf16 ? "bf16.enabled is false"
                                         : "bf16.bf16_master_weights_and_grads is true");
    }
    return MF_STATUS_OK;
}

static enum mf_status read_betas(struct mf_run_config *config, json_t *params)
{
    if (mf_run_config_fields_auto(params, "betas") || !mf_run_config_fields_has(params, "betas")) {
        return MF_STATUS_OK;
    }
    const json_t *betas = json_object_get(params, "betas");
    const json_t *first = json_array_get(betas, 0);
    const json_t *second = json_array_get(betas, 1);
    double values[2] = {json_number_value(first), json_number_value(second)};
    if (json_array_size(betas) != 2 || !json_is_number(first) || !json_is_number(second) ||
        !(values[0] >= 0 && values[0] < 1 && values[1] >= 0 && values[1] < 1)) {
        return mf_status_set(MF_STATUS_INVALID, "optimizer.params: \"betas\" must be two numbers "
                                                "from 0 to below 1, such as [0.9, 0.999]");
    }
    config->adam.beta1 = values[0];
    config->adam.beta2 = values[1];
    return MF_STATUS_OK;
}

/* DeepSpeed's Adam decays like AdamW unless adam_w_mode is false. */
static enum mf_status check_variant(const struct mf_run_config *config, const json_t *params,
                                    const char *type)
{
    bool decoupled = true;
    bool correction = true;
    bool amsgrad = false;
    bool other = false;
    MF_TRY(mf_json_bool(params, "optimizer.params", "adam_w_mode", &decoupled));
    MF_TRY(mf_json_bool(params, "optimizer.params", "bias_correction", &correction));
    MF_TRY(mf_json_bool(params, "optimizer.params", "amsgrad", &amsgrad));
    MF_TRY(mf_json_bool(params, "optimizer.params", "torch_adam", &other));
    decoupled = decoupled || strcasecmp(type, "AdamW") == 0;
    if (!correction || amsgrad || (!decoupled && config->adam.weight_decay > 0)) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "optimizer.params: memferry's AdamW is PyTorch's, with bias "
                             "correction, decoupled weight decay and without amsgrad; %s is asked "
                             "for",
                             amsgrad       ? "amsgrad"
                             : !correction ? "no bias correction"
                                           : "weight decay as an L2 term (adam_w_mode false)");
    }
    return MF_STATUS_OK;
}

static enum mf_status read_optimizer(struct mf_run_config *config, json_t *root)
{
    static const struct mf_run_config_field fields[] = {
        {"lr", MF_RUN_CONFIG_NUMBER, AT(schedule.peak), 0, 1e6, "the highest learning rate"},
        {"eps", MF_RUN_CONFIG_NUMBER, AT(adam.eps), 1e-30, 1, ""},
        {"weight_decay", MF_RUN_CONFIG_NUMBER, AT(adam.weight_decay), 0, 1e6, "matrices only"},
    };
    static const char *const extra[] = {"betas", "torch_adam", "adam_w_mode", "amsgrad",
                                        "bias_correction"};
    static const char *const keys[] = {"type", "params"};
    json_t *optimizer = NULL;
    json_t *params = NULL;
    const char *type = "AdamW";
    MF_TRY(mf_run_config_fields_object(root, WHERE, "optimizer", &optimizer));
    if (optimizer != NULL) {
        MF_TRY(mf_json_only(optimizer, "optimizer", keys, 2));
        MF_TRY(mf_json_require(optimizer, "optimizer", "type"));
        MF_TRY(mf_json_string(optimizer, "optimizer", "type", &type));
        MF_TRY(mf_run_config_fields_object(optimizer, "optimizer", "params", &params));
    }
    if (strcasecmp(type, "AdamW") != 0 && strcasecmp(type, "Adam") != 0) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "optimizer: \"type\" must be Adam or AdamW, found \"%.60s\"", type);
    }
    if (!mf_run_config_fields_has(params, "lr")) {
        mf_run_config_fields_reason(config, "optimizer.params.lr", "default");
    }
    if (params == NULL) {
        return MF_STATUS_OK;
    }
    MF_TRY(mf_run_config_fields_only(params, "optimizer.params", fields,
                                     MF_RUN_CONFIG_COUNT(fields), extra,
                                     MF_RUN_CONFIG_COUNT(extra)));
    if (mf_run_config_fields_auto(params, "lr")) {
        config->schedule.peak = AUTO_LR;
        mf_run_config_fields_reason(config, "optimizer.params.lr", "auto, as in Transformers");
    }
    mf_run_config_fields_auto(params, "eps");
    mf_run_config_fields_auto(params, "weight_decay");
    MF_TRY(read_betas(config, params));
    MF_TRY(mf_run_config_fields_read(params, "optimizer.params", fields,
                                     MF_RUN_CONFIG_COUNT(fields), config));
    return check_variant(config, params, type);
}

enum mf_status mf_run_config_deepspeed_read(struct mf_run_config *config, json_t *root)
{
    static const struct mf_run_config_field fields[] = {
        {"gradient_clipping", MF_RUN_CONFIG_NUMBER, AT(adam.clip_norm), 0, 1e30,
         "global norm; 0 = off"},
        {"steps_per_print", MF_RUN_CONFIG_INT64, AT(steps_per_print), 1, MF_RUN_STEPS_MAX,
         "optimizer steps"},
    };
    if (mf_run_config_fields_auto(root, "gradient_clipping")) {
        config->adam.clip_norm = AUTO_CLIP;
        mf_run_config_fields_reason(config, "gradient_clipping", "auto, as in Transformers");
    }
    mf_run_config_fields_auto(root, "steps_per_print");
    MF_TRY(mf_run_config_fields_read(root, WHERE, fields, MF_RUN_CONFIG_COUNT(fields), config));
    MF_TRY(read_batch(config, root));
    MF_TRY(read_precision(root));
    return read_optimizer(config, root);
}
