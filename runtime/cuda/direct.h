/*
 * Products with weights in mapped host memory that cross the link once, on Hopper GPUs.
 *
 * What: the choice of a tile and a cluster for a product, and whether there is one. The weights are
 *   read once up to MF_CUDA_DIRECT_ROWS_ONCE rows, again for each further group of so many. Sums
 *   run in one order whatever the choice, but not in the matrix library's: results agree with its
 *   within the rounding of their fp32 sums (tests/gpu/test_cuda_direct.c states how far).
 *   MEMFERRY_DIRECT, read at open: "auto" (or unset), "plain" (the matrix library reads the mapped
 *   pointer, once for each of its tile rows), or "TILE", "TILE/CLUSTER", "TILE/CLUSTER/CLUSTERS" to
 *   try one tile of direct_tiles.cu, "256x128/16/4".
 * Who calls it: lanes.c opens, linear.c asks and runs. Owner: plain data, nothing to close. Thread:
 *   the device's. Fails: open with MF_STATUS_INVALID for another MEMFERRY_DIRECT; DEVICE.
 */
#ifndef MF_RUNTIME_CUDA_DIRECT_H
#define MF_RUNTIME_CUDA_DIRECT_H

#include <cuda_runtime_api.h>

#include "core/status.h"
#include "runtime/cuda/direct_tiles.h"

#define MF_CUDA_DIRECT_ROWS_ONCE 8192 /* 16 blocks of the tallest tile */

struct mf_cuda_direct {
    bool on;
    int32_t tile; /* the one asked for; -1 = by the number of rows */
    int32_t size; /* of clusters, the same; 0 = by the number of rows */
    int32_t most; /* clusters at a time; 0 = as many as the GPU holds */
    int32_t clusters[MF_CUDA_DIRECT_TILES][MF_CUDA_DIRECT_SIZES];
};

enum mf_status mf_cuda_direct_open(int32_t device, struct mf_cuda_direct *out) MF_MUST_USE;
/* Whether the product can run here: widths and strides of 8 elements, 16-byte alignment. */
bool mf_cuda_direct_takes(const struct mf_cuda_direct *direct,
                          const struct mf_cuda_product *product);
enum mf_status mf_cuda_direct_run(const struct mf_cuda_direct *direct, cudaStream_t stream,
                                  const struct mf_cuda_product *product) MF_MUST_USE;

#endif
