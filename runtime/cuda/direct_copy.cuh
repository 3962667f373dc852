/*
 * Direct products: the place of a block in its cluster, and how tiles get into shared memory.
 *
 * What: the parameters of a product, the block's shared memory, and the two threads that copy: one
 *   fetches this block's rows of x, the other the tiles of W whose turn it is, for the whole
 *   cluster. direct_block.cuh says how it all works. Who calls it: direct_block.cuh. Owner: the
 *   caller. Thread: device code. Fails: no.
 */
#ifndef MF_RUNTIME_CUDA_DIRECT_COPY_CUH
#define MF_RUNTIME_CUDA_DIRECT_COPY_CUH

#include "runtime/cuda/flash_common.cuh"

#define MF_DIRECT_DEPTH 64     /* of a step: a row of a tile is 128 bytes, the widest swizzle */
#define MF_DIRECT_BOX_ROWS 128 /* of x, copied at a time */

namespace mf_direct
{

using namespace mf_flash;

struct params {
    CUtensorMap x; /* [rows, depth] */
    CUtensorMap w; /* [columns, depth], or [depth, columns] where BACKWARD */
    void *out;
    const __nv_bfloat16 *bias; /* [columns] in host memory, or NULL */
    int64_t stride;            /* of out */
    int32_t rows;
    int32_t columns;
    int32_t steps;        /* ceil(depth / MF_DIRECT_DEPTH) */
    int32_t column_tiles; /* ceil(columns / WIDTH) */
    int32_t tiles;        /* column_tiles times the groups of rows that a cluster covers */
    bool out_fp32;
    bool add;
};

template <int SUB, int WIDTH, int W_STAGES, int X_STAGES> struct block_shared {
    __nv_bfloat16 w[W_STAGES][WIDTH * MF_DIRECT_DEPTH];
    __nv_bfloat16 x[X_STAGES][SUB * 128 * MF_DIRECT_DEPTH];
    uint64_t w_full[W_STAGES];
    uint64_t w_free[W_STAGES]; /* of the block that fetches next: all blocks arrive there */
    uint64_t x_full[X_STAGES];
    uint64_t x_free[X_STAGES];
};

/* This block's place in the grid. */
struct team {
    uint32_t rank; /* of the block in its cluster */
    uint32_t size; /* of the cluster: a power of two */
    int32_t cluster;
    int32_t clusters;
};

static __device__ __forceinline__ struct team find_team()
{
    struct team team;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(team.rank));
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(team.size));
    team.cluster = (int32_t)(blockIdx.x / team.size);
    team.clusters = (int32_t)(gridDim.x / team.size);
    return team;
}

/* Tiles that this cluster takes: cluster, cluster + clusters and so on. */
static __device__ __forceinline__ int32_t turns(const struct params *p, const struct team *team)
{
    return (p->tiles - team->cluster + team->clusters - 1) / team->clusters;
}

static __device__ __forceinline__ int32_t tile_of(const struct team *team, int32_t turn)
{
    return team->cluster + turn * team->clusters;
}

static __device__ __forceinline__ int32_t column_of(const struct params *p, int32_t tile,
                                                    int32_t width)
{
    return tile % p->column_tiles * width;
}

static __device__ __forceinline__ int32_t row_of(const struct params *p, const struct team *team,
                                                 int32_t tile, int32_t rows)
{
    return (tile / p->column_tiles * (int32_t)team->size + (int32_t)team->rank) * rows;
}

static __device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* Arrives at the same barrier of another block of the cluster. */
static __device__ __forceinline__ void barrier_arrive_at(uint64_t *barrier, uint32_t rank)
{
    asm volatile("{.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %0, %1;\n"
                 "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];}\n" ::"r"(
                     shared_address(barrier)),
                 "r"(rank)
                 : "memory");
}

/* As barrier_wait, for arrivals from the whole cluster. */
static __device__ __forceinline__ void barrier_wait_cluster(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;}\n" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* Into this block's shared memory; bytes out of the matrix arrive as zero and count. */
static __device__ __forceinline__ void copy_box(const CUtensorMap *map, uint64_t *barrier, void *to,
                                                int32_t column, int32_t row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier))
                 : "memory");
}

/* Into the same place of every block in `mask`, completing the same barrier of each. */
static __device__ __forceinline__ void copy_box_to_all(const CUtensorMap *map, uint64_t *barrier,
                                                       void *to, int32_t column, int32_t row,
                                                       uint16_t mask)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(shared_address(to)),
                 "l"(map), "r"(column), "r"(row), "r"(shared_address(barrier)), "h"(mask)
                 : "memory");
}

/* One thread: the tiles of W whose turn is this block's. A slot is free when all warps of the
 * cluster have released it; each block waits only for the slots that it fills. */
template <int SUB, int WIDTH, int W_STAGES, int X_STAGES, bool BACKWARD>
static __device__ __forceinline__ void
copy_weights(const struct params *p, const struct team *team,
             struct block_shared<SUB, WIDTH, W_STAGES, X_STAGES> *shared)
{
    uint16_t mask = (uint16_t)((1u << team->size) - 1);
    uint32_t steps = (uint32_t)p->steps;
    uint32_t total = (uint32_t)turns(p, team) * steps;
    uint32_t parities = 0; /* bit `at`: of the next wait for slot `at` */
    for (uint32_t count = team->rank; count < total; count += team->size) {
        uint32_t at = count % W_STAGES;
        int32_t column = column_of(p, tile_of(team, (int32_t)(count / steps)), WIDTH);
        int32_t depth = (int32_t)(count % steps) * MF_DIRECT_DEPTH;
        if (count >= W_STAGES) {
            barrier_wait_cluster(&shared->w_free[at], parities >> at & 1);
            parities ^= 1u << at;
        }
        if (BACKWARD) {
#pragma unroll
            for (int slice = 0; slice < WIDTH / 64; slice++) {
                copy_box_to_all(&p->w, &shared->w_full[at],
                                shared->w[at] + slice * 64 * MF_DIRECT_DEPTH, column + slice * 64,
                                depth, mask);
            }
        } else {
            copy_box_to_all(&p->w, &shared->w_full[at], shared->w[at], depth, column, mask);
        }
    }
}

/* One thread: this block's rows of x, all of them again for every tile. */
template <int SUB, int WIDTH, int W_STAGES, int X_STAGES>
static __device__ __forceinline__ void
copy_rows(const struct params *p, const struct team *team,
          struct block_shared<SUB, WIDTH, W_STAGES, X_STAGES> *shared)
{
    constexpr int rows = SUB * 128;
    ring<X_STAGES> x = {0};
    for (int32_t turn = 0; turn < turns(p, team); turn++) {
        int32_t first = row_of(p, team, tile_of(team, turn), rows);
        for (int32_t step = 0; step < p->steps; step++, x.count++) {
            uint32_t at = x.stage();
            barrier_wait(&shared->x_free[at], x.parity() ^ 1);
            barrier_expect(&shared->x_full[at], rows * MF_DIRECT_DEPTH * 2);
#pragma unroll
            for (int box = 0; box < rows / MF_DIRECT_BOX_ROWS; box++) {
                copy_box(&p->x, &shared->x_full[at],
                         shared->x[at] + box * MF_DIRECT_BOX_ROWS * MF_DIRECT_DEPTH,
                         step * MF_DIRECT_DEPTH, first + box * MF_DIRECT_BOX_ROWS);
            }
        }
    }
}

} // namespace mf_direct

#endif
