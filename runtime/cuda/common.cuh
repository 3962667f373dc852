/*
 * What the kernels share: bf16 in packs, sums of a warp and of a block in a fixed order, loading.
 *
 * Who calls it: the .cu files here. Memory: none. Thread: device code. Fails: no.
 */
#ifndef MF_RUNTIME_CUDA_COMMON_CUH
#define MF_RUNTIME_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

/* VEC elements that are read and written at once. */
template <int VEC> struct __align__(VEC * 2) pack
{
    bf16 at[VEC];
};

__device__ __forceinline__ float widen(bf16 value)
{
    return __bfloat162float(value);
}

__device__ __forceinline__ bf16 narrow(float value)
{
    return __float2bfloat16_rn(value);
}

template <int VEC> __device__ __forceinline__ pack<VEC> load(const bf16 *from)
{
    return *reinterpret_cast<const pack<VEC> *>(from);
}

template <int VEC> __device__ __forceinline__ void store(bf16 *to, const pack<VEC> &value)
{
    *reinterpret_cast<pack<VEC> *>(to) = value;
}

/* All lanes get the same bits: an addition does not look at the order of its two operands. */
__device__ __forceinline__ float warp_sum(float value)
{
    for (int half = 16; half > 0; half /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, half);
    }
    return value;
}

__device__ __forceinline__ float warp_max(float value)
{
    for (int half = 16; half > 0; half /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, half));
    }
    return value;
}

/* `shared` has a float for each warp; safe to call again at once. */
__device__ __forceinline__ float block_sum(float value, float *shared)
{
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        shared[threadIdx.x / 32] = value;
    }
    __syncthreads();
    float sum = 0;
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) {
        sum += shared[warp];
    }
    return sum;
}

__device__ __forceinline__ float block_max(float value, float *shared)
{
    value = warp_max(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        shared[threadIdx.x / 32] = value;
    }
    __syncthreads();
    float top = shared[0];
    for (int warp = 1; warp < (int)blockDim.x / 32; warp++) {
        top = fmaxf(top, shared[warp]);
    }
    return top;
}

/* Whether a matrix can be read in packs of `count` elements. */
static inline bool packable(const void *pointer, int64_t stride, int64_t width, int count)
{
    return (uintptr_t)pointer % (2 * count) == 0 && stride % count == 0 && width % count == 0;
}

static inline int64_t blocks_for(int64_t count, int64_t per_block)
{
    return (count + per_block - 1) / per_block;
}

static inline unsigned grid_rows(int64_t rows)
{
    return (unsigned)(rows < 65535 ? rows : 65535);
}

/* Makes the code of kernels resident: a launch that loads code may wait for the device, and the
 * device may wait for a task that is not queued yet. */
static inline cudaError_t load_all(const void *const *kernels, int count)
{
    for (int index = 0; index < count; index++) {
        cudaFuncAttributes attributes;
        cudaError_t error = cudaFuncGetAttributes(&attributes, kernels[index]);
        if (error != cudaSuccess) {
            return error;
        }
    }
    return cudaSuccess;
}

#endif
