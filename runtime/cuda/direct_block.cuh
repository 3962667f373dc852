/*
 * Products whose weights cross the link once: what the blocks of a cluster do.
 *
 * What: out[rows, columns] (+)= x[rows, depth] W, with W in mapped host memory. A cluster of up to
 *   16 blocks owns a tile of columns; each of its blocks owns other rows. The blocks take turns to
 *   fetch a tile of W, 64 long in depth, into the shared memory of all of them (a multicast copy),
 *   and fetch their own rows of x from device memory. Tiles of W wait in a ring of W_STAGES, so
 *   that enough of them are on their way to fill the link, through the ends of tiles as well. Sums
 *   run over depth in steps of 16, from first to last, whatever the tile, the cluster and the grid.
 *   Threads 0 and 32 copy, the two warpgroups behind them multiply, each SUB times 64 rows.
 * Who calls it: direct_tiles.cu. Owner: the caller. Thread: device code. Fails: no.
 */
#ifndef MF_RUNTIME_CUDA_DIRECT_BLOCK_CUH
#define MF_RUNTIME_CUDA_DIRECT_BLOCK_CUH

#include "runtime/cuda/direct_copy.cuh"

namespace mf_direct
{

static __device__ __forceinline__ float2 load_pair(const float *from)
{
    return *(const float2 *)from;
}

static __device__ __forceinline__ __nv_bfloat162 load_pair(const __nv_bfloat16 *from)
{
    return *(const __nv_bfloat162 *)from;
}

static __device__ __forceinline__ float2 widen_pair(float2 pair)
{
    return pair;
}

static __device__ __forceinline__ float2 widen_pair(__nv_bfloat162 pair)
{
    return __bfloat1622float2(pair);
}

static __device__ __forceinline__ void store_pair(float *to, float low, float high)
{
    *(float2 *)to = make_float2(low, high);
}

static __device__ __forceinline__ void store_pair(__nv_bfloat16 *to, float low, float high)
{
    *(uint32_t *)to = pack2(low, high);
}

/* The bias of a thread's columns, two in a word. Asked for before the sums begin, as it comes from
 * host memory; volatile, so that it stays there. */
template <int WIDTH>
static __device__ __forceinline__ void load_bias(const struct params *p, int32_t column,
                                                 uint32_t (&bias)[WIDTH / 8])
{
#pragma unroll
    for (int index = 0; index < WIDTH / 8; index++) {
        int32_t at = column + index * 8 + (int32_t)threadIdx.x % 4 * 2;
        bias[index] = 0;
        if (p->bias && at < p->columns) {
            asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(bias[index]) : "l"(p->bias + at));
        }
    }
}

/* Stores 64 rows of sums; `row` is that of sums[0], sums[2] is 8 rows below. What is added to is
 * read 64 columns at a time, as each read waits for memory. */
template <int WIDTH, typename element>
static __device__ __forceinline__ void
store_sums(const struct params *p, element *out, const float (&sums)[WIDTH / 2],
           const uint32_t (&bias)[WIDTH / 8], int32_t row, int32_t column)
{
#pragma unroll
    for (int part = 0; part < WIDTH / 8; part += 8) {
        decltype(load_pair(out)) old[16];
#pragma unroll
        for (int index = 0; index < 16; index++) {
            int32_t y = row + index % 2 * 8;
            int32_t x = column + (part + index / 2) * 8;
            old[index] = {};
            if (p->add && y < p->rows && x < p->columns) {
                old[index] = load_pair(out + y * p->stride + x);
            }
        }
#pragma unroll
        for (int index = 0; index < 16; index++) {
            int32_t y = row + index % 2 * 8;
            int32_t x = column + (part + index / 2) * 8;
            int at = (part + index / 2) * 4 + index % 2 * 2;
            uint32_t word = bias[part + index / 2];
            float2 before = widen_pair(old[index]);
            if (y < p->rows && x < p->columns) {
                store_pair(out + y * p->stride + x,
                           sums[at] + __uint_as_float(word << 16) + before.x,
                           sums[at + 1] + __uint_as_float(word & 0xffff0000u) + before.y);
            }
        }
    }
}

template <int SUB, int WIDTH>
static __device__ __forceinline__ void
store_tile(const struct params *p, const float (&sums)[SUB][WIDTH / 2],
           const uint32_t (&bias)[WIDTH / 8], int32_t row, int32_t column)
{
    row += row_of_thread();
    column += (int32_t)threadIdx.x % 4 * 2;
#pragma unroll
    for (int sub = 0; sub < SUB; sub++) {
        if (p->out_fp32) {
            store_sums<WIDTH>(p, (float *)p->out, sums[sub], bias, row + sub * 128, column);
        } else {
            store_sums<WIDTH>(p, (__nv_bfloat16 *)p->out, sums[sub], bias, row + sub * 128, column);
        }
    }
}

/* One step of a warpgroup's product, left running on the tensor cores. */
template <int SUB, int WIDTH, bool BACKWARD>
static __device__ __forceinline__ void multiply(float (&sums)[SUB][WIDTH / 2],
                                                const __nv_bfloat16 *x, const __nv_bfloat16 *w,
                                                uint32_t group, int accumulate)
{
    uint64_t a = rows_descriptor(shared_address(x) + group * 64 * 128);
    uint64_t b = BACKWARD ? columns_descriptor(shared_address(w), 64 * MF_DIRECT_DEPTH * 2)
                          : rows_descriptor(shared_address(w));
    constexpr uint32_t b_step = BACKWARD ? 16 * 128 : 32;
#pragma unroll
    for (int step = 0; step < MF_DIRECT_DEPTH / 16; step++) {
#pragma unroll
        for (int sub = 0; sub < SUB; sub++) {
            mma<WIDTH>::template ss<BACKWARD>(
                sums[sub], a + (uint32_t)((sub * 128 * 128 + step * 32) >> 4),
                b + ((uint32_t)step * b_step >> 4), step > 0 ? 1 : accumulate);
        }
    }
}

template <int SUB, int COUNT>
static __device__ __forceinline__ void hold_all(float (&sums)[SUB][COUNT])
{
#pragma unroll
    for (int sub = 0; sub < SUB; sub++) {
        hold(sums[sub]);
    }
}

/* Once for each warp: its products have read step `w` of W and `x` of x. The slot of W goes to the
 * block that fills it next. */
template <int SUB, int WIDTH, int W_STAGES, int X_STAGES>
static __device__ __forceinline__ void
release(struct block_shared<SUB, WIDTH, W_STAGES, X_STAGES> *shared, const struct team *team,
        ring<W_STAGES> w, ring<X_STAGES> x)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        barrier_arrive_at(&shared->w_free[w.stage()], (w.count + W_STAGES) & (team->size - 1));
        barrier_arrive(&shared->x_free[x.stage()]);
    }
}

/* The sums of one tile; the rings count the steps since the kernel began. */
template <int SUB, int WIDTH, int W_STAGES, int X_STAGES, bool BACKWARD>
static __device__ __forceinline__ void
sum_tile(const struct params *p, const struct team *team,
         struct block_shared<SUB, WIDTH, W_STAGES, X_STAGES> *shared, uint32_t group,
         float (&sums)[SUB][WIDTH / 2], ring<W_STAGES> *w, ring<X_STAGES> *x)
{
    for (int32_t step = 0; step < p->steps; step++, w->count++, x->count++) {
        uint64_t *full = &shared->w_full[w->stage()];
        barrier_wait(full, w->parity());
        if (threadIdx.x == 128) { /* the copy into this slot that comes next is expected from now */
            barrier_expect(full, WIDTH * MF_DIRECT_DEPTH * 2);
        }
        barrier_wait(&shared->x_full[x->stage()], x->parity());
        hold_all(sums);
        mma_fence();
        multiply<SUB, WIDTH, BACKWARD>(sums, shared->x[x->stage()], shared->w[w->stage()], group,
                                       step > 0);
        mma_commit();
        if (step > 0) {
            mma_wait<1>();
            hold_all(sums);
            release(shared, team, ring<W_STAGES>{w->count - 1}, ring<X_STAGES>{x->count - 1});
        }
    }
    mma_wait<0>();
    hold_all(sums);
    release(shared, team, ring<W_STAGES>{w->count - 1}, ring<X_STAGES>{x->count - 1});
}

template <int SUB, int WIDTH, int W_STAGES, int X_STAGES, bool BACKWARD>
static __device__ __forceinline__ void
compute(const struct params *p, const struct team *team,
        struct block_shared<SUB, WIDTH, W_STAGES, X_STAGES> *shared, uint32_t group)
{
    ring<W_STAGES> w = {0};
    ring<X_STAGES> x = {0};
    for (int32_t turn = 0; turn < turns(p, team); turn++) {
        float sums[SUB][WIDTH / 2];
        uint32_t bias[WIDTH / 8];
        int32_t tile = tile_of(team, turn);
        int32_t column = column_of(p, tile, WIDTH);
        load_bias<WIDTH>(p, column, bias);
        sum_tile<SUB, WIDTH, W_STAGES, X_STAGES, BACKWARD>(p, team, shared, group, sums, &w, &x);
        store_tile<SUB, WIDTH>(p, sums, bias, row_of(p, team, tile, SUB * 128), column);
    }
}

/* One thread, before any other block may copy or arrive here. */
template <int SUB, int WIDTH, int W_STAGES, int X_STAGES>
static __device__ __forceinline__ void
init_barriers(const struct team *team, struct block_shared<SUB, WIDTH, W_STAGES, X_STAGES> *shared)
{
    for (int at = 0; at < W_STAGES; at++) {
        barrier_init(&shared->w_full[at], 1);
        barrier_init(&shared->w_free[at], MF_FLASH_WARPS * team->size);
    }
    for (int at = 0; at < X_STAGES; at++) {
        barrier_init(&shared->x_full[at], 1);
        barrier_init(&shared->x_free[at], MF_FLASH_WARPS);
    }
    barrier_publish();
    for (int at = 0; at < W_STAGES; at++) {
        barrier_expect(&shared->w_full[at], WIDTH * MF_DIRECT_DEPTH * 2);
    }
}

template <int SUB, int WIDTH, int W_STAGES, int X_STAGES, bool BACKWARD>
static __device__ __forceinline__ void run_block(const struct params *p)
{
    auto *shared = (struct block_shared<SUB, WIDTH, W_STAGES, X_STAGES> *)shared_memory();
    struct team team = find_team();
    if (threadIdx.x == 0) {
        init_barriers(&team, shared);
    }
    cluster_sync();
    uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    if (group == 0) {
        registers_give<true>();
        if (threadIdx.x == 0) {
            copy_rows(p, &team, shared);
        } else if (threadIdx.x == 32) {
            copy_weights<SUB, WIDTH, W_STAGES, X_STAGES, BACKWARD>(p, &team, shared);
        }
    } else {
        registers_take<true>();
        compute<SUB, WIDTH, W_STAGES, X_STAGES, BACKWARD>(p, &team, shared, group - 1);
    }
    cluster_sync(); /* no block may end while others arrive at its barriers */
}

template <int SUB, int WIDTH, int W_STAGES, int X_STAGES, bool BACKWARD>
static __global__ void __launch_bounds__(MF_FLASH_THREADS, 1)
    direct_kernel(const __grid_constant__ struct params p)
{
    MF_FLASH_RUN((run_block<SUB, WIDTH, W_STAGES, X_STAGES, BACKWARD>(&p)));
}

} // namespace mf_direct

#endif
