/*
 * The executor: runs the step graphs of one plan on a device, and holds the job's parameters.
 *
 * What: at open it builds every graph the job can need, reserves one device arena and one pinned
 *   host arena of exactly the plan's peak, and from then on allocates nothing. Steps interpret the
 *   graph's tasks: wait, submit, record. The result never depends on the plan.
 * Who calls it: the device worker, for sessions and runs; tests. Owner: close frees everything;
 *   `model` and `plan` are borrowed until then. Thread: the device worker's.
 * Fails: MF_STATUS_NO_DEVICE_MEMORY / _NO_MEMORY at open (nothing stays allocated);
 *   MF_STATUS_INVALID for token ids, counts or optimizer parameters out of range, before any task
 * is issued; MF_STATUS_DEVICE when a task fails: then the job's state is undefined and only close
 * is allowed.
 */
#ifndef MF_RUNTIME_EXECUTOR_H
#define MF_RUNTIME_EXECUTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "core/model.h"
#include "core/plan.h"
#include "planner/step.h"
#include "runtime/device.h"

struct mf_executor;

/* AdamW and clipping of one update (PyTorch's AdamW). */
struct mf_adam {
    double learning_rate; /* >= 0 */
    double beta1;         /* [0, 1) */
    double beta2;         /* [0, 1) */
    double eps;           /* > 0 */
    double weight_decay;  /* >= 0; matrices only */
    double clip_norm;     /* 0 = do not clip; > 0 needs workload.clip */
    bool skip_nonfinite;  /* leave everything as it is when the norm is not finite (needs clip) */
};

struct mf_micro_result {
    double loss_sum;     /* sum of -log p over the counted tokens */
    int64_t token_count; /* labels that are not -100 */
};

struct mf_update_result {
    int64_t step;        /* AdamW steps done */
    double norm;         /* global norm of the mean gradient */
    bool skipped;        /* nothing was changed */
    bool redone;         /* the norm was clipped: updates that speculate run after it */
    int64_t token_count; /* over all micro-batches since the last update */
    double loss_sum;
};

/* What one graph took; `stall` needs tracing. */
struct mf_executor_timing {
    int64_t wall_ns;
    int64_t issue_ns; /* of it: until the last task was queued */
    double stall;     /* share of the time the compute lane was idle, 0..1 */
    int64_t h2d_bytes, d2h_bytes, direct_bytes;
};

enum mf_status mf_executor_open(const struct mf_device_interface *interface,
                                struct mf_device *device, const struct mf_model *model,
                                const struct mf_plan *plan, mf_device_progress progress,
                                void *context, struct mf_executor **out) MF_MUST_USE;
void mf_executor_close(struct mf_executor *executor);

/* Bytes reserved in each space: equal to the plan's peak. */
int64_t mf_executor_bytes(const struct mf_executor *executor, enum mf_space space);
/* AdamW steps done; set after loading a checkpoint. */
int64_t mf_executor_step(const struct mf_executor *executor);
void mf_executor_set_step(struct mf_executor *executor, int64_t step);
/* Keep the spans of tasks, for timing.stall and mf_executor_span. */
void mf_executor_set_trace(struct mf_executor *executor, bool trace);

/* Parameters of one owner unit, `elements` floats each in panel layout. Putting rounds the weight
 * from `master`; NULL moments are zero. Getting skips what is NULL. */
enum mf_status mf_executor_put_unit(struct mf_executor *executor, int32_t unit, const float *master,
                                    const float *first, const float *second) MF_MUST_USE;
enum mf_status mf_executor_get_unit(struct mf_executor *executor, int32_t unit, float *master,
                                    float *first, float *second) MF_MUST_USE;

/* The gradient gathered since the last update, summed over tokens (not divided by their number):
 * `elements` floats in panel layout. For diagnosis and tests. */
enum mf_status mf_executor_get_gradient(struct mf_executor *executor, int32_t unit,
                                        float *out) MF_MUST_USE;

/* Checks ids without running anything: 0..vocab-1, labels also -100. Names sequence and position.
 */
enum mf_status mf_executor_check_tokens(const struct mf_model *model,
                                        const struct mf_workload *workload, const int32_t *tokens,
                                        const int32_t *labels) MF_MUST_USE;
enum mf_status mf_executor_check_adam(const struct mf_workload *workload,
                                      const struct mf_adam *adam) MF_MUST_USE;

/* One micro-batch, tokens and labels int32[rows]; gradients are added to those since the last
 * update. With `adam` the update follows in the same graph and `update` is filled. */
enum mf_status mf_executor_forward_backward(struct mf_executor *executor, const int32_t *tokens,
                                            const int32_t *labels, const struct mf_adam *adam,
                                            struct mf_micro_result *out,
                                            struct mf_update_result *update) MF_MUST_USE;
/* The update alone, with the gradients gathered so far. */
enum mf_status mf_executor_update(struct mf_executor *executor, const struct mf_adam *adam,
                                  struct mf_update_result *update) MF_MUST_USE;
/* Where the plan defers updates, what forward_backward, update and run report of an optimizer step
 * is final (its norm is known, it counts as done), but part of its updates runs in the next graph;
 * whoever reads or sets parameters, evaluates or asks for logits first waits for them. */
/* A whole optimizer step of `accumulation` micro-batches, int32[accumulation * rows] each. */
enum mf_status mf_executor_run(struct mf_executor *executor, const int32_t *tokens,
                               const int32_t *labels, const struct mf_adam *adam,
                               struct mf_update_result *update) MF_MUST_USE;
/* Forward only. `logprobs` (may be NULL): float[rows], of each label. */
enum mf_status mf_executor_evaluate(struct mf_executor *executor, const int32_t *tokens,
                                    const int32_t *labels, struct mf_micro_result *out,
                                    float *logprobs) MF_MUST_USE;
/* Forward only: logits after position `position` of each sequence. Borrowed until the next call:
 * float[micro_batch][vocab]. */
enum mf_status mf_executor_logits(struct mf_executor *executor, const int32_t *tokens,
                                  int32_t position, const float **out) MF_MUST_USE;
/* Forgets gradients gathered since the last update. */
void mf_executor_discard(struct mf_executor *executor);

/* Of the last graph. */
const struct mf_executor_timing *mf_executor_timing(const struct mf_executor *executor);
const struct mf_step *mf_executor_graph(const struct mf_executor *executor);
bool mf_executor_span(const struct mf_executor *executor, int32_t task, struct mf_device_span *out);

#endif
