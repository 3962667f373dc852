/*
 * What the two kernels of the backward attention share, and in which order they run: queries first,
 * since it leaves the row sums that keys needs in the workspace.
 *
 * Who calls it: flash_backward_queries.cuh, flash_backward_keys.cuh, flash_backward.cu.
 * Owner, thread, fails: as flash.h says.
 */
#ifndef MF_RUNTIME_CUDA_FLASH_BACKWARD_CUH
#define MF_RUNTIME_CUDA_FLASH_BACKWARD_CUH

#include "runtime/cuda/flash_common.cuh"

namespace mf_flash
{

struct backward_params {
    CUtensorMap q;
    CUtensorMap k;
    CUtensorMap v;
    CUtensorMap o;
    CUtensorMap grad_o;
    struct schedule plan;
    const float *natural_lse; /* [rows, heads] */
    float *lse;               /* [heads, rows] lse * log2(e) */
    float *delta;             /* [heads, rows] sum of o * grad_o */
    __nv_bfloat16 *first;     /* grad_q or grad_k */
    __nv_bfloat16 *second;    /* grad_v */
    int64_t first_stride;
    int64_t second_stride;
    int64_t rows;
    int32_t seq_len;
    int32_t heads;
    int32_t group;
    int32_t head_dim;
    float scale;
};

} // namespace mf_flash

#endif
