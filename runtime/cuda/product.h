/*
 * A matrix product as data: D = op(A) op(B), bf16 in, fp32 sums, bf16 or fp32 out.
 *
 * What: matrices in column-major order (a row-major [rows, width] matrix is its transpose, width x
 *   rows). D is m x n, k is the length of the sums. Who calls it: linear.c fills it in; blas.c and
 *   product.cu run it. Memory: plain data. Thread: any. Fails: no.
 */
#ifndef MF_RUNTIME_CUDA_PRODUCT_H
#define MF_RUNTIME_CUDA_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

struct mf_cuda_product {
    bool transpose_a; /* A is k x m in memory */
    bool transpose_b; /* B is n x k in memory */
    bool out_fp32;
    bool add; /* D += ..., the sum rounded once */
    int64_t m, n, k;
    const void *a;
    int64_t a_stride;
    const void *b;
    int64_t b_stride;
    void *out;
    int64_t out_stride;
    const void *bias; /* bf16[m], added to every column; NULL = none */
};

#endif
