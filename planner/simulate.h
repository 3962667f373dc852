/*
 * The simulator: walks a step graph with expected times and says when every task would run.
 * Lanes are FIFO in issue order; a task starts when its lane is free and its dependencies have
 * ended. Pure and deterministic; `spans` may be NULL, else it has task_count entries. No failures.
 */
#ifndef MF_PLANNER_SIMULATE_H
#define MF_PLANNER_SIMULATE_H

#include "planner/step.h"

struct mf_span {
    double start_ns;
    double end_ns;
};

enum mf_stall_cause {               /* why the compute lane waited */
                      MF_STALL_H2D, /* for a copy to the device */
                      MF_STALL_D2H, /* for a buffer that is still being copied out */
                      MF_STALL_CPU, /* for the CPU's update or accumulation */
                      MF_STALL_END, /* compute is done, other lanes are not */
                      MF_STALL_COUNT
};

struct mf_simulation {
    double step_ns;
    double lane_busy_ns[MF_LANE_COUNT];
    double stall_ns[MF_STALL_COUNT];
    double critical_path_ns; /* longest chain of dependencies, lanes unlimited */
};

void mf_simulate(const struct mf_step *step, struct mf_simulation *out, struct mf_span *spans);
const char *mf_simulate_stall_name(enum mf_stall_cause cause);

#endif
