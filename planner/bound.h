/*
 * A time no plan under the same budgets can beat, and what binds it. The argument is written in
 * docs/PLANS.md: work that every plan must do on a lane, bytes that no plan can keep off the link
 * (by the device budget), and the chain from the last gradient to its update. Pure. No failures.
 */
#ifndef MF_PLANNER_BOUND_H
#define MF_PLANNER_BOUND_H

#include "core/hardware.h"
#include "core/profile.h"
#include "planner/step.h"

struct mf_bound {
    double ns;
    const char *lane; /* static text: "compute", "h2d", "cpu or link" ... */
};

struct mf_bound mf_bound(const struct mf_model *model, const struct mf_workload *workload,
                         const struct mf_constraints *constraints,
                         const struct mf_hardware *hardware, const struct mf_profile *profile);

#endif
