/*
 * The kernels behind direct.h: a table of tiles, each compiled for both directions.
 *
 * What: a tile is what one block sums at a time, rows x columns; a cluster of blocks covers `size`
 *   times as many rows and fetches W once for them. Any tile and cluster give the same bits.
 * Who calls it: direct.c. Owner: operands are the caller's. Thread: the device's.
 * Fails: load with the runtime's error; launch with cudaErrorInvalidValue for operands that
 *   direct.c should have refused, else what the launch reports.
 */
#ifndef MF_RUNTIME_CUDA_DIRECT_TILES_H
#define MF_RUNTIME_CUDA_DIRECT_TILES_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "runtime/cuda/product.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MF_CUDA_DIRECT_TILES 5
#define MF_CUDA_DIRECT_SIZES 5 /* of clusters: 1, 2, 4, 8, 16 blocks */

struct mf_cuda_direct_tile {
    const char *name; /* "256x128": rows x columns */
    int32_t rows;
};

/* `index` < MF_CUDA_DIRECT_TILES. */
const struct mf_cuda_direct_tile *mf_cuda_direct_tiles_get(int32_t index);
/* Makes a tile's kernels resident and says how many clusters of each size the GPU holds. */
cudaError_t mf_cuda_direct_tiles_load(int32_t index, int32_t clusters[MF_CUDA_DIRECT_SIZES]);
/* `size` blocks in a cluster, `clusters` of them at most. */
cudaError_t mf_cuda_direct_tiles_launch(int32_t index, int32_t size, int32_t clusters,
                                        const struct mf_cuda_product *product, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
