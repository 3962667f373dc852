/*
 * The lanes of the CUDA device: a stream each for compute, H2D and D2H, a thread for the CPU lane.
 *
 * What: tasks of the streams are queued by the caller's thread; the CPU lane takes entries in order
 *   and runs the host device's own kernels, so its results are the host's. Streams wait for each
 *   other by CUDA events, the CPU lane waits for an event on its thread, and a stream waits for the
 *   CPU lane at a word of pinned memory that holds the generation (of begin) in which the task was
 *   done. After a task fails the rest of the graph is drained.
 * Who calls it: device.c, under the contract of runtime/device.h. Owner: open/close. Thread: one
 *   caller. Fails: MF_STATUS_DEVICE with the task and CUDA's text; as host/lanes.h otherwise.
 */
#ifndef MF_RUNTIME_CUDA_LANES_H
#define MF_RUNTIME_CUDA_LANES_H

#include "core/kernel.h"
#include "core/status.h"
#include "runtime/cuda/memory.h"
#include "runtime/device.h"

struct mf_cuda_lanes;

/* Device memory the lanes hold for themselves: scratch, the matrix library's workspace. */
#define MF_CUDA_LANES_SCRATCH_BYTES (64ll << 20)

enum mf_status mf_cuda_lanes_open(const struct mf_device_options *options, int32_t threads,
                                  const struct mf_cuda_memory *memory,
                                  struct mf_cuda_lanes **out) MF_MUST_USE;
void mf_cuda_lanes_close(struct mf_cuda_lanes *lanes);
enum mf_status mf_cuda_lanes_prepare(struct mf_cuda_lanes *lanes, int32_t task_count) MF_MUST_USE;
enum mf_status mf_cuda_lanes_begin(struct mf_cuda_lanes *lanes, bool trace) MF_MUST_USE;
enum mf_status mf_cuda_lanes_submit(struct mf_cuda_lanes *lanes, enum mf_lane lane,
                                    const struct mf_kernel_call *call, int32_t task) MF_MUST_USE;
enum mf_status mf_cuda_lanes_record(struct mf_cuda_lanes *lanes, enum mf_lane lane,
                                    int32_t task) MF_MUST_USE;
enum mf_status mf_cuda_lanes_wait(struct mf_cuda_lanes *lanes, enum mf_lane lane,
                                  int32_t task) MF_MUST_USE;
enum mf_status mf_cuda_lanes_sync(struct mf_cuda_lanes *lanes) MF_MUST_USE;
bool mf_cuda_lanes_span(struct mf_cuda_lanes *lanes, int32_t task, struct mf_device_span *out);
/* See trace_method in runtime/device.h. */
const char *mf_cuda_lanes_trace_method(struct mf_cuda_lanes *lanes);
/* Ends CUPTI's records, for its counters. No graph is open. */
void mf_cuda_lanes_end_trace(struct mf_cuda_lanes *lanes);
/* Names and versions of the libraries that compute: "cuBLASLt 13.1.0". */
void mf_cuda_lanes_version(const struct mf_cuda_lanes *lanes, char *out, size_t size);
/* Who computes attention, and why; for people. */
void mf_cuda_lanes_attention(const struct mf_cuda_lanes *lanes, char *out, size_t size);

#endif
