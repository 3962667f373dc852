/*
 * The lanes of the host device: a thread each, a queue each, events between them.
 *
 * What: entries (run a task, mark an event, wait for one) are taken in order by the lane's thread.
 *   Task numbers index the calls, events and spans, so nothing is allocated after prepare(). An
 *   event is the generation (of begin) in which it was last marked. After a task fails the rest of
 *   the graph is drained without running it.
 * Who calls it: device.c, under the contract of runtime/device.h. Owner: open/close. Thread: one
 *   caller. Fails: open and prepare with MF_STATUS_NO_MEMORY; submit, record and wait with
 *   MF_STATUS_INVALID for a task number outside prepare() or a kernel the lane cannot run.
 */
#ifndef MF_RUNTIME_HOST_LANES_H
#define MF_RUNTIME_HOST_LANES_H

#include "core/kernel.h"
#include "core/status.h"
#include "runtime/device.h"

struct mf_host_lanes;

/* `threads` of the compute and of the CPU lane; rates and jitter as in mf_device_options. */
enum mf_status mf_host_lanes_open(int32_t threads, const struct mf_device_options *options,
                                  struct mf_host_lanes **out) MF_MUST_USE;
/* What is still queued is dropped. */
void mf_host_lanes_close(struct mf_host_lanes *lanes);
enum mf_status mf_host_lanes_prepare(struct mf_host_lanes *lanes, int32_t task_count) MF_MUST_USE;
enum mf_status mf_host_lanes_begin(struct mf_host_lanes *lanes, bool trace) MF_MUST_USE;
enum mf_status mf_host_lanes_submit(struct mf_host_lanes *lanes, enum mf_lane lane,
                                    const struct mf_kernel_call *call, int32_t task) MF_MUST_USE;
enum mf_status mf_host_lanes_record(struct mf_host_lanes *lanes, enum mf_lane lane,
                                    int32_t task) MF_MUST_USE;
enum mf_status mf_host_lanes_wait(struct mf_host_lanes *lanes, enum mf_lane lane,
                                  int32_t task) MF_MUST_USE;
enum mf_status mf_host_lanes_sync(struct mf_host_lanes *lanes) MF_MUST_USE;
bool mf_host_lanes_span(struct mf_host_lanes *lanes, int32_t task, struct mf_device_span *out);
/* How often scratch memory was allocated so far, over all lanes; lanes must be idle. */
int64_t mf_host_lanes_growths(const struct mf_host_lanes *lanes);

#endif
