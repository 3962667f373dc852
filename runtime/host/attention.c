/* Causal attention on the host device: one item of work is one head of one sequence, in blocks of
 * MF_HOST_ATTENTION_ROWS queries; kernel.h says what each operand is. */
#include "runtime/host/attention.h"

#include <string.h>

struct forward_job {
    const struct mf_kernel_call *call;
    float *scratch; /* [threads, worker_count] */
    int64_t worker_count;
};

/* scores[0..count) become probabilities; returns the log of the sum of exponentials. */
MF_HOST_INLINE void soften_body(float *scores, int64_t count, float *lse)
{
    float top = scores[0];
    for (int64_t index = 1; index < count; index++) {
        top = scores[index] > top ? scores[index] : top;
    }
    float lanes[MF_HOST_LANES] = {0};
    int64_t index = 0;
    for (; index + MF_HOST_LANES <= count; index += MF_HOST_LANES) {
        for (int lane = 0; lane < MF_HOST_LANES; lane++) {
            scores[index + lane] = mf_host_simd_exp(scores[index + lane] - top);
            lanes[lane] += scores[index + lane];
        }
    }
    for (int lane = 0; index + lane < count; lane++) {
        scores[index + lane] = mf_host_simd_exp(scores[index + lane] - top);
        lanes[lane] += scores[index + lane];
    }
    float sum = mf_host_simd_sum(lanes);
    float inverse = 1.0f / sum;
    for (int64_t at = 0; at < count; at++) {
        scores[at] *= inverse;
    }
    *lse = top + logf(sum);
}
MF_HOST_SIMD(soften, (float *scores, int64_t count, float *lse), (scores, count, lse))

/* Queries `first`.. of one head; rows count within the sequence, `base` is its first row. */
static void forward_block(const struct mf_kernel_call *call, int64_t base, int64_t head,
                          int64_t first, const float *keys, const float *values, float *work)
{
    const struct mf_shape *shape = &call->shape;
    int64_t width = shape->head_dim;
    int64_t rows = shape->seq_len - first < MF_HOST_ATTENTION_ROWS ? shape->seq_len - first
                                                                   : MF_HOST_ATTENTION_ROWS;
    int64_t columns = first + rows;
    float *queries = work;
    float *outputs = queries + MF_HOST_ATTENTION_ROWS * width;
    float *scores = outputs + MF_HOST_ATTENTION_ROWS * width;
    mf_host_attention_widen(&call->operands[0], base + first, rows, head, width, queries);
    struct mf_host_gemm product = {.transpose_b = true,
                                   .m = rows,
                                   .n = columns,
                                   .k = width,
                                   .a = queries,
                                   .a_stride = width,
                                   .b = keys,
                                   .b_stride = width};
    mf_host_gemm_call(&product, mf_host_attention_scale(shape), 0.0f, scores, columns);
    float *lse = (float *)call->operands[4].pointer + (base + first) * shape->heads + head;
    for (int64_t row = 0; row < rows; row++) {
        int64_t visible = first + row + 1;
        soften(scores + row * columns, visible, lse + row * shape->heads);
        memset(scores + row * columns + visible, 0, (size_t)(columns - visible) * sizeof(float));
    }
    product = (struct mf_host_gemm){.m = rows,
                                    .n = width,
                                    .k = columns,
                                    .a = scores,
                                    .a_stride = columns,
                                    .b = values,
                                    .b_stride = width};
    mf_host_gemm_call(&product, 1.0f, 0.0f, outputs, width);
    mf_host_attention_narrow(outputs, base + first, rows, head, width, &call->operands[3]);
}

static void forward_head(const void *argument, int64_t item, int32_t worker)
{
    const struct forward_job *job = argument;
    const struct mf_shape *shape = &job->call->shape;
    int64_t head = item % shape->heads;
    int64_t base = item / shape->heads * shape->seq_len;
    int64_t kv_head = head / (shape->heads / shape->kv_heads);
    int64_t size = (int64_t)shape->seq_len * shape->head_dim;
    float *keys = job->scratch + worker * job->worker_count;
    float *values = keys + size;
    mf_host_attention_widen(&job->call->operands[1], base, shape->seq_len, kv_head, shape->head_dim,
                            keys);
    mf_host_attention_widen(&job->call->operands[2], base, shape->seq_len, kv_head, shape->head_dim,
                            values);
    for (int64_t first = 0; first < shape->seq_len; first += MF_HOST_ATTENTION_ROWS) {
        forward_block(job->call, base, head, first, keys, values, values + size);
    }
}

enum mf_status mf_host_attention_forward(struct mf_host_context *context,
                                         const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    struct forward_job job = {.call = call};
    job.worker_count = 2 * (int64_t)shape->seq_len * shape->head_dim +
                       MF_HOST_ATTENTION_ROWS * (2 * (int64_t)shape->head_dim + shape->seq_len);
    struct mf_host_piece piece = {(void **)&job.scratch,
                                  job.worker_count * mf_host_pool_threads(context->pool),
                                  sizeof(float)};
    MF_TRY(mf_host_context_scratch(context, &piece, 1));
    mf_host_pool_run(context->pool, shape->rows / shape->seq_len * shape->heads, forward_head,
                     &job);
    return MF_STATUS_OK;
}
