/* The learning-rate schedule of a run config, DeepSpeed's or ours: see run_config_internal.h. */
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "server/run_config_internal.h"

#define AT MF_RUN_CONFIG_AT
#define STEPS "optimizer steps"
/* DeepSpeed's defaults. */
#define DEEPSPEED_WARMUP_STEPS 1000
#define DEEPSPEED_WARMUP_STEPS_MIN 2
#define DEEPSPEED_MAX_LR 1e-3
#define DEEPSPEED_COSINE_FLOOR 1e-4

static const char *const warmups[] = {"linear", "log"};

static const struct mf_run_config_field fields[] = {
    {"warmup_steps", MF_RUN_CONFIG_INT64, AT(schedule.warmup_steps), 0, MF_RUN_STEPS_MAX, STEPS},
    {"decay_steps", MF_RUN_CONFIG_INT64, AT(schedule.decay_steps), 0, MF_RUN_STEPS_MAX, STEPS},
    {"total_steps", MF_RUN_CONFIG_INT64, AT(schedule.total_steps), 0, MF_RUN_STEPS_MAX,
     STEPS "; 0 = the job's"},
    {"start_ratio", MF_RUN_CONFIG_NUMBER, AT(schedule.start), 0, 1, "share of optimizer.params.lr"},
    {"min_ratio", MF_RUN_CONFIG_NUMBER, AT(schedule.floor), 0, 1, "share of optimizer.params.lr"},
};
const struct mf_run_config_table mf_run_config_schedule_table = {fields,
                                                                 MF_RUN_CONFIG_COUNT(fields)};

static enum mf_status read_own(struct mf_run_config *config, const json_t *schedule)
{
    static const char *const extra[] = {"type", "warmup_type"};
    const char *names[MF_SCHEDULE_COUNT];
    int kind = MF_SCHEDULE_CONSTANT;
    int warmup = 0;
    for (int i = 0; i < MF_SCHEDULE_COUNT; i++) {
        names[i] = mf_schedule_name((enum mf_schedule_kind)i);
    }
    MF_TRY(mf_run_config_fields_only(schedule, "memferry.schedule", fields,
                                     MF_RUN_CONFIG_COUNT(fields), extra, 2));
    MF_TRY(mf_json_require(schedule, "memferry.schedule", "type"));
    MF_TRY(mf_run_config_fields_choice(schedule, "memferry.schedule", "type", names,
                                       MF_SCHEDULE_COUNT, &kind));
    MF_TRY(mf_run_config_fields_choice(schedule, "memferry.schedule", "warmup_type", warmups, 2,
                                       &warmup));
    MF_TRY(mf_run_config_fields_read(schedule, "memferry.schedule", fields,
                                     MF_RUN_CONFIG_COUNT(fields), config));
    config->schedule.kind = (enum mf_schedule_kind)kind;
    config->schedule.log_warmup = warmup == 1;
    if ((kind == MF_SCHEDULE_WSD) != (config->schedule.decay_steps > 0)) {
        return mf_status_set(
            MF_STATUS_INVALID,
            "memferry.schedule: \"decay_steps\" is needed for wsd, and only there");
    }
    return MF_STATUS_OK;
}

/* WarmupLR and WarmupDecayLR go from one rate to another, whatever the optimizer says. */
static enum mf_status read_rates(struct mf_run_config *config, json_t *params)
{
    struct mf_schedule *schedule = &config->schedule;
    double low = 0;
    double high = schedule->peak;
    bool automatic = mf_run_config_fields_auto(params, "warmup_max_lr");
    mf_run_config_fields_auto(params, "warmup_min_lr");
    MF_TRY(mf_json_number(params, "scheduler.params", "warmup_min_lr", 0, 1e6, &low));
    MF_TRY(mf_json_number(params, "scheduler.params", "warmup_max_lr", 0, 1e6, &high));
    if (!mf_run_config_fields_has(params, "warmup_max_lr")) {
        mf_run_config_fields_reason(config, "scheduler.params.warmup_max_lr",
                                    "optimizer.params.lr");
        if (!automatic && (high < DEEPSPEED_MAX_LR || high > DEEPSPEED_MAX_LR)) {
            mf_run_config_fields_warn(config,
                                      "scheduler.params.warmup_max_lr is not said: it is "
                                      "optimizer.params.lr, %g (DeepSpeed would take %g)",
                                      high, DEEPSPEED_MAX_LR);
        }
    }
    if (low > high) {
        return mf_status_set(MF_STATUS_INVALID,
                             "scheduler.params: warmup_min_lr %g is above warmup_max_lr %g", low,
                             high);
    }
    schedule->peak = high;
    schedule->start = high > 0 ? low / high : 0;
    schedule->floor = schedule->kind == MF_SCHEDULE_LINEAR ? schedule->start : 0;
    return MF_STATUS_OK;
}

static enum mf_status read_params(struct mf_run_config *config, json_t *params)
{
    static const char where[] = "scheduler.params";
    struct mf_schedule *schedule = &config->schedule;
    int warmup = 1; /* DeepSpeed's default is log */
    schedule->warmup_steps = DEEPSPEED_WARMUP_STEPS;
    if (schedule->kind == MF_SCHEDULE_WARMUP_COSINE) {
        schedule->floor = DEEPSPEED_COSINE_FLOOR;
        mf_run_config_fields_auto(params, "warmup_min_ratio");
        mf_run_config_fields_auto(params, "cos_min_ratio");
        MF_TRY(mf_json_number(params, where, "warmup_min_ratio", 0, 1, &schedule->start));
        MF_TRY(mf_json_number(params, where, "cos_min_ratio", 0, 1, &schedule->floor));
    } else {
        MF_TRY(read_rates(config, params));
    }
    if (mf_run_config_fields_auto(params, "warmup_num_steps")) {
        schedule->warmup_steps = 0;
    } else if (!mf_run_config_fields_has(params, "warmup_num_steps")) {
        mf_run_config_fields_reason(config, "scheduler.params.warmup_num_steps", "default");
    }
    MF_TRY(mf_json_int(params, where, "warmup_num_steps", 0, MF_RUN_STEPS_MAX,
                       &schedule->warmup_steps));
    if (schedule->warmup_steps < DEEPSPEED_WARMUP_STEPS_MIN) {
        schedule->warmup_steps = DEEPSPEED_WARMUP_STEPS_MIN;
    }
    mf_run_config_fields_auto(params, "total_num_steps");
    MF_TRY(
        mf_json_int(params, where, "total_num_steps", 1, MF_RUN_STEPS_MAX, &schedule->total_steps));
    MF_TRY(mf_run_config_fields_choice(params, where, "warmup_type", warmups, 2, &warmup));
    schedule->log_warmup = warmup == 1;
    return MF_STATUS_OK;
}

static enum mf_status read_deepspeed(struct mf_run_config *config, const json_t *scheduler)
{
    static const char *const keys[] = {"type", "params"};
    static const struct {
        const char *type;
        enum mf_schedule_kind kind;
        const char *params[5]; /* NULL at the end */
    } types[] = {
        {"WarmupLR",
         MF_SCHEDULE_CONSTANT,
         {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", NULL}},
        {"WarmupDecayLR",
         MF_SCHEDULE_LINEAR,
         {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "total_num_steps"}},
        {"WarmupCosineLR",
         MF_SCHEDULE_WARMUP_COSINE,
         {"warmup_min_ratio", "cos_min_ratio", "warmup_num_steps", "warmup_type",
          "total_num_steps"}},
    };
    const char *type = NULL;
    json_t *params = NULL;
    size_t found = 0;
    MF_TRY(mf_json_only(scheduler, "scheduler", keys, 2));
    MF_TRY(mf_json_require(scheduler, "scheduler", "type"));
    MF_TRY(mf_json_string(scheduler, "scheduler", "type", &type));
    MF_TRY(mf_run_config_fields_object(scheduler, "scheduler", "params", &params));
    while (found < MF_RUN_CONFIG_COUNT(types) && strcmp(type, types[found].type) != 0) {
        found++;
    }
    if (found == MF_RUN_CONFIG_COUNT(types)) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "scheduler: \"type\" must be WarmupLR, WarmupDecayLR or "
                             "WarmupCosineLR, found \"%.60s\"; memferry.schedule has more",
                             type);
    }
    size_t count = types[found].params[4] != NULL ? 5 : 4;
    json_t *present = params != NULL ? json_incref(params) : json_object();
    MF_ASSERT(present != NULL);
    config->schedule.kind = types[found].kind;
    enum mf_status status = mf_json_only(present, "scheduler.params", types[found].params, count);
    if (status == MF_STATUS_OK) {
        status = read_params(config, present);
    }
    json_decref(present);
    return status;
}

/* The lengths, when they are known: with epochs only the data tells the job's. */
static enum mf_status check(struct mf_run_config *config)
{
    struct mf_schedule *schedule = &config->schedule;
    if (schedule->kind == MF_SCHEDULE_CONSTANT) {
        return MF_STATUS_OK;
    }
    if (schedule->total_steps == 0) {
        schedule->total_steps = config->steps;
        mf_run_config_fields_reason(config, "memferry.schedule.total_steps", "as long as the job");
    } else if (config->steps > 0 && config->steps != schedule->total_steps) {
        mf_run_config_fields_warn(config,
                                  "the learning-rate schedule has %lld steps, the job has %lld",
                                  (long long)schedule->total_steps, (long long)config->steps);
    }
    if (schedule->total_steps > 0 &&
        (schedule->warmup_steps >= schedule->total_steps ||
         schedule->warmup_steps + schedule->decay_steps > schedule->total_steps)) {
        return mf_status_set(MF_STATUS_INVALID,
                             "the learning-rate schedule has %lld steps in all, but %lld of "
                             "warm-up and %lld of decay: shorten them",
                             (long long)schedule->total_steps, (long long)schedule->warmup_steps,
                             (long long)schedule->decay_steps);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_run_config_schedule_read(struct mf_run_config *config, json_t *root,
                                           const json_t *block)
{
    json_t *scheduler = NULL;
    json_t *own = NULL;
    MF_TRY(mf_run_config_fields_object(root, "run config", "scheduler", &scheduler));
    MF_TRY(mf_run_config_fields_object(block, "memferry", "schedule", &own));
    if (scheduler != NULL && own != NULL) {
        return mf_status_set(MF_STATUS_INVALID,
                             "run config: give \"scheduler\" or memferry.schedule, not both");
    }
    if (scheduler != NULL) {
        MF_TRY(read_deepspeed(config, scheduler));
    } else if (own != NULL) {
        MF_TRY(read_own(config, own));
    } else {
        mf_run_config_fields_reason(config, "memferry.schedule.type", "default");
    }
    return check(config);
}
