/* The gradient of causal attention on the host device: one item of work is one key/value head of
 * one sequence with its query heads in order, so that dk and dv are sums in a fixed order.
 * Probabilities are computed again from the scores and lse. */
#include <string.h>

#include "runtime/host/attention.h"

/* What one thread works in: [seq_len, head_dim] of keys and values, and their gradients; then
 * MF_HOST_ATTENTION_ROWS rows of each of the others. */
struct work {
    float *keys;
    float *values;
    float *keys_gradient;
    float *values_gradient;
    float *queries;
    float *outputs;
    float *gradients; /* of the outputs; later of the queries */
    float *scores;
    float *slopes;
};

struct backward_job {
    const struct mf_kernel_call *call;
    float *scratch;
    int64_t worker_count;
};

/* One row: scores -> probabilities, slopes (dP) -> scale * P * (dP - delta). */
MF_HOST_INLINE void slope_body(float *restrict scores, float *restrict slopes, float lse,
                               float delta, float scale, int64_t count)
{
    for (int64_t index = 0; index < count; index++) {
        float probability = mf_host_simd_exp(scores[index] - lse);
        scores[index] = probability;
        slopes[index] = scale * (probability * (slopes[index] - delta));
    }
}
MF_HOST_SIMD(slope,
             (float *scores, float *slopes, float lse, float delta, float scale, int64_t count),
             (scores, slopes, lse, delta, scale, count))

/* delta = sum of output * gradient of the output, over the row. */
static float dot(const float *a, const float *b, int64_t count)
{
    float lanes[MF_HOST_LANES] = {0};
    for (int64_t index = 0; index < count; index++) {
        lanes[index % MF_HOST_LANES] += a[index] * b[index];
    }
    return mf_host_simd_sum(lanes);
}

static struct work cut_work(const struct mf_shape *shape, float *memory)
{
    int64_t size = (int64_t)shape->seq_len * shape->head_dim;
    int64_t block = MF_HOST_ATTENTION_ROWS * (int64_t)shape->head_dim;
    struct work work = {.keys = memory};
    work.values = work.keys + size;
    work.keys_gradient = work.values + size;
    work.values_gradient = work.keys_gradient + size;
    work.queries = work.values_gradient + size;
    work.outputs = work.queries + block;
    work.gradients = work.outputs + block;
    work.scores = work.gradients + block;
    work.slopes = work.scores + MF_HOST_ATTENTION_ROWS * (int64_t)shape->seq_len;
    return work;
}

/* a[rows, width] b[columns, width]^T into [rows, columns]. */
static void product_of_rows(const float *a, const float *b, int64_t rows, int64_t columns,
                            int64_t width, float alpha, float *out)
{
    struct mf_host_gemm gemm = {.transpose_b = true,
                                .m = rows,
                                .n = columns,
                                .k = width,
                                .a = a,
                                .a_stride = width,
                                .b = b,
                                .b_stride = width};
    mf_host_gemm_call(&gemm, alpha, 0.0f, out, columns);
}

/* out[columns, width] += a[rows, columns]^T b[rows, width]. */
static void add_transposed(const float *a, const float *b, int64_t rows, int64_t columns,
                           int64_t width, float *out)
{
    struct mf_host_gemm gemm = {.transpose_a = true,
                                .m = columns,
                                .n = width,
                                .k = rows,
                                .a = a,
                                .a_stride = columns,
                                .b = b,
                                .b_stride = width};
    mf_host_gemm_call(&gemm, 1.0f, 1.0f, out, width);
}

static void backward_block(const struct mf_kernel_call *call, int64_t base, int64_t head,
                           int64_t first, const struct work *work)
{
    const struct mf_shape *shape = &call->shape;
    int64_t width = shape->head_dim;
    int64_t rows = shape->seq_len - first < MF_HOST_ATTENTION_ROWS ? shape->seq_len - first
                                                                   : MF_HOST_ATTENTION_ROWS;
    int64_t columns = first + rows;
    float scale = mf_host_attention_scale(shape);
    mf_host_attention_widen(&call->operands[0], base + first, rows, head, width, work->queries);
    mf_host_attention_widen(&call->operands[3], base + first, rows, head, width, work->outputs);
    mf_host_attention_widen(&call->operands[5], base + first, rows, head, width, work->gradients);
    product_of_rows(work->queries, work->keys, rows, columns, width, scale, work->scores);
    product_of_rows(work->gradients, work->values, rows, columns, width, 1.0f, work->slopes);
    const float *lse = (const float *)call->operands[4].pointer + (base + first) * shape->heads;
    for (int64_t row = 0; row < rows; row++) {
        int64_t visible = first + row + 1;
        float *scores = work->scores + row * columns;
        float *slopes = work->slopes + row * columns;
        slope(scores, slopes, lse[row * shape->heads + head],
              dot(work->outputs + row * width, work->gradients + row * width, width), scale,
              visible);
        memset(scores + visible, 0, (size_t)(columns - visible) * sizeof(float));
        memset(slopes + visible, 0, (size_t)(columns - visible) * sizeof(float));
    }
    add_transposed(work->scores, work->gradients, rows, columns, width, work->values_gradient);
    add_transposed(work->slopes, work->queries, rows, columns, width, work->keys_gradient);
    struct mf_host_gemm product = {.m = rows,
                                   .n = width,
                                   .k = columns,
                                   .a = work->slopes,
                                   .a_stride = columns,
                                   .b = work->keys,
                                   .b_stride = width};
    mf_host_gemm_call(&product, 1.0f, 0.0f, work->gradients, width);
    mf_host_attention_narrow(work->gradients, base + first, rows, head, width, &call->operands[6]);
}

static void backward_head(const void *argument, int64_t item, int32_t worker)
{
    const struct backward_job *job = argument;
    const struct mf_kernel_call *call = job->call;
    const struct mf_shape *shape = &call->shape;
    struct work work = cut_work(shape, job->scratch + worker * job->worker_count);
    int64_t kv_head = item % shape->kv_heads;
    int64_t base = item / shape->kv_heads * shape->seq_len;
    int64_t group = shape->heads / shape->kv_heads;
    int64_t length = shape->seq_len;
    int64_t width = shape->head_dim;
    mf_host_attention_widen(&call->operands[1], base, length, kv_head, width, work.keys);
    mf_host_attention_widen(&call->operands[2], base, length, kv_head, width, work.values);
    memset(work.keys_gradient, 0, (size_t)(length * width) * sizeof(float));
    memset(work.values_gradient, 0, (size_t)(length * width) * sizeof(float));
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int64_t first = 0; first < length; first += MF_HOST_ATTENTION_ROWS) {
            backward_block(call, base, head, first, &work);
        }
    }
    mf_host_attention_narrow(work.keys_gradient, base, length, kv_head, width, &call->operands[7]);
    mf_host_attention_narrow(work.values_gradient, base, length, kv_head, width,
                             &call->operands[8]);
}

enum mf_status mf_host_attention_backward(struct mf_host_context *context,
                                          const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    struct backward_job job = {.call = call};
    job.worker_count =
        4 * (int64_t)shape->seq_len * shape->head_dim +
        MF_HOST_ATTENTION_ROWS * (3 * (int64_t)shape->head_dim + 2 * (int64_t)shape->seq_len);
    struct mf_host_piece piece = {(void **)&job.scratch,
                                  job.worker_count * mf_host_pool_threads(context->pool),
                                  sizeof(float)};
    MF_TRY(mf_host_context_scratch(context, &piece, 1));
    mf_host_pool_run(context->pool, shape->rows / shape->seq_len * shape->kv_heads, backward_head,
                     &job);
    return MF_STATUS_OK;
}
