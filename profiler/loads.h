/*
 * The tasks by which contention is measured: one of each kind of load, of a size that a step has,
 * and a tiny one for each lane, ready to be submitted.
 *
 * Who calls it: measure_contention.c, measure_latency.c; private to profiler/. Owner: open/close
 *   by the caller. Thread: the device worker's. Fails: MF_STATUS_NO_DEVICE_MEMORY,
 *   MF_STATUS_NO_MEMORY when even small operands do not fit; MF_STATUS_DEVICE.
 */
#ifndef MF_PROFILER_LOADS_H
#define MF_PROFILER_LOADS_H

#include "core/contention.h"
#include "profiler/calls.h"

/* Behind the kinds of load: the tiny task of each lane. */
#define MF_LOADS_TINY(lane) (MF_LOAD_COUNT + (int)(lane))
#define MF_LOADS_SETS (MF_LOAD_COUNT + MF_LANE_COUNT)
#define MF_LOADS_TASKS_MAX 512 /* on one lane, in one graph */

struct mf_loads {
    const struct mf_device_interface *interface;
    struct mf_device *device;
    bool cuda;
    struct mf_calls *sets; /* [MF_LOADS_SETS] */
    struct mf_measure_scratch scratch[MF_LOADS_SETS];
    double lone_ns[MF_LOADS_SETS]; /* of one task, nothing beside it */
};

/* Each load is made small enough to last `lone_ns_max` at most, where a smaller one is possible. */
enum mf_status mf_loads_open(const struct mf_device_interface *interface, struct mf_device *device,
                             double lone_ns_max, struct mf_loads *out) MF_MUST_USE;
/* Also fit after a failed open. */
void mf_loads_close(struct mf_loads *loads);
/* The median of a few in a row, for lone_ns of one set: the lowest so far is kept, as other
 * programs only ever slow a task down. */
enum mf_status mf_loads_time(struct mf_loads *loads, int set) MF_MUST_USE;
/* Queues task number `task`, on the next copy of its operands. */
enum mf_status mf_loads_submit(const struct mf_loads *loads, int set, int32_t task) MF_MUST_USE;

/* Hand-overs, gaps, costs of issuing and of a graph into `out`, in rounds until `end_ns` (of
 * CLOCK_MONOTONIC); `complete` when there was time for two. */
enum mf_status mf_measure_latency(struct mf_loads *loads, int64_t end_ns, struct mf_contention *out,
                                  bool *complete) MF_MUST_USE;

#endif
