/*
 * What the files of `auto` share: private to planner/solve_{search,ladder,climb,walk}.c.
 *
 * What: two plans. `best` is where the search stands: it fits the rung of the ladder that memory
 *   is limited to at present. `answer` is the fastest plan seen that fits the memory asked for.
 * Owner: mf_solve_search's frame; plans in it are its own. Thread: one. Fails: as mf_step_build.
 */
#ifndef MF_PLANNER_SOLVE_SEARCH_H
#define MF_PLANNER_SOLVE_SEARCH_H

#include "planner/solve_memo.h"
#include "planner/solve_move.h"

/* A plan must be this much faster to replace another in the search, so that ties keep the simpler
 * one. */
#define MF_SOLVE_BETTER 0.9995

struct mf_solve_best {
    struct mf_plan plan;
    struct mf_solve_score score;
    bool have;
};

struct mf_solve_search {
    struct mf_solve_context *context; /* its device budget is the rung */
    struct mf_solve_moves moves;
    struct mf_solve_memo memo;
    struct mf_solve_best best;
    struct mf_solve_best answer;
    int64_t asked_bytes; /* of device memory */
    uint64_t random;
};

/* Replaces what `best` holds by a copy. */
void mf_solve_search_keep(struct mf_solve_best *best, const struct mf_plan *plan,
                          const struct mf_solve_score *score);
void mf_solve_search_drop(struct mf_solve_best *best);
/* Builds and scores a plan, within the rung; it becomes the answer if it is the fastest that fits
 * what was asked for. */
enum mf_status mf_solve_search_score(struct mf_solve_search *search, const struct mf_plan *plan,
                                     struct mf_solve_score *score) MF_MUST_USE;
/* Makes a scored plan the best of the rung when it is better. */
void mf_solve_search_offer(struct mf_solve_search *search, const struct mf_plan *plan,
                           const struct mf_solve_score *score);
/* The busiest lane's time, and the bytes that are certain: no plan takes less. */
double mf_solve_search_estimate(const struct mf_solve_context *context, const struct mf_plan *plan,
                                int64_t *bytes);
bool mf_solve_search_same(const struct mf_plan *a, const struct mf_plan *b);

/* The search: rung after rung. */
enum mf_status mf_solve_ladder(struct mf_solve_search *search) MF_MUST_USE;
/* Tries moves in the order of what they promise until none helps. */
enum mf_status mf_solve_climb(struct mf_solve_search *search) MF_MUST_USE;
/* Walks at random from the best plan, with steps that may lose a little. */
enum mf_status mf_solve_walk(struct mf_solve_search *search) MF_MUST_USE;

#endif
