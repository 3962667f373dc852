/*
 * The device kernels of the CUDA module, one launcher each, and what they run with.
 *
 * What: every launcher queues the kernels of one call of core/kernel.h on the context's stream and
 *   returns the launch's error. Results depend on nothing but values: sums have a fixed order, no
 *   floating-point atomics. Scratch serves one call at a time, which the stream's order ensures.
 * Who calls it: run.c and linear.c. Owner: operands are the caller's; *_load makes a file's code
 *   resident so that no launch has to load it. Thread: the device's. Fails: as the CUDA runtime.
 */
#ifndef MF_RUNTIME_CUDA_KERNELS_H
#define MF_RUNTIME_CUDA_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

struct mf_cuda_blas;
struct mf_cuda_cudnn;
struct mf_cuda_direct;

/* The best of our attention kernels that may be used; see cudnn.h. */
enum mf_cuda_attention {
    MF_CUDA_ATTENTION_PLAIN,
    MF_CUDA_ATTENTION_TILES,
    MF_CUDA_ATTENTION_HOPPER
};

struct mf_cuda_context {
    cudaStream_t stream;
    struct mf_cuda_blas *blas;
    struct mf_cuda_cudnn *cudnn; /* who computes attention */
    enum mf_cuda_attention attention;
    const struct mf_cuda_direct *direct;
    char *scratch; /* device memory, 256-byte aligned */
    int64_t scratch_bytes;
    int32_t multiprocessors;
    int32_t shared_bytes; /* shared memory one block may have */
};

#define MF_CUDA_KERNEL(name)                                                                       \
    cudaError_t name(const struct mf_cuda_context *context, const struct mf_kernel_call *call)

/* elementwise.cu */
MF_CUDA_KERNEL(mf_cuda_elementwise_rope);
MF_CUDA_KERNEL(mf_cuda_elementwise_gelu_forward);
MF_CUDA_KERNEL(mf_cuda_elementwise_gelu_backward);
MF_CUDA_KERNEL(mf_cuda_elementwise_swiglu_forward);
MF_CUDA_KERNEL(mf_cuda_elementwise_swiglu_backward);
MF_CUDA_KERNEL(mf_cuda_elementwise_add);
MF_CUDA_KERNEL(mf_cuda_elementwise_copy);
/* out[rows, n] = round(sum[rows, n]), or added to what out holds. */
cudaError_t mf_cuda_elementwise_round(const struct mf_cuda_context *context, const float *sum,
                                      const struct mf_operand *out, int64_t rows, int64_t n,
                                      int add);
/* Zeros behind `elements` elements of a gradient panel up to its padded size. */
cudaError_t mf_cuda_elementwise_pad(const struct mf_cuda_context *context, void *panel,
                                    int64_t elements);
/* Keeps `stream` busy for `ns`: delays of tests. */
cudaError_t mf_cuda_elementwise_delay(cudaStream_t stream, int64_t ns);
/* `stream` goes on when *flag (as the device sees it) equals `value`; where the driver cannot. */
cudaError_t mf_cuda_elementwise_wait(cudaStream_t stream, const uint32_t *flag, uint32_t value);
cudaError_t mf_cuda_elementwise_load(void);

/* embedding.cu */
MF_CUDA_KERNEL(mf_cuda_embedding_forward);
MF_CUDA_KERNEL(mf_cuda_embedding_backward);
MF_CUDA_KERNEL(mf_cuda_embedding_position_forward);
MF_CUDA_KERNEL(mf_cuda_embedding_position_backward);
cudaError_t mf_cuda_embedding_load(void);

/* norm.cu */
MF_CUDA_KERNEL(mf_cuda_norm_forward);
MF_CUDA_KERNEL(mf_cuda_norm_backward);
MF_CUDA_KERNEL(mf_cuda_norm_backward_weight);
/* out[n] = column sums of the bf16 matrix dy[rows, n]. */
cudaError_t mf_cuda_norm_bias_sums(const struct mf_cuda_context *context,
                                   const struct mf_operand *dy, int64_t rows, int64_t n, void *out);
cudaError_t mf_cuda_norm_load(void);

/* attention.cu: the choice between the two below */
MF_CUDA_KERNEL(mf_cuda_attention_forward);
MF_CUDA_KERNEL(mf_cuda_attention_backward);
cudaError_t mf_cuda_attention_load(void);
/* Runs Hopper's kernels (flash.h) once on zeros in the scratch: that loads their code. */
cudaError_t mf_cuda_attention_warm(const struct mf_cuda_context *context);
/* attention_forward.cu, attention_backward.cu: tensor cores; head_dim 64 and 128. `delta` is
 * fp32[rows, heads]. */
MF_CUDA_KERNEL(mf_cuda_attention_forward_tiles);
cudaError_t mf_cuda_attention_forward_load(int32_t shared_bytes);
cudaError_t mf_cuda_attention_backward_tiles(const struct mf_cuda_context *context,
                                             const struct mf_kernel_call *call, const float *delta);
cudaError_t mf_cuda_attention_backward_load(int32_t shared_bytes);

/* cudnn_lse.cu: fp32[rows, heads] to fp32[sequences, heads, seq_len] (pack), or back */
cudaError_t mf_cuda_cudnn_lse_reorder(cudaStream_t stream, const float *from, float *to,
                                      const struct mf_shape *shape, bool pack);
cudaError_t mf_cuda_cudnn_lse_load(void);

/* head.cu: `logits` is fp32[rows, n], dense, of rows `first`.. of the call */
cudaError_t mf_cuda_head_fold(const struct mf_cuda_context *context,
                              const struct mf_kernel_call *call, const float *logits, int64_t first,
                              int64_t rows);
cudaError_t mf_cuda_head_soften(const struct mf_cuda_context *context,
                                const struct mf_kernel_call *call, const float *logits,
                                int64_t first, int64_t rows);
MF_CUDA_KERNEL(mf_cuda_head_loss);
cudaError_t mf_cuda_head_load(void);

/* update.cu: the same bits as runtime/host/update.c */
MF_CUDA_KERNEL(mf_cuda_update_accumulate);
MF_CUDA_KERNEL(mf_cuda_update_norm);
MF_CUDA_KERNEL(mf_cuda_update_clip);
MF_CUDA_KERNEL(mf_cuda_update_adamw);
cudaError_t mf_cuda_update_load(void);

/* product.cu: D = op(A) op(B) for shapes the matrix library has no kernel for; see blas.h. */
struct mf_cuda_product;
cudaError_t mf_cuda_product_run(cudaStream_t stream, const struct mf_cuda_product *product);
cudaError_t mf_cuda_product_load(void);

#ifdef __cplusplus
}
#endif

#endif
