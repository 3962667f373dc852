/* The tiles that direct products are compiled for, and their launch; see direct_tiles.h. */
#include "runtime/cuda/direct_tiles.h"

#include "runtime/cuda/direct_block.cuh"

namespace mf_direct
{

struct instance {
    struct mf_cuda_direct_tile tile;
    int32_t columns;
    size_t shared_bytes;
    void (*kernels[2])(struct params p); /* forward, backward */
};

template <int SUB, int WIDTH, int W_STAGES, int X_STAGES>
static struct instance make(const char *name)
{
    constexpr size_t bytes = sizeof(struct block_shared<SUB, WIDTH, W_STAGES, X_STAGES>) + 1024;
    static_assert(bytes <= 227 * 1024, "what a block of compute capability 9.0 may have");
    return {{name, SUB * 128},
            WIDTH,
            bytes,
            {direct_kernel<SUB, WIDTH, W_STAGES, X_STAGES, false>,
             direct_kernel<SUB, WIDTH, W_STAGES, X_STAGES, true>}};
}

/* Ordered by the rows that a cluster of 16 covers: 2048, 4096, 8192, which are tried in turn. The
 * last two are variants of the second, to be asked for by name: half as wide, and with half as
 * much of W on its way. */
static const struct instance instances[MF_CUDA_DIRECT_TILES] = {
    make<1, 128, 8, 5>("128x128"), make<2, 128, 8, 3>("256x128"),  make<4, 64, 10, 2>("512x64"),
    make<2, 64, 12, 4>("256x64"),  make<2, 128, 4, 3>("256x128s"),
};

/* A matrix of `rows` rows of `columns` bf16, to be copied in boxes of 64 columns. `promote`: L2 may
 * fetch 256 bytes at a time; never from host memory, where it would move bytes twice. */
static cudaError_t map_matrix(const void *matrix, int64_t rows, int64_t columns, int64_t stride,
                              uint32_t box_rows, bool promote, CUtensorMap *out)
{
    encode_map *encode = find_encoder();
    if (!encode) {
        return cudaErrorNotSupported;
    }
    cuuint64_t sizes[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    cuuint64_t strides[1] = {(cuuint64_t)stride * 2};
    cuuint32_t box[2] = {64, box_rows};
    cuuint32_t steps[2] = {1, 1};
    CUresult result =
        encode(out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void *>(matrix), sizes, strides,
               box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               promote ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B : CU_TENSOR_MAP_L2_PROMOTION_NONE,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

static cudaError_t fill_params(const struct instance *instance, int32_t size,
                               const struct mf_cuda_product *product, struct params *p)
{
    int64_t covered = (int64_t)instance->tile.rows * size;
    bool backward = !product->transpose_a;
    p->out = product->out;
    p->bias = (const __nv_bfloat16 *)product->bias;
    p->stride = product->out_stride;
    p->rows = (int32_t)product->n;
    p->columns = (int32_t)product->m;
    p->steps = (int32_t)((product->k + MF_DIRECT_DEPTH - 1) / MF_DIRECT_DEPTH);
    p->column_tiles = (int32_t)((product->m + instance->columns - 1) / instance->columns);
    p->tiles = p->column_tiles * (int32_t)((product->n + covered - 1) / covered);
    p->out_fp32 = product->out_fp32;
    p->add = product->add;
    cudaError_t error = map_matrix(product->b, product->n, product->k, product->b_stride,
                                   MF_DIRECT_BOX_ROWS, true, &p->x);
    if (error != cudaSuccess) {
        return error;
    }
    return backward ? map_matrix(product->a, product->k, product->m, product->a_stride,
                                 MF_DIRECT_DEPTH, false, &p->w)
                    : map_matrix(product->a, product->m, product->k, product->a_stride,
                                 (uint32_t)instance->columns, false, &p->w);
}

static void fill_launch(const struct instance *instance, int32_t size, int32_t clusters,
                        cudaStream_t stream, cudaLaunchAttribute *attribute,
                        cudaLaunchConfig_t *out)
{
    *attribute = {};
    attribute->id = cudaLaunchAttributeClusterDimension;
    attribute->val.clusterDim.x = (unsigned)size;
    attribute->val.clusterDim.y = 1;
    attribute->val.clusterDim.z = 1;
    *out = {};
    out->gridDim = dim3((unsigned)(size * clusters));
    out->blockDim = dim3(MF_FLASH_THREADS);
    out->dynamicSmemBytes = instance->shared_bytes;
    out->stream = stream;
    out->attrs = attribute;
    out->numAttrs = 1;
}

static cudaError_t load(const struct instance *instance, void (*kernel)(struct params p))
{
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             (int)instance->shared_bytes);
    return error == cudaSuccess
               ? cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1)
               : error;
}

} // namespace mf_direct

using namespace mf_direct;

const struct mf_cuda_direct_tile *mf_cuda_direct_tiles_get(int32_t index)
{
    return &instances[index].tile;
}

cudaError_t mf_cuda_direct_tiles_load(int32_t index, int32_t clusters[MF_CUDA_DIRECT_SIZES])
{
    const struct instance *instance = &instances[index];
    cudaError_t error = load(instance, instance->kernels[0]);
    error = error == cudaSuccess ? load(instance, instance->kernels[1]) : error;
    for (int at = 0; at < MF_CUDA_DIRECT_SIZES && error == cudaSuccess; at++) {
        cudaLaunchAttribute attribute;
        cudaLaunchConfig_t config;
        int count = 0;
        fill_launch(instance, 1 << at, 1, nullptr, &attribute, &config);
        if (cudaOccupancyMaxActiveClusters(&count, instance->kernels[0], &config) != cudaSuccess) {
            (void)cudaGetLastError(); /* a size that this GPU has not */
            count = 0;
        }
        clusters[at] = count;
    }
    return error;
}

cudaError_t mf_cuda_direct_tiles_launch(int32_t index, int32_t size, int32_t clusters,
                                        const struct mf_cuda_product *product, cudaStream_t stream)
{
    const struct instance *instance = &instances[index];
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config;
    struct params p = {};
    cudaError_t error = fill_params(instance, size, product, &p);
    if (error != cudaSuccess) {
        return error;
    }
    fill_launch(instance, size, clusters < p.tiles ? clusters : p.tiles, stream, &attribute,
                &config);
    return cudaLaunchKernelEx(&config, instance->kernels[product->transpose_a ? 0 : 1], p);
}
