/*
 * metrics.jsonl of a run folder: one JSON object a step, whole lines only, readable while it grows.
 *
 * Who calls it: run.c. Owner: open gives what close frees. Thread: one. Fails: MF_STATUS_IO; the
 * caller warns and trains on.
 */
#ifndef MF_SERVER_METRICS_H
#define MF_SERVER_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

struct mf_metrics;

/* Names and units are Hugging Face's and docs/RUNS.md's. A number that is not finite becomes null.
 */
struct mf_metrics_step {
    int64_t step;
    double epoch;
    double loss;
    double grad_norm;
    double learning_rate;
    double step_time_ms;
    double tokens_per_second;
    int64_t h2d_bytes;
    int64_t d2h_bytes;
    int64_t dha_bytes;
    double stall_ms;
    int64_t hbm_peak_bytes;
    int64_t pinned_bytes;
    double predicted_step_ms;
    bool skipped;
    bool redone;      /* updates that could have begun before the norm was known had to wait */
    double eval_loss; /* NaN = not evaluated at this step: left out */
};

/* Opens <folder>/metrics.jsonl for appending. Lines of steps beyond `resume_step` are cut first, as
 * are broken ones; 0 starts it anew. */
enum mf_status mf_metrics_open(const char *folder, int64_t resume_step,
                               struct mf_metrics **out) MF_MUST_USE;
enum mf_status mf_metrics_append(struct mf_metrics *metrics,
                                 const struct mf_metrics_step *step) MF_MUST_USE;
void mf_metrics_close(struct mf_metrics *metrics); /* NULL is fine */

#endif
