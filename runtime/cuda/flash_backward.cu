/* Causal attention, backward, in three kernels: row sums of o * grad_o; then keys and values, whose
 * blocks walk all queries that see them, heads of the group in order; then queries, whose blocks
 * walk their keys. Probabilities are computed again from lse in both: two products more than with
 * atomic sums of grad_q, and the same bits every time. */
#include "runtime/cuda/flash_common.cuh"

#include <math.h>

namespace mf_flash
{

static constexpr int walk_queries = 64; /* queries at a time, in the kernel of keys and values */
static constexpr int walk_keys = 64;    /* keys at a time, in the kernel of queries */
static constexpr int prepare_threads = 256;

struct backward_params {
    CUtensorMap q;
    CUtensorMap k;
    CUtensorMap v;
    CUtensorMap grad_o;
    struct schedule plan;
    const float *lse;      /* [heads, rows] lse * log2(e) */
    const float *delta;    /* [heads, rows] */
    __nv_bfloat16 *first;  /* grad_q or grad_k */
    __nv_bfloat16 *second; /* grad_v */
    int64_t first_stride;
    int64_t second_stride;
    int64_t rows;
    int32_t seq_len;
    int32_t group;
    int32_t head_dim;
    float scale;
};

struct prepare_params {
    const __nv_bfloat16 *o;
    const __nv_bfloat16 *grad_o;
    const float *lse;
    float *out_lse;
    float *out_delta;
    int64_t o_stride;
    int64_t grad_stride;
    int64_t rows;
    int32_t heads;
    int32_t head_dim;
};

/* delta = sum of o * grad_o: 16 lanes take one row of one head, 8 elements each. */
static __global__ void __launch_bounds__(prepare_threads)
    prepare_kernel(const __grid_constant__ struct prepare_params p)
{
    int64_t item = ((int64_t)blockIdx.x * prepare_threads + threadIdx.x) / 16;
    bool inside = item < p.rows * p.heads;
    int64_t row = item / p.heads;
    int32_t head = (int32_t)(item % p.heads);
    int32_t column = (int32_t)threadIdx.x % 16 * 8;
    float sum = 0.0f;
    if (inside && column < p.head_dim) {
        int64_t at = (int64_t)head * p.head_dim + column;
        uint4 a = *(const uint4 *)(p.o + row * p.o_stride + at);
        uint4 b = *(const uint4 *)(p.grad_o + row * p.grad_stride + at);
        const uint32_t left[4] = {a.x, a.y, a.z, a.w};
        const uint32_t right[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int index = 0; index < 4; index++) {
            sum =
                fmaf(__uint_as_float(left[index] << 16), __uint_as_float(right[index] << 16), sum);
            sum = fmaf(__uint_as_float(left[index] & 0xffff0000u),
                       __uint_as_float(right[index] & 0xffff0000u), sum);
        }
    }
#pragma unroll
    for (int step = 8; step > 0; step /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    if (inside && threadIdx.x % 16 == 0) {
        p.out_delta[head * p.rows + row] = sum;
        p.out_lse[head * p.rows + row] = p.lse[item] * MF_FLASH_LOG2E;
    }
}

/* ---- keys and values ---- */

template <int DEPTH> struct keys_shared {
    static constexpr int stages = DEPTH > 64 ? 3 : 4;
    __nv_bfloat16 k[MF_FLASH_TILE * DEPTH];
    __nv_bfloat16 v[MF_FLASH_TILE * DEPTH];
    __nv_bfloat16 q[stages][walk_queries * DEPTH];
    __nv_bfloat16 grad_o[stages][walk_queries * DEPTH];
    float lse[stages][walk_queries];
    float delta[stages][walk_queries];
    uint64_t keys_full;
    uint64_t keys_free;
    uint64_t full[stages];
    uint64_t free[stages];
};

/* The first warp of the copying group: one lane queues copies, all lanes bring lse and delta. Rows
 * past the sequence get lse = inf, so that their probabilities are zero. */
template <int DEPTH>
static __device__ __forceinline__ void
keys_copy_rows(const struct backward_params *p, struct keys_shared<DEPTH> *shared,
               const struct tile *tile, int32_t head, ring<keys_shared<DEPTH>::stages> *queries)
{
    int32_t lane = (int32_t)threadIdx.x;
    int64_t base = head * p->rows + (int64_t)tile->batch * p->seq_len;
    for (int32_t first = tile->first; first < p->seq_len; first += walk_queries, queries->count++) {
        uint32_t at = queries->stage();
        float lse[walk_queries / 32];
        float delta[walk_queries / 32];
#pragma unroll
        for (int part = 0; part < walk_queries / 32; part++) {
            int32_t row = first + part * 32 + lane;
            lse[part] = row < p->seq_len ? p->lse[base + row] : INFINITY;
            delta[part] = row < p->seq_len ? p->delta[base + row] : 0.0f;
        }
        barrier_wait(&shared->free[at], queries->parity() ^ 1);
        if (lane == 0) {
            barrier_expect(&shared->full[at], 2 * walk_queries * DEPTH * 2);
            copy_tile<walk_queries, DEPTH>(&p->q, &shared->full[at], shared->q[at], first, head,
                                           tile->batch);
            copy_tile<walk_queries, DEPTH>(&p->grad_o, &shared->full[at], shared->grad_o[at], first,
                                           head, tile->batch);
        }
#pragma unroll
        for (int part = 0; part < walk_queries / 32; part++) {
            shared->lse[at][part * 32 + lane] = lse[part];
            shared->delta[at][part * 32 + lane] = delta[part];
        }
        barrier_arrive(&shared->full[at]);
    }
}

template <int DEPTH>
static __device__ __forceinline__ void keys_copy(const struct backward_params *p,
                                                 struct keys_shared<DEPTH> *shared)
{
    ring<1> tiles = {0};
    ring<keys_shared<DEPTH>::stages> queries = {0};
    for (int32_t turn = 0; turn < turns(&p->plan); turn++) {
        struct tile tile;
        if (!take(&p->plan, turn, &tile)) {
            continue;
        }
        if (threadIdx.x == 0) {
            barrier_wait(&shared->keys_free, tiles.parity() ^ 1);
            barrier_expect(&shared->keys_full, 2 * MF_FLASH_TILE * DEPTH * 2);
            copy_tile<MF_FLASH_TILE, DEPTH>(&p->k, &shared->keys_full, shared->k, tile.first,
                                            tile.head, tile.batch);
            copy_tile<MF_FLASH_TILE, DEPTH>(&p->v, &shared->keys_full, shared->v, tile.first,
                                            tile.head, tile.batch);
        }
        __syncwarp();
        tiles.count++;
        for (int32_t head = tile.head * p->group; head < (tile.head + 1) * p->group; head++) {
            keys_copy_rows<DEPTH>(p, shared, &tile, head, &queries);
        }
    }
}

/* What a warpgroup holds while it walks: rows are keys, columns of scores are queries. */
template <int DEPTH> struct keys_sums {
    float grad_k[DEPTH / 2];
    float grad_v[DEPTH / 2];
};

/* Scores to probabilities; when the blocks overlap, queries before their key see nothing of it:
 * those left of column `offset`, the thread's first row less the first query. */
static __device__ __forceinline__ void keys_soften(float (&scores)[walk_queries / 2],
                                                   const float *lse, float scale, bool overlap,
                                                   int32_t offset)
{
    int32_t column = (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
    for (int index = 0; index < walk_queries / 8; index++) {
        float2 row_lse = *(const float2 *)(lse + 8 * index + column);
#pragma unroll
        for (int at = 4 * index; at < 4 * index + 4; at += 2) {
            scores[at] = exp2_fast(fmaf(scores[at], scale, -row_lse.x));
            scores[at + 1] = exp2_fast(fmaf(scores[at + 1], scale, -row_lse.y));
        }
    }
    if (overlap) {
#pragma unroll
        for (int index = 0; index < walk_queries / 2; index++) {
            if (index / 4 * 8 + column + index % 2 < offset + index % 4 / 2 * 8) {
                scores[index] = 0.0f;
            }
        }
    }
}

static __device__ __forceinline__ void keys_slope(float (&slopes)[walk_queries / 2],
                                                  const float (&weights)[walk_queries / 2],
                                                  const float *delta)
{
    int32_t column = (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
    for (int index = 0; index < walk_queries / 8; index++) {
        float2 row_delta = *(const float2 *)(delta + 8 * index + column);
#pragma unroll
        for (int at = 4 * index; at < 4 * index + 4; at += 2) {
            slopes[at] = weights[at] * (slopes[at] - row_delta.x);
            slopes[at + 1] = weights[at + 1] * (slopes[at + 1] - row_delta.y);
        }
    }
}

/* One block of queries. Leaves the product for grad_k running; the one before is done on return. */
template <int DEPTH>
static __device__ __forceinline__ void
keys_step(const struct backward_params *p, struct keys_shared<DEPTH> *shared, uint32_t at,
          uint64_t k, uint64_t v, bool overlap, int32_t offset, int32_t last,
          uint32_t (&packed)[walk_queries / 4], struct keys_sums<DEPTH> *sums)
{
    float scores[walk_queries / 2];
    float slopes[walk_queries / 2];
    uint32_t weights[walk_queries / 4];
    uint32_t q = shared_address(shared->q[at]);
    uint32_t grad_o = shared_address(shared->grad_o[at]);
    mma_fence();
    product_of_rows<walk_queries, DEPTH>(scores, k, MF_FLASH_TILE * 128, rows_descriptor(q),
                                         walk_queries * 128);
    mma_commit();
    product_of_rows<walk_queries, DEPTH>(slopes, v, MF_FLASH_TILE * 128, rows_descriptor(grad_o),
                                         walk_queries * 128);
    mma_commit();
    mma_wait<2>();
    hold(packed);
    if (last >= 0) {
        barrier_release(&shared->free[last]);
    }
    mma_wait<1>();
    hold(scores);
    keys_soften(scores, shared->lse[at], p->scale * MF_FLASH_LOG2E, overlap, offset);
    pack(scores, weights);
    hold(weights);
    hold(sums->grad_v);
    mma_fence();
    product_of_columns<DEPTH, walk_queries>(sums->grad_v, weights,
                                            columns_descriptor(grad_o, walk_queries * 128), 1);
    mma_commit();
    mma_wait<1>();
    hold(slopes);
    keys_slope(slopes, scores, shared->delta[at]);
    pack(slopes, packed);
    hold(packed);
    hold(sums->grad_k);
    mma_fence();
    product_of_columns<DEPTH, walk_queries>(sums->grad_k, packed,
                                            columns_descriptor(q, walk_queries * 128), 1);
    mma_commit();
    mma_wait<1>();
    hold(sums->grad_v);
}

/* One warpgroup, one tile: 64 keys of one head, all queries of its group that see any of them. */
template <int DEPTH>
static __device__ __forceinline__ void
keys_tile(const struct backward_params *p, struct keys_shared<DEPTH> *shared,
          const struct tile *tile, uint32_t group, ring<keys_shared<DEPTH>::stages> *queries)
{
    uint64_t k = rows_descriptor(shared_address(shared->k) + group * 64 * 128);
    uint64_t v = rows_descriptor(shared_address(shared->v) + group * 64 * 128);
    int32_t row = tile->first + row_of_thread();
    int32_t group_row = tile->first + (int32_t)group * 64;
    struct keys_sums<DEPTH> sums;
    uint32_t packed[walk_queries / 4];
#pragma unroll
    for (int index = 0; index < DEPTH / 2; index++) {
        sums.grad_k[index] = 0.0f;
        sums.grad_v[index] = 0.0f;
    }
    int32_t last = -1;
    for (int32_t head = 0; head < p->group; head++) {
        for (int32_t first = tile->first; first < p->seq_len; first += walk_queries) {
            uint32_t at = queries->stage();
            barrier_wait(&shared->full[at], queries->parity());
            queries->count++;
            if (first + walk_queries <= group_row) {
                barrier_release(&shared->free[at]);
                continue;
            }
            bool overlap = first < group_row + 64;
            keys_step<DEPTH>(p, shared, at, k, v, overlap, row - first, last, packed, &sums);
            last = (int32_t)at;
        }
    }
    mma_wait<0>();
    hold(sums.grad_k);
    if (last >= 0) {
        barrier_release(&shared->free[last]);
    }
    barrier_release(&shared->keys_free);
    int64_t base = (int64_t)tile->batch * p->seq_len + tile->first;
    int64_t column = (int64_t)tile->head * p->head_dim;
    int32_t limit = p->seq_len - tile->first;
    const float scale[2] = {p->scale, p->scale};
    const float one[2] = {1.0f, 1.0f};
    store_rows<DEPTH>(sums.grad_k, scale, p->first + base * p->first_stride + column,
                      p->first_stride, limit, p->head_dim);
    store_rows<DEPTH>(sums.grad_v, one, p->second + base * p->second_stride + column,
                      p->second_stride, limit, p->head_dim);
}

template <int DEPTH>
static __device__ __forceinline__ void keys_block(const struct backward_params *p)
{
    extern __shared__ uint8_t memory[];
    auto *shared = (struct keys_shared<DEPTH> *)(((uintptr_t)memory + 1023) & ~(uintptr_t)1023);
    if (threadIdx.x == 0) {
        barrier_init(&shared->keys_full, 1);
        barrier_init(&shared->keys_free, MF_FLASH_WARPS);
        for (int at = 0; at < keys_shared<DEPTH>::stages; at++) {
            barrier_init(&shared->full[at], 33); /* the copies, and each lane of the warp */
            barrier_init(&shared->free[at], MF_FLASH_WARPS);
        }
        barrier_publish();
    }
    __syncthreads();
    uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (group == 0) {
        registers_give();
        if (threadIdx.x < 32) {
            keys_copy<DEPTH>(p, shared);
        }
        return;
    }
    registers_take();
    ring<1> tiles = {0};
    ring<keys_shared<DEPTH>::stages> queries = {0};
    for (int32_t turn = 0; turn < turns(&p->plan); turn++) {
        struct tile tile;
        if (!take(&p->plan, turn, &tile)) {
            continue;
        }
        barrier_wait(&shared->keys_full, tiles.parity());
        tiles.count++;
        keys_tile<DEPTH>(p, shared, &tile, group - 1, &queries);
    }
}

template <int DEPTH>
static __global__ void __launch_bounds__(MF_FLASH_THREADS, 1)
    keys_kernel(const __grid_constant__ struct backward_params p)
{
    MF_FLASH_RUN(keys_block<DEPTH>(&p));
}

/* ---- queries ---- */

template <int DEPTH> struct queries_shared {
    static constexpr int stages = 4;
    __nv_bfloat16 q[MF_FLASH_TILE * DEPTH];
    __nv_bfloat16 grad_o[MF_FLASH_TILE * DEPTH];
    __nv_bfloat16 k[stages][walk_keys * DEPTH];
    __nv_bfloat16 v[stages][walk_keys * DEPTH];
    uint64_t queries_full;
    uint64_t queries_free;
    uint64_t full[stages];
    uint64_t free[stages];
};

static __device__ __forceinline__ int32_t last_block(const struct backward_params *p,
                                                     const struct tile *tile)
{
    return (min(tile->first + MF_FLASH_TILE, p->seq_len) - 1) / walk_keys;
}

template <int DEPTH>
static __device__ __forceinline__ void queries_copy(const struct backward_params *p,
                                                    struct queries_shared<DEPTH> *shared)
{
    ring<1> tiles = {0};
    ring<queries_shared<DEPTH>::stages> keys = {0};
    for (int32_t turn = 0; turn < turns(&p->plan); turn++) {
        struct tile tile;
        if (!take(&p->plan, turn, &tile)) {
            continue;
        }
        barrier_wait(&shared->queries_free, tiles.parity() ^ 1);
        barrier_expect(&shared->queries_full, 2 * MF_FLASH_TILE * DEPTH * 2);
        copy_tile<MF_FLASH_TILE, DEPTH>(&p->q, &shared->queries_full, shared->q, tile.first,
                                        tile.head, tile.batch);
        copy_tile<MF_FLASH_TILE, DEPTH>(&p->grad_o, &shared->queries_full, shared->grad_o,
                                        tile.first, tile.head, tile.batch);
        tiles.count++;
        int32_t head = tile.head / p->group;
        for (int32_t block = last_block(p, &tile); block >= 0; block--, keys.count++) {
            uint32_t at = keys.stage();
            barrier_wait(&shared->free[at], keys.parity() ^ 1);
            barrier_expect(&shared->full[at], 2 * walk_keys * DEPTH * 2);
            copy_tile<walk_keys, DEPTH>(&p->k, &shared->full[at], shared->k[at], block * walk_keys,
                                        head, tile.batch);
            copy_tile<walk_keys, DEPTH>(&p->v, &shared->full[at], shared->v[at], block * walk_keys,
                                        head, tile.batch);
        }
    }
}

/* Scores to probabilities; when the blocks overlap only `visible` keys count for the thread's first
 * row, and 8 more for its second. */
static __device__ __forceinline__ void queries_soften(float (&scores)[walk_keys / 2],
                                                      const float (&lse)[2], float scale,
                                                      bool overlap, int32_t visible)
{
    int32_t column = (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
    for (int index = 0; index < walk_keys / 2; index++) {
        scores[index] = exp2_fast(fmaf(scores[index], scale, -lse[index % 4 / 2]));
    }
    if (overlap) {
#pragma unroll
        for (int index = 0; index < walk_keys / 2; index++) {
            if (index / 4 * 8 + column + index % 2 >= visible + index % 4 / 2 * 8) {
                scores[index] = 0.0f;
            }
        }
    }
}

/* One block of keys. Leaves the product for grad_q running; the one before is done on return. */
template <int DEPTH>
static __device__ __forceinline__ void
queries_step(const struct backward_params *p, struct queries_shared<DEPTH> *shared, uint32_t at,
             uint64_t q, uint64_t grad_o, const float (&lse)[2], const float (&delta)[2],
             bool overlap, int32_t visible, int32_t last, uint32_t (&packed)[walk_keys / 4],
             float (&sums)[DEPTH / 2])
{
    float scores[walk_keys / 2];
    float slopes[walk_keys / 2];
    uint32_t k = shared_address(shared->k[at]);
    mma_fence();
    product_of_rows<walk_keys, DEPTH>(scores, q, MF_FLASH_TILE * 128, rows_descriptor(k),
                                      walk_keys * 128);
    mma_commit();
    product_of_rows<walk_keys, DEPTH>(slopes, grad_o, MF_FLASH_TILE * 128,
                                      rows_descriptor(shared_address(shared->v[at])),
                                      walk_keys * 128);
    mma_commit();
    mma_wait<2>();
    hold(packed);
    if (last >= 0) {
        barrier_release(&shared->free[last]);
    }
    mma_wait<1>();
    hold(scores);
    queries_soften(scores, lse, p->scale * MF_FLASH_LOG2E, overlap, visible);
    mma_wait<0>();
    hold(slopes);
#pragma unroll
    for (int index = 0; index < walk_keys / 2; index++) {
        slopes[index] = scores[index] * (slopes[index] - delta[index % 4 / 2]);
    }
    pack(slopes, packed);
    hold(packed);
    hold(sums);
    mma_fence();
    product_of_columns<DEPTH, walk_keys>(sums, packed, columns_descriptor(k, walk_keys * 128), 1);
    mma_commit();
}

/* One warpgroup, one tile: 64 queries of one head and all keys they see. */
template <int DEPTH>
static __device__ __forceinline__ void
queries_tile(const struct backward_params *p, struct queries_shared<DEPTH> *shared,
             const struct tile *tile, uint32_t group, ring<queries_shared<DEPTH>::stages> *keys)
{
    uint64_t q = rows_descriptor(shared_address(shared->q) + group * 64 * 128);
    uint64_t grad_o = rows_descriptor(shared_address(shared->grad_o) + group * 64 * 128);
    int32_t row = tile->first + row_of_thread();
    int32_t group_row = tile->first + (int32_t)group * 64;
    int64_t base = (int64_t)tile->batch * p->seq_len;
    float lse[2];
    float delta[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        bool inside = row + 8 * half < p->seq_len;
        int64_t at = tile->head * p->rows + base + row + 8 * half;
        lse[half] = inside ? p->lse[at] : INFINITY;
        delta[half] = inside ? p->delta[at] : 0.0f;
    }
    float sums[DEPTH / 2];
    uint32_t packed[walk_keys / 4];
#pragma unroll
    for (int index = 0; index < DEPTH / 2; index++) {
        sums[index] = 0.0f;
    }
    int32_t last = -1;
    for (int32_t block = last_block(p, tile); block >= 0; block--) {
        uint32_t at = keys->stage();
        barrier_wait(&shared->full[at], keys->parity());
        keys->count++;
        int32_t first = block * walk_keys;
        if (first >= group_row + 64) {
            barrier_release(&shared->free[at]);
            continue;
        }
        queries_step<DEPTH>(p, shared, at, q, grad_o, lse, delta, first + walk_keys > group_row,
                            row - first + 1, last, packed, sums);
        last = (int32_t)at;
    }
    mma_wait<0>();
    hold(sums);
    if (last >= 0) {
        barrier_release(&shared->free[last]);
    }
    barrier_release(&shared->queries_free);
    const float scale[2] = {p->scale, p->scale};
    store_rows<DEPTH>(sums, scale,
                      p->first + (base + tile->first) * p->first_stride +
                          (int64_t)tile->head * p->head_dim,
                      p->first_stride, p->seq_len - tile->first, p->head_dim);
}

template <int DEPTH>
static __device__ __forceinline__ void queries_block(const struct backward_params *p)
{
    extern __shared__ uint8_t memory[];
    auto *shared = (struct queries_shared<DEPTH> *)(((uintptr_t)memory + 1023) & ~(uintptr_t)1023);
    if (threadIdx.x == 0) {
        barrier_init(&shared->queries_full, 1);
        barrier_init(&shared->queries_free, MF_FLASH_WARPS);
        for (int at = 0; at < queries_shared<DEPTH>::stages; at++) {
            barrier_init(&shared->full[at], 1);
            barrier_init(&shared->free[at], MF_FLASH_WARPS);
        }
        barrier_publish();
    }
    __syncthreads();
    uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (group == 0) {
        registers_give();
        if (threadIdx.x == 0) {
            queries_copy<DEPTH>(p, shared);
        }
        return;
    }
    registers_take();
    ring<1> tiles = {0};
    ring<queries_shared<DEPTH>::stages> keys = {0};
    for (int32_t turn = 0; turn < turns(&p->plan); turn++) {
        struct tile tile;
        if (!take(&p->plan, turn, &tile)) {
            continue;
        }
        barrier_wait(&shared->queries_full, tiles.parity());
        tiles.count++;
        queries_tile<DEPTH>(p, shared, &tile, group - 1, &keys);
    }
}

template <int DEPTH>
static __global__ void __launch_bounds__(MF_FLASH_THREADS, 1)
    queries_kernel(const __grid_constant__ struct backward_params p)
{
    MF_FLASH_RUN(queries_block<DEPTH>(&p));
}

/* ---- host ---- */

static cudaError_t prepare(const struct mf_flash_args *args, cudaStream_t stream)
{
    struct prepare_params p = {};
    p.o = (const __nv_bfloat16 *)args->o.pointer;
    p.grad_o = (const __nv_bfloat16 *)args->grad_o.pointer;
    p.lse = args->lse;
    p.out_lse = (float *)args->workspace;
    p.out_delta = p.out_lse + args->rows * args->heads;
    p.o_stride = args->o.stride;
    p.grad_stride = args->grad_o.stride;
    p.rows = args->rows;
    p.heads = args->heads;
    p.head_dim = args->head_dim;
    int64_t items = args->rows * args->heads;
    unsigned grid = (unsigned)((items * 16 + prepare_threads - 1) / prepare_threads);
    prepare_kernel<<<grid, prepare_threads, 0, stream>>>(p);
    return cudaGetLastError();
}

/* The maps of the four operands; q_rows and k_rows are copied at a time. */
static cudaError_t map_all(const struct mf_flash_args *args, uint32_t q_rows, uint32_t k_rows,
                           struct backward_params *p)
{
    cudaError_t error = map_operand(args, &args->q, args->heads, q_rows, &p->q);
    if (error == cudaSuccess) {
        error = map_operand(args, &args->grad_o, args->heads, q_rows, &p->grad_o);
    }
    if (error == cudaSuccess) {
        error = map_operand(args, &args->k, args->kv_heads, k_rows, &p->k);
    }
    if (error == cudaSuccess) {
        error = map_operand(args, &args->v, args->kv_heads, k_rows, &p->v);
    }
    return error;
}

static cudaError_t launch_keys(const struct mf_flash_args *args, struct backward_params p,
                               cudaStream_t stream)
{
    /* A unit's blocks share the queries of its group. */
    int64_t keys_bytes = head_bytes(args) * p.group;
    p.plan = make_schedule(args, args->kv_heads, keys_bytes, false);
    p.first = (__nv_bfloat16 *)args->grad_k.pointer;
    p.first_stride = args->grad_k.stride;
    p.second = (__nv_bfloat16 *)args->grad_v.pointer;
    p.second_stride = args->grad_v.stride;
    cudaError_t error = map_all(args, walk_queries, MF_FLASH_TILE, &p);
    if (error != cudaSuccess) {
        return error;
    }
    return args->head_dim > 64
               ? launch(keys_kernel<128>, p, sizeof(struct keys_shared<128>) + 1024, &p.plan,
                        stream)
               : launch(keys_kernel<64>, p, sizeof(struct keys_shared<64>) + 1024, &p.plan, stream);
}

static cudaError_t launch_queries(const struct mf_flash_args *args, struct backward_params p,
                                  cudaStream_t stream)
{
    p.plan = make_schedule(args, args->heads, head_bytes(args) / p.group, true);
    p.first = (__nv_bfloat16 *)args->grad_q.pointer;
    p.first_stride = args->grad_q.stride;
    cudaError_t error = map_all(args, MF_FLASH_TILE, walk_keys, &p);
    if (error != cudaSuccess) {
        return error;
    }
    return args->head_dim > 64 ? launch(queries_kernel<128>, p,
                                        sizeof(struct queries_shared<128>) + 1024, &p.plan, stream)
                               : launch(queries_kernel<64>, p,
                                        sizeof(struct queries_shared<64>) + 1024, &p.plan, stream);
}

} // namespace mf_flash

using namespace mf_flash;

size_t mf_flash_workspace_bytes(int64_t rows, int heads, int head_dim)
{
    (void)head_dim; /* both values are of a row of a head, however wide */
    return (size_t)rows * (size_t)heads * 2 * sizeof(float);
}

cudaError_t mf_flash_backward(const struct mf_flash_args *args, cudaStream_t stream)
{
    const struct mf_operand *operands[] = {&args->q,      &args->k,      &args->v,
                                           &args->o,      &args->grad_o, &args->grad_q,
                                           &args->grad_k, &args->grad_v};
    bool usable = valid(args) && args->workspace;
    for (const struct mf_operand *operand : operands) {
        usable = usable && aligned(operand);
    }
    if (!usable) {
        return cudaErrorInvalidValue;
    }
    cudaError_t error = prepare(args, stream);
    if (error != cudaSuccess) {
        return error;
    }
    struct backward_params p = {};
    p.lse = (const float *)args->workspace;
    p.delta = p.lse + args->rows * args->heads;
    p.rows = args->rows;
    p.seq_len = args->seq_len;
    p.group = args->heads / args->kv_heads;
    p.head_dim = args->head_dim;
    p.scale = 1.0f / sqrtf((float)args->head_dim);
    error = launch_keys(args, p, stream);
    return error == cudaSuccess ? launch_queries(args, p, stream) : error;
}
