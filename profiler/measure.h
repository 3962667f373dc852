/*
 * Measuring: what each distinct kernel of a model costs on this device, under every choice.
 *
 * What: collects the distinct signatures of the step graphs that together use every choice of the
 *   plan space, and times each by submitting it through the device exactly as the executor does.
 *   Median of repeated runs with its spread; a time cap; in slices, so that others get their turn.
 * Who calls it: the device worker (one slice a job). Owner: open/close by the caller. Thread: the
 *   device worker's. Fails: MF_STATUS_NO_DEVICE_MEMORY when scratch for one kernel does not fit
 * what is free (that kernel is skipped and counted), MF_STATUS_DEVICE.
 */
#ifndef MF_PROFILER_MEASURE_H
#define MF_PROFILER_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/contention.h"
#include "core/model.h"
#include "core/profile.h"
#include "core/workload.h"
#include "runtime/device.h"

/* All distinct signatures this model and workload can need, over every choice of the plan space;
 * malloc'ed, the caller frees. Pure. */
enum mf_status mf_measure_needs(const struct mf_model *model, const struct mf_workload *workload,
                                struct mf_signature **out, int32_t *count) MF_MUST_USE;
/* One line for a person: "linear_forward 256x256, 2048 tokens, weight in host memory". */
void mf_measure_describe(const struct mf_signature *signature, char *out, int32_t size);

/* Memory for operands, kept from one measurement to the next; zero it at first. */
struct mf_measure_scratch {
    void *device;
    int64_t device_bytes;
    void *host; /* mapped */
    int64_t host_bytes;
    int64_t ended_ns; /* when the last measurement did */
};
/* Gives the memory back; also fit after a failure. */
void mf_measure_release(const struct mf_device_interface *interface, struct mf_device *device,
                        struct mf_measure_scratch *scratch);

/* What measured times rest on, for mf_profile.method: the device's own word. */
void mf_measure_method(const struct mf_device_interface *interface, struct mf_device *device,
                       char *out, int32_t size);

/* Measures one signature: at least 3 and at most 25 repeats, about seconds_max at most. Operands
 * are random numbers; parameters alternate between copies, as a step finds them in no cache. */
enum mf_status mf_measure_one(const struct mf_device_interface *interface, struct mf_device *device,
                              struct mf_measure_scratch *scratch,
                              const struct mf_signature *signature, double seconds_max,
                              struct mf_measurement *out) MF_MUST_USE;
/* Rates of the machine: matrix products, memory, link in both directions by size, CPU update.
 * Fills the device's and the host's rates and adds the copies it timed to `profile`. Takes about
 * seconds_max; what does not fit the device's memory is measured smaller. */
enum mf_status mf_measure_hardware(const struct mf_device_interface *interface,
                                   struct mf_device *device, double seconds_max,
                                   struct mf_hardware *hardware,
                                   struct mf_profile *profile) MF_MUST_USE;
/* What work costs beside other work, and the latencies between lanes, by running both on the
 * device. Takes about seconds_max at most; when that is too short for two looks at each value,
 * `out` is what mf_contention_assume() says, and not marked as measured. Ends with an untraced
 * device. */
enum mf_status mf_measure_contention(const struct mf_device_interface *interface,
                                     struct mf_device *device, double seconds_max,
                                     struct mf_contention *out) MF_MUST_USE;

#endif
