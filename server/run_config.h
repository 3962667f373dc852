/*
 * The run config: what one job of `memferry train` is to do, read from JSON with DeepSpeed's keys
 * where they mean the same and a "memferry" block for ours. Every key: docs/RUNS.md.
 *
 * Who calls it: service_training.c, run.c. Owner: the config's arena; init/reset by the caller.
 * Thread: read-only after it is read. Fails: MF_STATUS_INVALID naming the key, the value found and
 *   what would be right; an unknown key names the nearest; MF_STATUS_UNSUPPORTED for what would
 *   change the result and is not done here (fp16, other optimizers, ...). Keys of DeepSpeed's that
 *   have no meaning here become warnings.
 */
#ifndef MF_SERVER_RUN_CONFIG_H
#define MF_SERVER_RUN_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/plan.h"
#include "core/workload.h"
#include "runtime/executor.h"
#include "runtime/schedule.h"
#include "runtime/tokens.h"
#include "server/tune.h"

enum mf_run_model { MF_RUN_MODEL_FOLDER, MF_RUN_MODEL_PRESET };

#define MF_RUN_CONFIG_VERSION 1
#define MF_RUN_WARNINGS_MAX 32
#define MF_RUN_REASONS_MAX 32

/* Why a value that the text does not say is what it is. */
struct mf_run_reason {
    const char *key; /* "memferry.data.seed" */
    const char *text;
};

struct mf_run_config {
    struct mf_arena arena;

    enum mf_run_model model_kind;
    const char *model; /* absolute folder, or a preset's name */
    bool random_init;
    uint64_t seed; /* of initialisation and samples */

    const char *const *data_paths; /* absolute */
    int32_t data_path_count;
    const char *const *validation_paths;
    int32_t validation_path_count;
    double validation_fraction; /* of the data's sequences, held out; 0 = none */
    bool data_text;             /* bytes are tokens, or may be: not "tokens" */
    enum mf_tokens_format data_format;
    bool shuffle;
    uint64_t data_seed;

    struct mf_workload workload; /* seq_len 0 = min(model's limit, 1024) */
    int64_t steps;               /* 0 = by epochs */
    double epochs;
    struct mf_adam adam;         /* learning_rate is the schedule's peak */
    struct mf_schedule schedule; /* total_steps 0 = the job's */

    struct mf_constraints constraints;
    enum mf_strategy strategy;
    enum mf_effort effort;
    const char *plan_id; /* "" = none */
    struct mf_pin *pins;
    int32_t pin_count;

    const char *output;       /* absolute run folder */
    const char *final_name;   /* of the folder in it for the weights alone, at the end; "" = none */
    int64_t save_steps;       /* 0 = only at the end */
    int32_t save_total_limit; /* 0 = keep all */
    int64_t logging_steps;    /* steps between reports */
    int64_t steps_per_print;  /* steps between lines on a terminal: the client's */
    int64_t eval_steps;       /* 0 = only at the end */
    int64_t eval_batches;     /* 0 = all */
    int32_t skipped_max;      /* give up after so many skipped steps in a row; 0 = never */

    const char *sample_prompt; /* bytes */
    int32_t sample_tokens;     /* 0 = no sample */
    double sample_temperature;
    int32_t sample_top_k;
    int64_t sample_every; /* 0 = only at the end */

    const char *warnings[MF_RUN_WARNINGS_MAX];
    int32_t warning_count;
    struct mf_run_reason reasons[MF_RUN_REASONS_MAX];
    int32_t reason_count;
};

void mf_run_config_init(struct mf_run_config *config);
void mf_run_config_reset(struct mf_run_config *config);
/* `base_folder` is where relative paths start; `home` is the daemon's: the run folder when the
 * config names none is <home>/runs/<time>-<model>. `out` is initialised, and reset by the caller
 * whatever comes back. */
enum mf_status mf_run_config_read(const char *json, const char *base_folder, const char *home,
                                  struct mf_run_config *out) MF_MUST_USE;
/* Every resolved value, for run.json, as a run config that means the same job;
 * "memferry"."reasons" says where derived values come from. The caller owns it. */
json_t *mf_run_config_resolved(const struct mf_run_config *config);

#endif
