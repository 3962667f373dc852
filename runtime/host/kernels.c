/* The table of the host device's kernels; see kernels.h. */
#include "runtime/host/kernels.h"

#include <string.h>

#define PANEL_ALIGN 64 /* elements; a unit's panels are padded to it (core/model.h) */

enum {
    ON_COMPUTE = 1u << MF_LANE_COMPUTE,
    ON_LINK = 1u << MF_LANE_H2D | 1u << MF_LANE_D2H,
    ON_CPU = 1u << MF_LANE_CPU,
};

static enum mf_status run_copy(struct mf_host_context *context, const struct mf_kernel_call *call)
{
    (void)context;
    memcpy(call->operands[1].pointer, call->operands[0].pointer, (size_t)call->shape.n);
    return MF_STATUS_OK;
}

static const struct {
    enum mf_status (*run)(struct mf_host_context *context, const struct mf_kernel_call *call);
    unsigned lanes;
} kernels[MF_KERNEL_COUNT] = {
    [MF_KERNEL_EMBEDDING_FORWARD] = {mf_host_embedding_forward, ON_COMPUTE},
    [MF_KERNEL_EMBEDDING_BACKWARD] = {mf_host_embedding_backward, ON_COMPUTE},
    [MF_KERNEL_POSITION_FORWARD] = {mf_host_embedding_position_forward, ON_COMPUTE},
    [MF_KERNEL_POSITION_BACKWARD] = {mf_host_embedding_position_backward, ON_COMPUTE},
    [MF_KERNEL_RMS_NORM_FORWARD] = {mf_host_norm_forward, ON_COMPUTE},
    [MF_KERNEL_RMS_NORM_BACKWARD] = {mf_host_norm_backward, ON_COMPUTE},
    [MF_KERNEL_RMS_NORM_BACKWARD_WEIGHT] = {mf_host_norm_backward_weight, ON_COMPUTE},
    [MF_KERNEL_LAYER_NORM_FORWARD] = {mf_host_norm_forward, ON_COMPUTE},
    [MF_KERNEL_LAYER_NORM_BACKWARD] = {mf_host_norm_backward, ON_COMPUTE},
    [MF_KERNEL_LAYER_NORM_BACKWARD_WEIGHT] = {mf_host_norm_backward_weight, ON_COMPUTE},
    [MF_KERNEL_LINEAR_FORWARD] = {mf_host_linear_forward, ON_COMPUTE},
    [MF_KERNEL_LINEAR_BACKWARD_DATA] = {mf_host_linear_backward_data, ON_COMPUTE},
    [MF_KERNEL_LINEAR_BACKWARD_WEIGHT] = {mf_host_linear_backward_weight, ON_COMPUTE},
    [MF_KERNEL_ROPE_FORWARD] = {mf_host_elementwise_rope, ON_COMPUTE},
    [MF_KERNEL_ROPE_BACKWARD] = {mf_host_elementwise_rope, ON_COMPUTE},
    [MF_KERNEL_ATTENTION_FORWARD] = {mf_host_attention_forward, ON_COMPUTE},
    [MF_KERNEL_ATTENTION_BACKWARD] = {mf_host_attention_backward, ON_COMPUTE},
    [MF_KERNEL_GELU_FORWARD] = {mf_host_elementwise_gelu_forward, ON_COMPUTE},
    [MF_KERNEL_GELU_BACKWARD] = {mf_host_elementwise_gelu_backward, ON_COMPUTE},
    [MF_KERNEL_SWIGLU_FORWARD] = {mf_host_elementwise_swiglu_forward, ON_COMPUTE},
    [MF_KERNEL_SWIGLU_BACKWARD] = {mf_host_elementwise_swiglu_backward, ON_COMPUTE},
    [MF_KERNEL_ADD_FORWARD] = {mf_host_elementwise_add, ON_COMPUTE},
    [MF_KERNEL_GRADIENT_COPY] = {mf_host_elementwise_copy, ON_COMPUTE},
    [MF_KERNEL_HEAD_FORWARD] = {mf_host_head_forward, ON_COMPUTE},
    [MF_KERNEL_HEAD_LOSS] = {mf_host_head_loss, ON_COMPUTE},
    [MF_KERNEL_HEAD_BACKWARD] = {mf_host_head_backward, ON_COMPUTE},
    [MF_KERNEL_HEAD_LOGITS] = {mf_host_head_logits, ON_COMPUTE},
    [MF_KERNEL_GRADIENT_ACCUMULATE] = {mf_host_update_accumulate, ON_COMPUTE | ON_CPU},
    [MF_KERNEL_GRADIENT_NORM] = {mf_host_update_norm, ON_COMPUTE | ON_CPU},
    [MF_KERNEL_CLIP] = {mf_host_update_clip, ON_COMPUTE | ON_CPU},
    [MF_KERNEL_ADAMW] = {mf_host_update_adamw, ON_COMPUTE | ON_CPU},
    [MF_KERNEL_COPY] = {run_copy, ON_LINK},
};

enum mf_status mf_host_kernels_run(struct mf_host_context *context,
                                   const struct mf_kernel_call *call)
{
    return kernels[call->kernel].run(context, call);
}

bool mf_host_kernels_fit(enum mf_kernel kernel, enum mf_lane lane)
{
    return (unsigned)kernel < MF_KERNEL_COUNT && (unsigned)lane < MF_LANE_COUNT &&
           (kernels[kernel].lanes >> lane & 1u) != 0;
}

/* Tokens of the micro-batch that lie in the panel. */
static int64_t count_tokens(const struct mf_kernel_call *call)
{
    const int32_t *tokens = call->operands[0].pointer;
    int64_t count = 0;
    for (int64_t row = 0; row < call->shape.rows; row++) {
        int64_t index = tokens[row] - call->index0;
        count += index >= 0 && index < call->shape.k;
    }
    return count;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t mf_host_kernels_weight_bytes(const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    if ((shape->flags & MF_SHAPE_WEIGHT_HOST) == 0) {
        return 0;
    }
    switch (call->kernel) {
    case MF_KERNEL_EMBEDDING_FORWARD: /* reads the rows of its tokens only */
        return 2 * count_tokens(call) * shape->n;
    case MF_KERNEL_POSITION_FORWARD:
        return 2 * smaller(shape->seq_len, shape->k) * shape->n;
    case MF_KERNEL_LAYER_NORM_FORWARD:
        return 4 * shape->n;
    case MF_KERNEL_RMS_NORM_FORWARD:
    case MF_KERNEL_RMS_NORM_BACKWARD:
    case MF_KERNEL_LAYER_NORM_BACKWARD:
        return 2 * shape->n;
    default:
        return 2 * shape->n * (shape->k + ((shape->flags & MF_SHAPE_BIAS) != 0 ? 1 : 0));
    }
}

int64_t mf_host_kernels_output_bytes(const struct mf_kernel_call *call)
{
    const struct mf_shape *shape = &call->shape;
    if ((shape->flags & MF_SHAPE_OUTPUT_HOST) == 0) {
        return 0;
    }
    switch (call->kernel) {
    case MF_KERNEL_RMS_NORM_BACKWARD_WEIGHT:
        return 2 * shape->n;
    case MF_KERNEL_LAYER_NORM_BACKWARD_WEIGHT:
        return 4 * shape->n;
    default:
        return 2 * shape->n * (shape->k + ((shape->flags & MF_SHAPE_BIAS) != 0 ? 1 : 0));
    }
}

void mf_host_kernels_pad(uint16_t *panel, int64_t elements)
{
    int64_t end = (elements + PANEL_ALIGN - 1) / PANEL_ALIGN * PANEL_ALIGN;
    memset(panel + elements, 0, (size_t)(end - elements) * sizeof(*panel));
}
