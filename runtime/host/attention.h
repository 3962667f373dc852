/*
 * What forward and backward attention of the host device share: how rows are cut, and heads as
 * dense fp32.
 *
 * Who calls it: attention.c and attention_backward.c. Owner: the caller. Thread: any. Fails: no.
 */
#ifndef MF_RUNTIME_HOST_ATTENTION_H
#define MF_RUNTIME_HOST_ATTENTION_H

#include <math.h>

#include "runtime/host/bf16.h"
#include "runtime/host/gemm.h"
#include "runtime/host/kernels.h"
#include "runtime/host/simd.h"

/* Queries whose scores exist at once: scratch is this many rows of seq_len scores a thread. */
#define MF_HOST_ATTENTION_ROWS 128

static inline float mf_host_attention_scale(const struct mf_shape *shape)
{
    return (float)(1.0 / sqrt((double)shape->head_dim));
}

/* fp32 copy [rows, head_dim] of head `head`, rows `first`.. of an operand. */
static inline void mf_host_attention_widen(const struct mf_operand *operand, int64_t first,
                                           int64_t rows, int64_t head, int64_t head_dim, float *out)
{
    const uint16_t *from = (const uint16_t *)operand->pointer + head * head_dim;
    for (int64_t row = 0; row < rows; row++) {
        const uint16_t *values = from + (first + row) * operand->stride;
        for (int64_t index = 0; index < head_dim; index++) {
            out[row * head_dim + index] = mf_bf16_to_float(values[index]);
        }
    }
}

/* The reverse: rounds and stores [rows, head_dim]. */
static inline void mf_host_attention_narrow(const float *values, int64_t first, int64_t rows,
                                            int64_t head, int64_t head_dim,
                                            const struct mf_operand *operand)
{
    uint16_t *to = (uint16_t *)operand->pointer + head * head_dim;
    for (int64_t row = 0; row < rows; row++) {
        uint16_t *out = to + (first + row) * operand->stride;
        for (int64_t index = 0; index < head_dim; index++) {
            out[index] = mf_bf16_from_float(values[row * head_dim + index]);
        }
    }
}

#endif
