/*
 * The solver: from model, workload, constraints and costs to a plan.
 *
 * What: the named strategies and `auto`, all in one plan space and scored by the simulator.
 * Who calls it: server (tune), bench, tests. Owner: the caller owns `out`. Thread: any; pure and
 *   deterministic (the only clock is the caller's `expired` callback).
 * Fails: MF_STATUS_NO_DEVICE_MEMORY or _NO_MEMORY (reason DEVICE_MEMORY_TOO_SMALL or
 *   HOST_MEMORY_TOO_SMALL; numbers needed_bytes, available_bytes, smallest_bytes) with the largest
 *   consumers named when nothing fits; MF_STATUS_INVALID for pins that contradict each other.
 */
#ifndef MF_PLANNER_SOLVE_H
#define MF_PLANNER_SOLVE_H

#include <stdbool.h>

#include "core/hardware.h"
#include "core/plan.h"
#include "core/profile.h"
#include "planner/step.h"

struct mf_solve_request {
    const struct mf_model *model;
    struct mf_workload workload;
    struct mf_constraints constraints; /* 0 = all the hardware has */
    enum mf_strategy strategy;
    const struct mf_hardware *hardware;
    const struct mf_profile *profile; /* NULL = estimates */
    const struct mf_pin *pins;
    int32_t pin_count;
    uint64_t seed;
    int32_t evaluations_max; /* plans to score, about; 0 = a default that takes a second at most */
    bool (*expired)(void *context); /* NULL = never; true ends the search with the best so far */
    void *context;
};

/* The returned plan is validated, fits, is sealed and has its prediction filled in. */
enum mf_status mf_solve(const struct mf_solve_request *request, struct mf_plan *out) MF_MUST_USE;
/* Fills plan->prediction from the graph, the costs and the bound. */
enum mf_status mf_solve_predict(const struct mf_model *model, const struct mf_hardware *hardware,
                                const struct mf_profile *profile, struct mf_plan *plan) MF_MUST_USE;
/* A random valid plan (no budget looked at), for tests: every choice can come up. */
void mf_solve_random(const struct mf_model *model, const struct mf_workload *workload,
                     uint64_t seed, struct mf_plan *out);

#endif
