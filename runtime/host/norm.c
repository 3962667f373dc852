/* RMS and layer norm on the host device; kernel.h says what each operand is. A group is `n`
 * consecutive elements of a row that are normalised alone; rows hold `heads` groups. */
#include <string.h>

#include "runtime/host/bf16.h"
#include "runtime/host/kernels.h"
#include "runtime/host/simd.h"

/* Groups that one partial sum of the weight's gradient covers. */
#define PARTIAL_GROUPS 128

static int64_t count_heads(const struct mf_shape *shape)
{
    return shape->heads > 1 ? shape->heads : 1;
}

static bool is_layer(enum mf_kernel kernel)
{
    return kernel == MF_KERNEL_LAYER_NORM_FORWARD || kernel == MF_KERNEL_LAYER_NORM_BACKWARD ||
           kernel == MF_KERNEL_LAYER_NORM_BACKWARD_WEIGHT;
}

/* Group `group` of a matrix operand: head group % heads of row group / heads. */
static uint16_t *group_of(const struct mf_operand *operand, const struct mf_shape *shape,
                          int64_t group)
{
    int64_t heads = count_heads(shape);
    return (uint16_t *)operand->pointer + group / heads * operand->stride +
           group % heads * shape->n;
}

MF_HOST_INLINE float sum_body(const uint16_t *x, int64_t count)
{
    float lanes[MF_HOST_LANES] = {0};
    int64_t index = 0;
    for (; index + MF_HOST_LANES <= count; index += MF_HOST_LANES) {
        for (int lane = 0; lane < MF_HOST_LANES; lane++) {
            lanes[lane] += mf_bf16_to_float(x[index + lane]);
        }
    }
    for (int lane = 0; index + lane < count; lane++) {
        lanes[lane] += mf_bf16_to_float(x[index + lane]);
    }
    return mf_host_simd_sum(lanes);
}

MF_HOST_INLINE float square_body(const uint16_t *x, float mean, int64_t count)
{
    float lanes[MF_HOST_LANES] = {0};
    int64_t index = 0;
    for (; index + MF_HOST_LANES <= count; index += MF_HOST_LANES) {
        for (int lane = 0; lane < MF_HOST_LANES; lane++) {
            float value = mf_bf16_to_float(x[index + lane]) - mean;
            lanes[lane] += value * value;
        }
    }
    for (int lane = 0; index + lane < count; lane++) {
        float value = mf_bf16_to_float(x[index + lane]) - mean;
        lanes[lane] += value * value;
    }
    return mf_host_simd_sum(lanes);
}

/* `bias` NULL: RMS norm, whose mean counts as 0. */
MF_HOST_INLINE void forward_body(const uint16_t *x, const uint16_t *weight, const uint16_t *bias,
                                 float eps, uint16_t *y, float *stats, int64_t count)
{
    float mean = bias != NULL ? sum_body(x, count) / (float)count : 0.0f;
    float scale = 1.0f / sqrtf(square_body(x, mean, count) / (float)count + eps);
    stats[0] = mean;
    stats[1] = scale;
    if (bias != NULL) {
        MF_HOST_IVDEP
        for (int64_t index = 0; index < count; index++) {
            float value = (mf_bf16_to_float(x[index]) - mean) * scale;
            y[index] = mf_bf16_from_float(value * mf_bf16_to_float(weight[index]) +
                                          mf_bf16_to_float(bias[index]));
        }
    } else {
        MF_HOST_IVDEP
        for (int64_t index = 0; index < count; index++) {
            float value = mf_bf16_to_float(x[index]) * scale;
            y[index] = mf_bf16_from_float(value * mf_bf16_to_float(weight[index]));
        }
    }
}
MF_HOST_SIMD(forward,
             (const uint16_t *x, const uint16_t *weight, const uint16_t *bias, float eps,
              uint16_t *y, float *stats, int64_t count),
             (x, weight, bias, eps, y, stats, count))

static void forward_groups(const void *argument, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = argument;
    const struct mf_shape *shape = &call->shape;
    const uint16_t *weight = call->operands[1].pointer;
    for (int64_t group = first; group < end; group++) {
        forward(group_of(&call->operands[0], shape, group), weight,
                is_layer(call->kernel) ? weight + shape->n : NULL, (float)call->scalar0,
                group_of(&call->operands[2], shape, group),
                (float *)call->operands[3].pointer + group * 2, shape->n);
    }
}

enum mf_status mf_host_norm_forward(struct mf_host_context *context,
                                    const struct mf_kernel_call *call)
{
    mf_host_context_rows(context, call->shape.rows * count_heads(&call->shape), call->shape.n,
                         forward_groups, call);
    return MF_STATUS_OK;
}

/* Adds dy * weight and dy * weight * normalised x of one element to its lane. */
MF_HOST_INLINE void add_products(const uint16_t *x, const uint16_t *weight, const uint16_t *dy,
                                 const float *stats, int64_t index, float *plain, float *scaled)
{
    float g = mf_bf16_to_float(dy[index]) * mf_bf16_to_float(weight[index]);
    float value = (mf_bf16_to_float(x[index]) - stats[0]) * stats[1];
    *plain += g;
    *scaled += g * value;
}

/* dx = scale * (g - mean(g) - value * mean(g * value)), g = dy * weight; RMS has no mean(g). */
MF_HOST_INLINE void backward_body(const uint16_t *x, const uint16_t *weight, const uint16_t *dy,
                                  const float *stats, bool layer, bool accumulate, uint16_t *dx,
                                  int64_t count)
{
    float plain[MF_HOST_LANES] = {0};
    float scaled[MF_HOST_LANES] = {0};
    int64_t index = 0;
    for (; index + MF_HOST_LANES <= count; index += MF_HOST_LANES) {
        for (int lane = 0; lane < MF_HOST_LANES; lane++) {
            add_products(x, weight, dy, stats, index + lane, &plain[lane], &scaled[lane]);
        }
    }
    for (int lane = 0; index + lane < count; lane++) {
        add_products(x, weight, dy, stats, index + lane, &plain[lane], &scaled[lane]);
    }
    float plain_mean = layer ? mf_host_simd_sum(plain) / (float)count : 0.0f;
    float scaled_mean = mf_host_simd_sum(scaled) / (float)count;
    float mean = stats[0];
    float scale = stats[1];
    MF_HOST_IVDEP
    for (int64_t at = 0; at < count; at++) {
        float g = mf_bf16_to_float(dy[at]) * mf_bf16_to_float(weight[at]);
        float value = (mf_bf16_to_float(x[at]) - mean) * scale;
        float gradient = scale * (g - plain_mean - value * scaled_mean);
        if (accumulate) {
            gradient = mf_bf16_to_float(dx[at]) + gradient;
        }
        dx[at] = mf_bf16_from_float(gradient);
    }
}
MF_HOST_SIMD(backward,
             (const uint16_t *x, const uint16_t *weight, const uint16_t *dy, const float *stats,
              bool layer, bool accumulate, uint16_t *dx, int64_t count),
             (x, weight, dy, stats, layer, accumulate, dx, count))

static void backward_groups(const void *argument, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = argument;
    const struct mf_shape *shape = &call->shape;
    for (int64_t group = first; group < end; group++) {
        backward(group_of(&call->operands[0], shape, group), call->operands[1].pointer,
                 group_of(&call->operands[3], shape, group),
                 (const float *)call->operands[2].pointer + group * 2, is_layer(call->kernel),
                 (shape->flags & MF_SHAPE_ADD_TO_OUTPUT) != 0,
                 group_of(&call->operands[4], shape, group), shape->n);
    }
}

enum mf_status mf_host_norm_backward(struct mf_host_context *context,
                                     const struct mf_kernel_call *call)
{
    mf_host_context_rows(context, call->shape.rows * count_heads(&call->shape), call->shape.n,
                         backward_groups, call);
    return MF_STATUS_OK;
}

MF_HOST_INLINE void add_weight_body(const uint16_t *x, const uint16_t *dy, const float *stats,
                                    float *restrict weight, float *restrict bias, int64_t count)
{
    float mean = stats[0];
    float scale = stats[1];
    for (int64_t index = 0; index < count; index++) {
        float g = mf_bf16_to_float(dy[index]);
        weight[index] += g * ((mf_bf16_to_float(x[index]) - mean) * scale);
        bias[index] += g;
    }
}
MF_HOST_SIMD(add_weight,
             (const uint16_t *x, const uint16_t *dy, const float *stats, float *weight, float *bias,
              int64_t count),
             (x, dy, stats, weight, bias, count))

struct weight_job {
    const struct mf_kernel_call *call;
    int64_t groups;
    float *partials; /* [groups / PARTIAL_GROUPS, 2, n] */
};

static void sum_partial(const void *argument, int64_t item, int32_t worker)
{
    (void)worker;
    const struct weight_job *job = argument;
    const struct mf_kernel_call *call = job->call;
    int64_t n = call->shape.n;
    float *sums = job->partials + item * 2 * n;
    int64_t first = item * PARTIAL_GROUPS;
    int64_t end = first + PARTIAL_GROUPS < job->groups ? first + PARTIAL_GROUPS : job->groups;
    memset(sums, 0, (size_t)n * 2 * sizeof(*sums));
    for (int64_t group = first; group < end; group++) {
        add_weight(group_of(&call->operands[0], &call->shape, group),
                   group_of(&call->operands[2], &call->shape, group),
                   (const float *)call->operands[1].pointer + group * 2, sums, sums + n, n);
    }
}

enum mf_status mf_host_norm_backward_weight(struct mf_host_context *context,
                                            const struct mf_kernel_call *call)
{
    int64_t n = call->shape.n;
    struct weight_job job = {.call = call, .groups = call->shape.rows * count_heads(&call->shape)};
    int64_t partials = (job.groups + PARTIAL_GROUPS - 1) / PARTIAL_GROUPS;
    struct mf_host_piece piece = {(void **)&job.partials, partials * 2 * n, sizeof(float)};
    MF_TRY(mf_host_context_scratch(context, &piece, 1));
    mf_host_pool_run(context->pool, partials, sum_partial, &job);
    uint16_t *out = call->operands[3].pointer;
    int64_t count = is_layer(call->kernel) ? 2 * n : n;
    for (int64_t partial = 1; partial < partials; partial++) {
        for (int64_t index = 0; index < count; index++) {
            job.partials[index] += job.partials[partial * 2 * n + index];
        }
    }
    for (int64_t index = 0; index < count; index++) {
        out[index] = mf_bf16_from_float(partials > 0 ? job.partials[index] : 0.0f);
    }
    mf_host_kernels_pad(out, count);
    return MF_STATUS_OK;
}
