/* The softmax statistics between our order, [rows, heads], and the one that every engine of cuDNN
 * has, [sequences, heads, seq_len]; see cudnn_plans.c. */
#include "runtime/cuda/common.cuh"
#include "runtime/cuda/kernels.h"

#define THREADS 256

static __global__ void __launch_bounds__(THREADS)
    reorder(const float *from, float *to, int64_t count, int64_t seq_len, int64_t heads, bool pack)
{
    int64_t packed = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (packed >= count) {
        return;
    }
    int64_t position = packed % seq_len;
    int64_t head = packed / seq_len % heads;
    int64_t sequence = packed / seq_len / heads;
    int64_t ours = (sequence * seq_len + position) * heads + head;
    to[pack ? packed : ours] = from[pack ? ours : packed];
}

cudaError_t mf_cuda_cudnn_lse_reorder(cudaStream_t stream, const float *from, float *to,
                                      const struct mf_shape *shape, bool pack)
{
    int64_t count = shape->rows * shape->heads;
    reorder<<<(unsigned)blocks_for(count, THREADS), THREADS, 0, stream>>>(
        from, to, count, shape->seq_len, shape->heads, pack);
    return cudaGetLastError();
}

cudaError_t mf_cuda_cudnn_lse_load(void)
{
    const void *const kernels[] = {(const void *)reorder};
    return load_all(kernels, 1);
}
