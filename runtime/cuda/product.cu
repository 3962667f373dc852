/* A plain matrix product for shapes that the matrix library has no kernel for (odd widths, odd
 * alignments): tiles in shared memory, sums in order, no tensor cores. See product.h. */
#include "runtime/cuda/common.cuh"
#include "runtime/cuda/kernels.h"
#include "runtime/cuda/product.h"

#define TILE 16

static __global__ void __launch_bounds__(TILE *TILE) multiply(struct mf_cuda_product p)
{
    __shared__ float a[TILE][TILE + 1];
    __shared__ float b[TILE][TILE + 1];
    int x = threadIdx.x % TILE;
    int y = threadIdx.x / TILE;
    int64_t row = (int64_t)blockIdx.x * TILE + x;
    for (int64_t block = blockIdx.y; block * TILE < p.n; block += gridDim.y) {
        int64_t column = block * TILE + y;
        float sum = 0;
        for (int64_t start = 0; start < p.k; start += TILE) {
            int64_t ak = start + y;
            int64_t bk = start + x;
            const bf16 *from_a = (const bf16 *)p.a;
            const bf16 *from_b = (const bf16 *)p.b;
            int64_t a_at = p.transpose_a ? row * p.a_stride + ak : ak * p.a_stride + row;
            int64_t b_at = p.transpose_b ? bk * p.b_stride + column : column * p.b_stride + bk;
            __syncthreads();
            a[y][x] = row < p.m && ak < p.k ? widen(from_a[a_at]) : 0.0f;
            b[y][x] = column < p.n && bk < p.k ? widen(from_b[b_at]) : 0.0f;
            __syncthreads();
            for (int i = 0; i < TILE; i++) {
                sum += a[i][x] * b[y][i];
            }
        }
        if (row >= p.m || column >= p.n) {
            continue;
        }
        sum += p.bias != NULL ? widen(((const bf16 *)p.bias)[row]) : 0.0f;
        int64_t at = column * p.out_stride + row;
        if (p.out_fp32) {
            float *out = (float *)p.out + at;
            *out = p.add ? *out + sum : sum;
        } else {
            bf16 *out = (bf16 *)p.out + at;
            *out = narrow(p.add ? widen(*out) + sum : sum);
        }
    }
}

cudaError_t mf_cuda_product_run(cudaStream_t stream, const struct mf_cuda_product *product)
{
    dim3 grid((unsigned)blocks_for(product->m, TILE), grid_rows(blocks_for(product->n, TILE)));
    multiply<<<grid, TILE * TILE, 0, stream>>>(*product);
    return cudaGetLastError();
}

cudaError_t mf_cuda_product_load(void)
{
    const void *const kernels[] = {(const void *)multiply};
    return load_all(kernels, 1);
}
