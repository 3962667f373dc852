/*
 * Who computes attention: cuDNN's fused kernels or our own.
 *
 * What: fixed when the device opens, so that no plan changes a result. MEMFERRY_ATTENTION=own never
 *   asks cuDNN; =cudnn asks it for every shape and refuses to open without it; =auto (the default)
 *   asks it on GPUs other than Hopper, for which flash.h was written; =tiles and =plain leave out
 *   our kernels for Hopper, and those for tensor cores, to test the rest alone. What cuDNN does not
 * take (a shape, an alignment, a backward pass without a fixed order of sums) our kernels run, and
 * text() keeps the reason. Who calls it: lanes.c opens and closes, run.c runs. Owner: open/close.
 * Thread: the device's. Fails: open with MF_STATUS_INVALID for another word, MF_STATUS_UNSUPPORTED
 * for =cudnn without a usable library; a plan that cannot be built or run never fails a call.
 */
#ifndef MF_RUNTIME_CUDA_CUDNN_H
#define MF_RUNTIME_CUDA_CUDNN_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "runtime/cuda/kernels.h"

struct mf_cuda_cudnn;

/* Also sets the context's `attention`. `drain` waits for the device's lanes: the first use of a
 * shape loads code. */
enum mf_status mf_cuda_cudnn_open(struct mf_cuda_context *context,
                                  enum mf_status (*drain)(void *lanes), void *lanes,
                                  struct mf_cuda_cudnn **out) MF_MUST_USE;
void mf_cuda_cudnn_close(struct mf_cuda_cudnn *cudnn);
/* Whether the call, of attention, was queued. */
bool mf_cuda_cudnn_run(struct mf_cuda_cudnn *cudnn, const struct mf_cuda_context *context,
                       const struct mf_kernel_call *call);
/* "cuDNN 9.14.0" where it is asked, else "". */
const char *mf_cuda_cudnn_version(const struct mf_cuda_cudnn *cudnn);
/* For people: who computes attention, why, and the last thing that cuDNN did not take. */
void mf_cuda_cudnn_text(const struct mf_cuda_cudnn *cudnn, char *out, size_t size);

#endif
