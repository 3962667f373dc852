/*
 * Matrix products by cuBLASLt, opened at run time: bf16 in, fp32 sums.
 *
 * What: each distinct product is given an algorithm once, from what decides it (sizes, strides,
 *   types, alignment up to 16 bytes), and keeps it: the same product has the same bits wherever its
 *   operands lie. Algorithms that add in no fixed order are never taken; shapes without an
 *   algorithm go to product.cu. The first use of a product may load code, which waits for the
 *   device: `drain` is called before it.
 * Who calls it: linear.c; lanes.c opens and closes. Owner: open/close; the workspace is device
 *   memory of its own. Thread: the device's. Fails: open with MF_STATUS_UNSUPPORTED when the
 * library is missing; run with MF_STATUS_DEVICE, MF_STATUS_BUSY when too many products were asked
 * for.
 */
#ifndef MF_RUNTIME_CUDA_BLAS_H
#define MF_RUNTIME_CUDA_BLAS_H

#include <cuda_runtime_api.h>

#include "core/status.h"
#include "runtime/cuda/product.h"

#define MF_CUDA_BLAS_WORKSPACE_BYTES (32ll << 20) /* what NVIDIA advises for Hopper */

struct mf_cuda_blas;

enum mf_status mf_cuda_blas_open(enum mf_status (*drain)(void *context), void *context,
                                 struct mf_cuda_blas **out) MF_MUST_USE;
void mf_cuda_blas_close(struct mf_cuda_blas *blas);
enum mf_status mf_cuda_blas_run(struct mf_cuda_blas *blas, cudaStream_t stream,
                                const struct mf_cuda_product *product) MF_MUST_USE;
/* "cuBLASLt 13.1.0"; good while the library is open. */
const char *mf_cuda_blas_version(const struct mf_cuda_blas *blas);

#endif
