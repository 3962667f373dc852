/*
 * What the files of the solver share: private to planner/solve*.c.
 *
 * solve.c checks the request, runs the strategy and fills in the prediction; solve_decide.c applies
 * choices within the user's pins; solve_score.c builds, times and measures a plan; solve_strategy.c
 * has the named strategies, solve_ferry.c the paper's; solve_search.c is `auto`, with
 * solve_ladder.c, solve_climb.c and solve_walk.c; solve_why.c writes the reasons. Owner: the
 * context belongs to mf_solve's frame. Thread: one. Fails: as solve.h says.
 */
#ifndef MF_PLANNER_SOLVE_CONTEXT_H
#define MF_PLANNER_SOLVE_CONTEXT_H

#include "planner/solve.h"
#include "planner/work.h"

#define MF_SOLVE_RING_DEFAULT 4
#define MF_SOLVE_RING_MIN 2

struct mf_solve_context {
    const struct mf_solve_request *request;
    const struct mf_model *model;
    int64_t budget[MF_SPACE_COUNT];
    struct mf_work work;
    uint8_t *weights_allowed; /* per unit: bits of mf_work_weights that pins leave */
    uint8_t *updates_allowed; /* per owner: bits of mf_work_updates */
    bool *pinned;             /* per unit */
    bool *tied;               /* per unit: shares its parameters with another */
    int32_t evaluations;
    int32_t evaluations_max;
};

struct mf_solve_score {
    double ns;
    int64_t bytes[MF_SPACE_COUNT];
    bool fits;
};

/* Reads the pins; MF_STATUS_INVALID when they contradict each other or match nothing. */
enum mf_status mf_solve_decide_open(struct mf_solve_context *context) MF_MUST_USE;
void mf_solve_decide_close(struct mf_solve_context *context);
/* A plan with nothing but its pins decided: resident, on the device, activations kept. */
void mf_solve_decide_start(const struct mf_solve_context *context, struct mf_plan *out);
/* Sets the choice nearest to `wanted` (an index of mf_work_weights, mf_work_updates) that the pins
 * allow, for the unit and for what is tied to it. Finish with mf_solve_decide_ring. */
void mf_solve_decide_weight(const struct mf_solve_context *context, struct mf_plan *plan,
                            int32_t unit, int wanted);
void mf_solve_decide_update(const struct mf_solve_context *context, struct mf_plan *plan,
                            int32_t unit, int wanted);
void mf_solve_decide_ring(struct mf_plan *plan, int32_t slots);
/* The decisions of a unit as indices. */
int mf_solve_decide_weight_of(const struct mf_plan *plan, int32_t unit);
int mf_solve_decide_update_of(const struct mf_plan *plan, int32_t unit);
/* Blocks whose activations are a choice: 1 .. count. */
int32_t mf_solve_decide_layers(const struct mf_model *model);

/* Time and memory of the step; long accumulations are extrapolated from three micro-batches. */
enum mf_status mf_solve_score_plan(struct mf_solve_context *context, const struct mf_plan *plan,
                                   struct mf_solve_score *out) MF_MUST_USE;
/* Looks at all graphs of a job when the score is near a budget: sets bytes and fits. */
enum mf_status mf_solve_score_verify(struct mf_solve_context *context, const struct mf_plan *plan,
                                     struct mf_solve_score *score) MF_MUST_USE;
/* The same over the whole step and over every graph a job may run: exact. */
enum mf_status mf_solve_score_exact(struct mf_solve_context *context, const struct mf_plan *plan,
                                    struct mf_solve_score *out) MF_MUST_USE;
/* Whether the search must end. */
bool mf_solve_score_spent(const struct mf_solve_context *context);

/* A named strategy (not AUTO), made to fit if it can be; out->fits says. */
enum mf_status mf_solve_strategy_build(struct mf_solve_context *context, enum mf_strategy strategy,
                                       struct mf_plan *plan,
                                       struct mf_solve_score *score) MF_MUST_USE;
/* Makes a plan smaller step by step until it fits; score->fits says whether it does. */
enum mf_status mf_solve_strategy_shrink(struct mf_solve_context *context, struct mf_plan *plan,
                                        struct mf_solve_score *score) MF_MUST_USE;
/* The plan that needs least device memory. */
enum mf_status mf_solve_strategy_frugal(struct mf_solve_context *context, struct mf_plan *plan,
                                        struct mf_solve_score *score) MF_MUST_USE;
/* The paper's algorithms; see solve_ferry.c. */
void mf_solve_ferry_weights(const struct mf_solve_context *context, struct mf_plan *plan);
void mf_solve_ferry_gradients(const struct mf_solve_context *context, struct mf_plan *plan,
                              double reserve_factor);

enum mf_status mf_solve_search(struct mf_solve_context *context, struct mf_plan *plan,
                               struct mf_solve_score *score) MF_MUST_USE;

/* The text of every unit's `why`. */
void mf_solve_why(const struct mf_solve_context *context, struct mf_plan *plan);

#endif
