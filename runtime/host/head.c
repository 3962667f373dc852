/* The head fused with the loss on the host device: logits exist one tile at a time; kernel.h says
 * what each operand is. */
#include <string.h>

#include "runtime/host/bf16.h"
#include "runtime/host/gemm.h"
#include "runtime/host/kernels.h"
#include "runtime/host/simd.h"

#define IGNORED (-100)
/* Logits of a row that are folded into its running sum at once. */
#define HEAD_COLUMNS 512
#define HEAD_ROWS_MAX 128 /* of mf_host_gemm_tile_rows */

/* Running {max, sum of exp(logit - max)} of one row after `count` more logits. */
MF_HOST_INLINE void fold_body(const float *logits, int64_t count, float *running)
{
    float top = running[0];
    for (int64_t index = 0; index < count; index++) {
        top = logits[index] > top ? logits[index] : top;
    }
    float lanes[MF_HOST_LANES] = {0};
    int64_t index = 0;
    for (; index + MF_HOST_LANES <= count; index += MF_HOST_LANES) {
        for (int lane = 0; lane < MF_HOST_LANES; lane++) {
            lanes[lane] += mf_host_simd_exp(logits[index + lane] - top);
        }
    }
    for (int lane = 0; index + lane < count; lane++) {
        lanes[lane] += mf_host_simd_exp(logits[index + lane] - top);
    }
    running[1] = running[1] * mf_host_simd_exp(running[0] - top) + mf_host_simd_sum(lanes);
    running[0] = top;
}
MF_HOST_SIMD(fold, (const float *logits, int64_t count, float *running), (logits, count, running))

struct forward_job {
    const struct mf_kernel_call *call;
    struct mf_host_gemm gemm;
    int64_t tile_rows;
    float *tiles; /* [threads, HEAD_ROWS_MAX, HEAD_COLUMNS] */
};

/* One range of rows through all columns of the panel, in order. */
static void forward_rows(const void *argument, int64_t item, int32_t worker)
{
    const struct forward_job *job = argument;
    const struct mf_kernel_call *call = job->call;
    const int32_t *labels = call->operands[2].pointer;
    float *tile = job->tiles + (int64_t)worker * HEAD_ROWS_MAX * HEAD_COLUMNS;
    struct mf_host_gemm part = job->gemm;
    int64_t first = item * job->tile_rows;
    part.m = part.m - first < job->tile_rows ? part.m - first : job->tile_rows;
    part.a += first * part.a_stride;
    for (int64_t column = 0; column < job->gemm.n; column += HEAD_COLUMNS) {
        part.n = job->gemm.n - column < HEAD_COLUMNS ? job->gemm.n - column : HEAD_COLUMNS;
        part.b = job->gemm.b + column * part.b_stride;
        mf_host_gemm_call(&part, 1.0f, 0.0f, tile, HEAD_COLUMNS);
        for (int64_t row = 0; row < part.m; row++) {
            float *running = (float *)call->operands[3].pointer + (first + row) * 3;
            if (column == 0 && (call->shape.flags & MF_SHAPE_FIRST_PANEL) != 0) {
                running[0] = -INFINITY;
                running[1] = 0;
                running[2] = 0;
            }
            int64_t label = labels[first + row] - call->index0 - column;
            if (labels[first + row] != IGNORED && label >= 0 && label < part.n) {
                running[2] = tile[row * HEAD_COLUMNS + label];
            }
            fold(tile + row * HEAD_COLUMNS, part.n, running);
        }
    }
}

/* fp32 copies of x and the panel, and the product of logits; `tiles` of `tile_count` elements. */
static enum mf_status open_product(struct mf_host_context *context,
                                   const struct mf_kernel_call *call, int64_t tile_count,
                                   struct mf_host_gemm *gemm, float **tiles)
{
    const struct mf_shape *shape = &call->shape;
    float *inputs;
    float *weights;
    struct mf_host_piece pieces[] = {
        {(void **)&inputs, shape->rows * shape->k, sizeof(float)},
        {(void **)&weights, shape->n * shape->k, sizeof(float)},
        {(void **)tiles, tile_count, sizeof(float)},
    };
    MF_TRY(mf_host_context_scratch(context, pieces, 3));
    mf_host_context_widen(context, call->operands[0].pointer, call->operands[0].stride, shape->rows,
                          shape->k, inputs);
    mf_host_context_widen(context, call->operands[1].pointer, shape->k, shape->n, shape->k,
                          weights);
    *gemm = (struct mf_host_gemm){.transpose_b = true,
                                  .m = shape->rows,
                                  .n = shape->n,
                                  .k = shape->k,
                                  .a = inputs,
                                  .a_stride = shape->k,
                                  .b = weights,
                                  .b_stride = shape->k};
    return MF_STATUS_OK;
}

enum mf_status mf_host_head_forward(struct mf_host_context *context,
                                    const struct mf_kernel_call *call)
{
    struct forward_job job = {.call = call, .tile_rows = mf_host_gemm_tile_rows(call->shape.rows)};
    int64_t tile_count =
        (int64_t)mf_host_pool_threads(context->pool) * HEAD_ROWS_MAX * HEAD_COLUMNS;
    MF_TRY(open_product(context, call, tile_count, &job.gemm, &job.tiles));
    mf_host_pool_run(context->pool, (call->shape.rows + job.tile_rows - 1) / job.tile_rows,
                     forward_rows, &job);
    return MF_STATUS_OK;
}

enum mf_status mf_host_head_loss(struct mf_host_context *context, const struct mf_kernel_call *call)
{
    (void)context;
    const float *running = call->operands[0].pointer;
    const int32_t *labels = call->operands[1].pointer;
    float *lse = call->operands[2].pointer;
    float *logprob = call->operands[3].pointer;
    double *result = call->operands[4].pointer;
    double sum = 0;
    double count = 0;
    for (int64_t row = 0; row < call->shape.rows; row++) {
        lse[row] = running[row * 3] + logf(running[row * 3 + 1]);
        logprob[row] = 0;
        if (labels[row] != IGNORED) {
            logprob[row] = running[row * 3 + 2] - lse[row];
            sum -= (double)logprob[row];
            count += 1;
        }
    }
    result[0] = sum;
    result[1] = count;
    return MF_STATUS_OK;
}

/* softmax of one row from its logits, as bf16. */
MF_HOST_INLINE void soften_body(const float *restrict logits, float lse, uint16_t *restrict out,
                                int64_t count)
{
    for (int64_t index = 0; index < count; index++) {
        out[index] = mf_bf16_from_float(mf_host_simd_exp(logits[index] - lse));
    }
}
MF_HOST_SIMD(soften, (const float *logits, float lse, uint16_t *out, int64_t count),
             (logits, lse, out, count))

static void store_gradient(const void *argument, const struct mf_host_gemm_tile *tile)
{
    const struct mf_kernel_call *call = argument;
    const int32_t *labels = call->operands[2].pointer;
    const float *lse = call->operands[3].pointer;
    const struct mf_operand *out = &call->operands[4];
    for (int64_t index = 0; index < tile->rows; index++) {
        int64_t row = tile->row + index;
        uint16_t *to = (uint16_t *)out->pointer + row * out->stride + tile->column;
        if (labels[row] == IGNORED) {
            memset(to, 0, (size_t)tile->columns * sizeof(*to));
            continue;
        }
        const float *logits = tile->values + index * tile->stride;
        soften(logits, lse[row], to, tile->columns);
        int64_t label = labels[row] - call->index0 - tile->column;
        if (label >= 0 && label < tile->columns) {
            to[label] = mf_bf16_from_float(mf_host_simd_exp(logits[label] - lse[row]) - 1.0f);
        }
    }
}

enum mf_status mf_host_head_backward(struct mf_host_context *context,
                                     const struct mf_kernel_call *call)
{
    struct mf_host_gemm gemm;
    float *tiles;
    MF_TRY(open_product(context, call, mf_host_gemm_tile_count(context), &gemm, &tiles));
    mf_host_gemm_run(context, &gemm, tiles, store_gradient, call);
    return MF_STATUS_OK;
}

enum mf_status mf_host_head_logits(struct mf_host_context *context,
                                   const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    const struct mf_operand *x = &call->operands[0];
    int64_t sequences = shape->rows / shape->seq_len;
    float *inputs;
    float *weights;
    struct mf_host_piece pieces[] = {
        {(void **)&inputs, sequences * shape->k, sizeof(float)},
        {(void **)&weights, shape->n * shape->k, sizeof(float)},
    };
    MF_TRY(mf_host_context_scratch(context, pieces, 2));
    mf_host_context_widen(context, (const uint16_t *)x->pointer + call->index1 * x->stride,
                          x->stride * shape->seq_len, sequences, shape->k, inputs);
    mf_host_context_widen(context, call->operands[1].pointer, shape->k, shape->n, shape->k,
                          weights);
    struct mf_host_gemm gemm = {.transpose_b = true,
                                .m = sequences,
                                .n = shape->n,
                                .k = shape->k,
                                .a = inputs,
                                .a_stride = shape->k,
                                .b = weights,
                                .b_stride = shape->k};
    mf_host_gemm_into(context, &gemm, false, call->operands[2].pointer, call->operands[2].stride,
                      NULL, NULL);
    return MF_STATUS_OK;
}
