/*
 * Matrix products on fp32 operands, through OpenBLAS, with the same bits for any number of threads.
 *
 * What: the result is cut into tiles by its own shape alone; each tile is one single-threaded
 *   sgemm, tiles are shared out over the context's threads. OpenBLAS itself is set to one thread,
 *   so its own partition (which follows the number of threads) never decides a sum.
 * Who calls it: the matrix kernels of the host device. Owner: the caller owns all operands.
 * Thread: as the context. Fails: only check() fails.
 */
#ifndef MF_RUNTIME_HOST_GEMM_H
#define MF_RUNTIME_HOST_GEMM_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/host/context.h"

/* c[m,n] = op(a)[m,k] op(b)[k,n]; a transposed operand is stored the other way round. Row-major. */
struct mf_host_gemm {
    bool transpose_a;
    bool transpose_b;
    int64_t m;
    int64_t n;
    int64_t k;
    const float *a;
    int64_t a_stride;
    const float *b;
    int64_t b_stride;
};

/* A finished tile: `values` [rows, columns] with `stride`, which may be written to; its place. */
struct mf_host_gemm_tile {
    float *values;
    int64_t stride;
    int64_t row;
    int64_t column;
    int64_t rows;
    int64_t columns;
};
typedef void (*mf_host_gemm_store)(const void *argument, const struct mf_host_gemm_tile *tile);

/* One product on the calling thread: c = alpha * op(a) op(b) + beta * c. */
void mf_host_gemm_call(const struct mf_host_gemm *gemm, float alpha, float beta, float *c,
                       int64_t c_stride);
/* Elements of scratch that run() needs for its tiles. */
int64_t mf_host_gemm_tile_count(const struct mf_host_context *context);
/* Hands every tile of the product to `store`, on the thread that computed it. */
void mf_host_gemm_run(struct mf_host_context *context, const struct mf_host_gemm *gemm,
                      float *tiles, mf_host_gemm_store store, const void *argument);
/* c = product (add: c += product), in place; then `store` (may be NULL) sees each tile of c. */
void mf_host_gemm_into(struct mf_host_context *context, const struct mf_host_gemm *gemm, bool add,
                       float *c, int64_t c_stride, mf_host_gemm_store store, const void *argument);
/* Rows of a tile, for kernels that cut rows alone. */
int64_t mf_host_gemm_tile_rows(int64_t rows);
/* Sets OpenBLAS to one thread and compares its products with naive ones.
 * MF_STATUS_DEVICE names the remedy: OpenBLAS may pick kernels that are wrong on this CPU. */
enum mf_status mf_host_gemm_check(void) MF_MUST_USE;
/* "OpenBLAS 0.3.21 Haswell" */
void mf_host_gemm_version(char *out, int64_t size);

#endif
