/*
 * What crosses the link while some work runs, from the GPU's own counters.
 *
 * What: the work is run once for each group of counters, as they cannot all be read in one pass;
 *   between runs nothing is saved or restored, so the work must not care how often it is run.
 * Who calls it: the CUDA module's device.c, when a profile or a bench asks; compiled into that
 *   module. Owner: nothing is kept between calls. Thread: the device's, with its context current.
 *   Fails: MF_STATUS_UNSUPPORTED with the reason where counters may not be read (they are for
 *   administrators by default) or there are none; the work's own failures.
 */
#ifndef MF_PROFILER_CUPTI_COUNTERS_H
#define MF_PROFILER_CUPTI_COUNTERS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "core/status.h"

typedef enum mf_status (*mf_cupti_work)(void *context);

/* Towards the device, and back. -1 = this GPU does not count that. */
struct mf_cupti_counts {
    int64_t pcie_bytes[2];   /* on the bus, headers included, to 512 bytes */
    int64_t memory_bytes[2]; /* of host memory, read into and written from the L2 cache */
};

/* `index`: of the GPU. The work waits for what it queues. No trace may be open. */
enum mf_status mf_cupti_counters_count(int index, mf_cupti_work work, void *context,
                                       struct mf_cupti_counts *out) MF_MUST_USE;

#ifdef __cplusplus
}
#endif

#endif
