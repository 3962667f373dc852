/*
 * The CPU lane of the CUDA device: one thread with a queue, running the host device's kernels.
 *
 * What: entries run a task, mark one as done (for streams: its flag becomes the generation), or
 * wait for a CUDA event; task numbers index calls, events, flags and spans, so put() allocates
 * nothing. Who calls it: lanes.c. Owner: open/close; events and flags are the caller's and outlive
 * the lane's work. Thread: one caller. Fails: open and prepare with MF_STATUS_NO_MEMORY; the first
 *   error of a task is kept until the next begin.
 */
#ifndef MF_RUNTIME_CUDA_CPU_H
#define MF_RUNTIME_CUDA_CPU_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "core/kernel.h"
#include "core/status.h"
#include "runtime/device.h"

struct mf_cuda_cpu;

enum mf_cuda_cpu_entry { MF_CUDA_CPU_RUN, MF_CUDA_CPU_RECORD, MF_CUDA_CPU_WAIT };

/* `threads` share a kernel's work, 0: one for each CPU that runtime/host/cores.h finds; each stays
 * on its CPU. `index` is the GPU whose events are waited for. */
enum mf_status mf_cuda_cpu_open(const struct mf_device_options *options, int32_t threads,
                                struct mf_cuda_cpu **out) MF_MUST_USE;
/* What is still queued is dropped. */
void mf_cuda_cpu_close(struct mf_cuda_cpu *cpu);
/* The lane is idle. `events` and `flags` have `task_count` elements. */
enum mf_status mf_cuda_cpu_prepare(struct mf_cuda_cpu *cpu, int32_t task_count,
                                   const cudaEvent_t *events, uint32_t *flags) MF_MUST_USE;
void mf_cuda_cpu_begin(struct mf_cuda_cpu *cpu, uint32_t generation, bool trace);
bool mf_cuda_cpu_idle(struct mf_cuda_cpu *cpu);
/* `call` for MF_CUDA_CPU_RUN, copied; else NULL. */
void mf_cuda_cpu_put(struct mf_cuda_cpu *cpu, enum mf_cuda_cpu_entry entry, int32_t task,
                     const struct mf_kernel_call *call);
/* Waits until the queue is empty. */
void mf_cuda_cpu_drain(struct mf_cuda_cpu *cpu);
/* true: a task failed since begin, and `out` says how. The lane is idle. */
bool mf_cuda_cpu_failed(struct mf_cuda_cpu *cpu, struct mf_error *out);
bool mf_cuda_cpu_span(struct mf_cuda_cpu *cpu, int32_t task, struct mf_device_span *out);

#endif
