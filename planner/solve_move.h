/*
 * The steps of the local search, private to planner/solve*.c: listed once, from coarse to fine,
 * then applied to copies of plans. Owner: the caller frees `moves`. Pure; no failures.
 */
#ifndef MF_PLANNER_SOLVE_MOVE_H
#define MF_PLANNER_SOLVE_MOVE_H

#include "planner/solve_context.h"

/* Moves: a choice for a group of equal units (or all) in a range of blocks, the activations of a
 * range, the ring's depth, or how many blocks are updated in the next step's forward. */
enum mf_solve_move_kind {
    MF_SOLVE_MOVE_WEIGHT,
    MF_SOLVE_MOVE_UPDATE,
    MF_SOLVE_MOVE_BOTH,
    MF_SOLVE_MOVE_ACTIVATION,
    MF_SOLVE_MOVE_RING,
    MF_SOLVE_MOVE_DEFER
};

struct mf_solve_move {
    enum mf_solve_move_kind kind;
    int32_t group;       /* representative unit, -1 = all */
    int32_t first, last; /* blocks */
    int32_t every, from; /* of the units there, each `every`-th from the `from`-th on */
    int choice;
    int other; /* update choice of MF_SOLVE_MOVE_BOTH; 1 = MF_SOLVE_MOVE_DEFER speculates */
    int only;  /* units with this optimizer, -1 = all */
};

struct mf_solve_moves {
    struct mf_solve_move *moves;
    int32_t count, capacity;
    int32_t timings; /* of them, the last: when updates run */
};

/* Until there are `wanted` of them or no more; `moves` is empty before. */
void mf_solve_move_list(const struct mf_model *model, bool clip, int32_t wanted,
                        struct mf_solve_moves *moves);
/* Changes `plan` as far as the pins allow. */
void mf_solve_move_apply(const struct mf_solve_context *context, const struct mf_solve_move *move,
                         struct mf_plan *plan);

#endif
