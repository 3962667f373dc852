/*
 * Where the search begins: plans that fill device memory in different orders. Private to
 * planner/solve*.c. Each seed is a plan that the caller owns. Pure; no failures.
 */
#ifndef MF_PLANNER_SOLVE_SEED_H
#define MF_PLANNER_SOLVE_SEED_H

#include "planner/solve_context.h"

/* Seeds are numbered 0 .. mf_solve_seed_count() - 1. */
int32_t mf_solve_seed_count(void);
/* Every MF_SOLVE_SEED_ORDERS seeds differ only in the order of filling. */
#define MF_SOLVE_SEED_ORDERS 6
/* Makes seed `index`, filling device memory up to `limit_bytes` as mf_work_plan counts it. */
void mf_solve_seed_build(const struct mf_solve_context *context, int32_t index, int64_t limit_bytes,
                         struct mf_plan *out);

/* Spends device memory up to `limit_bytes` on `plan`, one of the MF_SOLVE_SEED_FILLS uses first:
 * activations, weights, optimizer state. */
#define MF_SOLVE_SEED_FILLS 3
void mf_solve_seed_fill(const struct mf_solve_context *context, int use, int64_t limit_bytes,
                        struct mf_plan *plan);

/* Ways to give device memory back, 0 .. count - 1: optimizer state to the CPU, activations
 * recomputed, weights streamed, the ring cut to two slots. Frees at least `bytes`, from the last
 * unit or layer on (the ring: what it can); false when that way cannot. */
int mf_solve_seed_release_count(void);
bool mf_solve_seed_release(const struct mf_solve_context *context, int way, int64_t bytes,
                           struct mf_plan *plan);

#endif
