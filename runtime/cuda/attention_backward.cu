/* Causal attention, backward, on the tensor cores: one pass for dk and dv (a block takes 64 keys
 * and passes over the queries of its group's heads), one for dq. Nothing is added atomically, so
 * the same inputs give the same bits. */
#include "runtime/cuda/attention_tiles.cuh"

#define THREADS 128
#define ROWS 64 /* of every tile: keys and queries alike */
#define N (ROWS / 8)

struct backward_job {
    struct head_rows q, k, v, dout, dq, dk, dv;
    const float *lse; /* [rows, heads] */
    const float *delta;
    int32_t seq_len, heads, group;
    float scale;
};

/* lse and delta of queries first.. into shared memory: {lse * log2(e), delta}. */
__device__ __forceinline__ void load_sums(float2 *to, const struct backward_job &job, int64_t base,
                                          int head, int first)
{
    int row = first + threadIdx.x;
    if (threadIdx.x < ROWS && row < job.seq_len) {
        int64_t at = (base + row) * job.heads + head;
        to[threadIdx.x] = make_float2(job.lse[at] * LOG2_E, job.delta[at]);
    }
}

/* Transposed scores [keys, queries] become probabilities; what is hidden becomes 0. */
__device__ __forceinline__ void soften_columns(float scores[N][4], const float2 *sums, float scale,
                                               int key, int query, int seq_len)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < N; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int column = t * 8 + lane % 4 * 2 + i % 2;
            int row = key + lane / 4 + i / 2 * 8;
            bool seen = row <= query + column && query + column < seq_len;
            scores[t][i] = seen ? exp2f(scores[t][i] * scale - sums[column].x) : 0.0f;
        }
    }
}

/* slopes = scores * (slopes - delta of the column's query), 0 where the score is. */
__device__ __forceinline__ void differ_columns(const float scores[N][4], float slopes[N][4],
                                               const float2 *sums)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < N; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float delta = sums[t * 8 + lane % 4 * 2 + i % 2].y;
            slopes[t][i] = scores[t][i] == 0.0f ? 0.0f : scores[t][i] * (slopes[t][i] - delta);
        }
    }
}

/* Item `item` of a block's queries: its head and first row. */
struct place {
    int head, first;
};

__device__ __forceinline__ struct place place_of(const struct backward_job &job, int item,
                                                 int blocks, int skipped)
{
    return {(int)blockIdx.y * job.group + item / blocks, (item % blocks + skipped) * ROWS};
}

template <int D>
__device__ __forceinline__ void load_queries(const struct backward_job &job, bf16 *to, float2 *sums,
                                             int64_t base, struct place place)
{
    load_tile<D, ROWS, THREADS>(to, job.q.pointer + base * job.q.stride + place.head * D,
                                job.q.stride, place.first, job.seq_len);
    load_tile<D, ROWS, THREADS>(to + ROWS * D,
                                job.dout.pointer + base * job.dout.stride + place.head * D,
                                job.dout.stride, place.first, job.seq_len);
    load_sums(sums, job, base, place.head, place.first);
    copy_commit();
}

template <int D>
static __global__ void __launch_bounds__(THREADS, 2) backward_keys(struct backward_job job)
{
    extern __shared__ __align__(128) bf16 shared[];
    constexpr int TILE = ROWS * D;
    float2 *sums = (float2 *)(shared + 6 * TILE); /* [2, ROWS] */
    int first = blockIdx.x * ROWS;
    int64_t base = (int64_t)blockIdx.z * job.seq_len;
    int kv_column = blockIdx.y * D;
    int blocks = (job.seq_len + ROWS - 1) / ROWS - (int)blockIdx.x;
    int items = blocks * job.group;
    int key = threadIdx.x / 32 * 16;
    load_tile<D, ROWS, THREADS>(shared, job.k.pointer + base * job.k.stride + kv_column,
                                job.k.stride, first, job.seq_len);
    load_tile<D, ROWS, THREADS>(shared + TILE, job.v.pointer + base * job.v.stride + kv_column,
                                job.v.stride, first, job.seq_len);
    load_queries<D>(job, shared + 2 * TILE, sums, base, place_of(job, 0, blocks, blockIdx.x));
    float dk[D / 8][4] = {};
    float dv[D / 8][4] = {};
    for (int item = 0; item < items; item++) {
        const bf16 *queries = shared + (2 + item % 2 * 2) * TILE;
        const float2 *now = sums + item % 2 * ROWS;
        copy_wait();
        __syncthreads();
        if (item + 1 < items) {
            load_queries<D>(job, shared + (2 + (item + 1) % 2 * 2) * TILE,
                            sums + (item + 1) % 2 * ROWS, base,
                            place_of(job, item + 1, blocks, blockIdx.x));
        }
        struct place place = place_of(job, item, blocks, blockIdx.x);
        float scores[N][4];
        float slopes[N][4];
        multiply_rows<D, N>(scores, shared, key, queries);
        soften_columns(scores, now, job.scale * LOG2_E, first + key, place.first, job.seq_len);
        add_columns<D, N>(dv, scores, queries + TILE);
        multiply_rows<D, N>(slopes, shared + TILE, key, queries + TILE);
        differ_columns(scores, slopes, now);
        add_columns<D, N>(dk, slopes, queries);
    }
    store_rows<D>(dk, job.scale, job.scale, job.dk.pointer + base * job.dk.stride + kv_column,
                  job.dk.stride, first + key, job.seq_len);
    store_rows<D>(dv, 1.0f, 1.0f, job.dv.pointer + base * job.dv.stride + kv_column, job.dv.stride,
                  first + key, job.seq_len);
}

/* Scores [queries, keys] of rows with these sums become probabilities, then slopes. */
__device__ __forceinline__ void differ_rows(float scores[N][4], const float slopes[N][4],
                                            const float2 sums[2], float scale, int query, int key)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < N; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int column = key + t * 8 + lane % 4 * 2 + i % 2;
            bool seen = column <= query + lane / 4 + i / 2 * 8;
            float probability = exp2f(scores[t][i] * scale - sums[i / 2].x);
            scores[t][i] = seen ? probability * (slopes[t][i] - sums[i / 2].y) : 0.0f;
        }
    }
}

template <int D>
static __global__ void __launch_bounds__(THREADS, 2) backward_queries(struct backward_job job)
{
    extern __shared__ __align__(128) bf16 shared[];
    constexpr int TILE = ROWS * D;
    int first = (int)(gridDim.x - 1 - blockIdx.x) * ROWS;
    int head = blockIdx.y;
    int64_t base = (int64_t)blockIdx.z * job.seq_len;
    const bf16 *k = job.k.pointer + base * job.k.stride + head / job.group * D;
    const bf16 *v = job.v.pointer + base * job.v.stride + head / job.group * D;
    int row = threadIdx.x / 32 * 16;
    int blocks = first / ROWS + 1;
    load_tile<D, ROWS, THREADS>(shared, job.q.pointer + base * job.q.stride + head * D,
                                job.q.stride, first, job.seq_len);
    load_tile<D, ROWS, THREADS>(shared + TILE, job.dout.pointer + base * job.dout.stride + head * D,
                                job.dout.stride, first, job.seq_len);
    load_tile<D, ROWS, THREADS>(shared + 2 * TILE, k, job.k.stride, 0, job.seq_len);
    load_tile<D, ROWS, THREADS>(shared + 3 * TILE, v, job.v.stride, 0, job.seq_len);
    copy_commit();
    float2 sums[2];
    for (int half = 0; half < 2; half++) {
        int query = first + row + threadIdx.x % 32 / 4 + half * 8;
        int64_t at = (base + (query < job.seq_len ? query : 0)) * job.heads + head;
        sums[half] = make_float2(job.lse[at] * LOG2_E, job.delta[at]);
    }
    float dq[D / 8][4] = {};
    for (int block = 0; block < blocks; block++) {
        const bf16 *keys = shared + (2 + block % 2 * 2) * TILE;
        copy_wait();
        __syncthreads();
        if (block + 1 < blocks) {
            bf16 *next = shared + (2 + (block + 1) % 2 * 2) * TILE;
            load_tile<D, ROWS, THREADS>(next, k, job.k.stride, (block + 1) * ROWS, job.seq_len);
            load_tile<D, ROWS, THREADS>(next + TILE, v, job.v.stride, (block + 1) * ROWS,
                                        job.seq_len);
            copy_commit();
        }
        float scores[N][4];
        float slopes[N][4];
        multiply_rows<D, N>(scores, shared, row, keys);
        multiply_rows<D, N>(slopes, shared + TILE, row, keys + TILE);
        differ_rows(scores, slopes, sums, job.scale * LOG2_E, first + row, block * ROWS);
        add_columns<D, N>(dq, scores, keys);
    }
    store_rows<D>(dq, job.scale, job.scale, job.dq.pointer + base * job.dq.stride + head * D,
                  job.dq.stride, first + row, job.seq_len);
}

#define SHARED(d) (6 * ROWS * (d) * (int)sizeof(bf16) + 2 * ROWS * (int)sizeof(float2))

template <int D>
static cudaError_t launch(const struct mf_cuda_context *context, const struct mf_shape *s,
                          const struct backward_job &job)
{
    unsigned blocks = (unsigned)blocks_for(s->seq_len, ROWS);
    unsigned sequences = (unsigned)(s->rows / s->seq_len);
    backward_keys<D>
        <<<dim3(blocks, (unsigned)s->kv_heads, sequences), THREADS, SHARED(D), context->stream>>>(
            job);
    backward_queries<D>
        <<<dim3(blocks, (unsigned)s->heads, sequences), THREADS, SHARED(D), context->stream>>>(job);
    return cudaGetLastError();
}

cudaError_t mf_cuda_attention_backward_tiles(const struct mf_cuda_context *context,
                                             const struct mf_kernel_call *call, const float *delta)
{
    const struct mf_shape *s = &call->shape;
    const struct mf_operand *o = call->operands;
    struct backward_job job = {head_rows_of(&o[0]),
                               head_rows_of(&o[1]),
                               head_rows_of(&o[2]),
                               head_rows_of(&o[5]),
                               head_rows_of(&o[6]),
                               head_rows_of(&o[7]),
                               head_rows_of(&o[8]),
                               (const float *)o[4].pointer,
                               delta,
                               s->seq_len,
                               s->heads,
                               s->heads / s->kv_heads,
                               1.0f / sqrtf((float)s->head_dim)};
    return s->head_dim == 64 ? launch<64>(context, s, job) : launch<128>(context, s, job);
}

cudaError_t mf_cuda_attention_backward_load(int32_t shared_bytes)
{
    const struct {
        const void *kernel;
        int bytes;
    } kernels[] = {
        {(const void *)backward_keys<64>, SHARED(64)},
        {(const void *)backward_keys<128>, SHARED(128)},
        {(const void *)backward_queries<64>, SHARED(64)},
        {(const void *)backward_queries<128>, SHARED(128)},
    };
    for (int index = 0; index < 4; index++) {
        cudaError_t error = load_tiles(kernels[index].kernel, kernels[index].bytes, shared_bytes);
        if (error != cudaSuccess) {
            return error;
        }
    }
    return cudaSuccess;
}
