/*
 * wgmma: one product of a warpgroup, m64 x WIDTH x k16, bf16 operands, fp32 sums.
 *
 * What: mma<WIDTH>::ss (both operands in shared memory) and ::rs (A in registers), and the
 *   descriptors of tiles in shared memory. Tiles are [rows, 64] bf16 slices of 128-byte rows in the
 *   128-byte swizzle, as the copy engine writes them; a wider tile is several slices in sequence.
 * Who calls it: flash_forward.cu, flash_backward.cu. Thread: all 128 of a warpgroup together.
 */
#ifndef MF_RUNTIME_CUDA_FLASH_WGMMA_CUH
#define MF_RUNTIME_CUDA_FLASH_WGMMA_CUH

#include <stdint.h>

namespace mf_flash
{

/* The operand of an inner product: 8 rows of 128 bytes repeat; k advances by 32 bytes a step. */
static __device__ __forceinline__ uint64_t rows_descriptor(uint32_t address)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)64 << 32 |
           (uint64_t)1 << 62;
}

/* The operand whose rows are k (B of a plain product): the next 64 columns lie slice_bytes on, and
 * k advances by 16 rows = 2048 bytes a step. */
static __device__ __forceinline__ uint64_t columns_descriptor(uint32_t address,
                                                              uint32_t slice_bytes)
{
    return (uint64_t)((address & 0x3ffff) >> 4) | (uint64_t)(slice_bytes >> 4) << 16 |
           (uint64_t)64 << 32 | (uint64_t)1 << 62;
}

static __device__ __forceinline__ void mma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void mma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most PENDING of the groups committed last are still running. */
template <int PENDING> static __device__ __forceinline__ void mma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keeps the compiler from moving uses of the sums over a fence or a wait. */
template <int COUNT> static __device__ __forceinline__ void hold(float (&sums)[COUNT])
{
#pragma unroll
    for (int index = 0; index < COUNT; index++) {
        asm volatile("" : "+f"(sums[index])::"memory");
    }
}

template <int COUNT> static __device__ __forceinline__ void hold(uint32_t (&words)[COUNT])
{
#pragma unroll
    for (int index = 0; index < COUNT; index++) {
        asm volatile("" : "+r"(words[index])::"memory");
    }
}

template <int WIDTH> struct mma;

/* clang-format off */
#define MF_FLASH_OUT8(d, i)                                                                        \
    "+f"((d)[i]), "+f"((d)[(i) + 1]), "+f"((d)[(i) + 2]), "+f"((d)[(i) + 3]),                      \
    "+f"((d)[(i) + 4]), "+f"((d)[(i) + 5]), "+f"((d)[(i) + 6]), "+f"((d)[(i) + 7])
#define MF_FLASH_OUT16(d, i) MF_FLASH_OUT8(d, i), MF_FLASH_OUT8(d, (i) + 8)
#define MF_FLASH_OUT32(d) MF_FLASH_OUT16(d, 0), MF_FLASH_OUT16(d, 16)
#define MF_FLASH_OUT48(d) MF_FLASH_OUT32(d), MF_FLASH_OUT16(d, 32)
#define MF_FLASH_OUT64(d) MF_FLASH_OUT48(d), MF_FLASH_OUT16(d, 48)
#define MF_FLASH_LIST32                                                                            \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "        \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define MF_FLASH_LIST48                                                                            \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "        \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "        \
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define MF_FLASH_LIST64                                                                            \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "        \
    "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "        \
    "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "        \
    "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* R0.. are the numbers of the operands that follow the sums. */
#define MF_FLASH_MMA(WIDTH, LIST, OUT, R0, R1, R2, R3, R4, R5, R6)                                 \
    template <> struct mma<WIDTH> {                                                                \
        template <int COLUMNS>                                                                     \
        static __device__ __forceinline__ void ss(float (&d)[WIDTH / 2], uint64_t a, uint64_t b,   \
                                                  int accumulate)                                  \
        {                                                                                          \
            asm volatile("{.reg .pred p; setp.ne.b32 p, " R2 ", 0;\n"                              \
                         "wgmma.mma_async.sync.aligned.m64n" #WIDTH "k16.f32.bf16.bf16 {" LIST     \
                         "}, " R0 ", " R1 ", p, 1, 1, 0, " R3 ";}\n"                               \
                         : OUT(d)                                                                  \
                         : "l"(a), "l"(b), "r"(accumulate), "n"(COLUMNS));                         \
        }                                                                                          \
        template <int COLUMNS>                                                                     \
        static __device__ __forceinline__ void rs(float (&d)[WIDTH / 2], const uint32_t *a,        \
                                                  uint64_t b, int accumulate)                      \
        {                                                                                          \
            asm volatile("{.reg .pred p; setp.ne.b32 p, " R5 ", 0;\n"                              \
                         "wgmma.mma_async.sync.aligned.m64n" #WIDTH "k16.f32.bf16.bf16 {" LIST     \
                         "}, {" R0 ", " R1 ", " R2 ", " R3 "}, " R4 ", p, 1, 1, " R6 ";}\n"        \
                         : OUT(d)                                                                  \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate),    \
                           "n"(COLUMNS));                                                          \
        }                                                                                          \
    };
MF_FLASH_MMA(64, MF_FLASH_LIST32, MF_FLASH_OUT32, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
MF_FLASH_MMA(96, MF_FLASH_LIST48, MF_FLASH_OUT48, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
MF_FLASH_MMA(128, MF_FLASH_LIST64, MF_FLASH_OUT64, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
/* clang-format on */

/* sums[64, WIDTH] (+)= a[64, DEPTH] b[WIDTH, DEPTH]^T: both tiles are rows of DEPTH elements. */
template <int WIDTH, int DEPTH>
static __device__ __forceinline__ void product_of_rows(float (&sums)[WIDTH / 2], uint64_t a,
                                                       uint32_t a_slice, uint64_t b,
                                                       uint32_t b_slice)
{
#pragma unroll
    for (int step = 0; step < DEPTH / 16; step++) {
        uint32_t within = (uint32_t)(step % 4) * 32;
        uint32_t slice = (uint32_t)(step / 4);
        mma<WIDTH>::template ss<0>(sums, a + ((slice * a_slice + within) >> 4),
                                   b + ((slice * b_slice + within) >> 4), step > 0);
    }
}

/* sums[64, WIDTH] += a[64, DEPTH] b[DEPTH, WIDTH]: a is packed bf16 in registers. */
template <int WIDTH, int DEPTH>
static __device__ __forceinline__ void product_of_columns(float (&sums)[WIDTH / 2],
                                                          const uint32_t (&a)[DEPTH / 4],
                                                          uint64_t b, int accumulate)
{
#pragma unroll
    for (int step = 0; step < DEPTH / 16; step++) {
        mma<WIDTH>::template rs<1>(sums, a + step * 4, b + (uint32_t)step * (2048 >> 4),
                                   step > 0 ? 1 : accumulate);
    }
}

} // namespace mf_flash

#endif
