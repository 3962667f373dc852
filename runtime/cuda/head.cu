/* The loss from chunks of fp32 logits: running maximum and sum, softmax gradient; core/kernel.h
 * says what each operand is. */
#include "runtime/cuda/common.cuh"
#include "runtime/cuda/kernels.h"

#define THREADS 256
#define WARPS (THREADS / 32)
#define IGNORED (-100)

struct fold_job {
    const float *logits;
    const int32_t *labels; /* of the chunk's rows, as the next */
    float *running;        /* {max, sum of exp, logit of the label} */
    int64_t n;
    int64_t first_column; /* row of the table of the panel's first column */
    int first_panel;
};

/* One block a row. */
static __global__ void __launch_bounds__(THREADS) fold(struct fold_job job)
{
    __shared__ float shared[WARPS];
    int64_t row = blockIdx.x;
    const float *logits = job.logits + row * job.n;
    float *running = job.running + row * 3;
    float old_top = job.first_panel ? -INFINITY : running[0];
    float old_sum = job.first_panel ? 0.0f : running[1];
    float top = old_top;
    for (int64_t at = threadIdx.x; at < job.n; at += THREADS) {
        top = fmaxf(top, logits[at]);
    }
    top = block_max(top, shared);
    float sum = 0;
    for (int64_t at = threadIdx.x; at < job.n; at += THREADS) {
        sum += __expf(logits[at] - top);
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) {
        int64_t label = job.labels[row] - job.first_column;
        bool here = job.labels[row] != IGNORED && label >= 0 && label < job.n;
        if (here) {
            running[2] = logits[label];
        } else if (job.first_panel) {
            running[2] = 0;
        }
        running[0] = top;
        running[1] = old_sum * __expf(old_top - top) + sum;
    }
}

cudaError_t mf_cuda_head_fold(const struct mf_cuda_context *context,
                              const struct mf_kernel_call *call, const float *logits, int64_t first,
                              int64_t rows)
{
    struct fold_job job = {logits,
                           (const int32_t *)call->operands[2].pointer + first,
                           (float *)call->operands[3].pointer + first * 3,
                           call->shape.n,
                           call->index0,
                           (call->shape.flags & MF_SHAPE_FIRST_PANEL) != 0};
    fold<<<(unsigned)rows, THREADS, 0, context->stream>>>(job);
    return cudaGetLastError();
}

struct soften_job {
    const float *logits;
    const int32_t *labels;
    const float *lse;
    bf16 *out;
    int64_t stride;
    int64_t n;
    int64_t first_column;
};

template <int VEC> static __global__ void __launch_bounds__(THREADS) soften(struct soften_job job)
{
    int64_t row = blockIdx.x;
    float lse = job.lse[row];
    bool counted = job.labels[row] != IGNORED;
    int64_t label = job.labels[row] - job.first_column;
    for (int64_t at = threadIdx.x * VEC; at < job.n; at += THREADS * VEC) {
        pack<VEC> result;
        for (int i = 0; i < VEC; i++) {
            float value = __expf(job.logits[row * job.n + at + i] - lse);
            value = at + i == label ? value - 1.0f : value;
            result.at[i] = narrow(counted ? value : 0.0f);
        }
        store(job.out + row * job.stride + at, result);
    }
}

cudaError_t mf_cuda_head_soften(const struct mf_cuda_context *context,
                                const struct mf_kernel_call *call, const float *logits,
                                int64_t first, int64_t rows)
{
    const struct mf_operand *out = &call->operands[4];
    struct soften_job job = {logits,
                             (const int32_t *)call->operands[2].pointer + first,
                             (const float *)call->operands[3].pointer + first,
                             (bf16 *)out->pointer + first * out->stride,
                             out->stride,
                             call->shape.n,
                             call->index0};
    bool wide = packable(out->pointer, out->stride, call->shape.n, 4);
    (wide ? soften<4> : soften<1>)<<<(unsigned)rows, THREADS, 0, context->stream>>>(job);
    return cudaGetLastError();
}

/* One block: threads take rows in turn, their sums are added as a tree. */
static __global__ void __launch_bounds__(THREADS)
    sum_loss(const float *running, const int32_t *labels, float *lse, float *logprob,
             double *result, int64_t rows)
{
    __shared__ double sums[THREADS];
    __shared__ double counts[THREADS];
    double sum = 0;
    double count = 0;
    for (int64_t row = threadIdx.x; row < rows; row += THREADS) {
        float log_sum = running[row * 3] + logf(running[row * 3 + 1]);
        float value = 0;
        if (labels[row] != IGNORED) {
            value = running[row * 3 + 2] - log_sum;
            sum -= (double)value;
            count += 1;
        }
        lse[row] = log_sum;
        logprob[row] = value;
    }
    sums[threadIdx.x] = sum;
    counts[threadIdx.x] = count;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
            counts[threadIdx.x] += counts[threadIdx.x + half];
        }
    }
    if (threadIdx.x == 0) {
        result[0] = sums[0];
        result[1] = counts[0];
    }
}

cudaError_t mf_cuda_head_loss(const struct mf_cuda_context *context,
                              const struct mf_kernel_call *call)
{
    const struct mf_operand *o = call->operands;
    sum_loss<<<1, THREADS, 0, context->stream>>>(
        (const float *)o[0].pointer, (const int32_t *)o[1].pointer, (float *)o[2].pointer,
        (float *)o[3].pointer, (double *)o[4].pointer, call->shape.rows);
    return cudaGetLastError();
}

cudaError_t mf_cuda_head_load(void)
{
    const void *const kernels[] = {(const void *)fold, (const void *)soften<4>,
                                   (const void *)soften<1>, (const void *)sum_loss};
    return load_all(kernels, sizeof(kernels) / sizeof(kernels[0]));
}
