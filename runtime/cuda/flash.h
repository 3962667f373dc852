/*
 * Causal attention on the tensor cores of Hopper GPUs: wgmma products fed by the tensor copy
 * engine.
 *
 * What: the fast path of ATTENTION_FORWARD and ATTENTION_BACKWARD (kernel.h says what each operand
 *   is). Sums run in a fixed order and nothing is atomic: the same operands give the same bits.
 * Who calls it: the kernels of the CUDA device, which keep a plain attention for what is not
 *   supported here. Owner: the caller, of all operands and of the workspace; nothing is allocated.
 * Thread: any that has the device current; work is queued on the stream, nothing waits for it.
 * Fails: cudaErrorInvalidValue when an operand is not aligned to 16 bytes, a stride not a multiple
 *   of 8 elements, or the shape is not supported; else what the launch reports.
 */
#ifndef MF_RUNTIME_CUDA_FLASH_H
#define MF_RUNTIME_CUDA_FLASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "core/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* bf16 matrices of `rows` tokens; a stride counts elements. The last four and the workspace are
 * only used by backward; the gradients are written, not added to. */
struct mf_flash_args {
    struct mf_operand q; /* [rows, heads * head_dim] */
    struct mf_operand k; /* [rows, kv_heads * head_dim] */
    struct mf_operand v;
    struct mf_operand o;
    float *lse; /* [rows, heads], natural log; written by forward, read by backward */
    struct mf_operand grad_o;
    struct mf_operand grad_q;
    struct mf_operand grad_k;
    struct mf_operand grad_v;
    void *workspace; /* mf_flash_workspace_bytes(), aligned to 16 bytes */
    int64_t rows;    /* a multiple of seq_len */
    int32_t seq_len;
    int32_t heads;
    int32_t kv_heads;
    int32_t head_dim;
};

/* Whether the current device can: compute capability 9.0 and head_dim a multiple of 8 up to 128
 * (64 and 128 waste nothing, others pay for the next of the two). */
bool mf_flash_supported(int head_dim);
size_t mf_flash_workspace_bytes(int64_t rows, int heads, int head_dim);
cudaError_t mf_flash_forward(const struct mf_flash_args *args, cudaStream_t stream);
cudaError_t mf_flash_backward(const struct mf_flash_args *args, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
