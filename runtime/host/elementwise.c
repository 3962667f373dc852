/* Element-wise kernels of the host device: activations, rope and sums of activations; kernel.h says
 * what each operand is. An output may lie exactly where an input lies. */
#include "runtime/host/bf16.h"
#include "runtime/host/kernels.h"
#include "runtime/host/simd.h"

#define GELU_SCALE 0.7978845608028654f /* sqrt(2 / pi) */
#define GELU_CUBE 0.044715f

/* Row `row` of operand `index`. */
static uint16_t *row_of(const struct mf_kernel_call *call, int index, int64_t row)
{
    return (uint16_t *)call->operands[index].pointer + row * call->operands[index].stride;
}

static enum mf_status run_rows(struct mf_host_context *context, const struct mf_kernel_call *call,
                               mf_host_context_rows_body body)
{
    mf_host_context_rows(context, call->shape.rows, call->shape.n, body, call);
    return MF_STATUS_OK;
}

/* gelu_new is x * sigmoid(2 u): the same as 0.5 x (1 + tanh u), without its cancellation. */
MF_HOST_INLINE float gelu_gate(float x)
{
    float u = GELU_SCALE * (x + GELU_CUBE * x * x * x);
    return 1.0f / (1.0f + mf_host_simd_exp(-2.0f * u));
}

MF_HOST_INLINE void gelu_forward_body(const uint16_t *x, uint16_t *y, int64_t count)
{
    MF_HOST_IVDEP
    for (int64_t index = 0; index < count; index++) {
        float value = mf_bf16_to_float(x[index]);
        y[index] = mf_bf16_from_float(value * gelu_gate(value));
    }
}
MF_HOST_SIMD(gelu_forward, (const uint16_t *x, uint16_t *y, int64_t count), (x, y, count))

MF_HOST_INLINE void gelu_backward_body(const uint16_t *x, const uint16_t *dy, uint16_t *dx,
                                       int64_t count)
{
    MF_HOST_IVDEP
    for (int64_t index = 0; index < count; index++) {
        float value = mf_bf16_to_float(x[index]);
        float gate = gelu_gate(value);
        float slope = GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * value * value);
        float derivative = gate + 2.0f * (value * gate * (1.0f - gate)) * slope;
        dx[index] = mf_bf16_from_float(mf_bf16_to_float(dy[index]) * derivative);
    }
}
MF_HOST_SIMD(gelu_backward, (const uint16_t *x, const uint16_t *dy, uint16_t *dx, int64_t count),
             (x, dy, dx, count))

MF_HOST_INLINE void swiglu_forward_body(const uint16_t *gate, const uint16_t *up, uint16_t *y,
                                        int64_t count)
{
    MF_HOST_IVDEP
    for (int64_t index = 0; index < count; index++) {
        float value = mf_bf16_to_float(gate[index]);
        float silu = value / (1.0f + mf_host_simd_exp(-value));
        y[index] = mf_bf16_from_float(silu * mf_bf16_to_float(up[index]));
    }
}
MF_HOST_SIMD(swiglu_forward, (const uint16_t *gate, const uint16_t *up, uint16_t *y, int64_t count),
             (gate, up, y, count))

MF_HOST_INLINE void swiglu_backward_body(const uint16_t *gate, const uint16_t *up,
                                         const uint16_t *dy, uint16_t *dgate, uint16_t *dup,
                                         int64_t count)
{
    MF_HOST_IVDEP
    for (int64_t index = 0; index < count; index++) {
        float value = mf_bf16_to_float(gate[index]);
        float other = mf_bf16_to_float(up[index]);
        float gradient = mf_bf16_to_float(dy[index]);
        float sigmoid = 1.0f / (1.0f + mf_host_simd_exp(-value));
        float derivative = sigmoid * (1.0f + value * (1.0f - sigmoid));
        dgate[index] = mf_bf16_from_float(gradient * other * derivative);
        dup[index] = mf_bf16_from_float(gradient * (value * sigmoid));
    }
}
MF_HOST_SIMD(swiglu_backward,
             (const uint16_t *gate, const uint16_t *up, const uint16_t *dy, uint16_t *dgate,
              uint16_t *dup, int64_t count),
             (gate, up, dy, dgate, dup, count))

MF_HOST_INLINE void add_body(const uint16_t *a, const uint16_t *b, uint16_t *y, int64_t count)
{
    MF_HOST_IVDEP
    for (int64_t index = 0; index < count; index++) {
        y[index] = mf_bf16_from_float(mf_bf16_to_float(a[index]) + mf_bf16_to_float(b[index]));
    }
}
MF_HOST_SIMD(add, (const uint16_t *a, const uint16_t *b, uint16_t *y, int64_t count),
             (a, b, y, count))

/* The pairs of one head: lower and upper halves; `sign` is -1 for the reversed rotation. */
MF_HOST_INLINE void rotate_body(const uint16_t *x, const float *table, float sign, bool accumulate,
                                uint16_t *y, int64_t half)
{
    MF_HOST_IVDEP
    for (int64_t index = 0; index < half; index++) {
        float cosine = table[2 * index];
        float sine = table[2 * index + 1] * sign;
        float low = mf_bf16_to_float(x[index]);
        float high = mf_bf16_to_float(x[index + half]);
        float new_low = low * cosine - high * sine;
        float new_high = high * cosine + low * sine;
        if (accumulate) {
            new_low = mf_bf16_to_float(y[index]) + new_low;
            new_high = mf_bf16_to_float(y[index + half]) + new_high;
        }
        y[index] = mf_bf16_from_float(new_low);
        y[index + half] = mf_bf16_from_float(new_high);
    }
}
MF_HOST_SIMD(rotate,
             (const uint16_t *x, const float *table, float sign, bool accumulate, uint16_t *y,
              int64_t half),
             (x, table, sign, accumulate, y, half))

static void rope_rows(const void *argument, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = argument;
    const struct mf_shape *shape = &call->shape;
    float sign = call->kernel == MF_KERNEL_ROPE_BACKWARD ? -1.0f : 1.0f;
    for (int64_t row = first; row < end; row++) {
        const float *table =
            (const float *)call->operands[1].pointer + row % shape->seq_len * shape->head_dim;
        for (int32_t head = 0; head < shape->heads; head++) {
            int64_t column = (int64_t)head * shape->head_dim;
            rotate(row_of(call, 0, row) + column, table, sign,
                   (shape->flags & MF_SHAPE_ADD_TO_OUTPUT) != 0, row_of(call, 2, row) + column,
                   shape->head_dim / 2);
        }
    }
}

enum mf_status mf_host_elementwise_rope(struct mf_host_context *context,
                                        const struct mf_kernel_call *call)
{
    mf_host_context_rows(context, call->shape.rows,
                         (int64_t)call->shape.heads * call->shape.head_dim, rope_rows, call);
    return MF_STATUS_OK;
}

static void gelu_forward_rows(const void *argument, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = argument;
    for (int64_t row = first; row < end; row++) {
        gelu_forward(row_of(call, 0, row), row_of(call, 1, row), call->shape.n);
    }
}

enum mf_status mf_host_elementwise_gelu_forward(struct mf_host_context *context,
                                                const struct mf_kernel_call *call)
{
    return run_rows(context, call, gelu_forward_rows);
}

static void gelu_backward_rows(const void *argument, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = argument;
    for (int64_t row = first; row < end; row++) {
        gelu_backward(row_of(call, 0, row), row_of(call, 1, row), row_of(call, 2, row),
                      call->shape.n);
    }
}

enum mf_status mf_host_elementwise_gelu_backward(struct mf_host_context *context,
                                                 const struct mf_kernel_call *call)
{
    return run_rows(context, call, gelu_backward_rows);
}

static void swiglu_forward_rows(const void *argument, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = argument;
    for (int64_t row = first; row < end; row++) {
        swiglu_forward(row_of(call, 0, row), row_of(call, 1, row), row_of(call, 2, row),
                       call->shape.n);
    }
}

enum mf_status mf_host_elementwise_swiglu_forward(struct mf_host_context *context,
                                                  const struct mf_kernel_call *call)
{
    return run_rows(context, call, swiglu_forward_rows);
}

static void swiglu_backward_rows(const void *argument, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = argument;
    for (int64_t row = first; row < end; row++) {
        swiglu_backward(row_of(call, 0, row), row_of(call, 1, row), row_of(call, 2, row),
                        row_of(call, 3, row), row_of(call, 4, row), call->shape.n);
    }
}

enum mf_status mf_host_elementwise_swiglu_backward(struct mf_host_context *context,
                                                   const struct mf_kernel_call *call)
{
    return run_rows(context, call, swiglu_backward_rows);
}

static void add_rows(const void *argument, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = argument;
    for (int64_t row = first; row < end; row++) {
        add(row_of(call, 0, row), row_of(call, 1, row), row_of(call, 2, row), call->shape.n);
    }
}

enum mf_status mf_host_elementwise_add(struct mf_host_context *context,
                                       const struct mf_kernel_call *call)
{
    return run_rows(context, call, add_rows);
}

static void copy_rows(const void *argument, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = argument;
    bool accumulate = (call->shape.flags & MF_SHAPE_ADD_TO_OUTPUT) != 0;
    for (int64_t row = first; row < end; row++) {
        if (accumulate) {
            add(row_of(call, 1, row), row_of(call, 0, row), row_of(call, 1, row), call->shape.n);
        } else {
            memmove(row_of(call, 1, row), row_of(call, 0, row),
                    (size_t)call->shape.n * sizeof(uint16_t));
        }
    }
}

enum mf_status mf_host_elementwise_copy(struct mf_host_context *context,
                                        const struct mf_kernel_call *call)
{
    return run_rows(context, call, copy_rows);
}
