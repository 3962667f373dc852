/*
 * Scores of plans that were built before: a search that comes by a plan again need not build it.
 * Private to planner/solve*.c. Owner: the caller; mf_solve_memo_reset. Thread: one. No failures.
 *
 * Plans are told apart by 64 bits over their decisions. Two that share them would share a score in
 * the search; the plan that is given back is scored again in any case.
 */
#ifndef MF_PLANNER_SOLVE_MEMO_H
#define MF_PLANNER_SOLVE_MEMO_H

#include "planner/solve_context.h"

struct mf_solve_memo_entry {
    uint64_t key; /* 0 = free */
    struct mf_solve_score score;
};

struct mf_solve_memo {
    struct mf_solve_memo_entry *entries;
    uint64_t capacity, count; /* capacity: 0 or a power of two */
};

uint64_t mf_solve_memo_key(const struct mf_plan *plan);
/* NULL = not there. */
const struct mf_solve_score *mf_solve_memo_find(const struct mf_solve_memo *memo, uint64_t key);
void mf_solve_memo_put(struct mf_solve_memo *memo, uint64_t key,
                       const struct mf_solve_score *score);
void mf_solve_memo_reset(struct mf_solve_memo *memo);

#endif
