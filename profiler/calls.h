/*
 * Calls to be timed: a signature turned into kernel calls whose operands lie in memory and hold
 * data, one call for each copy of the parameters.
 *
 * What: parameters alternate between copies that together are larger than a cache, as a step finds
 *   them in no cache. Who calls it: measure.c, measure_contention.c. Owner: operands lie in the
 *   scratch that the caller gives and releases. Thread: the device worker's. Fails:
 *   MF_STATUS_NO_DEVICE_MEMORY or MF_STATUS_NO_MEMORY when the operands do not fit,
 *   MF_STATUS_DEVICE.
 */
#ifndef MF_PROFILER_CALLS_H
#define MF_PROFILER_CALLS_H

#include "profiler/measure.h"
#include "profiler/operands.h"

#define MF_CALLS_COPIES_MAX 64

struct mf_calls {
    struct mf_signature signature;
    struct mf_operands_need needs[MF_OPERANDS_MAX];
    int64_t device_bytes;
    int64_t host_bytes;
    int64_t staging_offset; /* host: device operands are filled through here */
    int64_t staging_bytes;
    int32_t count;
    int32_t next; /* whose turn it was last */
    struct mf_kernel_call calls[MF_CALLS_COPIES_MAX];
};

/* How many copies there are and where they will lie. They take `rotated_bytes_asked` together, on
 * the compute lane at most; 0 = as much as the caches ask for. */
enum mf_status mf_calls_plan(const struct mf_signature *signature, int64_t rotated_bytes_asked,
                             struct mf_calls *out) MF_MUST_USE;
/* Grows the scratch where it is too small, fills the operands, makes the calls. */
enum mf_status mf_calls_prepare(const struct mf_device_interface *interface,
                                struct mf_device *device, struct mf_measure_scratch *scratch,
                                struct mf_calls *calls) MF_MUST_USE;
/* The call whose turn it is; turns go on from graph to graph, so that no copy stays in a cache. */
const struct mf_kernel_call *mf_calls_next(struct mf_calls *calls);
/* Runs `count` calls, one after the other, as one graph; ns gets how long each took. */
enum mf_status mf_calls_run(const struct mf_device_interface *interface, struct mf_device *device,
                            struct mf_calls *calls, int32_t count, double *ns) MF_MUST_USE;

#endif
