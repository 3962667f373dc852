/* Causal attention, forward, on the tensor cores: one block takes 128 queries of a head and passes
 * over the keys once with a running maximum and sum (Dao's FlashAttention-2). */
#include "runtime/cuda/attention_tiles.cuh"

#define THREADS 256
#define QUERIES 128
#define KEYS 64
#define N (KEYS / 8) /* accumulator tiles of the scores */

struct forward_job {
    struct head_rows q, k, v, o;
    float *lse; /* [rows, heads] */
    int32_t seq_len, heads, group;
    float scale;
};

struct running {
    float top[2]; /* of rows lane / 4 and lane / 4 + 8, in scores times scale * log2(e) */
    float sum[2];
};

/* Scores of keys after the query, or after the sequence, count as minus infinity. */
__device__ __forceinline__ void hide(float scores[N][4], int query, int key)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < N; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int column = key + t * 8 + lane % 4 * 2 + i % 2;
            if (column > query + lane / 4 + i / 2 * 8) {
                scores[t][i] = -INFINITY;
            }
        }
    }
}

/* Scores become exponentials against the new maximum; returns what sums so far are multiplied by.
 */
__device__ __forceinline__ void soften(float scores[N][4], struct running *state, float scale,
                                       float factor[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float top = state->top[half];
#pragma unroll
        for (int t = 0; t < N; t++) {
            top = fmaxf(top, fmaxf(scores[t][half * 2], scores[t][half * 2 + 1]) * scale);
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        factor[half] = exp2f(state->top[half] - top);
        float sum = 0;
#pragma unroll
        for (int t = 0; t < N; t++) {
#pragma unroll
            for (int i = half * 2; i < half * 2 + 2; i++) {
                scores[t][i] = exp2f(scores[t][i] * scale - top);
                sum += scores[t][i];
            }
        }
        state->top[half] = top;
        state->sum[half] = state->sum[half] * factor[half] + sum;
    }
}

template <int D>
__device__ __forceinline__ void finish(const struct forward_job &job, const float out[D / 8][4],
                                       const struct running &state, bf16 *o, int query,
                                       int64_t base, int head)
{
    int lane = threadIdx.x % 32;
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = state.sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        inverse[half] = 1.0f / sum;
        int row = query + lane / 4 + half * 8;
        if (lane % 4 == 0 && row < job.seq_len) {
            job.lse[(base + row) * job.heads + head] = state.top[half] / LOG2_E + logf(sum);
        }
    }
    store_rows<D>(out, inverse[0], inverse[1], o, job.o.stride, query, job.seq_len);
}

template <int D>
static __global__ void __launch_bounds__(THREADS, 1) forward(struct forward_job job)
{
    extern __shared__ __align__(128) bf16 shared[];
    constexpr int TILE = KEYS * D;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * QUERIES; /* the longest rows start first */
    int head = blockIdx.y;
    int64_t base = (int64_t)blockIdx.z * job.seq_len;
    const bf16 *k = job.k.pointer + base * job.k.stride + head / job.group * D;
    const bf16 *v = job.v.pointer + base * job.v.stride + head / job.group * D;
    int query = first + threadIdx.x / 32 * 16;
    int end = first + QUERIES < job.seq_len ? first + QUERIES : job.seq_len;
    int blocks = (end + KEYS - 1) / KEYS;
    /* The queries pass through the second stage's room into registers. */
    load_tile<D, QUERIES, THREADS>(shared + 2 * TILE,
                                   job.q.pointer + base * job.q.stride + head * D, job.q.stride,
                                   first, job.seq_len);
    load_tile<D, KEYS, THREADS>(shared, k, job.k.stride, 0, job.seq_len);
    load_tile<D, KEYS, THREADS>(shared + TILE, v, job.v.stride, 0, job.seq_len);
    copy_commit();
    copy_wait();
    __syncthreads();
    uint32_t left[D / 16][4];
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        load_left<D>(left[step], shared + 2 * TILE, query - first, step);
    }
    float out[D / 8][4] = {};
    struct running state = {{-INFINITY, -INFINITY}, {0, 0}};
    float scale = job.scale * LOG2_E;
    for (int block = 0; block < blocks; block++) {
        const bf16 *keys = shared + block % 2 * 2 * TILE;
        copy_wait();
        __syncthreads();
        if (block + 1 < blocks) {
            bf16 *next = shared + (block + 1) % 2 * 2 * TILE;
            load_tile<D, KEYS, THREADS>(next, k, job.k.stride, (block + 1) * KEYS, job.seq_len);
            load_tile<D, KEYS, THREADS>(next + TILE, v, job.v.stride, (block + 1) * KEYS,
                                        job.seq_len);
            copy_commit();
        }
        if (block * KEYS > query + 15) {
            continue; /* all hidden from this warp */
        }
        float scores[N][4] = {};
        float factor[2];
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            add_rows_step<D, N>(scores, left[step], keys, step);
        }
        if (block * KEYS + KEYS - 1 > query) {
            hide(scores, query, block * KEYS);
        }
        soften(scores, &state, scale, factor);
#pragma unroll
        for (int t = 0; t < D / 8; t++) {
            out[t][0] *= factor[0];
            out[t][1] *= factor[0];
            out[t][2] *= factor[1];
            out[t][3] *= factor[1];
        }
        add_columns<D, N>(out, scores, keys + TILE);
    }
    finish<D>(job, out, state, job.o.pointer + base * job.o.stride + head * D, query, base, head);
}

#define SHARED(d) (4 * KEYS * (d) * (int)sizeof(bf16))

cudaError_t mf_cuda_attention_forward_tiles(const struct mf_cuda_context *context,
                                            const struct mf_kernel_call *call)
{
    const struct mf_shape *s = &call->shape;
    const struct mf_operand *o = call->operands;
    struct forward_job job = {head_rows_of(&o[0]),
                              head_rows_of(&o[1]),
                              head_rows_of(&o[2]),
                              head_rows_of(&o[3]),
                              (float *)o[4].pointer,
                              s->seq_len,
                              s->heads,
                              s->heads / s->kv_heads,
                              1.0f / sqrtf((float)s->head_dim)};
    dim3 grid((unsigned)blocks_for(s->seq_len, QUERIES), (unsigned)s->heads,
              (unsigned)(s->rows / s->seq_len));
    if (s->head_dim == 64) {
        forward<64><<<grid, THREADS, SHARED(64), context->stream>>>(job);
    } else {
        forward<128><<<grid, THREADS, SHARED(128), context->stream>>>(job);
    }
    return cudaGetLastError();
}

cudaError_t mf_cuda_attention_forward_load(int32_t shared_bytes)
{
    cudaError_t error = load_tiles((const void *)forward<64>, SHARED(64), shared_bytes);
    return error != cudaSuccess ? error
                                : load_tiles((const void *)forward<128>, SHARED(128), shared_bytes);
}
