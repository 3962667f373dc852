/*
 * Attention as cuDNN's operation graphs: from a shape to an execution plan.
 *
 * What: the forward and the backward pass of causal attention as two tables of tensors and
 *   operations, which cuDNN's engines recognise as one fused kernel each; a plan is the first
 * engine that cuDNN proposes, whose sums have a fixed order and whose workspace fits. Who calls it:
 * cudnn.c. Owner: build/reset. Thread: the device's. Fails: MF_STATUS_UNSUPPORTED with the call
 * that failed and cuDNN's own words: the caller then uses other kernels.
 */
#ifndef MF_RUNTIME_CUDA_CUDNN_GRAPH_H
#define MF_RUNTIME_CUDA_CUDNN_GRAPH_H

#include <stdint.h>

#include "core/kernel.h"
#include "core/status.h"
#include "runtime/cuda/cudnn_library.h"

/* What decides a plan. Compared as bytes: zeroed before it is filled in. */
struct mf_cuda_cudnn_key {
    int64_t sequences;
    int64_t strides[MF_OPERANDS_MAX]; /* elements between rows of the bf16 operands, else 0 */
    int32_t seq_len, heads, kv_heads, head_dim;
    int32_t backward;
    int32_t capability; /* of the device: major * 10 + minor */
};

#define MF_CUDA_CUDNN_DESCRIPTORS_MAX 128
#define MF_CUDA_CUDNN_POINTERS_MAX 16

/* A tensor that a run gives an address. */
struct mf_cuda_cudnn_pointer {
    int64_t id;
    int32_t operand; /* of the kernel call; MF_CUDA_CUDNN_DELTA; or < 0: the address of `value` */
    float value;     /* read from host memory */
};
#define MF_CUDA_CUDNN_DELTA MF_OPERANDS_MAX /* fp32[sequences, heads, seq_len] of scratch */

struct mf_cuda_cudnn_plan {
    cudnnBackendDescriptor_t owned[MF_CUDA_CUDNN_DESCRIPTORS_MAX]; /* in order of creation */
    int32_t owned_count;
    cudnnBackendDescriptor_t plan; /* one of them */
    struct mf_cuda_cudnn_pointer pointers[MF_CUDA_CUDNN_POINTERS_MAX];
    int32_t pointer_count;
    int64_t workspace_bytes; /* also of the last engine that wanted too much */
};

/* `handle` may be NULL where `device` is a finalised device descriptor: a plan that is not run.
 * `out` needs reset() also after a failure. */
enum mf_status mf_cuda_cudnn_graph_build(const struct mf_cuda_cudnn_library *library,
                                         cudnnHandle_t handle, cudnnBackendDescriptor_t device,
                                         const struct mf_cuda_cudnn_key *key,
                                         int64_t workspace_bytes_max,
                                         struct mf_cuda_cudnn_plan *out) MF_MUST_USE;
/* The same for a part of the call that `key` is: all of it when its workspace fits, else as many
 * whole sequences, else as many key heads of one sequence, as a divisor allows. */
enum mf_status mf_cuda_cudnn_graph_fit(const struct mf_cuda_cudnn_library *library,
                                       cudnnHandle_t handle, cudnnBackendDescriptor_t device,
                                       const struct mf_cuda_cudnn_key *key,
                                       int64_t workspace_bytes_max, struct mf_cuda_cudnn_key *part,
                                       struct mf_cuda_cudnn_plan *out) MF_MUST_USE;
void mf_cuda_cudnn_graph_reset(const struct mf_cuda_cudnn_library *library,
                               struct mf_cuda_cudnn_plan *plan);
/* Queues the plan on the handle's stream. `addresses` has one entry an operand and the delta. */
enum mf_status mf_cuda_cudnn_graph_run(const struct mf_cuda_cudnn_library *library,
                                       cudnnHandle_t handle, const struct mf_cuda_cudnn_plan *plan,
                                       void *const addresses[MF_OPERANDS_MAX + 1],
                                       void *workspace) MF_MUST_USE;

#endif
