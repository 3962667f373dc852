/* Private to server/run*.c: a job while it runs. Its thread is the session's; see run.c. */
#ifndef MF_SERVER_RUN_INTERNAL_H
#define MF_SERVER_RUN_INTERNAL_H

#include "runtime/tokens.h"
#include "server/metrics.h"
#include "server/session_internal.h"

struct mf_run {
    struct mf_session *session;
    const struct mf_run_config *config;
    struct mf_tokens *train;
    struct mf_tokens *validation; /* NULL = none */
    struct mf_metrics *metrics;
    int64_t step;       /* steps done, skipped ones included: the place in the data */
    int64_t saved_step; /* of the last complete checkpoint, -1 = none of this job */
    int64_t steps_total;
    int64_t sequences_per_step;
    struct mf_schedule schedule;
    int32_t skipped_in_a_row;
    int32_t *tokens; /* int32[accumulation * rows] */
    int32_t *labels;
};

/* run_files.c */
/* The run folder with run.json and plan.json in it. */
enum mf_status mf_run_files_prepare(struct mf_run *run) MF_MUST_USE;
/* Loads the checkpoint that the request named; sets run->step. */
enum mf_status mf_run_files_resume(struct mf_run *run) MF_MUST_USE;
/* Writes checkpoint-<step> and removes those beyond the limit. */
enum mf_status mf_run_files_save(struct mf_run *run) MF_MUST_USE;
/* The weights alone, where the config wants them; replaces those of an earlier run. */
enum mf_status mf_run_files_export(struct mf_run *run) MF_MUST_USE;

#endif
