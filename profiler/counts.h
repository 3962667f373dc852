/*
 * What a kernel moves over the link, by the device's counters, beside what it has to move.
 *
 * What: proves (or refutes) that a kernel reads or writes its operands in host memory once. Who
 *   calls it: the daemon for `profile --counters`, bench/counters.c. Owner: the caller's scratch,
 * as in measure.h. Thread: the device worker's. Fails: MF_STATUS_UNSUPPORTED with the reason where
 *   the device has no counters or they may not be read; as mf_measure_one() otherwise.
 */
#ifndef MF_PROFILER_COUNTS_H
#define MF_PROFILER_COUNTS_H

#include "profiler/measure.h"

/* [0] towards the device, [1] back. */
struct mf_counts {
    int64_t needed_bytes[2];
    struct mf_device_counts counted;
};

/* Whether a kernel has operands in host memory, so that counting it says something. */
bool mf_counts_wanted(const struct mf_signature *signature);
/* Runs one call of it, once for each pass of the counters. */
enum mf_status mf_counts_measure(const struct mf_device_interface *interface,
                                 struct mf_device *device, struct mf_measure_scratch *scratch,
                                 const struct mf_signature *signature,
                                 struct mf_counts *out) MF_MUST_USE;

#endif
