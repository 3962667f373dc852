/*
 * What the operands of a kernel look like, from its shape: sizes, strides, where they lie, and data
 * that a kernel can work on. Beside the list in core/kernel.h in spirit.
 *
 * Who calls it: measure.c, tests. Owner: the caller's memory. Thread: any; pure. Fails: no; a size
 * that does not fit 62 bits is MF_OPERANDS_BYTES_MAX.
 */
#ifndef MF_PROFILER_OPERANDS_H
#define MF_PROFILER_OPERANDS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/kernel.h"
#include "core/profile.h"

#define MF_OPERANDS_BYTES_MAX (1ll << 62)

enum mf_operands_content {
    MF_OPERANDS_NONE,
    MF_OPERANDS_BF16,    /* normal numbers */
    MF_OPERANDS_FP32,    /* small normal numbers */
    MF_OPERANDS_ZERO,    /* written before it is read */
    MF_OPERANDS_TOKENS,  /* int32 below the rows of a table */
    MF_OPERANDS_LABELS,  /* int32 below the columns of a head */
    MF_OPERANDS_STATS,   /* fp32 {0, 1} */
    MF_OPERANDS_LSE,     /* fp32 logarithms of sums of exponentials */
    MF_OPERANDS_RUNNING, /* fp32 {0, 1, 0} */
    MF_OPERANDS_STATE,   /* of ADAMW: v is not negative */
    MF_OPERANDS_SQUARES, /* fp64 ones */
    MF_OPERANDS_CONTROL, /* struct mf_control */
    MF_OPERANDS_MARKS,   /* bytes, zero */
};

struct mf_operands_need {
    enum mf_operands_content content;
    int64_t bytes;  /* 0 = the kernel does not take this operand */
    int64_t stride; /* elements between rows; 0 where no matrix */
    bool host;      /* in host memory, as the signature's lane and flags say */
    bool parameter; /* weights, gradients, state, what is copied: a step touches them once, so they
                       are seldom in a cache */
};

void mf_operands_list(const struct mf_signature *signature,
                      struct mf_operands_need out[static MF_OPERANDS_MAX]);
/* Fills `bytes` bytes with what `need` holds; the same data every time. */
void mf_operands_fill(const struct mf_signature *signature, const struct mf_operands_need *need,
                      void *memory, int64_t bytes);

#endif
