/* RMS and layer norm, and column sums; core/kernel.h says what each operand is. A group is `n`
 * consecutive elements of a row that are normalised alone; rows hold `heads` groups. */
#include "runtime/cuda/common.cuh"
#include "runtime/cuda/kernels.h"

#define THREADS 256
#define WARPS (THREADS / 32)
#define SMALL_GROUP 1024 /* up to here a warp takes a group, from here on a block does */
#define PANEL_ALIGN 64
/* Column sums: partial sums of at least this many groups, and at most so many of them. */
#define PARTIAL_GROUPS_MIN 32
#define PARTIALS_MAX 256
#define COLUMN_THREADS 128
#define FINAL_COLUMNS 32
#define FINAL_PARTS 8

struct groups {
    bf16 *pointer;
    int64_t stride;
    int64_t heads;
    int64_t n;

    __device__ __forceinline__ bf16 *at(int64_t group) const
    {
        return pointer + group / heads * stride + group % heads * n;
    }
};

static struct groups groups_of(const struct mf_operand *operand, const struct mf_shape *shape)
{
    return {(bf16 *)operand->pointer, operand->stride, shape->heads > 1 ? shape->heads : 1,
            shape->n};
}

static bool is_layer(enum mf_kernel kernel)
{
    return kernel == MF_KERNEL_LAYER_NORM_FORWARD || kernel == MF_KERNEL_LAYER_NORM_BACKWARD ||
           kernel == MF_KERNEL_LAYER_NORM_BACKWARD_WEIGHT;
}

struct norm_job {
    struct groups x, dy, y; /* y: dx in backward */
    const bf16 *weight;
    float *stats;
    int64_t count;
    float eps;
    int add;
};

/* The threads that share a group: a warp or the block. */
template <bool BLOCK> __device__ __forceinline__ float group_sum(float value, float *shared)
{
    return BLOCK ? block_sum(value, shared) : warp_sum(value);
}

template <int VEC, bool BLOCK, bool LAYER>
static __global__ void __launch_bounds__(THREADS) forward(struct norm_job job)
{
    __shared__ float shared[WARPS];
    int64_t n = job.x.n;
    int64_t group = BLOCK ? blockIdx.x : (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int64_t start = (BLOCK ? threadIdx.x : threadIdx.x % 32) * VEC;
    const int64_t step = (BLOCK ? THREADS : 32) * VEC;
    if (group >= job.count) {
        return;
    }
    const bf16 *x = job.x.at(group);
    float mean = 0;
    float squares = 0;
    if (LAYER) {
        for (int64_t at = start; at < n; at += step) {
            pack<VEC> in = load<VEC>(x + at);
            for (int i = 0; i < VEC; i++) {
                mean += widen(in.at[i]);
            }
        }
        mean = group_sum<BLOCK>(mean, shared) / (float)n;
    }
    for (int64_t at = start; at < n; at += step) {
        pack<VEC> in = load<VEC>(x + at);
        for (int i = 0; i < VEC; i++) {
            float value = widen(in.at[i]) - mean;
            squares += value * value;
        }
    }
    float scale = 1.0f / sqrtf(group_sum<BLOCK>(squares, shared) / (float)n + job.eps);
    bf16 *y = job.y.at(group);
    for (int64_t at = start; at < n; at += step) {
        pack<VEC> in = load<VEC>(x + at);
        pack<VEC> weight = load<VEC>(job.weight + at);
        for (int i = 0; i < VEC; i++) {
            float value = (widen(in.at[i]) - mean) * scale * widen(weight.at[i]);
            in.at[i] = narrow(LAYER ? value + widen(job.weight[n + at + i]) : value);
        }
        store(y + at, in);
    }
    if (start == 0) {
        job.stats[group * 2] = mean;
        job.stats[group * 2 + 1] = scale;
    }
}

/* dx = scale * (g - mean(g) - value * mean(g * value)), g = dy * weight; RMS has no mean(g). */
template <int VEC, bool BLOCK, bool LAYER>
static __global__ void __launch_bounds__(THREADS) backward(struct norm_job job)
{
    __shared__ float shared[WARPS];
    int64_t n = job.x.n;
    int64_t group = BLOCK ? blockIdx.x : (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int64_t start = (BLOCK ? threadIdx.x : threadIdx.x % 32) * VEC;
    const int64_t step = (BLOCK ? THREADS : 32) * VEC;
    if (group >= job.count) {
        return;
    }
    const bf16 *x = job.x.at(group);
    const bf16 *dy = job.dy.at(group);
    bf16 *dx = job.y.at(group);
    float mean = job.stats[group * 2];
    float scale = job.stats[group * 2 + 1];
    float plain = 0;
    float scaled = 0;
    for (int64_t at = start; at < n; at += step) {
        pack<VEC> in = load<VEC>(x + at);
        pack<VEC> gradient = load<VEC>(dy + at);
        pack<VEC> weight = load<VEC>(job.weight + at);
        for (int i = 0; i < VEC; i++) {
            float g = widen(gradient.at[i]) * widen(weight.at[i]);
            plain += g;
            scaled += g * ((widen(in.at[i]) - mean) * scale);
        }
    }
    plain = LAYER ? group_sum<BLOCK>(plain, shared) / (float)n : 0.0f;
    scaled = group_sum<BLOCK>(scaled, shared) / (float)n;
    for (int64_t at = start; at < n; at += step) {
        pack<VEC> in = load<VEC>(x + at);
        pack<VEC> gradient = load<VEC>(dy + at);
        pack<VEC> weight = load<VEC>(job.weight + at);
        pack<VEC> old;
        if (job.add) {
            old = load<VEC>(dx + at);
        }
        for (int i = 0; i < VEC; i++) {
            float g = widen(gradient.at[i]) * widen(weight.at[i]);
            float value = (widen(in.at[i]) - mean) * scale;
            float result = scale * (g - plain - value * scaled);
            in.at[i] = narrow(job.add ? widen(old.at[i]) + result : result);
        }
        store(dx + at, in);
    }
}

static bool groups_packable(const struct groups *groups)
{
    return packable(groups->pointer, groups->stride, groups->n, 8);
}

#define LAUNCH(kernel, vec, block, layer)                                                          \
    kernel<vec, block, layer><<<(unsigned)grid, THREADS, 0, context->stream>>>(job)
/* Picks the instance: packs of 8, a block a group, layer norm. */
#define CHOOSE(kernel, wide, block, layer)                                                         \
    do {                                                                                           \
        int choice_ = ((wide) ? 4 : 0) | ((block) ? 2 : 0) | ((layer) ? 1 : 0);                    \
        choice_ == 0   ? LAUNCH(kernel, 1, false, false)                                           \
        : choice_ == 1 ? LAUNCH(kernel, 1, false, true)                                            \
        : choice_ == 2 ? LAUNCH(kernel, 1, true, false)                                            \
        : choice_ == 3 ? LAUNCH(kernel, 1, true, true)                                             \
        : choice_ == 4 ? LAUNCH(kernel, 8, false, false)                                           \
        : choice_ == 5 ? LAUNCH(kernel, 8, false, true)                                            \
        : choice_ == 6 ? LAUNCH(kernel, 8, true, false)                                            \
                       : LAUNCH(kernel, 8, true, true);                                            \
    } while (0)

cudaError_t mf_cuda_norm_forward(const struct mf_cuda_context *context,
                                 const struct mf_kernel_call *call)
{
    const struct mf_operand *o = call->operands;
    struct norm_job job = {};
    job.x = groups_of(&o[0], &call->shape);
    job.y = groups_of(&o[2], &call->shape);
    job.weight = (const bf16 *)o[1].pointer;
    job.stats = (float *)o[3].pointer;
    job.count = call->shape.rows * job.x.heads;
    job.eps = (float)call->scalar0;
    bool wide = groups_packable(&job.x) && groups_packable(&job.y) &&
                packable(job.weight, 0, call->shape.n, 8);
    bool block = call->shape.n > SMALL_GROUP;
    int64_t grid = block ? job.count : blocks_for(job.count, WARPS);
    CHOOSE(forward, wide, block, is_layer(call->kernel));
    return cudaGetLastError();
}

cudaError_t mf_cuda_norm_backward(const struct mf_cuda_context *context,
                                  const struct mf_kernel_call *call)
{
    const struct mf_operand *o = call->operands;
    struct norm_job job = {};
    job.x = groups_of(&o[0], &call->shape);
    job.dy = groups_of(&o[3], &call->shape);
    job.y = groups_of(&o[4], &call->shape);
    job.weight = (const bf16 *)o[1].pointer;
    job.stats = (float *)o[2].pointer;
    job.count = call->shape.rows * job.x.heads;
    job.add = (call->shape.flags & MF_SHAPE_ADD_TO_OUTPUT) != 0;
    bool wide = groups_packable(&job.x) && groups_packable(&job.dy) && groups_packable(&job.y) &&
                packable(job.weight, 0, call->shape.n, 8);
    bool block = call->shape.n > SMALL_GROUP;
    int64_t grid = block ? job.count : blocks_for(job.count, WARPS);
    CHOOSE(backward, wide, block, is_layer(call->kernel));
    return cudaGetLastError();
}

/* ---- column sums: gradients of norms and biases ---- */

struct column_job {
    struct groups x, dy;
    const float *stats; /* NULL: only the plain sums */
    int64_t count;
    int64_t chunk; /* groups of one partial sum */
    int64_t partials;
    float *sums; /* [partials, 2, n]: scaled, then plain */
    bf16 *out;   /* [n] scaled (if stats), then [n] plain (if `plain`) */
    int plain;
};

template <int VEC>
static __global__ void __launch_bounds__(COLUMN_THREADS) sum_columns(struct column_job job)
{
    int64_t n = job.dy.n;
    int64_t column = ((int64_t)blockIdx.x * COLUMN_THREADS + threadIdx.x) * VEC;
    int64_t first = (int64_t)blockIdx.y * job.chunk;
    int64_t end = first + job.chunk < job.count ? first + job.chunk : job.count;
    float scaled[VEC] = {};
    float plain[VEC] = {};
    if (column >= n) {
        return;
    }
#pragma unroll 4
    for (int64_t group = first; group < end; group++) {
        pack<VEC> gradient = load<VEC>(job.dy.at(group) + column);
        pack<VEC> in = gradient;
        float mean = 0;
        float scale = 0;
        if (job.stats != NULL) {
            in = load<VEC>(job.x.at(group) + column);
            mean = job.stats[group * 2];
            scale = job.stats[group * 2 + 1];
        }
        for (int i = 0; i < VEC; i++) {
            float g = widen(gradient.at[i]);
            scaled[i] += g * ((widen(in.at[i]) - mean) * scale);
            plain[i] += g;
        }
    }
    float *sums = job.sums + (int64_t)blockIdx.y * 2 * n + column;
    for (int i = 0; i < VEC; i++) {
        sums[i] = scaled[i];
        sums[n + i] = plain[i];
    }
}

/* Adds the partial sums of FINAL_COLUMNS columns, in FINAL_PARTS parts that are added in order. */
static __global__ void __launch_bounds__(FINAL_COLUMNS *FINAL_PARTS)
    add_partials(struct column_job job)
{
    __shared__ float parts[2][FINAL_PARTS][FINAL_COLUMNS];
    int64_t n = job.dy.n;
    int lane = threadIdx.x % FINAL_COLUMNS;
    int part = threadIdx.x / FINAL_COLUMNS;
    int64_t column = (int64_t)blockIdx.x * FINAL_COLUMNS + lane;
    int64_t share = (job.partials + FINAL_PARTS - 1) / FINAL_PARTS;
    int64_t end = (part + 1) * share < job.partials ? (part + 1) * share : job.partials;
    float scaled = 0;
    float plain = 0;
    for (int64_t partial = part * share; partial < end && column < n; partial++) {
        scaled += job.sums[partial * 2 * n + column];
        plain += job.sums[partial * 2 * n + n + column];
    }
    parts[0][part][lane] = scaled;
    parts[1][part][lane] = plain;
    __syncthreads();
    if (part == 0 && column < n) {
        for (int other = 1; other < FINAL_PARTS; other++) {
            scaled += parts[0][other][lane];
            plain += parts[1][other][lane];
        }
        bf16 *out = job.out;
        if (job.stats != NULL) {
            out[column] = narrow(scaled);
            out += n;
        }
        if (job.plain) {
            out[column] = narrow(plain);
        }
    }
}

static cudaError_t run_columns(const struct mf_cuda_context *context, struct column_job *job)
{
    int64_t n = job->dy.n;
    int64_t most = context->scratch_bytes / (int64_t)(2 * n * sizeof(float));
    most = most < PARTIALS_MAX ? most : PARTIALS_MAX;
    if (most < 1) {
        return cudaErrorInvalidValue;
    }
    int64_t least = blocks_for(job->count, most);
    job->chunk = least > PARTIAL_GROUPS_MIN ? least : PARTIAL_GROUPS_MIN;
    job->partials = blocks_for(job->count, job->chunk);
    job->sums = (float *)context->scratch;
    bool wide = packable(job->dy.pointer, job->dy.stride, n, 2) &&
                packable(job->x.pointer, job->x.stride, n, 2);
    dim3 grid((unsigned)blocks_for(n, COLUMN_THREADS * (wide ? 2 : 1)), (unsigned)job->partials);
    if (job->partials > 0) {
        (wide ? sum_columns<2>
              : sum_columns<1>)<<<grid, COLUMN_THREADS, 0, context->stream>>>(*job);
    }
    add_partials<<<(unsigned)blocks_for(n, FINAL_COLUMNS), FINAL_COLUMNS * FINAL_PARTS, 0,
                   context->stream>>>(*job);
    return cudaGetLastError();
}

cudaError_t mf_cuda_norm_backward_weight(const struct mf_cuda_context *context,
                                         const struct mf_kernel_call *call)
{
    const struct mf_operand *o = call->operands;
    bool layer = is_layer(call->kernel);
    struct column_job job = {};
    job.x = groups_of(&o[0], &call->shape);
    job.dy = groups_of(&o[2], &call->shape);
    job.stats = (const float *)o[1].pointer;
    job.count = call->shape.rows * job.x.heads;
    job.out = (bf16 *)o[3].pointer;
    job.plain = layer;
    cudaError_t error = run_columns(context, &job);
    return error != cudaSuccess
               ? error
               : mf_cuda_elementwise_pad(context, o[3].pointer, call->shape.n * (layer ? 2 : 1));
}

cudaError_t mf_cuda_norm_bias_sums(const struct mf_cuda_context *context,
                                   const struct mf_operand *dy, int64_t rows, int64_t n, void *out)
{
    struct column_job job = {};
    job.dy = {(bf16 *)dy->pointer, dy->stride, 1, n};
    job.x = job.dy;
    job.count = rows;
    job.out = (bf16 *)out;
    job.plain = 1;
    return run_columns(context, &job);
}

#define ALL(kernel)                                                                                \
    (const void *)kernel<1, false, false>, (const void *)kernel<1, false, true>,                   \
        (const void *)kernel<1, true, false>, (const void *)kernel<1, true, true>,                 \
        (const void *)kernel<8, false, false>, (const void *)kernel<8, false, true>,               \
        (const void *)kernel<8, true, false>, (const void *)kernel<8, true, true>

cudaError_t mf_cuda_norm_load(void)
{
    const void *const kernels[] = {
        ALL(forward),
        ALL(backward),
        (const void *)sum_columns<1>,
        (const void *)sum_columns<2>,
        (const void *)add_partials,
    };
    return load_all(kernels, sizeof(kernels) / sizeof(kernels[0]));
}
