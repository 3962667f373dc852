/*
 * The simulator: walks a step graph with expected times and says when every task would run.
 *
 * What: lanes are FIFO in issue order. A task starts when its lane is free (and the lane's gap is
 *   over), its dependencies have ended and were handed over, and the issuing thread has queued it:
 *   the thread queues tasks one after another in the order of the array. Beside tasks on other
 *   lanes it runs slower by their contention. A kernel that uses host memory in place contends with
 *   the share of its time that its bytes take on the link: a slow-down s counts as 1 + (s - 1) *
 *   share.
 * Who calls it: solver, traces, tests. Owner: plain data; `spans` may be NULL, else it has
 *   task_count entries. `contention` NULL = none. Thread: any; pure and deterministic. Fails: no.
 */
#ifndef MF_PLANNER_SIMULATE_H
#define MF_PLANNER_SIMULATE_H

#include "core/contention.h"
#include "planner/step.h"

struct mf_span {
    double start_ns;
    double end_ns;
};

enum mf_stall_cause {                    /* why the compute lane waited */
                      MF_STALL_H2D,      /* for a copy to the device */
                      MF_STALL_D2H,      /* for a buffer that is still being copied out */
                      MF_STALL_CPU,      /* for the CPU's update or accumulation */
                      MF_STALL_HANDOVER, /* between the end of what it waited for and its start */
                      MF_STALL_ISSUE,    /* for the issuing thread; with what beginning and ending a
                                            graph costs */
                      MF_STALL_END,      /* compute is done, other lanes are not */
                      MF_STALL_COUNT
};

struct mf_simulation {
    double step_ns;
    double lane_busy_ns[MF_LANE_COUNT]; /* with slow-downs */
    double stall_ns[MF_STALL_COUNT];
    double critical_path_ns; /* longest chain of dependencies, lanes unlimited, no contention */
};

void mf_simulate(const struct mf_step *step, const struct mf_contention *contention,
                 struct mf_simulation *out, struct mf_span *spans);
const char *mf_simulate_stall_name(enum mf_stall_cause cause);

#endif
