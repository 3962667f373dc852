/* Linear layers on the host device: three products on fp32 copies of bf16 operands; kernel.h says
 * what each operand is. */
#include "runtime/host/bf16.h"
#include "runtime/host/gemm.h"
#include "runtime/host/kernels.h"
#include "runtime/host/simd.h"

/* Rows of dy that one partial bias sum covers; a sum of sums keeps fp32 accurate for long batches.
 */
#define BIAS_ROWS 128
#define BIAS_COLUMNS 256

struct store_job {
    uint16_t *out;
    int64_t stride;
    const uint16_t *bias; /* NULL = none */
    bool add;
};

MF_HOST_INLINE void store_row_body(const float *values, const uint16_t *bias, bool add,
                                   uint16_t *out, int64_t count)
{
    if (bias != NULL) {
        MF_HOST_IVDEP
        for (int64_t index = 0; index < count; index++) {
            out[index] = mf_bf16_from_float(values[index] + mf_bf16_to_float(bias[index]));
        }
    } else if (add) {
        MF_HOST_IVDEP
        for (int64_t index = 0; index < count; index++) {
            out[index] = mf_bf16_from_float(mf_bf16_to_float(out[index]) + values[index]);
        }
    } else {
        MF_HOST_IVDEP
        for (int64_t index = 0; index < count; index++) {
            out[index] = mf_bf16_from_float(values[index]);
        }
    }
}
MF_HOST_SIMD(store_row,
             (const float *values, const uint16_t *bias, bool add, uint16_t *out, int64_t count),
             (values, bias, add, out, count))

static void store_tile(const void *argument, const struct mf_host_gemm_tile *tile)
{
    const struct store_job *job = argument;
    for (int64_t row = 0; row < tile->rows; row++) {
        store_row(tile->values + row * tile->stride,
                  job->bias != NULL ? job->bias + tile->column : NULL, job->add,
                  job->out + (tile->row + row) * job->stride + tile->column, tile->columns);
    }
}

enum mf_status mf_host_linear_forward(struct mf_host_context *context,
                                      const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    const struct mf_operand *x = &call->operands[0];
    const uint16_t *weight = call->operands[1].pointer;
    float *inputs;
    float *weights;
    float *tiles;
    struct mf_host_piece pieces[] = {
        {(void **)&inputs, shape->rows * shape->k, sizeof(float)},
        {(void **)&weights, shape->n * shape->k, sizeof(float)},
        {(void **)&tiles, mf_host_gemm_tile_count(context), sizeof(float)},
    };
    MF_TRY(mf_host_context_scratch(context, pieces, 3));
    mf_host_context_widen(context, x->pointer, x->stride, shape->rows, shape->k, inputs);
    mf_host_context_widen(context, weight, shape->k, shape->n, shape->k, weights);
    struct mf_host_gemm gemm = {.transpose_b = true,
                                .m = shape->rows,
                                .n = shape->n,
                                .k = shape->k,
                                .a = inputs,
                                .a_stride = shape->k,
                                .b = weights,
                                .b_stride = shape->k};
    bool bias = (shape->flags & MF_SHAPE_BIAS) != 0;
    struct store_job job = {.out = call->operands[2].pointer,
                            .stride = call->operands[2].stride,
                            .bias = bias ? weight + shape->n * shape->k : NULL};
    mf_host_gemm_run(context, &gemm, tiles, store_tile, &job);
    return MF_STATUS_OK;
}

enum mf_status mf_host_linear_backward_data(struct mf_host_context *context,
                                            const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    const struct mf_operand *dy = &call->operands[0];
    float *gradients;
    float *weights;
    float *tiles;
    struct mf_host_piece pieces[] = {
        {(void **)&gradients, shape->rows * shape->n, sizeof(float)},
        {(void **)&weights, shape->n * shape->k, sizeof(float)},
        {(void **)&tiles, mf_host_gemm_tile_count(context), sizeof(float)},
    };
    MF_TRY(mf_host_context_scratch(context, pieces, 3));
    mf_host_context_widen(context, dy->pointer, dy->stride, shape->rows, shape->n, gradients);
    mf_host_context_widen(context, call->operands[1].pointer, shape->k, shape->n, shape->k,
                          weights);
    struct mf_host_gemm gemm = {.m = shape->rows,
                                .n = shape->k,
                                .k = shape->n,
                                .a = gradients,
                                .a_stride = shape->n,
                                .b = weights,
                                .b_stride = shape->k};
    bool first = (shape->flags & MF_SHAPE_FIRST_PANEL) != 0;
    bool last = (shape->flags & MF_SHAPE_LAST_PANEL) != 0;
    float *sum = call->operands[2].pointer;
    struct store_job job = {.out = call->operands[3].pointer,
                            .stride = call->operands[3].stride,
                            .add = (shape->flags & MF_SHAPE_ADD_TO_OUTPUT) != 0};
    if (sum == NULL && first && last) { /* one panel needs no sum */
        mf_host_gemm_run(context, &gemm, tiles, store_tile, &job);
    } else {
        mf_host_gemm_into(context, &gemm, !first, sum, shape->k, last ? store_tile : NULL, &job);
    }
    return MF_STATUS_OK;
}

struct bias_job {
    const float *values; /* [rows, n] */
    int64_t rows;
    int64_t n;
    uint16_t *out;
};

MF_HOST_INLINE void add_row_body(const float *restrict from, float *restrict sum, int64_t count)
{
    for (int64_t index = 0; index < count; index++) {
        sum[index] += from[index];
    }
}
MF_HOST_SIMD(add_row, (const float *from, float *sum, int64_t count), (from, sum, count))

/* Column sums of one range of columns: rows in order within BIAS_ROWS, then those sums in order. */
static void sum_columns(const void *argument, int64_t item, int32_t worker)
{
    (void)worker;
    const struct bias_job *job = argument;
    int64_t first = item * BIAS_COLUMNS;
    int64_t count = job->n - first < BIAS_COLUMNS ? job->n - first : BIAS_COLUMNS;
    float total[BIAS_COLUMNS] = {0};
    for (int64_t start = 0; start < job->rows; start += BIAS_ROWS) {
        int64_t end = start + BIAS_ROWS < job->rows ? start + BIAS_ROWS : job->rows;
        float part[BIAS_COLUMNS] = {0};
        for (int64_t row = start; row < end; row++) {
            add_row(job->values + row * job->n + first, part, count);
        }
        add_row(part, total, count);
    }
    for (int64_t index = 0; index < count; index++) {
        job->out[first + index] = mf_bf16_from_float(total[index]);
    }
}

enum mf_status mf_host_linear_backward_weight(struct mf_host_context *context,
                                              const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    const struct mf_operand *x = &call->operands[0];
    const struct mf_operand *dy = &call->operands[1];
    uint16_t *out = call->operands[2].pointer;
    float *inputs;
    float *gradients;
    float *tiles;
    struct mf_host_piece pieces[] = {
        {(void **)&inputs, shape->rows * shape->k, sizeof(float)},
        {(void **)&gradients, shape->rows * shape->n, sizeof(float)},
        {(void **)&tiles, mf_host_gemm_tile_count(context), sizeof(float)},
    };
    MF_TRY(mf_host_context_scratch(context, pieces, 3));
    mf_host_context_widen(context, x->pointer, x->stride, shape->rows, shape->k, inputs);
    mf_host_context_widen(context, dy->pointer, dy->stride, shape->rows, shape->n, gradients);
    struct mf_host_gemm gemm = {.transpose_a = true,
                                .m = shape->n,
                                .n = shape->k,
                                .k = shape->rows,
                                .a = gradients,
                                .a_stride = shape->n,
                                .b = inputs,
                                .b_stride = shape->k};
    struct store_job job = {.out = out, .stride = shape->k};
    mf_host_gemm_run(context, &gemm, tiles, store_tile, &job);
    int64_t elements = shape->n * shape->k;
    if ((shape->flags & MF_SHAPE_BIAS) != 0) {
        struct bias_job bias = {
            .values = gradients, .rows = shape->rows, .n = shape->n, .out = out + elements};
        mf_host_pool_run(context->pool, (shape->n + BIAS_COLUMNS - 1) / BIAS_COLUMNS, sum_columns,
                         &bias);
        elements += shape->n;
    }
    mf_host_kernels_pad(out, elements);
    return MF_STATUS_OK;
}
