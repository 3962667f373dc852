/*
 * Tiles of attention for the tensor cores: bf16 tiles [rows, D] in shared memory, products of 16
 * rows a warp (mma.sync m16n8k16), asynchronous copies.
 *
 * What: a tile's 16-byte pieces are swizzled so that eight rows of a column of pieces lie in
 *   different banks. Accumulators: out[t][0..1] belong to row lane / 4, [2..3] to 8 rows below, in
 *   columns 8 t + lane % 4 * 2 and the next. Who calls it: attention_forward.cu,
 *   attention_backward.cu. Memory: the caller's shared memory. Thread: whole warps. Fails: no.
 */
#ifndef MF_RUNTIME_CUDA_ATTENTION_TILES_CUH
#define MF_RUNTIME_CUDA_ATTENTION_TILES_CUH

#include "runtime/cuda/common.cuh"
#include "runtime/cuda/kernels.h"

#define LOG2_E 1.4426950408889634f

/* One head of one sequence in a matrix [rows, heads * D]. */
struct head_rows {
    bf16 *pointer;
    int64_t stride;
};

static inline struct head_rows head_rows_of(const struct mf_operand *operand)
{
    return {(bf16 *)operand->pointer, operand->stride};
}

template <int D> __device__ __forceinline__ int tile_at(int row, int piece)
{
    return row * D + ((piece ^ (row & 7)) << 3);
}

__device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

__device__ __forceinline__ void copy_async(void *to, const void *from, bool valid)
{
    int bytes = valid ? 16 : 0; /* what is not read becomes zero */
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes));
}

__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;\n" ::);
}

__device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_all;\n" ::);
}

/* Rows first..first + ROWS of a head into a tile; rows from `limit` on become zeros. */
template <int D, int ROWS, int THREADS>
__device__ __forceinline__ void load_tile(bf16 *tile, const bf16 *head, int64_t stride, int first,
                                          int limit)
{
    constexpr int PIECES = D / 8;
#pragma unroll
    for (int at = threadIdx.x; at < ROWS * PIECES; at += THREADS) {
        int row = at / PIECES;
        int piece = at % PIECES;
        bool valid = first + row < limit;
        const bf16 *from = head + (int64_t)(valid ? first + row : 0) * stride + piece * 8;
        copy_async(tile + tile_at<D>(row, piece), from, valid);
    }
}

__device__ __forceinline__ void load_matrix(uint32_t out[4], const bf16 *from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(from)));
}

__device__ __forceinline__ void load_matrix_transposed(uint32_t out[4], const bf16 *from)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(from)));
}

__device__ __forceinline__ void multiply_add(float sum[4], const uint32_t a[4], uint32_t b0,
                                             uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Columns 16 step.. of rows first_row..first_row + 16 of a tile, as the left factor. */
template <int D>
__device__ __forceinline__ void load_left(uint32_t out[4], const bf16 *tile, int first_row,
                                          int step)
{
    int lane = threadIdx.x % 32;
    load_matrix(out, tile + tile_at<D>(first_row + lane % 16, step * 2 + lane / 16));
}

/* sum[16, 8 N] += a[16, columns 16 step..] * (rows of `tile`, the same columns)^T */
template <int D, int N>
__device__ __forceinline__ void add_rows_step(float sum[N][4], const uint32_t a[4],
                                              const bf16 *tile, int step)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int pair = 0; pair < N / 2; pair++) {
        uint32_t b[4];
        load_matrix(
            b, tile + tile_at<D>(pair * 16 + lane % 8 + lane / 16 * 8, step * 2 + lane / 8 % 2));
        multiply_add(sum[pair * 2], a, b[0], b[1]);
        multiply_add(sum[pair * 2 + 1], a, b[2], b[3]);
    }
}

/* sum[16, 8 N] = rows first_row.. of `left` * (8 N rows of `right`)^T, over all D columns */
template <int D, int N>
__device__ __forceinline__ void multiply_rows(float sum[N][4], const bf16 *left, int first_row,
                                              const bf16 *right)
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0;
    }
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        uint32_t a[4];
        load_left<D>(a, left, first_row, step);
        add_rows_step<D, N>(sum, a, right, step);
    }
}

__device__ __forceinline__ uint32_t pack_pair(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t *>(&pair);
}

/* Accumulators of tiles 2 step and 2 step + 1 as the left factor of the next product. */
__device__ __forceinline__ void narrow_left(uint32_t out[4], const float even[4],
                                            const float odd[4])
{
    out[0] = pack_pair(even[0], even[1]);
    out[1] = pack_pair(even[2], even[3]);
    out[2] = pack_pair(odd[0], odd[1]);
    out[3] = pack_pair(odd[2], odd[3]);
}

/* sum[16, D] += values[16, 8 N], rounded to bf16, * tile[8 N, D] */
template <int D, int N>
__device__ __forceinline__ void add_columns(float sum[D / 8][4], const float values[N][4],
                                            const bf16 *tile)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < N / 2; step++) {
        uint32_t a[4];
        narrow_left(a, values[step * 2], values[step * 2 + 1]);
#pragma unroll
        for (int pair = 0; pair < D / 16; pair++) {
            uint32_t b[4];
            load_matrix_transposed(b, tile + tile_at<D>(step * 16 + lane % 8 + lane / 8 % 2 * 8,
                                                        pair * 2 + lane / 16));
            multiply_add(sum[pair * 2], a, b[0], b[1]);
            multiply_add(sum[pair * 2 + 1], a, b[2], b[3]);
        }
    }
}

/* Rounds and writes the warp's 16 rows, times `scale`, from row `first` of the head on. */
template <int D>
__device__ __forceinline__ void store_rows(const float sum[D / 8][4], float scale_low,
                                           float scale_high, bf16 *head, int64_t stride, int first,
                                           int limit)
{
    int lane = threadIdx.x % 32;
    int row = first + lane / 4;
#pragma unroll
    for (int t = 0; t < D / 8; t++) {
        int column = t * 8 + lane % 4 * 2;
        if (row < limit) {
            *(uint32_t *)(head + row * stride + column) =
                pack_pair(sum[t][0] * scale_low, sum[t][1] * scale_low);
        }
        if (row + 8 < limit) {
            *(uint32_t *)(head + (row + 8) * stride + column) =
                pack_pair(sum[t][2] * scale_high, sum[t][3] * scale_high);
        }
    }
}

/* Raises a kernel's limit of shared memory; kernels that need more than there is stay unused. */
static inline cudaError_t load_tiles(const void *kernel, int bytes, int32_t shared_bytes)
{
    cudaFuncAttributes attributes;
    cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
    if (error == cudaSuccess && bytes <= shared_bytes) {
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    }
    return error;
}

#endif
