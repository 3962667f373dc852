/*
 * The kernels of the compute lane that are matrix products: linear layers and the head.
 *
 * What: each queues the products of one call, and the kernels around them, on the context's stream.
 *   Chunks of rows are cut by sizes alone, so that no plan changes a sum. Who calls it: run.c.
 * Owner: operands are the caller's. Thread: the device's. Fails: MF_STATUS_DEVICE.
 */
#ifndef MF_RUNTIME_CUDA_LINEAR_H
#define MF_RUNTIME_CUDA_LINEAR_H

#include "core/status.h"
#include "runtime/cuda/kernels.h"

#define MF_CUDA_LINEAR(name)                                                                       \
    enum mf_status name(const struct mf_cuda_context *context, const struct mf_kernel_call *call)  \
        MF_MUST_USE

MF_CUDA_LINEAR(mf_cuda_linear_forward);
MF_CUDA_LINEAR(mf_cuda_linear_backward_data);
MF_CUDA_LINEAR(mf_cuda_linear_backward_weight);
MF_CUDA_LINEAR(mf_cuda_linear_head_forward);
MF_CUDA_LINEAR(mf_cuda_linear_head_backward);
MF_CUDA_LINEAR(mf_cuda_linear_head_logits);
/* MF_STATUS_DEVICE with the error's text, and the sticky error cleared. */
enum mf_status mf_cuda_linear_check(cudaError_t error, const char *what) MF_MUST_USE;

#endif
