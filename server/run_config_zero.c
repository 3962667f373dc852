/* DeepSpeed's keys that are planned here, have no meaning here, or would change the result: see
 * run_config_internal.h and docs/RUNS.md. */
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "server/run_config_internal.h"

#define LIST_MAX 480

/* Read elsewhere. */
static const char *const meant[] = {"train_batch_size",
                                    "train_micro_batch_size_per_gpu",
                                    "gradient_accumulation_steps",
                                    "gradient_clipping",
                                    "bf16",
                                    "fp16",
                                    "optimizer",
                                    "scheduler",
                                    "steps_per_print",
                                    "zero_optimization",
                                    "memferry"};
/* How DeepSpeed works or reports, not what it computes. */
static const char *const ignored[] = {"zero_allow_untested_optimizer",
                                      "zero_force_ds_cpu_optimizer",
                                      "wall_clock_breakdown",
                                      "memory_breakdown",
                                      "dump_state",
                                      "prescale_gradients",
                                      "gradient_predivide_factor",
                                      "communication_data_type",
                                      "disable_allgather",
                                      "flops_profiler",
                                      "comms_logger",
                                      "csv_monitor",
                                      "tensorboard",
                                      "wandb",
                                      "comet",
                                      "activation_checkpointing",
                                      "aio",
                                      "checkpoint",
                                      "autotuning",
                                      "elasticity",
                                      "dataloader_drop_last"};
/* What would change the result. */
static const char *const refused[] = {"amp",
                                      "sparse_attention",
                                      "sparse_gradients",
                                      "curriculum_learning",
                                      "data_efficiency",
                                      "compression_training",
                                      "progressive_layer_drop",
                                      "eigenvalue",
                                      "quantize_training"};

static const char *const zero_planned[] = {"stage",
                                           "allgather_partitions",
                                           "allgather_bucket_size",
                                           "overlap_comm",
                                           "reduce_scatter",
                                           "reduce_bucket_size",
                                           "contiguous_gradients",
                                           "sub_group_size",
                                           "stage3_max_live_parameters",
                                           "stage3_max_reuse_distance",
                                           "stage3_prefetch_bucket_size",
                                           "stage3_param_persistence_threshold",
                                           "stage3_model_persistence_threshold",
                                           "stage3_module_granularity_threshold",
                                           "stage3_gather_16bit_weights_on_model_save",
                                           "stage3_gather_fp16_weights_on_model_save",
                                           "max_live_parameters",
                                           "max_reuse_distance",
                                           "prefetch_bucket_size",
                                           "param_persistence_threshold",
                                           "model_persistence_threshold",
                                           "gather_16bit_weights_on_model_save",
                                           "cpu_offload",
                                           "cpu_offload_params",
                                           "cpu_offload_use_pin_memory",
                                           "zero_hpz_partition_size",
                                           "mics_shard_size",
                                           "mics_hierarchical_params_gather",
                                           "round_robin_gradients",
                                           "elastic_checkpoint",
                                           "load_from_fp32_weights",
                                           "ignore_unused_parameters",
                                           "legacy_stage1",
                                           "memory_efficient_linear",
                                           "use_multi_rank_bucket_allreduce",
                                           "offload_param",
                                           "offload_optimizer"};
static const char *const zero_refused[] = {"zero_quantized_weights", "zero_quantized_gradients",
                                           "zero_quantized_nontrainable_weights"};
static const char *const offload_keys[] = {
    "device",     "nvme_path",     "pin_memory",        "buffer_count", "buffer_size",
    "fast_init",  "pipeline_read", "pipeline_write",    "pipeline",     "ratio",
    "max_in_cpu", "super_offload", "cpuadam_cores_perc"};

#define COUNT MF_RUN_CONFIG_COUNT
#define TOP_COUNT (COUNT(meant) + COUNT(ignored) + COUNT(refused))
#define ZERO_COUNT (COUNT(zero_planned) + COUNT(zero_refused))

static bool is_in(const char *key, const char *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(key, list[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether the value asks for something: not false, null, "auto" or {"enabled": false}. */
static bool is_on(const json_t *value)
{
    const char *text = json_string_value(value);
    const json_t *enabled = json_object_get(value, "enabled");
    if (json_is_object(value) && enabled != NULL) {
        return !json_is_false(enabled);
    }
    return value != NULL && !json_is_null(value) && !json_is_false(value) &&
           (text == NULL || strcmp(text, "auto") != 0) &&
           !(json_is_object(value) && json_object_size(value) == 0);
}

/* The keys of `object` that are in `list` and on, separated by commas and cut to fit. */
static size_t name_keys(const json_t *object, const char *const *list, size_t count,
                        char out[static LIST_MAX])
{
    const char *key = NULL;
    json_t *value = NULL;
    size_t named = 0;
    size_t used = 0;
    out[0] = '\0';
    json_object_foreach((json_t *)object, key, value)
    {
        if (!is_in(key, list, count) || !is_on(value)) {
            continue;
        }
        named++;
        int wrote = snprintf(out + used, LIST_MAX - used, "%s%s", used > 0 ? ", " : "", key);
        if (wrote < 0 || used + (size_t)wrote >= LIST_MAX) {
            break;
        }
        used += (size_t)wrote;
    }
    return named;
}

enum mf_status mf_run_config_zero_only(const json_t *root)
{
    const char *known[TOP_COUNT];
    memcpy(known, meant, sizeof(meant));
    memcpy(known + COUNT(meant), ignored, sizeof(ignored));
    memcpy(known + COUNT(meant) + COUNT(ignored), refused, sizeof(refused));
    return mf_json_only(root, "run config", known, TOP_COUNT);
}

static enum mf_status refuse(const json_t *object, const char *where, const char *const *list,
                             size_t count)
{
    char keys[LIST_MAX];
    if (name_keys(object, list, count, keys) == 0) {
        return MF_STATUS_OK;
    }
    return mf_status_set(MF_STATUS_UNSUPPORTED,
                         "%s: %s would change the result and is not done by memferry: leave it out",
                         where, keys);
}

static enum mf_status read_offload(const json_t *zero, const char *key)
{
    static const char *const devices[] = {"none", "cpu", "nvme"};
    char where[64];
    json_t *offload = NULL;
    int device = 0;
    snprintf(where, sizeof(where), "zero_optimization.%s", key);
    MF_TRY(mf_run_config_fields_object(zero, "zero_optimization", key, &offload));
    if (offload == NULL) {
        return MF_STATUS_OK;
    }
    MF_TRY(mf_json_only(offload, where, offload_keys, COUNT(offload_keys)));
    MF_TRY(mf_run_config_fields_choice(offload, where, "device", devices, 3, &device));
    if (device == 2) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "%s: \"device\" is nvme, but memferry offloads to host memory only: "
                             "say cpu or leave it out",
                             where);
    }
    return MF_STATUS_OK;
}

static enum mf_status read_zero(struct mf_run_config *config, json_t *root)
{
    const char *known[ZERO_COUNT];
    char keys[LIST_MAX];
    json_t *zero = NULL;
    int64_t stage = 0;
    MF_TRY(mf_run_config_fields_object(root, "run config", "zero_optimization", &zero));
    if (zero == NULL) {
        return MF_STATUS_OK;
    }
    memcpy(known, zero_planned, sizeof(zero_planned));
    memcpy(known + COUNT(zero_planned), zero_refused, sizeof(zero_refused));
    MF_TRY(mf_json_only(zero, "zero_optimization", known, ZERO_COUNT));
    if (!mf_run_config_fields_auto(zero, "stage")) {
        MF_TRY(mf_json_int(zero, "zero_optimization", "stage", 0, 3, &stage));
    }
    MF_TRY(read_offload(zero, "offload_param"));
    MF_TRY(read_offload(zero, "offload_optimizer"));
    MF_TRY(refuse(zero, "zero_optimization", zero_refused, COUNT(zero_refused)));
    if (name_keys(zero, zero_planned, COUNT(zero_planned), keys) > 0) {
        mf_run_config_fields_warn(
            config, "zero_optimization: planned automatically, these keys are not used: %s", keys);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_run_config_zero_read(struct mf_run_config *config, json_t *root)
{
    char keys[LIST_MAX];
    MF_TRY(refuse(root, "run config", refused, COUNT(refused)));
    MF_TRY(read_zero(config, root));
    if (name_keys(root, ignored, COUNT(ignored), keys) > 0) {
        mf_run_config_fields_warn(config, "these keys have no meaning here and are not used: %s",
                                  keys);
    }
    return MF_STATUS_OK;
}
