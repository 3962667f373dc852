/*
 * The micro-batch as a decision: plans for several of them, and the one with the most tokens a
 * second.
 *
 * Who calls it: PlanService.GetPlan. Owner: the caller owns out->plan; trials lie in the arena.
 *   Thread: RPC workers; each trial is a request of its own to tune.h, so all are kept in the
 * store. Fails: as mf_tune_plan of the smallest micro-batch, when that has no plan.
 */
#ifndef MF_SERVER_TUNE_BATCH_H
#define MF_SERVER_TUNE_BATCH_H

#include "core/arena.h"
#include "memferry/v1/plan.pb-c.h"
#include "server/tune.h"

/* Micro-batches that are tried for `batch` sequences in a step (0 = any, without accumulation),
 * ascending; at most MF_TUNE_BATCH_TRIALS_MAX. */
#define MF_TUNE_BATCH_TRIALS_MAX 16
int32_t mf_tune_batch_choices(int32_t batch, int32_t out[static MF_TUNE_BATCH_TRIALS_MAX]);

/* `request` says all but micro_batch and accumulation. */
enum mf_status mf_tune_batch_plan(struct mf_service *service, const struct mf_tune_request *request,
                                  int32_t batch, struct mf_arena *arena, struct mf_tune_result *out,
                                  Memferry__V1__Trial ***trials, size_t *count) MF_MUST_USE;

#endif
