/*
 * What the attention kernels share: how work is dealt to blocks, barriers and tile copies, and the
 * way from the sums of a product to bf16, in registers or in memory.
 *
 * A block is one warpgroup that copies (the first) and MF_FLASH_GROUPS that compute; each of those
 * owns 64 rows of the block's tile. Blocks stay on their multiprocessor and take tiles in turn.
 * Who calls it: flash_forward.cu, flash_backward.cu. Owner: the caller. Thread: as said.
 * Fails: map_operand, launch.
 */
#ifndef MF_RUNTIME_CUDA_FLASH_COMMON_CUH
#define MF_RUNTIME_CUDA_FLASH_COMMON_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "runtime/cuda/flash.h"
#include "runtime/cuda/flash_wgmma.cuh"

#define MF_FLASH_GROUPS 2
#define MF_FLASH_TILE (64 * MF_FLASH_GROUPS) /* rows of the tile that a block owns */
#define MF_FLASH_THREADS (128 * (MF_FLASH_GROUPS + 1))
#define MF_FLASH_WARPS (4 * MF_FLASH_GROUPS) /* warps that compute, and free what they read */
#define MF_FLASH_LOG2E 1.4426950408889634f
#define MF_FLASH_CACHE_BYTES (24 << 20) /* keys and values worth keeping in L2 at a time */
#define MF_FLASH_SECTION_TILES 264      /* two rounds of an H200's multiprocessors */

namespace mf_flash
{

/* Tiles in the order they are worked on: heads in sections whose keys and values fit the cache. The
 * last section starts with its longest tiles, and each other way round than the next, so that the
 * lengths change slowly and each block gets its share of long ones. */
struct schedule {
    int32_t blocks;   /* tiles along a sequence */
    int32_t units;    /* heads of all sequences */
    int32_t heads;    /* heads of one sequence */
    int32_t sections; /* as equal as can be, the larger ones first */
    bool last_first;  /* the last tile of a sequence is the longest */
};

struct tile {
    int32_t first; /* row within the sequence */
    int32_t head;
    int32_t batch;
};

/* Turn `turn` of this block; false when it has none in that turn. Odd turns go through the blocks
 * backwards, so that nobody gets the longer tile each time. */
static __device__ __forceinline__ bool take(const struct schedule *plan, int32_t turn,
                                            struct tile *out)
{
    int32_t blocks = (int32_t)gridDim.x;
    int32_t index = (int32_t)blockIdx.x;
    int32_t position = turn * blocks + (turn % 2 == 0 ? index : blocks - 1 - index);
    if (position >= plan->blocks * plan->units) {
        return false;
    }
    int32_t width = plan->units / plan->sections;
    int32_t larger = plan->units % plan->sections;
    int32_t unit = larger * (width + 1);
    int32_t section = larger;
    if (position < unit * plan->blocks) {
        width++;
        unit = 0;
        section = 0;
    }
    position -= unit * plan->blocks;
    section += position / (width * plan->blocks);
    unit += position / (width * plan->blocks) * width;
    position %= width * plan->blocks;
    unit += position % width;
    int32_t rank = position / width;
    bool reversed = plan->last_first != ((plan->sections - 1 - section) % 2 != 0);
    out->first = (reversed ? plan->blocks - 1 - rank : rank) * MF_FLASH_TILE;
    out->head = unit % plan->heads;
    out->batch = unit / plan->heads;
    return true;
}

static __device__ __forceinline__ int32_t turns(const struct schedule *plan)
{
    return (plan->blocks * plan->units + (int32_t)gridDim.x - 1) / (int32_t)gridDim.x;
}

static __device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* The block's dynamic memory from its first multiple of 1024 on, where swizzled tiles may start. An
 * offset to the array, so that the compiler still knows it as shared memory. */
static __device__ __forceinline__ uint8_t *shared_memory()
{
    extern __shared__ uint8_t memory[];
    return memory + (0u - shared_address(memory)) % 1024;
}

static __device__ __forceinline__ void barrier_init(uint64_t *barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(count)
                 : "memory");
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

static __device__ __forceinline__ void barrier_expect(uint64_t *barrier, uint32_t bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

static __device__ __forceinline__ void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{.reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;}\n" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* One arrival a warp: the products of a warpgroup end for each of its warps alone. */
static __device__ __forceinline__ void barrier_release(uint64_t *barrier)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        barrier_arrive(barrier);
    }
}

/* After barrier_init, before the copy engine may see the barriers. */
static __device__ __forceinline__ void barrier_publish()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* The copying group needs few registers; the others take what it gives back: 2 * 240 + 24 or 2 *
 * 232
 * + 40 are what a block starts with, 3 * 168. */
template <bool MORE> static __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(MORE ? 40 : 24));
}

template <bool MORE> static __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MORE ? 232 : 240));
}

/* A ring of STAGES buffers: where use number `count` goes, and the parity of its barriers. */
template <int STAGES> struct ring {
    uint32_t count;

    __device__ __forceinline__ uint32_t stage() const
    {
        return count % STAGES;
    }
    __device__ __forceinline__ uint32_t parity() const
    {
        return count / STAGES % 2;
    }
};

/* Queues the copy of [ROWS, DEPTH] of one head into 64-column slices; what lies past the sequence
 * or past head_dim arrives as zero, and counts as bytes too. */
template <int ROWS, int DEPTH>
static __device__ __forceinline__ void copy_tile(const CUtensorMap *map, uint64_t *barrier,
                                                 void *to, int32_t first, int32_t head,
                                                 int32_t batch)
{
#pragma unroll
    for (int slice = 0; slice < DEPTH / 64; slice++) {
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to) +
                                                                 (uint32_t)(slice * ROWS * 128)),
                     "l"(map), "r"(slice * 64), "r"(head), "r"(first), "r"(batch),
                     "r"(shared_address(barrier))
                     : "memory");
    }
}

static __device__ __forceinline__ float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t pack2(float low, float high)
{
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/* Sums of a product as the A operand of the next: their layouts agree. */
template <int COUNT>
static __device__ __forceinline__ void pack(const float (&sums)[COUNT], uint32_t (&out)[COUNT / 2])
{
#pragma unroll
    for (int index = 0; index < COUNT / 2; index++) {
        out[index] = pack2(sums[2 * index], sums[2 * index + 1]);
    }
}

/* The row of sums[0], within the block's tile; sums[2] is 8 rows below. */
static __device__ __forceinline__ int32_t row_of_thread()
{
    int32_t thread = (int32_t)threadIdx.x - 128;
    return thread / 32 * 16 + thread % 32 / 4;
}

/* Word `lane % 4` of each of four lanes' words: a 4 x 4 transposition, so that a lane holds 16
 * adjacent bytes. */
static __device__ __forceinline__ void gather_quad(uint32_t (&word)[4])
{
    uint32_t lane = threadIdx.x % 4;
#pragma unroll
    for (int step = 1; step <= 2; step *= 2) {
        bool upper = (lane & (uint32_t)step) != 0;
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            int low = step == 1 ? 2 * pair : pair;
            uint32_t sent = upper ? word[low] : word[low + step];
            uint32_t got = __shfl_xor_sync(0xffffffffu, sent, step);
            if (upper) {
                word[low] = got;
            } else {
                word[low + step] = got;
            }
        }
    }
}

/* Rounds sums[64 rows, DEPTH] * scale[row] to bf16 and stores the rows below `limit`. `to` is the
 * element of the tile's row 0 and the head's column 0. */
template <int DEPTH>
static __device__ __forceinline__ void store_rows(const float (&sums)[DEPTH / 2],
                                                  const float (&scale)[2], __nv_bfloat16 *to,
                                                  int64_t stride, int32_t limit, int32_t head_dim)
{
    int32_t column = (int32_t)threadIdx.x % 4 * 8;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int32_t row = row_of_thread() + 8 * half;
#pragma unroll
        for (int part = 0; part < DEPTH / 32; part++) {
            uint32_t word[4];
#pragma unroll
            for (int index = 0; index < 4; index++) {
                int at = (part * 4 + index) * 4 + 2 * half;
                word[index] = pack2(sums[at] * scale[half], sums[at + 1] * scale[half]);
            }
            gather_quad(word);
            if (row < limit && part * 32 + column < head_dim) {
                *(uint4 *)(to + row * stride + part * 32 + column) =
                    make_uint4(word[0], word[1], word[2], word[3]);
            }
        }
    }
}

typedef CUresult encode_map(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                            const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                            const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/* The driver's encoder, found once: the module is not linked with the driver's library. */
static inline encode_map *find_encoder()
{
    static encode_map *const found = [] {
        void *entry = nullptr;
        enum cudaDriverEntryPointQueryResult result;
        cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                             12000, cudaEnableDefault, &result);
        return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? (encode_map *)entry
                                                                             : nullptr;
    }();
    return found;
}

static inline bool aligned(const struct mf_operand *operand)
{
    return operand->pointer && (uintptr_t)operand->pointer % 16 == 0 && operand->stride % 8 == 0;
}

/* The operand as [batch, row, head, element], to be copied `tile_rows` rows of a head at a time. */
static inline cudaError_t map_operand(const struct mf_flash_args *args,
                                      const struct mf_operand *operand, int32_t heads,
                                      uint32_t tile_rows, CUtensorMap *out)
{
    encode_map *encode = find_encoder();
    if (!encode) {
        return cudaErrorNotSupported;
    }
    cuuint64_t sizes[4] = {(cuuint64_t)args->head_dim, (cuuint64_t)heads, (cuuint64_t)args->seq_len,
                           (cuuint64_t)(args->rows / args->seq_len)};
    cuuint64_t row_bytes = (cuuint64_t)operand->stride * 2;
    cuuint64_t strides[3] = {(cuuint64_t)args->head_dim * 2, row_bytes,
                             row_bytes * (cuuint64_t)args->seq_len};
    cuuint32_t box[4] = {64, 1, tile_rows, 1};
    cuuint32_t steps[4] = {1, 1, 1, 1};
    CUresult result =
        encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, operand->pointer, sizes, strides, box,
               steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

static inline bool valid(const struct mf_flash_args *args)
{
    return args->seq_len > 0 && args->rows > 0 && args->rows % args->seq_len == 0 &&
           args->kv_heads > 0 && args->heads % args->kv_heads == 0 && args->lse &&
           mf_flash_supported(args->head_dim);
}

/* Of two matrices of one head of one sequence. */
static inline int64_t head_bytes(const struct mf_flash_args *args)
{
    return (int64_t)args->seq_len * args->head_dim * 4;
}

/* `heads` are those that tiles belong to; the tiles of one unit read the same unit_bytes again and
 * again. Sections smaller than some rounds of tiles could not be dealt out evenly. */
static inline struct schedule make_schedule(const struct mf_flash_args *args, int32_t heads,
                                            int64_t unit_bytes, bool last_first)
{
    struct schedule plan = {};
    plan.blocks = (args->seq_len + MF_FLASH_TILE - 1) / MF_FLASH_TILE;
    plan.units = (int32_t)(args->rows / args->seq_len) * heads;
    plan.heads = heads;
    int64_t wanted = (plan.units * unit_bytes + MF_FLASH_CACHE_BYTES - 1) / MF_FLASH_CACHE_BYTES;
    int64_t possible = (int64_t)plan.units * plan.blocks / MF_FLASH_SECTION_TILES;
    int64_t sections = wanted < possible ? wanted : possible;
    sections = sections < plan.units ? sections : plan.units;
    plan.sections = sections > 1 ? (int32_t)sections : 1;
    plan.last_first = last_first;
    return plan;
}

/* Starts a kernel that takes tiles in turn: one block for each multiprocessor, or fewer. */
template <typename params>
static inline cudaError_t launch(void (*kernel)(params), const params &values, size_t shared_bytes,
                                 const struct schedule *plan, cudaStream_t stream)
{
    int device = 0;
    int processors = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) {
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    }
    if (error == cudaSuccess) {
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     (int)shared_bytes);
    }
    if (error != cudaSuccess) {
        return error;
    }
    int64_t tiles = (int64_t)plan->blocks * plan->units;
    unsigned grid = (unsigned)(tiles < processors ? tiles : processors);
    kernel<<<grid, MF_FLASH_THREADS, shared_bytes, stream>>>(values);
    return cudaGetLastError();
}

} // namespace mf_flash

/* Only code for sm_90a holds the kernels; other targets of a build must not run them. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define MF_FLASH_RUN(statement) statement
#else
#define MF_FLASH_RUN(statement) __trap()
#pragma nv_diag_suppress 177 /* what only the kernels call is not called here */
#endif

#endif
