/* Linear layers and the head as products of column-major matrices; see linear.h. A row-major
 * [rows, width] matrix is a column-major width x rows one. */
#include "runtime/cuda/linear.h"

#include "runtime/cuda/blas.h"
#include "runtime/cuda/direct.h"

#define HEAD_ROWS_GRAIN 128 /* chunks of the head's rows are a multiple of it */

enum mf_status mf_cuda_linear_check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) {
        return MF_STATUS_OK;
    }
    (void)cudaGetLastError();
    return mf_status_set(MF_STATUS_DEVICE, "%s: %s (CUDA error %d)", what,
                         cudaGetErrorString(error), (int)error);
}

/* A product whose A is the call's W: read in place where that takes one pass over the link. */
static enum mf_status multiply(const struct mf_cuda_context *context,
                               const struct mf_kernel_call *call,
                               const struct mf_cuda_product *product)
{
    if ((call->shape.flags & MF_SHAPE_WEIGHT_HOST) != 0 &&
        mf_cuda_direct_takes(context->direct, product)) {
        return mf_cuda_direct_run(context->direct, context->stream, product);
    }
    return mf_cuda_blas_run(context->blas, context->stream, product);
}

/* y^T = W x^T: the product of LINEAR_FORWARD and of the head, `rows` rows of x. */
static struct mf_cuda_product forward_product(const struct mf_kernel_call *call, const void *x,
                                              int64_t x_stride, int64_t rows)
{
    return (struct mf_cuda_product){
        .transpose_a = true,
        .m = call->shape.n,
        .n = rows,
        .k = call->shape.k,
        .a = call->operands[1].pointer,
        .a_stride = call->shape.k,
        .b = x,
        .b_stride = x_stride,
    };
}

enum mf_status mf_cuda_linear_forward(const struct mf_cuda_context *context,
                                      const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    const struct mf_operand *x = &call->operands[0];
    const struct mf_operand *y = &call->operands[2];
    struct mf_cuda_product product = forward_product(call, x->pointer, x->stride, shape->rows);
    product.out = y->pointer;
    product.out_stride = y->stride;
    if ((shape->flags & MF_SHAPE_BIAS) != 0) {
        product.bias = (const uint16_t *)call->operands[1].pointer + shape->n * shape->k;
    }
    return multiply(context, call, &product);
}

enum mf_status mf_cuda_linear_backward_data(const struct mf_cuda_context *context,
                                            const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    const struct mf_operand *dy = &call->operands[0];
    const struct mf_operand *dx = &call->operands[3];
    bool first = (shape->flags & MF_SHAPE_FIRST_PANEL) != 0;
    bool last = (shape->flags & MF_SHAPE_LAST_PANEL) != 0;
    bool add = (shape->flags & MF_SHAPE_ADD_TO_OUTPUT) != 0;
    struct mf_cuda_product product = {
        .m = shape->k,
        .n = shape->rows,
        .k = shape->n,
        .a = call->operands[1].pointer,
        .a_stride = shape->k,
        .b = dy->pointer,
        .b_stride = dy->stride,
    };
    if (first && last) { /* one panel needs no sum in memory */
        product.out = dx->pointer;
        product.out_stride = dx->stride;
        product.add = add;
        return multiply(context, call, &product);
    }
    product.out = call->operands[2].pointer;
    product.out_stride = shape->k;
    product.out_fp32 = true;
    product.add = !first;
    MF_TRY(multiply(context, call, &product));
    if (!last) {
        return MF_STATUS_OK;
    }
    return mf_cuda_linear_check(mf_cuda_elementwise_round(context, call->operands[2].pointer, dx,
                                                          shape->rows, shape->k, add),
                                "rounding the data gradient");
}

enum mf_status mf_cuda_linear_backward_weight(const struct mf_cuda_context *context,
                                              const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    const struct mf_operand *x = &call->operands[0];
    const struct mf_operand *dy = &call->operands[1];
    uint16_t *out = call->operands[2].pointer;
    int64_t elements = shape->n * shape->k;
    struct mf_cuda_product product = {
        .transpose_b = true,
        .m = shape->k,
        .n = shape->n,
        .k = shape->rows,
        .a = x->pointer,
        .a_stride = x->stride,
        .b = dy->pointer,
        .b_stride = dy->stride,
        .out = out,
        .out_stride = shape->k,
    };
    MF_TRY(mf_cuda_blas_run(context->blas, context->stream, &product));
    if ((shape->flags & MF_SHAPE_BIAS) != 0) {
        MF_TRY(mf_cuda_linear_check(
            mf_cuda_norm_bias_sums(context, dy, shape->rows, shape->n, out + elements),
            "summing the bias gradient"));
        elements += shape->n;
    }
    return mf_cuda_linear_check(mf_cuda_elementwise_pad(context, out, elements),
                                "padding a gradient panel");
}

/* ---- the head: logits exist for a chunk of rows at a time ---- */

typedef cudaError_t (*logits_consumer)(const struct mf_cuda_context *context,
                                       const struct mf_kernel_call *call, const float *logits,
                                       int64_t first, int64_t rows);

static enum mf_status run_head(const struct mf_cuda_context *context,
                               const struct mf_kernel_call *call, logits_consumer consume)
{
    const struct mf_operand *x = &call->operands[0];
    float *logits = (float *)context->scratch;
    int64_t rows = call->shape.rows;
    int64_t chunk = context->scratch_bytes / ((int64_t)sizeof(float) * call->shape.n);
    if (chunk < 1) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "a head's panel of %lld rows does not fit into %lld bytes of scratch",
                             (long long)call->shape.n, (long long)context->scratch_bytes);
    }
    chunk = chunk > HEAD_ROWS_GRAIN ? chunk - chunk % HEAD_ROWS_GRAIN : chunk;
    for (int64_t first = 0; first < rows; first += chunk) {
        int64_t count = rows - first < chunk ? rows - first : chunk;
        struct mf_cuda_product product = forward_product(
            call, (const uint16_t *)x->pointer + first * x->stride, x->stride, count);
        product.out = logits;
        product.out_stride = call->shape.n;
        product.out_fp32 = true;
        MF_TRY(multiply(context, call, &product));
        MF_TRY(mf_cuda_linear_check(consume(context, call, logits, first, count),
                                    "reading a chunk of logits"));
    }
    return MF_STATUS_OK;
}

enum mf_status mf_cuda_linear_head_forward(const struct mf_cuda_context *context,
                                           const struct mf_kernel_call *call)
{
    return run_head(context, call, mf_cuda_head_fold);
}

enum mf_status mf_cuda_linear_head_backward(const struct mf_cuda_context *context,
                                            const struct mf_kernel_call *call)
{
    return run_head(context, call, mf_cuda_head_soften);
}

enum mf_status mf_cuda_linear_head_logits(const struct mf_cuda_context *context,
                                          const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    const struct mf_operand *x = &call->operands[0];
    struct mf_cuda_product product =
        forward_product(call, (const uint16_t *)x->pointer + call->index1 * x->stride,
                        x->stride * shape->seq_len, shape->rows / shape->seq_len);
    product.out = call->operands[2].pointer;
    product.out_stride = call->operands[2].stride;
    product.out_fp32 = true;
    return multiply(context, call, &product);
}
