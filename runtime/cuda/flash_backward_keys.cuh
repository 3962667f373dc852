/*
 * The kernel of grad_k and grad_v: a block owns 128 keys of one head and walks the queries that see
 * any of them, heads of the group in order. Scores are computed with keys as
 * rows, so that they can go on as operands in registers.
 *
 * Who calls it: flash_backward.cu. Owner, thread, fails: as flash.h says.
 */
#ifndef MF_RUNTIME_CUDA_FLASH_BACKWARD_KEYS_CUH
#define MF_RUNTIME_CUDA_FLASH_BACKWARD_KEYS_CUH

#include <math.h>

#include "runtime/cuda/flash_backward.cuh"

namespace mf_flash
{

/* Queries at a time: as many as leave registers for the sums. */
template <int DEPTH> static constexpr int walk_queries = DEPTH > 64 ? 64 : 96;
static constexpr int keys_ahead = 2; /* blocks of queries copied before the next tile's keys */

template <int DEPTH> struct keys_shared {
    static constexpr int stages = DEPTH > 64 ? 3 : 4;
    __nv_bfloat16 k[MF_FLASH_TILE * DEPTH];
    __nv_bfloat16 v[MF_FLASH_TILE * DEPTH];
    __nv_bfloat16 q[stages][walk_queries<DEPTH> * DEPTH];
    __nv_bfloat16 grad_o[stages][walk_queries<DEPTH> * DEPTH];
    float lse[stages][walk_queries<DEPTH>];
    float delta[stages][walk_queries<DEPTH>];
    uint64_t keys_full;
    uint64_t keys_free;
    uint64_t full[stages];
    uint64_t free[stages];
};

/* One block of queries. The whole warp of the copying group: one lane queues copies, all bring lse
 * and delta. Rows past the sequence get lse = inf, so that their probabilities are zero. */
template <int DEPTH>
static __device__ __forceinline__ void
keys_copy_rows(const struct backward_params *p, struct keys_shared<DEPTH> *shared,
               const struct tile *tile, int32_t head, int32_t first,
               ring<keys_shared<DEPTH>::stages> queries)
{
    int32_t lane = (int32_t)threadIdx.x;
    int64_t base = head * p->rows + (int64_t)tile->batch * p->seq_len;
    uint32_t at = queries.stage();
    float lse[walk_queries<DEPTH> / 32];
    float delta[walk_queries<DEPTH> / 32];
#pragma unroll
    for (int part = 0; part < walk_queries<DEPTH> / 32; part++) {
        int32_t row = first + part * 32 + lane;
        lse[part] = row < p->seq_len ? p->lse[base + row] : INFINITY;
        delta[part] = row < p->seq_len ? p->delta[base + row] : 0.0f;
    }
    barrier_wait(&shared->free[at], queries.parity() ^ 1);
    if (lane == 0) {
        barrier_expect(&shared->full[at], 2 * walk_queries<DEPTH> * DEPTH * 2);
        copy_tile<walk_queries<DEPTH>, DEPTH>(&p->q, &shared->full[at], shared->q[at], first, head,
                                              tile->batch);
        copy_tile<walk_queries<DEPTH>, DEPTH>(&p->grad_o, &shared->full[at], shared->grad_o[at],
                                              first, head, tile->batch);
    }
#pragma unroll
    for (int part = 0; part < walk_queries<DEPTH> / 32; part++) {
        shared->lse[at][part * 32 + lane] = lse[part];
        shared->delta[at][part * 32 + lane] = delta[part];
    }
    barrier_arrive(&shared->full[at]);
}

template <int DEPTH>
static __device__ __forceinline__ void keys_copy_own(const struct backward_params *p,
                                                     struct keys_shared<DEPTH> *shared,
                                                     const struct tile *tile, ring<1> tiles)
{
    if (threadIdx.x == 0) {
        barrier_wait(&shared->keys_free, tiles.parity() ^ 1);
        barrier_expect(&shared->keys_full, 2 * MF_FLASH_TILE * DEPTH * 2);
        copy_tile<MF_FLASH_TILE, DEPTH>(&p->k, &shared->keys_full, shared->k, tile->first,
                                        tile->head, tile->batch);
        copy_tile<MF_FLASH_TILE, DEPTH>(&p->v, &shared->keys_full, shared->v, tile->first,
                                        tile->head, tile->batch);
    }
    __syncwarp();
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
        int32_t blocks = (p->seq_len - tile.first + walk_queries<DEPTH> - 1) / walk_queries<DEPTH>;
        int32_t ahead = min(keys_ahead, blocks) - 1;
        for (int32_t head = 0; head < p->group; head++) {
            for (int32_t block = 0; block < blocks; block++, queries.count++) {
                keys_copy_rows<DEPTH>(p, shared, &tile, tile.head * p->group + head,
                                      tile.first + block * walk_queries<DEPTH>, queries);
                if (head == 0 && block == ahead) {
                    keys_copy_own<DEPTH>(p, shared, &tile, tiles);
                }
            }
        }
        tiles.count++;
    }
}

/* What a warpgroup holds while it walks: rows are keys, columns of scores are queries. */
template <int DEPTH> struct keys_sums {
    float grad_k[DEPTH / 2];
    float grad_v[DEPTH / 2];
};

/* Scores to probabilities; when the blocks overlap, queries before their key see nothing of it:
 * those left of column `offset`, the thread's first row less the first query. */
template <int COUNT>
static __device__ __forceinline__ void keys_soften(float (&scores)[COUNT],
                                                   const float2 (&lse)[COUNT / 4], float scale,
                                                   bool overlap, int32_t offset)
{
#pragma unroll
    for (int index = 0; index < COUNT; index += 2) {
        scores[index] = exp2_fast(fmaf(scores[index], scale, -lse[index / 4].x));
        scores[index + 1] = exp2_fast(fmaf(scores[index + 1], scale, -lse[index / 4].y));
    }
    if (overlap) {
        int32_t column = (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
        for (int index = 0; index < COUNT; index++) {
            if (index / 4 * 8 + column + index % 2 < offset + index % 4 / 2 * 8) {
                scores[index] = 0.0f;
            }
        }
    }
}

template <int COUNT>
static __device__ __forceinline__ void
keys_slope(float (&slopes)[COUNT], const float (&weights)[COUNT], const float2 (&delta)[COUNT / 4])
{
#pragma unroll
    for (int index = 0; index < COUNT; index += 2) {
        slopes[index] = weights[index] * (slopes[index] - delta[index / 4].x);
        slopes[index + 1] = weights[index + 1] * (slopes[index + 1] - delta[index / 4].y);
    }
}

/* Values of a thread's columns; loaded while products run, for nothing moves over their waits. */
template <int COUNT>
static __device__ __forceinline__ void load_columns(const float *from, float2 (&out)[COUNT])
{
    int32_t column = (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
    for (int index = 0; index < COUNT; index++) {
        out[index] = *(const float2 *)(from + 8 * index + column);
    }
}

/* One block of queries. Leaves the product for grad_k running; the one before is done on return. */
template <int DEPTH>
static __device__ __forceinline__ void
keys_step(const struct backward_params *p, struct keys_shared<DEPTH> *shared, uint32_t at,
          uint64_t k, uint64_t v, bool overlap, int32_t offset, int32_t last,
          uint32_t (&packed)[walk_queries<DEPTH> / 4], struct keys_sums<DEPTH> *sums)
{
    float scores[walk_queries<DEPTH> / 2];
    float slopes[walk_queries<DEPTH> / 2];
    uint32_t weights[walk_queries<DEPTH> / 4];
    float2 values[walk_queries<DEPTH> / 8];
    uint32_t q = shared_address(shared->q[at]);
    uint32_t grad_o = shared_address(shared->grad_o[at]);
    mma_fence();
    product_of_rows<walk_queries<DEPTH>, DEPTH>(scores, k, MF_FLASH_TILE * 128, rows_descriptor(q),
                                                walk_queries<DEPTH> * 128);
    mma_commit();
    product_of_rows<walk_queries<DEPTH>, DEPTH>(slopes, v, MF_FLASH_TILE * 128,
                                                rows_descriptor(grad_o), walk_queries<DEPTH> * 128);
    mma_commit();
    load_columns(shared->lse[at], values);
    mma_wait<2>();
    hold(packed);
    if (last >= 0) {
        barrier_release(&shared->free[last]);
    }
    mma_wait<1>();
    hold(scores);
    keys_soften(scores, values, p->scale * MF_FLASH_LOG2E, overlap, offset);
    pack(scores, weights);
    hold(weights);
    hold(sums->grad_v);
    mma_fence();
    product_of_columns<DEPTH, walk_queries<DEPTH>>(
        sums->grad_v, weights, columns_descriptor(grad_o, walk_queries<DEPTH> * 128), 1);
    mma_commit();
    load_columns(shared->delta[at], values);
    mma_wait<1>();
    hold(slopes);
    keys_slope(slopes, scores, values);
    pack(slopes, packed);
    hold(packed);
    hold(sums->grad_k);
    mma_fence();
    product_of_columns<DEPTH, walk_queries<DEPTH>>(
        sums->grad_k, packed, columns_descriptor(q, walk_queries<DEPTH> * 128), 1);
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
    uint32_t packed[walk_queries<DEPTH> / 4];
#pragma unroll
    for (int index = 0; index < DEPTH / 2; index++) {
        sums.grad_k[index] = 0.0f;
        sums.grad_v[index] = 0.0f;
    }
    int32_t last = -1;
    for (int32_t head = 0; head < p->group; head++) {
        for (int32_t first = tile->first; first < p->seq_len; first += walk_queries<DEPTH>) {
            uint32_t at = queries->stage();
            barrier_wait(&shared->full[at], queries->parity());
            queries->count++;
            if (first + walk_queries<DEPTH> <= group_row) {
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
    auto *shared = (struct keys_shared<DEPTH> *)shared_memory();
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
        registers_give<DEPTH == 64>();
        if (threadIdx.x < 32) {
            keys_copy<DEPTH>(p, shared);
        }
        return;
    }
    registers_take<DEPTH == 64>();
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

} // namespace mf_flash

#endif
