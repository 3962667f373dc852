/* Gradients and the optimizer, with the bits of runtime/host/update.c. This file is compiled
 * without contraction into fused multiply-add (-fmad=false). */
#define MF_ADAMW_INLINE static __host__ __device__ inline
#include "runtime/cuda/common.cuh"
#include "runtime/cuda/kernels.h"
#include "runtime/host/adamw.h"

#define THREADS 256
#define BLOCKS_PER_MULTIPROCESSOR 8
#define SQUARE_THREADS (MF_SQUARE_LANES * 4) /* four blocks of squares at once */
#define SUM_THREADS 1024

__device__ __forceinline__ float widen_bits(uint16_t value)
{
    return __uint_as_float((uint32_t)value << 16);
}

static unsigned grid_of(const struct mf_cuda_context *context, int64_t count)
{
    int64_t blocks = blocks_for(count, THREADS);
    int64_t most = (int64_t)context->multiprocessors * BLOCKS_PER_MULTIPROCESSOR;
    return (unsigned)(blocks < most ? blocks : most);
}

static __global__ void __launch_bounds__(THREADS)
    accumulate(const uint16_t *from, float *sum, int first, int64_t n)
{
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x; at < n; at += step) {
        float value = widen_bits(from[at]);
        sum[at] = first ? value : sum[at] + value;
    }
}

cudaError_t mf_cuda_update_accumulate(const struct mf_cuda_context *context,
                                      const struct mf_kernel_call *call)
{
    accumulate<<<grid_of(context, call->shape.n), THREADS, 0, context->stream>>>(
        (const uint16_t *)call->operands[0].pointer, (float *)call->operands[1].pointer,
        (call->shape.flags & MF_SHAPE_FIRST_MICRO) != 0, call->shape.n);
    return cudaGetLastError();
}

/* Sums of squares of blocks of MF_SQUARE_BLOCK elements, in the order of core/kernel.h. */
static __global__ void __launch_bounds__(SQUARE_THREADS)
    square_blocks(const void *gradient, int fp32, int64_t n, int64_t blocks, double *out)
{
    __shared__ double lanes[SQUARE_THREADS];
    int lane = threadIdx.x % MF_SQUARE_LANES;
    int64_t block = (int64_t)blockIdx.x * 4 + threadIdx.x / MF_SQUARE_LANES;
    int64_t start = block * MF_SQUARE_BLOCK;
    int64_t end = start + MF_SQUARE_BLOCK < n ? start + MF_SQUARE_BLOCK : n;
    double sum = 0;
    for (int64_t at = start + lane; at < end; at += MF_SQUARE_LANES) {
        double value = fp32 ? (double)((const float *)gradient)[at]
                            : (double)widen_bits(((const uint16_t *)gradient)[at]);
        sum += value * value;
    }
    lanes[threadIdx.x] = sum;
    for (int half = MF_SQUARE_LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (lane < half) {
            lanes[threadIdx.x] += lanes[threadIdx.x + half];
        }
    }
    if (lane == 0 && block < blocks) {
        out[block] = lanes[threadIdx.x];
    }
}

/* The sum of `blocks` doubles, in order; the threads only fetch. */
static __global__ void __launch_bounds__(SUM_THREADS)
    sum_in_order(const double *from, int64_t blocks, double *out)
{
    __shared__ double values[SUM_THREADS];
    double total = 0;
    for (int64_t start = 0; start < blocks; start += SUM_THREADS) {
        __syncthreads();
        values[threadIdx.x] = start + threadIdx.x < blocks ? from[start + threadIdx.x] : 0.0;
        __syncthreads();
        int64_t count = blocks - start < SUM_THREADS ? blocks - start : SUM_THREADS;
        for (int64_t at = 0; at < count && threadIdx.x == 0; at++) {
            total += values[at];
        }
    }
    if (threadIdx.x == 0) {
        *out = total;
    }
}

cudaError_t mf_cuda_update_norm(const struct mf_cuda_context *context,
                                const struct mf_kernel_call *call)
{
    int64_t blocks = blocks_for(call->shape.n, MF_SQUARE_BLOCK);
    if (blocks * (int64_t)sizeof(double) > context->scratch_bytes) {
        return cudaErrorInvalidValue;
    }
    double *sums = (double *)context->scratch;
    square_blocks<<<(unsigned)blocks_for(blocks, 4), SQUARE_THREADS, 0, context->stream>>>(
        call->operands[0].pointer, (call->shape.flags & MF_SHAPE_GRADIENT_FP32) != 0, call->shape.n,
        blocks, sums);
    sum_in_order<<<1, SUM_THREADS, 0, context->stream>>>(sums, blocks,
                                                         (double *)call->operands[1].pointer);
    return cudaGetLastError();
}

static __global__ void clip(const double *squares, int64_t n, struct mf_control *control)
{
    double total = 0;
    for (int64_t at = 0; at < n; at++) {
        total += squares[at];
    }
    mf_adamw_clip(total, control);
}

cudaError_t mf_cuda_update_clip(const struct mf_cuda_context *context,
                                const struct mf_kernel_call *call)
{
    clip<<<1, 1, 0, context->stream>>>((const double *)call->operands[0].pointer, call->shape.n,
                                       (struct mf_control *)call->operands[1].pointer);
    return cudaGetLastError();
}

struct prepared {
    struct mf_adamw_scalars scalars;
    int32_t skipped;
};

/* The control block lies in host memory: read once, not once a block. */
static __global__ void prepare(const struct mf_control *control, struct prepared *out)
{
    out->skipped = control->skipped;
    out->scalars = mf_adamw_prepare(control);
}

struct adamw_job {
    const struct prepared *prepared;
    const void *gradient;
    float *m;
    float *v;
    int16_t *rest;
    uint16_t *weight;
    int64_t n;
    int64_t border; /* end of the first segment */
    int fp32, decay_first, decay_rest;
};

/* VEC elements that are read and written at once. */
template <typename T, int VEC> struct __align__(VEC * sizeof(T)) group
{
    T at[VEC];
};

template <int VEC, typename T> __device__ __forceinline__ group<T, VEC> fetch(const T *from)
{
    return *reinterpret_cast<const group<T, VEC> *>(from);
}

template <int VEC, typename T>
__device__ __forceinline__ void put(T *to, const group<T, VEC> &value)
{
    *reinterpret_cast<group<T, VEC> *>(to) = value;
}

template <int VEC>
__device__ __forceinline__ group<float, VEC> fetch_gradient(const struct adamw_job &job, int64_t at)
{
    if (job.fp32) {
        return fetch<VEC>((const float *)job.gradient + at);
    }
    group<uint16_t, VEC> narrow = fetch<VEC>((const uint16_t *)job.gradient + at);
    group<float, VEC> wide;
    for (int i = 0; i < VEC; i++) {
        wide.at[i] = widen_bits(narrow.at[i]);
    }
    return wide;
}

/* n is a multiple of VEC and every array is aligned to VEC of its elements. */
template <int VEC> static __global__ void __launch_bounds__(THREADS) adamw(struct adamw_job job)
{
    const struct mf_adamw_scalars scalars = job.prepared->scalars;
    int64_t step = (int64_t)gridDim.x * THREADS * VEC;
    if (job.prepared->skipped != 0) {
        return;
    }
    for (int64_t at = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VEC; at < job.n; at += step) {
        group<float, VEC> gradient = fetch_gradient<VEC>(job, at);
        group<float, VEC> m = fetch<VEC>(job.m + at);
        group<float, VEC> v = fetch<VEC>(job.v + at);
        group<int16_t, VEC> rest = fetch<VEC>(job.rest + at);
        group<uint16_t, VEC> weight = fetch<VEC>(job.weight + at);
        for (int i = 0; i < VEC; i++) {
            int decayed = at + i < job.border ? job.decay_first : job.decay_rest;
            mf_adamw_stored(&scalars, decayed ? scalars.decay : 1.0f, gradient.at[i], &m.at[i],
                            &v.at[i], &rest.at[i], &weight.at[i]);
        }
        put<VEC>(job.m + at, m);
        put<VEC>(job.v + at, v);
        put<VEC>(job.rest + at, rest);
        put<VEC>(job.weight + at, weight);
    }
}

#define ADAMW_VEC 4

static bool groups_fit(const struct adamw_job *job)
{
    uintptr_t gradient_bytes = job->fp32 ? 4 : 2;
    return job->n % ADAMW_VEC == 0 && (uintptr_t)job->m % (ADAMW_VEC * 4) == 0 &&
           (uintptr_t)job->weight % (ADAMW_VEC * 2) == 0 &&
           (uintptr_t)job->gradient % (ADAMW_VEC * gradient_bytes) == 0;
}

cudaError_t mf_cuda_update_adamw(const struct mf_cuda_context *context,
                                 const struct mf_kernel_call *call)
{
    uint32_t flags = call->shape.flags;
    int64_t n = call->shape.n;
    struct prepared *prepared = (struct prepared *)context->scratch;
    float *m = (float *)call->operands[1].pointer;
    prepare<<<1, 1, 0, context->stream>>>((const struct mf_control *)call->operands[3].pointer,
                                          prepared);
    struct adamw_job job = {prepared,
                            call->operands[0].pointer,
                            m,
                            m + n,
                            (int16_t *)(m + 2 * n),
                            (uint16_t *)call->operands[2].pointer,
                            n,
                            call->shape.k,
                            (flags & MF_SHAPE_GRADIENT_FP32) != 0,
                            (flags & MF_SHAPE_DECAY_FIRST) != 0,
                            (flags & MF_SHAPE_DECAY_REST) != 0};
    if (groups_fit(&job)) {
        adamw<ADAMW_VEC><<<grid_of(context, n / ADAMW_VEC), THREADS, 0, context->stream>>>(job);
    } else {
        adamw<1><<<grid_of(context, n), THREADS, 0, context->stream>>>(job);
    }
    return cudaGetLastError();
}

cudaError_t mf_cuda_update_load(void)
{
    const void *const kernels[] = {
        (const void *)accumulate, (const void *)square_blocks, (const void *)sum_in_order,
        (const void *)clip,       (const void *)prepare,       (const void *)adamw<ADAMW_VEC>,
        (const void *)adamw<1>,
    };
    return load_all(kernels, sizeof(kernels) / sizeof(kernels[0]));
}
