/*
 * The kernel of grad_q: a block owns 128 queries of one head and walks the keys they see. First it
 * sums o * grad_o along its rows, and leaves the sums, and lse in base 2, in the workspace for the
 * kernel of keys.
 *
 * Who calls it: flash_backward.cu. Owner, thread, fails: as flash.h says.
 */
#ifndef MF_RUNTIME_CUDA_FLASH_BACKWARD_QUERIES_CUH
#define MF_RUNTIME_CUDA_FLASH_BACKWARD_QUERIES_CUH

#include <math.h>

#include "runtime/cuda/flash_backward.cuh"

namespace mf_flash
{

/* Keys at a time: as many as leave registers for the sums; twice as many hold a tile of o. */
template <int DEPTH> static constexpr int walk_keys = DEPTH > 64 ? 64 : 128;
static constexpr int queries_ahead = 2; /* blocks of keys copied before the next tile's queries */

template <int DEPTH> struct queries_shared {
    static constexpr int stages = 4;
    __nv_bfloat16 q[MF_FLASH_TILE * DEPTH];
    __nv_bfloat16 grad_o[MF_FLASH_TILE * DEPTH];
    __nv_bfloat16 walk[stages][2][walk_keys<DEPTH> * DEPTH]; /* keys and values, or a tile of o */
    uint64_t queries_full;
    uint64_t queries_free;
    uint64_t full[stages];
    uint64_t free[stages];
};

template <int DEPTH>
static __device__ __forceinline__ int32_t last_block(const struct backward_params *p,
                                                     const struct tile *tile)
{
    return (min(tile->first + MF_FLASH_TILE, p->seq_len) - 1) / walk_keys<DEPTH>;
}

template <int DEPTH>
static __device__ __forceinline__ void queries_copy_own(const struct backward_params *p,
                                                        struct queries_shared<DEPTH> *shared,
                                                        const struct tile *tile, ring<1> tiles)
{
    barrier_wait(&shared->queries_free, tiles.parity() ^ 1);
    barrier_expect(&shared->queries_full, 2 * MF_FLASH_TILE * DEPTH * 2);
    copy_tile<MF_FLASH_TILE, DEPTH>(&p->grad_o, &shared->queries_full, shared->grad_o, tile->first,
                                    tile->head, tile->batch);
    copy_tile<MF_FLASH_TILE, DEPTH>(&p->q, &shared->queries_full, shared->q, tile->first,
                                    tile->head, tile->batch);
}

template <int DEPTH>
static __device__ __forceinline__ void queries_copy(const struct backward_params *p,
                                                    struct queries_shared<DEPTH> *shared)
{
    constexpr uint32_t bytes = 2 * walk_keys<DEPTH> * DEPTH * 2;
    ring<1> tiles = {0};
    ring<queries_shared<DEPTH>::stages> walk = {0};
    for (int32_t turn = 0; turn < turns(&p->plan); turn++) {
        struct tile tile;
        if (!take(&p->plan, turn, &tile)) {
            continue;
        }
        uint32_t at = walk.stage();
        barrier_wait(&shared->free[at], walk.parity() ^ 1);
        barrier_expect(&shared->full[at], MF_FLASH_TILE * DEPTH * 2);
        copy_tile<MF_FLASH_TILE, DEPTH>(&p->o, &shared->full[at], shared->walk[at], tile.first,
                                        tile.head, tile.batch);
        walk.count++;
        int32_t head = tile.head / p->group;
        int32_t last = last_block<DEPTH>(p, &tile);
        int32_t ahead = last + 1 - min(queries_ahead, last + 1);
        for (int32_t block = last; block >= 0; block--, walk.count++) {
            at = walk.stage();
            barrier_wait(&shared->free[at], walk.parity() ^ 1);
            barrier_expect(&shared->full[at], bytes);
            copy_tile<walk_keys<DEPTH>, DEPTH>(&p->k, &shared->full[at], shared->walk[at][0],
                                               block * walk_keys<DEPTH>, head, tile.batch);
            copy_tile<walk_keys<DEPTH>, DEPTH>(&p->v, &shared->full[at], shared->walk[at][1],
                                               block * walk_keys<DEPTH>, head, tile.batch);
            if (block == ahead) {
                queries_copy_own<DEPTH>(p, shared, &tile, tiles);
            }
        }
        tiles.count++;
    }
}

/* A part of the inner product of 8 elements of each of two tiles. */
static __device__ __forceinline__ float dot8(const uint4 *left, const uint4 *right)
{
    uint4 a = *left;
    uint4 b = *right;
    const uint32_t left_words[4] = {a.x, a.y, a.z, a.w};
    const uint32_t right_words[4] = {b.x, b.y, b.z, b.w};
    float sum = 0.0f;
#pragma unroll
    for (int index = 0; index < 4; index++) {
        float low = __uint_as_float(left_words[index] << 16);
        float high = __uint_as_float(left_words[index] & 0xffff0000u);
        sum = fmaf(low, __uint_as_float(right_words[index] << 16), sum);
        sum = fmaf(high, __uint_as_float(right_words[index] & 0xffff0000u), sum);
    }
    return sum;
}

/* What a thread knows of its two rows. */
struct row_values {
    float lse[2]; /* base 2 */
    float delta[2];
};

/* Sums o * grad_o along the rows: both tiles are swizzled alike, so that elements need not be put
 * in order to meet. The four lanes of a row take its 16-byte words in turn. */
template <int DEPTH>
static __device__ __forceinline__ void sum_rows(const struct backward_params *p,
                                                const struct tile *tile, const uint4 *o,
                                                const uint4 *grad_o, struct row_values *out)
{
    int32_t lane = (int32_t)threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int32_t row = row_of_thread() + 8 * half;
        bool inside = tile->first + row < p->seq_len;
        int64_t token = (int64_t)tile->batch * p->seq_len + tile->first + row;
        float lse =
            inside ? p->natural_lse[token * p->heads + tile->head] * MF_FLASH_LOG2E : INFINITY;
        float sum = 0.0f;
#pragma unroll
        for (int part = 0; part < DEPTH / 32; part++) {
            int32_t word = lane + (part + row) % 2 * 4; /* neighbours in different banks */
            int32_t at = part / 2 * MF_FLASH_TILE * 8 + row * 8 + word;
            sum += dot8(o + at, grad_o + at);
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        out->lse[half] = lse;
        out->delta[half] = sum;
        if (inside && lane == 0) {
            p->lse[tile->head * p->rows + token] = lse;
            p->delta[tile->head * p->rows + token] = sum;
        }
    }
}

/* Scores to probabilities; when the blocks overlap only `visible` keys count for the thread's first
 * row, and 8 more for its second. */
template <int COUNT>
static __device__ __forceinline__ void queries_soften(float (&scores)[COUNT], const float (&lse)[2],
                                                      float scale, bool overlap, int32_t visible)
{
    int32_t column = (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
    for (int index = 0; index < COUNT; index++) {
        scores[index] = exp2_fast(fmaf(scores[index], scale, -lse[index % 4 / 2]));
    }
    if (overlap) {
#pragma unroll
        for (int index = 0; index < COUNT; index++) {
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
             uint64_t q, uint64_t grad_o, const struct row_values *rows, bool overlap,
             int32_t visible, int32_t last, uint32_t (&packed)[walk_keys<DEPTH> / 4],
             float (&sums)[DEPTH / 2])
{
    float scores[walk_keys<DEPTH> / 2];
    float slopes[walk_keys<DEPTH> / 2];
    uint32_t k = shared_address(shared->walk[at][0]);
    mma_fence();
    product_of_rows<walk_keys<DEPTH>, DEPTH>(scores, q, MF_FLASH_TILE * 128, rows_descriptor(k),
                                             walk_keys<DEPTH> * 128);
    mma_commit();
    product_of_rows<walk_keys<DEPTH>, DEPTH>(slopes, grad_o, MF_FLASH_TILE * 128,
                                             rows_descriptor(shared_address(shared->walk[at][1])),
                                             walk_keys<DEPTH> * 128);
    mma_commit();
    mma_wait<2>();
    hold(packed);
    if (last >= 0) {
        barrier_release(&shared->free[last]);
    }
    mma_wait<1>();
    hold(scores);
    queries_soften(scores, rows->lse, p->scale * MF_FLASH_LOG2E, overlap, visible);
    mma_wait<0>();
    hold(slopes);
#pragma unroll
    for (int index = 0; index < walk_keys<DEPTH> / 2; index++) {
        slopes[index] = scores[index] * (slopes[index] - rows->delta[index % 4 / 2]);
    }
    pack(slopes, packed);
    hold(packed);
    hold(sums);
    mma_fence();
    product_of_columns<DEPTH, walk_keys<DEPTH>>(sums, packed,
                                                columns_descriptor(k, walk_keys<DEPTH> * 128), 1);
    mma_commit();
}

/* One warpgroup, one tile: 64 queries of one head and all keys they see. */
template <int DEPTH>
static __device__ __forceinline__ void
queries_tile(const struct backward_params *p, struct queries_shared<DEPTH> *shared,
             const struct tile *tile, uint32_t group, ring<queries_shared<DEPTH>::stages> *walk)
{
    uint64_t q = rows_descriptor(shared_address(shared->q) + group * 64 * 128);
    uint64_t grad_o = rows_descriptor(shared_address(shared->grad_o) + group * 64 * 128);
    int32_t row = tile->first + row_of_thread();
    int32_t group_row = tile->first + (int32_t)group * 64;
    struct row_values rows;
    uint32_t at = walk->stage();
    barrier_wait(&shared->full[at], walk->parity());
    sum_rows<DEPTH>(p, tile, (const uint4 *)shared->walk[at], (const uint4 *)shared->grad_o, &rows);
    barrier_release(&shared->free[at]);
    walk->count++;
    float sums[DEPTH / 2];
    uint32_t packed[walk_keys<DEPTH> / 4];
#pragma unroll
    for (int index = 0; index < DEPTH / 2; index++) {
        sums[index] = 0.0f;
    }
    int32_t last = -1;
    for (int32_t block = last_block<DEPTH>(p, tile); block >= 0; block--) {
        at = walk->stage();
        barrier_wait(&shared->full[at], walk->parity());
        walk->count++;
        int32_t first = block * walk_keys<DEPTH>;
        if (first >= group_row + 64) {
            barrier_release(&shared->free[at]);
            continue;
        }
        queries_step<DEPTH>(p, shared, at, q, grad_o, &rows, first + walk_keys<DEPTH> > group_row,
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
                      p->first +
                          ((int64_t)tile->batch * p->seq_len + tile->first) * p->first_stride +
                          (int64_t)tile->head * p->head_dim,
                      p->first_stride, p->seq_len - tile->first, p->head_dim);
}

template <int DEPTH>
static __device__ __forceinline__ void queries_block(const struct backward_params *p)
{
    auto *shared = (struct queries_shared<DEPTH> *)shared_memory();
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
        registers_give<false>();
        if (threadIdx.x == 0) {
            queries_copy<DEPTH>(p, shared);
        }
        return;
    }
    registers_take<false>();
    ring<1> tiles = {0};
    ring<queries_shared<DEPTH>::stages> walk = {0};
    for (int32_t turn = 0; turn < turns(&p->plan); turn++) {
        struct tile tile;
        if (!take(&p->plan, turn, &tile)) {
            continue;
        }
        barrier_wait(&shared->queries_full, tiles.parity());
        tiles.count++;
        queries_tile<DEPTH>(p, shared, &tile, group - 1, &walk);
    }
}

template <int DEPTH>
static __global__ void __launch_bounds__(MF_FLASH_THREADS, 1)
    queries_kernel(const __grid_constant__ struct backward_params p)
{
    MF_FLASH_RUN(queries_block<DEPTH>(&p));
}

} // namespace mf_flash

#endif
