/* A run config back as JSON, every value said: see run_config.h. */
#include "server/run_config_internal.h"

static void set(json_t *object, const char *key, json_t *value)
{
    MF_ASSERT(value != NULL && json_object_set_new(object, key, value) == 0);
}

static void set_table(json_t *object, const struct mf_run_config_table *table,
                      const struct mf_run_config *config)
{
    mf_run_config_fields_encode(table->fields, table->count, config, object);
}

static json_t *encode_paths(const char *const *paths, int32_t count)
{
    json_t *list = json_array();
    MF_ASSERT(list != NULL);
    for (int32_t i = 0; i < count; i++) {
        MF_ASSERT(json_array_append_new(list, json_string(paths[i])) == 0);
    }
    return list;
}

static json_t *encode_data(const struct mf_run_config *config)
{
    json_t *data = json_object();
    bool bytes = config->data_format == MF_TOKENS_FORMAT_BYTES;
    set(data,
        bytes               ? "text"
        : config->data_text ? "paths"
                            : "tokens",
        encode_paths(config->data_paths, config->data_path_count));
    set(data, "format", json_string(mf_tokens_format_name(config->data_format)));
    set_table(data, &mf_run_config_data_table, config);
    if (config->validation_path_count > 0) {
        set(data, "validation",
            encode_paths(config->validation_paths, config->validation_path_count));
    }
    return data;
}

static json_t *encode_schedule(const struct mf_run_config *config)
{
    json_t *schedule = json_object();
    set(schedule, "type", json_string(mf_schedule_name(config->schedule.kind)));
    set(schedule, "warmup_type", json_string(config->schedule.log_warmup ? "log" : "linear"));
    set_table(schedule, &mf_run_config_schedule_table, config);
    return schedule;
}

static json_t *encode_placement(const struct mf_run_config *config)
{
    json_t *placement = json_object();
    for (int32_t i = 0; i < config->pin_count; i++) {
        const struct mf_pin *pin = &config->pins[i];
        json_t *object = json_object();
        if (pin->forward >= 0) {
            enum mf_weight_forward choice = (enum mf_weight_forward)pin->forward;
            set(object, "forward", json_string(mf_plan_forward_name(choice)));
        }
        if (pin->backward >= 0) {
            enum mf_weight_backward choice = (enum mf_weight_backward)pin->backward;
            set(object, "backward", json_string(mf_plan_backward_name(choice)));
        }
        if (pin->gradient >= 0) {
            enum mf_gradient choice = (enum mf_gradient)pin->gradient;
            set(object, "gradient", json_string(mf_plan_gradient_name(choice)));
        }
        if (pin->optimizer >= 0) {
            enum mf_optimizer choice = (enum mf_optimizer)pin->optimizer;
            set(object, "optimizer", json_string(mf_plan_optimizer_name(choice)));
        }
        set(placement, pin->pattern, object);
    }
    return placement;
}

static json_t *encode_block(const struct mf_run_config *config)
{
    json_t *block = json_object();
    set(block, "config_version", json_integer(MF_RUN_CONFIG_VERSION));
    set(block, "model", json_string(config->model));
    set(block, "init", json_string(config->random_init ? "random" : "weights"));
    set_table(block, &mf_run_config_block_main, config);
    json_object_del(block, config->steps > 0 ? "epochs" : "steps");
    set(block, "data", encode_data(config));
    set(block, "schedule", encode_schedule(config));
    set(block, "strategy", json_string(mf_plan_strategy_name(config->strategy)));
    set(block, "effort", json_string(mf_run_config_block_efforts[config->effort]));
    set(block, "plan", json_string(config->plan_id[0] != '\0' ? config->plan_id : "auto"));
    set(block, "placement", encode_placement(config));
    set(block, "output", json_string(config->output));
    if (config->sample_tokens > 0) {
        json_t *sample = json_object();
        set_table(sample, &mf_run_config_block_sample, config);
        set(block, "sample", sample);
    }
    json_t *reasons = json_object();
    for (int32_t i = 0; i < config->reason_count; i++) {
        set(reasons, config->reasons[i].key, json_string(config->reasons[i].text));
    }
    set(block, "reasons", reasons);
    return block;
}

json_t *mf_run_config_encode(const struct mf_run_config *config)
{
    int64_t micro = config->workload.micro_batch;
    int64_t accumulation = config->workload.accumulation;
    json_t *root = json_pack(
        "{s:I, s:I, s:I, s:f, s:I, s:{s:b}, s:{s:s, s:{s:f, s:[f,f], s:f, s:f}}, s:o}",
        "train_batch_size", (json_int_t)(micro * accumulation), "train_micro_batch_size_per_gpu",
        (json_int_t)micro, "gradient_accumulation_steps", (json_int_t)accumulation,
        "gradient_clipping", config->adam.clip_norm, "steps_per_print",
        (json_int_t)config->steps_per_print, "bf16", "enabled", 1, "optimizer", "type", "AdamW",
        "params", "lr", config->schedule.peak, "betas", config->adam.beta1, config->adam.beta2,
        "eps", config->adam.eps, "weight_decay", config->adam.weight_decay, "memferry",
        encode_block(config));
    MF_ASSERT(root != NULL);
    return root;
}
