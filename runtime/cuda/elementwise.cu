/* Element-wise kernels: activations, rope, sums of activations, rounding, padding, waiting;
 * core/kernel.h says what each operand is. An output may lie exactly where an input lies. */
#include "runtime/cuda/common.cuh"
#include "runtime/cuda/kernels.h"

#define THREADS 128
#define PANEL_ALIGN 64
#define GELU_SCALE 0.7978845608028654f /* sqrt(2 / pi) */
#define GELU_CUBE 0.044715f

struct matrix {
    bf16 *pointer;
    int64_t stride;

    __device__ __forceinline__ bf16 *at(int64_t row, int64_t column) const
    {
        return pointer + row * stride + column;
    }
};

static struct matrix matrix_of(const struct mf_operand *operand)
{
    return {(bf16 *)operand->pointer, operand->stride};
}

template <int VEC, class BODY>
__global__ void __launch_bounds__(THREADS) run_rows(BODY body, int64_t rows, int64_t n)
{
    int64_t column = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * VEC;
    if (column >= n) {
        return;
    }
    for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
        body.template run<VEC>(row, column);
    }
}

/* y is x * sigmoid(2 u), the same as 0.5 x (1 + tanh u). */
__device__ __forceinline__ float gelu_gate(float x)
{
    float u = GELU_SCALE * (x + GELU_CUBE * x * x * x);
    return 1.0f / (1.0f + __expf(-2.0f * u));
}

struct gelu_forward {
    struct matrix x, y;

    template <int VEC> __device__ void run(int64_t row, int64_t column) const
    {
        pack<VEC> in = load<VEC>(x.at(row, column));
        for (int i = 0; i < VEC; i++) {
            float value = widen(in.at[i]);
            in.at[i] = narrow(value * gelu_gate(value));
        }
        store(y.at(row, column), in);
    }
};

struct gelu_backward {
    struct matrix x, dy, dx;

    template <int VEC> __device__ void run(int64_t row, int64_t column) const
    {
        pack<VEC> in = load<VEC>(x.at(row, column));
        pack<VEC> gradient = load<VEC>(dy.at(row, column));
        for (int i = 0; i < VEC; i++) {
            float value = widen(in.at[i]);
            float gate = gelu_gate(value);
            float slope = GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * value * value);
            float derivative = gate + 2.0f * (value * gate * (1.0f - gate)) * slope;
            in.at[i] = narrow(widen(gradient.at[i]) * derivative);
        }
        store(dx.at(row, column), in);
    }
};

struct swiglu_forward {
    struct matrix gate, up, y;

    template <int VEC> __device__ void run(int64_t row, int64_t column) const
    {
        pack<VEC> a = load<VEC>(gate.at(row, column));
        pack<VEC> b = load<VEC>(up.at(row, column));
        for (int i = 0; i < VEC; i++) {
            float value = widen(a.at[i]);
            a.at[i] = narrow(value / (1.0f + __expf(-value)) * widen(b.at[i]));
        }
        store(y.at(row, column), a);
    }
};

struct swiglu_backward {
    struct matrix gate, up, dy, dgate, dup;

    template <int VEC> __device__ void run(int64_t row, int64_t column) const
    {
        pack<VEC> a = load<VEC>(gate.at(row, column));
        pack<VEC> b = load<VEC>(up.at(row, column));
        pack<VEC> g = load<VEC>(dy.at(row, column));
        for (int i = 0; i < VEC; i++) {
            float value = widen(a.at[i]);
            float gradient = widen(g.at[i]);
            float sigmoid = 1.0f / (1.0f + __expf(-value));
            float derivative = sigmoid * (1.0f + value * (1.0f - sigmoid));
            a.at[i] = narrow(gradient * widen(b.at[i]) * derivative);
            b.at[i] = narrow(gradient * (value * sigmoid));
        }
        store(dgate.at(row, column), a);
        store(dup.at(row, column), b);
    }
};

struct add_forward {
    struct matrix a, b, y;

    template <int VEC> __device__ void run(int64_t row, int64_t column) const
    {
        pack<VEC> left = load<VEC>(a.at(row, column));
        pack<VEC> right = load<VEC>(b.at(row, column));
        for (int i = 0; i < VEC; i++) {
            left.at[i] = narrow(widen(left.at[i]) + widen(right.at[i]));
        }
        store(y.at(row, column), left);
    }
};

struct copy_rows {
    struct matrix from, to;

    template <int VEC> __device__ void run(int64_t row, int64_t column) const
    {
        store(to.at(row, column), load<VEC>(from.at(row, column)));
    }
};

struct round_rows {
    const float *sum;
    int64_t n;
    int add;
    struct matrix out;

    template <int VEC> __device__ void run(int64_t row, int64_t column) const
    {
        const float *from = sum + row * n + column;
        pack<VEC> result;
        if (add) {
            result = load<VEC>(out.at(row, column));
        }
        for (int i = 0; i < VEC; i++) {
            result.at[i] = narrow(add ? widen(result.at[i]) + from[i] : from[i]);
        }
        store(out.at(row, column), result);
    }
};

/* `operands` are all operands of `body`; they decide the width of an access. */
template <class BODY>
static cudaError_t launch_rows(const struct mf_cuda_context *context, const BODY &body,
                               int64_t rows, int64_t n, const struct mf_operand *operands,
                               int count)
{
    bool wide = true;
    for (int index = 0; index < count; index++) {
        wide = wide && packable(operands[index].pointer, operands[index].stride, n, 8);
    }
    if (rows == 0 || n == 0) {
        return cudaSuccess;
    }
    dim3 grid((unsigned)blocks_for(n, THREADS * (wide ? 8 : 1)), grid_rows(rows));
    if (wide) {
        run_rows<8, BODY><<<grid, THREADS, 0, context->stream>>>(body, rows, n);
    } else {
        run_rows<1, BODY><<<grid, THREADS, 0, context->stream>>>(body, rows, n);
    }
    return cudaGetLastError();
}

cudaError_t mf_cuda_elementwise_gelu_forward(const struct mf_cuda_context *context,
                                             const struct mf_kernel_call *call)
{
    const struct mf_operand *o = call->operands;
    struct gelu_forward body = {matrix_of(&o[0]), matrix_of(&o[1])};
    return launch_rows(context, body, call->shape.rows, call->shape.n, o, 2);
}

cudaError_t mf_cuda_elementwise_gelu_backward(const struct mf_cuda_context *context,
                                              const struct mf_kernel_call *call)
{
    const struct mf_operand *o = call->operands;
    struct gelu_backward body = {matrix_of(&o[0]), matrix_of(&o[1]), matrix_of(&o[2])};
    return launch_rows(context, body, call->shape.rows, call->shape.n, o, 3);
}

cudaError_t mf_cuda_elementwise_swiglu_forward(const struct mf_cuda_context *context,
                                               const struct mf_kernel_call *call)
{
    const struct mf_operand *o = call->operands;
    struct swiglu_forward body = {matrix_of(&o[0]), matrix_of(&o[1]), matrix_of(&o[2])};
    return launch_rows(context, body, call->shape.rows, call->shape.n, o, 3);
}

cudaError_t mf_cuda_elementwise_swiglu_backward(const struct mf_cuda_context *context,
                                                const struct mf_kernel_call *call)
{
    const struct mf_operand *o = call->operands;
    struct swiglu_backward body = {matrix_of(&o[0]), matrix_of(&o[1]), matrix_of(&o[2]),
                                   matrix_of(&o[3]), matrix_of(&o[4])};
    return launch_rows(context, body, call->shape.rows, call->shape.n, o, 5);
}

cudaError_t mf_cuda_elementwise_add(const struct mf_cuda_context *context,
                                    const struct mf_kernel_call *call)
{
    const struct mf_operand *o = call->operands;
    struct add_forward body = {matrix_of(&o[0]), matrix_of(&o[1]), matrix_of(&o[2])};
    return launch_rows(context, body, call->shape.rows, call->shape.n, o, 3);
}

cudaError_t mf_cuda_elementwise_copy(const struct mf_cuda_context *context,
                                     const struct mf_kernel_call *call)
{
    const struct mf_operand *o = call->operands;
    if ((call->shape.flags & MF_SHAPE_ADD_TO_OUTPUT) != 0) {
        struct add_forward body = {matrix_of(&o[1]), matrix_of(&o[0]), matrix_of(&o[1])};
        return launch_rows(context, body, call->shape.rows, call->shape.n, o, 2);
    }
    struct copy_rows body = {matrix_of(&o[0]), matrix_of(&o[1])};
    return launch_rows(context, body, call->shape.rows, call->shape.n, o, 2);
}

cudaError_t mf_cuda_elementwise_round(const struct mf_cuda_context *context, const float *sum,
                                      const struct mf_operand *out, int64_t rows, int64_t n,
                                      int add)
{
    struct round_rows body = {sum, n, add, matrix_of(out)};
    return launch_rows(context, body, rows, n, out, 1);
}

/* ---- rope ---- */

struct rope_job {
    struct matrix x, y;
    const float2 *table; /* [seq_len, half] {cos, sin} */
    int64_t seq_len;
    int64_t half;
    float sign; /* -1: the reversed rotation */
    int add;

    /* `column` counts pairs over all heads. */
    template <int VEC> __device__ void run(int64_t row, int64_t column) const
    {
        int64_t pair = column % half;
        int64_t place = (column / half) * 2 * half + pair;
        const float2 *angles = table + row % seq_len * half + pair;
        pack<VEC> low = load<VEC>(x.at(row, place));
        pack<VEC> high = load<VEC>(x.at(row, place + half));
        pack<VEC> old_low, old_high;
        if (add) {
            old_low = load<VEC>(y.at(row, place));
            old_high = load<VEC>(y.at(row, place + half));
        }
        for (int i = 0; i < VEC; i++) {
            float cosine = angles[i].x;
            float sine = angles[i].y * sign;
            float a = widen(low.at[i]);
            float b = widen(high.at[i]);
            float new_low = a * cosine - b * sine;
            float new_high = b * cosine + a * sine;
            low.at[i] = narrow(add ? widen(old_low.at[i]) + new_low : new_low);
            high.at[i] = narrow(add ? widen(old_high.at[i]) + new_high : new_high);
        }
        store(y.at(row, place), low);
        store(y.at(row, place + half), high);
    }
};

cudaError_t mf_cuda_elementwise_rope(const struct mf_cuda_context *context,
                                     const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    const struct mf_operand *o = call->operands;
    struct rope_job job = {matrix_of(&o[0]),
                           matrix_of(&o[2]),
                           (const float2 *)o[1].pointer,
                           shape->seq_len,
                           shape->head_dim / 2,
                           call->kernel == MF_KERNEL_ROPE_BACKWARD ? -1.0f : 1.0f,
                           (shape->flags & MF_SHAPE_ADD_TO_OUTPUT) != 0};
    int64_t pairs = shape->heads * job.half;
    struct mf_operand both[2] = {o[0], o[2]};
    bool wide = job.half % 8 == 0;
    if (!wide) { /* a pack must not cross from one head's half to the other */
        both[0].stride = 1;
    }
    return launch_rows(context, job, shape->rows, pairs, both, 2);
}

/* ---- small things ---- */

static __global__ void pad_panel(bf16 *panel, int64_t elements, int64_t end)
{
    int64_t at = elements + threadIdx.x;
    if (at < end) {
        panel[at] = narrow(0.0f);
    }
}

cudaError_t mf_cuda_elementwise_pad(const struct mf_cuda_context *context, void *panel,
                                    int64_t elements)
{
    int64_t end = blocks_for(elements, PANEL_ALIGN) * PANEL_ALIGN;
    if (end == elements) {
        return cudaSuccess;
    }
    pad_panel<<<1, PANEL_ALIGN, 0, context->stream>>>((bf16 *)panel, elements, end);
    return cudaGetLastError();
}

__device__ __forceinline__ uint64_t timer_ns()
{
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return value;
}

static __global__ void spend(int64_t ns)
{
    uint64_t end = timer_ns() + (uint64_t)ns;
    while (timer_ns() < end) {
    }
}

cudaError_t mf_cuda_elementwise_delay(cudaStream_t stream, int64_t ns)
{
    spend<<<1, 1, 0, stream>>>(ns);
    return cudaGetLastError();
}

static __global__ void wait_flag(const volatile uint32_t *flag, uint32_t value)
{
    while (*flag != value) {
        __nanosleep(200);
    }
    __threadfence_system();
}

cudaError_t mf_cuda_elementwise_wait(cudaStream_t stream, const uint32_t *flag, uint32_t value)
{
    wait_flag<<<1, 1, 0, stream>>>(flag, value);
    return cudaGetLastError();
}

#define BOTH(body) (const void *)run_rows<8, body>, (const void *)run_rows<1, body>

cudaError_t mf_cuda_elementwise_load(void)
{
    const void *const kernels[] = {
        BOTH(gelu_forward),    BOTH(gelu_backward),     BOTH(swiglu_forward),
        BOTH(swiglu_backward), BOTH(add_forward),       BOTH(copy_rows),
        BOTH(round_rows),      BOTH(rope_job),          (const void *)pad_panel,
        (const void *)spend,   (const void *)wait_flag,
    };
    return load_all(kernels, sizeof(kernels) / sizeof(kernels[0]));
}
