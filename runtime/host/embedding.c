/* Token and position embeddings on the host device; kernel.h says what each operand is. */
#include <string.h>

#include "runtime/host/bf16.h"
#include "runtime/host/kernels.h"
#include "runtime/host/simd.h"

MF_HOST_INLINE void accumulate_body(const uint16_t *restrict from, float *restrict sum,
                                    int64_t count)
{
    for (int64_t index = 0; index < count; index++) {
        sum[index] += mf_bf16_to_float(from[index]);
    }
}
MF_HOST_SIMD(accumulate, (const uint16_t *from, float *sum, int64_t count), (from, sum, count))

MF_HOST_INLINE void add_body(const uint16_t *a, const uint16_t *b, uint16_t *out, int64_t count)
{
    MF_HOST_IVDEP
    for (int64_t index = 0; index < count; index++) {
        out[index] = mf_bf16_from_float(mf_bf16_to_float(a[index]) + mf_bf16_to_float(b[index]));
    }
}
MF_HOST_SIMD(add, (const uint16_t *a, const uint16_t *b, uint16_t *out, int64_t count),
             (a, b, out, count))

MF_HOST_INLINE void narrow_body(const float *restrict from, uint16_t *restrict out, int64_t count)
{
    for (int64_t index = 0; index < count; index++) {
        out[index] = mf_bf16_from_float(from[index]);
    }
}
MF_HOST_SIMD(narrow, (const float *from, uint16_t *out, int64_t count), (from, out, count))

static void forward_rows(const void *argument, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = argument;
    const int32_t *tokens = call->operands[0].pointer;
    const uint16_t *weight = call->operands[1].pointer;
    const struct mf_operand *y = &call->operands[2];
    int64_t n = call->shape.n;
    for (int64_t row = first; row < end; row++) {
        int64_t index = tokens[row] - call->index0;
        if (index >= 0 && index < call->shape.k) {
            memcpy((uint16_t *)y->pointer + row * y->stride, weight + index * n,
                   (size_t)n * sizeof(*weight));
        }
    }
}

enum mf_status mf_host_embedding_forward(struct mf_host_context *context,
                                         const struct mf_kernel_call *call)
{
    mf_host_context_rows(context, call->shape.rows, call->shape.n, forward_rows, call);
    return MF_STATUS_OK;
}

struct backward_job {
    const uint16_t *dy;
    int64_t stride;
    int64_t n;
    int64_t k;
    int64_t chunk;       /* panel rows of one item */
    const int32_t *head; /* first token row of each panel row, -1 = none */
    const int32_t *next; /* the following one */
    float *sums;         /* [threads, n] */
    uint16_t *out;
    uint8_t *marks; /* NULL = every row is written */
};

static void backward_chunk(const void *argument, int64_t item, int32_t worker)
{
    const struct backward_job *job = argument;
    float *sum = job->sums + (int64_t)worker * job->n;
    int64_t first = item * job->chunk;
    int64_t end = first + job->chunk < job->k ? first + job->chunk : job->k;
    for (int64_t index = first; index < end; index++) {
        uint16_t *out = job->out + index * job->n;
        bool touched = job->head[index] >= 0;
        if (job->marks != NULL) {
            bool stale = job->marks[index] != 0;
            job->marks[index] = touched;
            if (!touched && !stale) {
                continue; /* is zero */
            }
        }
        memset(touched ? (void *)sum : (void *)out, 0,
               (size_t)job->n * (touched ? sizeof(*sum) : sizeof(*out)));
        for (int32_t row = job->head[index]; row >= 0; row = job->next[row]) {
            accumulate(job->dy + row * job->stride, sum, job->n);
        }
        if (touched) {
            narrow(sum, out, job->n);
        }
    }
}

enum mf_status mf_host_embedding_backward(struct mf_host_context *context,
                                          const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    const int32_t *tokens = call->operands[0].pointer;
    int32_t *head;
    int32_t *next;
    float *sums;
    struct mf_host_piece pieces[] = {
        {(void **)&head, shape->k, sizeof(*head)},
        {(void **)&next, shape->rows, sizeof(*next)},
        {(void **)&sums, shape->n * mf_host_pool_threads(context->pool), sizeof(*sums)},
    };
    MF_TRY(mf_host_context_scratch(context, pieces, 3));
    memset(head, 0xff, (size_t)shape->k * sizeof(*head));
    for (int64_t row = shape->rows - 1; row >= 0; row--) {
        int64_t index = tokens[row] - call->index0;
        if (index >= 0 && index < shape->k) {
            next[row] = head[index];
            head[index] = (int32_t)row;
        }
    }
    struct backward_job job = {
        .dy = call->operands[1].pointer,
        .stride = call->operands[1].stride,
        .n = shape->n,
        .k = shape->k,
        .chunk = 64,
        .head = head,
        .next = next,
        .sums = sums,
        .out = call->operands[2].pointer,
        .marks = (shape->flags & MF_SHAPE_TOUCHED) != 0 ? call->operands[3].pointer : NULL};
    mf_host_pool_run(context->pool, (shape->k + job.chunk - 1) / job.chunk, backward_chunk, &job);
    mf_host_kernels_pad(job.out, shape->n * shape->k);
    return MF_STATUS_OK;
}

static void position_forward_rows(const void *argument, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = argument;
    const struct mf_operand *x = &call->operands[0];
    const uint16_t *weight = call->operands[1].pointer;
    const struct mf_operand *y = &call->operands[2];
    for (int64_t row = first; row < end; row++) {
        int64_t index = row % call->shape.seq_len - call->index0;
        if (index >= 0 && index < call->shape.k) {
            add((const uint16_t *)x->pointer + row * x->stride, weight + index * call->shape.n,
                (uint16_t *)y->pointer + row * y->stride, call->shape.n);
        }
    }
}

enum mf_status mf_host_embedding_position_forward(struct mf_host_context *context,
                                                  const struct mf_kernel_call *call)
{
    mf_host_context_rows(context, call->shape.rows, call->shape.n, position_forward_rows, call);
    return MF_STATUS_OK;
}

struct position_job {
    const struct mf_kernel_call *call;
    float *sums; /* [threads, n] */
};

/* One row of the table: its position in every sequence, in order. */
static void position_backward_row(const void *argument, int64_t item, int32_t worker)
{
    const struct position_job *job = argument;
    const struct mf_shape *shape = &job->call->shape;
    const struct mf_operand *dy = &job->call->operands[0];
    uint16_t *out = (uint16_t *)job->call->operands[1].pointer + item * shape->n;
    int64_t position = item + job->call->index0;
    float *sum = job->sums + (int64_t)worker * shape->n;
    memset(sum, 0, (size_t)shape->n * sizeof(*sum));
    if (position < shape->seq_len) {
        for (int64_t row = position; row < shape->rows; row += shape->seq_len) {
            accumulate((const uint16_t *)dy->pointer + row * dy->stride, sum, shape->n);
        }
    }
    narrow(sum, out, shape->n);
}

enum mf_status mf_host_embedding_position_backward(struct mf_host_context *context,
                                                   const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    struct position_job job = {.call = call};
    struct mf_host_piece piece = {(void **)&job.sums,
                                  shape->n * mf_host_pool_threads(context->pool), sizeof(float)};
    MF_TRY(mf_host_context_scratch(context, &piece, 1));
    mf_host_pool_run(context->pool, shape->k, position_backward_row, &job);
    mf_host_kernels_pad(call->operands[1].pointer, shape->n * shape->k);
    return MF_STATUS_OK;
}
