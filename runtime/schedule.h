/*
 * Learning-rate schedules as pure functions of the optimizer step. Plain data; any thread; no
 * failures.
 *
 * All warm up from `start` times the peak to the peak in warmup_steps, in a straight line or, with
 * log_warmup, as log(step + 1) / log(warmup_steps); then
 *   CONSTANT  stays at the peak;
 *   LINEAR    falls in a straight line to `floor` times the peak at total_steps;
 *   COSINE    falls along half a cosine to `floor` times the peak at total_steps;
 *   WSD       stays at the peak until decay_steps before total_steps, then falls linearly to
 * `floor` times the peak (warm-up, stable, decay; arXiv 2404.06395); WARMUP_COSINE  is COSINE one
 * step ahead, as DeepSpeed's WarmupCosineLR. Past total_steps the rate stays at its last value.
 * With start = floor = 0, LINEAR and COSINE are Transformers' get_linear_schedule_with_warmup and
 * get_cosine_schedule_with_warmup. DeepSpeed's WarmupLR is CONSTANT; its WarmupDecayLR is LINEAR
 * with floor = start; `step` is its last_batch_iteration.
 */
#ifndef MF_RUNTIME_SCHEDULE_H
#define MF_RUNTIME_SCHEDULE_H

#include <stdbool.h>
#include <stdint.h>

#define MF_SCHEDULE_MAP(X)                                                                         \
    X(CONSTANT, "constant")                                                                        \
    X(LINEAR, "linear")                                                                            \
    X(COSINE, "cosine")                                                                            \
    X(WSD, "wsd")                                                                                  \
    X(WARMUP_COSINE, "warmup_cosine")
#define X(name, text) MF_SCHEDULE_##name,
enum mf_schedule_kind { MF_SCHEDULE_MAP(X) MF_SCHEDULE_COUNT };
#undef X

struct mf_schedule {
    enum mf_schedule_kind kind;
    double peak;          /* the highest learning rate */
    double start;         /* of the warm-up, as a share of the peak, 0..1 */
    double floor;         /* at the end, as a share of the peak, 0..1 */
    bool log_warmup;      /* needs warmup_steps of at least 2, or 0 */
    int64_t warmup_steps; /* >= 0 */
    int64_t total_steps;  /* >= 1, warm-up included */
    int64_t decay_steps;  /* WSD only */
};

/* The rate of the update with index `step`, from 0. */
double mf_schedule_lr(const struct mf_schedule *schedule, int64_t step);
const char *mf_schedule_name(enum mf_schedule_kind kind);
/* -1 when the text names none. */
int mf_schedule_parse(const char *text);

#endif
