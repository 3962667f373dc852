/*
 * What a task is expected to take: the measured median where the profile has it, else an estimate
 * from the hardware's rates. One cost model for every decision, every strategy and the bound.
 * Pure; the profile may be NULL (estimates only). No failures.
 */
#ifndef MF_PLANNER_COST_H
#define MF_PLANNER_COST_H

#include <stdbool.h>

#include "core/hardware.h"
#include "core/kernel.h"
#include "core/profile.h"
#include "planner/step.h"

/* Nanoseconds; *measured (may be NULL) says where the number comes from. A copy whose size was not
 * measured is interpolated between measured sizes of the same direction (and counts as measured).
 */
double mf_cost_ns(const struct mf_hardware *hardware, const struct mf_profile *profile,
                  enum mf_lane lane, enum mf_kernel kernel, const struct mf_shape *shape,
                  bool *measured);
/* Fills expected_ns of every task; returns how many were estimated. */
int32_t mf_cost_fill(const struct mf_hardware *hardware, const struct mf_profile *profile,
                     struct mf_step *step);

#endif
