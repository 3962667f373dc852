/* Causal attention for any head_dim up to 256, a warp a row; and the choice between this, the
 * kernels for tensor cores and those for Hopper (flash.h). The choice follows from shape, strides
 * and alignment, which no plan changes. core/kernel.h says what each operand is. */
#include <math.h>

#include "runtime/cuda/common.cuh"
#include "runtime/cuda/flash.h"
#include "runtime/cuda/kernels.h"

#define THREADS 128
#define WARPS (THREADS / 32)
#define HEAD_DIM_MAX 256
#define PARTS (HEAD_DIM_MAX / 32) /* elements of a row that a lane holds */
/* Dynamic shared memory of the largest kernel for tensor cores (head_dim 128). */
#define TILES_SHARED_BYTES (97 * 1024)

struct rows {
    bf16 *pointer;
    int64_t stride;
};

struct attention_job {
    struct rows q, k, v, o, dout, dq, dk, dv;
    float *lse;
    float *delta;
    int64_t count; /* rows * heads */
    int64_t seq_len, heads, kv_heads, head_dim;
    float scale;
};

static struct attention_job job_of(const struct mf_kernel_call *call)
{
    const struct mf_shape *s = &call->shape;
    const struct mf_operand *o = call->operands;
    struct rows rows[9];
    for (int index = 0; index < 9; index++) {
        rows[index] = {(bf16 *)o[index].pointer, o[index].stride};
    }
    struct attention_job job = {rows[0],
                                rows[1],
                                rows[2],
                                rows[3],
                                rows[5],
                                rows[6],
                                rows[7],
                                rows[8],
                                (float *)o[4].pointer,
                                NULL,
                                s->rows * s->heads,
                                s->seq_len,
                                s->heads,
                                s->kv_heads,
                                s->head_dim,
                                (float)(1.0 / sqrt((double)s->head_dim))};
    return job;
}

/* Lane l holds elements l, l + 32, ... of a row's head; what lies beyond it is 0. */
__device__ __forceinline__ void fetch(float out[PARTS], const struct rows &rows, int64_t row,
                                      int64_t head, int64_t head_dim)
{
    const bf16 *from = rows.pointer + row * rows.stride + head * head_dim;
    for (int part = 0; part < PARTS; part++) {
        int64_t at = part * 32 + threadIdx.x % 32;
        out[part] = at < head_dim ? widen(from[at]) : 0.0f;
    }
}

__device__ __forceinline__ void put(const float values[PARTS], float scale, const struct rows &rows,
                                    int64_t row, int64_t head, int64_t head_dim)
{
    bf16 *to = rows.pointer + row * rows.stride + head * head_dim;
    for (int part = 0; part < PARTS; part++) {
        int64_t at = part * 32 + threadIdx.x % 32;
        if (at < head_dim) {
            to[at] = narrow(values[part] * scale);
        }
    }
}

__device__ __forceinline__ float dot(const float a[PARTS], const float b[PARTS])
{
    float sum = 0;
    for (int part = 0; part < PARTS; part++) {
        sum += a[part] * b[part];
    }
    return warp_sum(sum);
}

static __global__ void __launch_bounds__(THREADS) forward(struct attention_job job)
{
    int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (item >= job.count) {
        return;
    }
    int64_t row = item / job.heads;
    int64_t head = item % job.heads;
    int64_t kv_head = head / (job.heads / job.kv_heads);
    int64_t base = row / job.seq_len * job.seq_len;
    float q[PARTS], other[PARTS];
    float out[PARTS] = {};
    float top = -INFINITY;
    float sum = 0;
    fetch(q, job.q, row, head, job.head_dim);
    for (int64_t key = base; key <= row; key++) {
        fetch(other, job.k, key, kv_head, job.head_dim);
        float score = dot(q, other) * job.scale;
        float new_top = fmaxf(top, score);
        float factor = __expf(top - new_top);
        float probability = __expf(score - new_top);
        fetch(other, job.v, key, kv_head, job.head_dim);
        for (int part = 0; part < PARTS; part++) {
            out[part] = out[part] * factor + probability * other[part];
        }
        sum = sum * factor + probability;
        top = new_top;
    }
    put(out, 1.0f / sum, job.o, row, head, job.head_dim);
    if (threadIdx.x % 32 == 0) {
        job.lse[row * job.heads + head] = top + logf(sum);
    }
}

/* delta = sum of output * gradient of the output, one warp a row of a head */
static __global__ void __launch_bounds__(THREADS) sum_delta(struct attention_job job)
{
    int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (item >= job.count) {
        return;
    }
    float o[PARTS], gradient[PARTS];
    fetch(o, job.o, item / job.heads, item % job.heads, job.head_dim);
    fetch(gradient, job.dout, item / job.heads, item % job.heads, job.head_dim);
    float delta = dot(o, gradient);
    if (threadIdx.x % 32 == 0) {
        job.delta[item] = delta;
    }
}

static __global__ void __launch_bounds__(THREADS) backward_queries(struct attention_job job)
{
    int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    if (item >= job.count) {
        return;
    }
    int64_t row = item / job.heads;
    int64_t head = item % job.heads;
    int64_t kv_head = head / (job.heads / job.kv_heads);
    float q[PARTS], dout[PARTS], k[PARTS], v[PARTS];
    float dq[PARTS] = {};
    fetch(q, job.q, row, head, job.head_dim);
    fetch(dout, job.dout, row, head, job.head_dim);
    for (int64_t key = row / job.seq_len * job.seq_len; key <= row; key++) {
        fetch(k, job.k, key, kv_head, job.head_dim);
        fetch(v, job.v, key, kv_head, job.head_dim);
        float probability = __expf(dot(q, k) * job.scale - job.lse[item]);
        float slope = probability * (dot(dout, v) - job.delta[item]);
        for (int part = 0; part < PARTS; part++) {
            dq[part] += slope * k[part];
        }
    }
    put(dq, job.scale, job.dq, row, head, job.head_dim);
}

static __global__ void __launch_bounds__(THREADS) backward_keys(struct attention_job job)
{
    int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int64_t group = job.heads / job.kv_heads;
    if (item >= job.count / group) {
        return;
    }
    int64_t row = item / job.kv_heads;
    int64_t kv_head = item % job.kv_heads;
    int64_t end = (row / job.seq_len + 1) * job.seq_len;
    float q[PARTS], dout[PARTS], k[PARTS], v[PARTS];
    float dk[PARTS] = {};
    float dv[PARTS] = {};
    fetch(k, job.k, row, kv_head, job.head_dim);
    fetch(v, job.v, row, kv_head, job.head_dim);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int64_t query = row; query < end; query++) {
            int64_t at = query * job.heads + head;
            fetch(q, job.q, query, head, job.head_dim);
            fetch(dout, job.dout, query, head, job.head_dim);
            float probability = __expf(dot(q, k) * job.scale - job.lse[at]);
            float slope = probability * (dot(dout, v) - job.delta[at]);
            for (int part = 0; part < PARTS; part++) {
                dk[part] += slope * q[part];
                dv[part] += probability * dout[part];
            }
        }
    }
    put(dk, job.scale, job.dk, row, kv_head, job.head_dim);
    put(dv, 1.0f, job.dv, row, kv_head, job.head_dim);
}

/* Whether the tensor-core kernels can take the call's operands; by geometry, so that a plan does
 * not change the choice. */
static bool tiled(const struct mf_cuda_context *context, const struct mf_kernel_call *call,
                  const int *matrices, int count)
{
    int32_t d = call->shape.head_dim;
    bool good = (d == 64 || d == 128) && context->shared_bytes >= TILES_SHARED_BYTES &&
                context->attention >= MF_CUDA_ATTENTION_TILES;
    for (int index = 0; index < count; index++) {
        const struct mf_operand *operand = &call->operands[matrices[index]];
        good = good && packable(operand->pointer, operand->stride, d, 8);
    }
    return good;
}

static struct mf_flash_args flash_args(const struct mf_cuda_context *context,
                                       const struct mf_kernel_call *call)
{
    const struct mf_shape *s = &call->shape;
    const struct mf_operand *o = call->operands;
    struct mf_flash_args args = {};
    args.q = o[0];
    args.k = o[1];
    args.v = o[2];
    args.o = o[3];
    args.lse = (float *)o[4].pointer;
    args.grad_o = o[5];
    args.grad_q = o[6];
    args.grad_k = o[7];
    args.grad_v = o[8];
    args.workspace = context->scratch;
    args.rows = s->rows;
    args.seq_len = s->seq_len;
    args.heads = s->heads;
    args.kv_heads = s->kv_heads;
    args.head_dim = s->head_dim;
    return args;
}

/* Whether Hopper's kernels take these matrices: aligned as the tensor copy engine needs them. */
static bool hopper(const struct mf_cuda_context *context, const struct mf_kernel_call *call,
                   const int *matrices, int count)
{
    const struct mf_shape *s = &call->shape;
    size_t workspace = mf_flash_workspace_bytes(s->rows, s->heads, s->head_dim);
    for (int index = 0; index < count; index++) {
        const struct mf_operand *matrix = &call->operands[matrices[index]];
        if ((uintptr_t)matrix->pointer % 16 != 0 || matrix->stride % 8 != 0) {
            return false;
        }
    }
    return context->attention >= MF_CUDA_ATTENTION_HOPPER && mf_flash_supported(s->head_dim) &&
           workspace <= (size_t)context->scratch_bytes;
}

cudaError_t mf_cuda_attention_forward(const struct mf_cuda_context *context,
                                      const struct mf_kernel_call *call)
{
    static const int matrices[] = {0, 1, 2, 3};
    if (call->shape.head_dim > HEAD_DIM_MAX) {
        return cudaErrorNotSupported;
    }
    if (hopper(context, call, matrices, 4)) {
        struct mf_flash_args args = flash_args(context, call);
        return mf_flash_forward(&args, context->stream);
    }
    if (tiled(context, call, matrices, 4)) {
        return mf_cuda_attention_forward_tiles(context, call);
    }
    struct attention_job job = job_of(call);
    forward<<<(unsigned)blocks_for(job.count, WARPS), THREADS, 0, context->stream>>>(job);
    return cudaGetLastError();
}

cudaError_t mf_cuda_attention_backward(const struct mf_cuda_context *context,
                                       const struct mf_kernel_call *call)
{
    static const int matrices[] = {0, 1, 2, 5, 6, 7, 8, 3};
    if (hopper(context, call, matrices, 8)) {
        struct mf_flash_args args = flash_args(context, call);
        return mf_flash_backward(&args, context->stream);
    }
    struct attention_job job = job_of(call);
    if (call->shape.head_dim > HEAD_DIM_MAX ||
        job.count * (int64_t)sizeof(float) > context->scratch_bytes) {
        return cudaErrorNotSupported;
    }
    job.delta = (float *)context->scratch;
    sum_delta<<<(unsigned)blocks_for(job.count, WARPS), THREADS, 0, context->stream>>>(job);
    if (tiled(context, call, matrices, 7)) {
        return mf_cuda_attention_backward_tiles(context, call, job.delta);
    }
    int64_t kv_count = job.count / job.heads * job.kv_heads;
    backward_queries<<<(unsigned)blocks_for(job.count, WARPS), THREADS, 0, context->stream>>>(job);
    backward_keys<<<(unsigned)blocks_for(kv_count, WARPS), THREADS, 0, context->stream>>>(job);
    return cudaGetLastError();
}

cudaError_t mf_cuda_attention_load(void)
{
    const void *const kernels[] = {(const void *)forward, (const void *)sum_delta,
                                   (const void *)backward_queries, (const void *)backward_keys};
    return load_all(kernels, 4);
}

#define WARM_ROWS 64
#define WARM_BYTES (WARM_ROWS * 128 * (int)sizeof(bf16)) /* a matrix of one head */

cudaError_t mf_cuda_attention_warm(const struct mf_cuda_context *context)
{
    cudaError_t error = cudaMemsetAsync(context->scratch, 0, 11 * WARM_BYTES, context->stream);
    for (int32_t head_dim = 64; head_dim <= 128 && error == cudaSuccess; head_dim *= 2) {
        struct mf_kernel_call call = {};
        call.shape.rows = WARM_ROWS;
        call.shape.seq_len = WARM_ROWS;
        call.shape.heads = 1;
        call.shape.kv_heads = 1;
        call.shape.head_dim = head_dim;
        for (int index = 0; index < MF_OPERANDS_MAX; index++) {
            call.operands[index] = {context->scratch + index * WARM_BYTES, head_dim};
        }
        struct mf_flash_args args = flash_args(context, &call);
        args.workspace = context->scratch + MF_OPERANDS_MAX * WARM_BYTES;
        if (context->attention < MF_CUDA_ATTENTION_HOPPER || !mf_flash_supported(head_dim)) {
            break;
        }
        error = mf_flash_forward(&args, context->stream);
        error = error == cudaSuccess ? mf_flash_backward(&args, context->stream) : error;
    }
    return error == cudaSuccess ? cudaStreamSynchronize(context->stream) : error;
}
