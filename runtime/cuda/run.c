/* The table of the CUDA device's kernels; see run.h. */
#include "runtime/cuda/run.h"

#include "runtime/cuda/cudnn.h"
#include "runtime/cuda/linear.h"

static enum mf_status run_attention(const struct mf_cuda_context *context,
                                    const struct mf_kernel_call *call);

static const struct {
    cudaError_t (*launch)(const struct mf_cuda_context *context, const struct mf_kernel_call *call);
    enum mf_status (*product)(const struct mf_cuda_context *context,
                              const struct mf_kernel_call *call);
} kernels[MF_KERNEL_COUNT] = {
    [MF_KERNEL_EMBEDDING_FORWARD] = {.launch = mf_cuda_embedding_forward},
    [MF_KERNEL_EMBEDDING_BACKWARD] = {.launch = mf_cuda_embedding_backward},
    [MF_KERNEL_POSITION_FORWARD] = {.launch = mf_cuda_embedding_position_forward},
    [MF_KERNEL_POSITION_BACKWARD] = {.launch = mf_cuda_embedding_position_backward},
    [MF_KERNEL_RMS_NORM_FORWARD] = {.launch = mf_cuda_norm_forward},
    [MF_KERNEL_RMS_NORM_BACKWARD] = {.launch = mf_cuda_norm_backward},
    [MF_KERNEL_RMS_NORM_BACKWARD_WEIGHT] = {.launch = mf_cuda_norm_backward_weight},
    [MF_KERNEL_LAYER_NORM_FORWARD] = {.launch = mf_cuda_norm_forward},
    [MF_KERNEL_LAYER_NORM_BACKWARD] = {.launch = mf_cuda_norm_backward},
    [MF_KERNEL_LAYER_NORM_BACKWARD_WEIGHT] = {.launch = mf_cuda_norm_backward_weight},
    [MF_KERNEL_LINEAR_FORWARD] = {.product = mf_cuda_linear_forward},
    [MF_KERNEL_LINEAR_BACKWARD_DATA] = {.product = mf_cuda_linear_backward_data},
    [MF_KERNEL_LINEAR_BACKWARD_WEIGHT] = {.product = mf_cuda_linear_backward_weight},
    [MF_KERNEL_ROPE_FORWARD] = {.launch = mf_cuda_elementwise_rope},
    [MF_KERNEL_ROPE_BACKWARD] = {.launch = mf_cuda_elementwise_rope},
    [MF_KERNEL_ATTENTION_FORWARD] = {.launch = mf_cuda_attention_forward, .product = run_attention},
    [MF_KERNEL_ATTENTION_BACKWARD] = {.launch = mf_cuda_attention_backward,
                                      .product = run_attention},
    [MF_KERNEL_GELU_FORWARD] = {.launch = mf_cuda_elementwise_gelu_forward},
    [MF_KERNEL_GELU_BACKWARD] = {.launch = mf_cuda_elementwise_gelu_backward},
    [MF_KERNEL_SWIGLU_FORWARD] = {.launch = mf_cuda_elementwise_swiglu_forward},
    [MF_KERNEL_SWIGLU_BACKWARD] = {.launch = mf_cuda_elementwise_swiglu_backward},
    [MF_KERNEL_ADD_FORWARD] = {.launch = mf_cuda_elementwise_add},
    [MF_KERNEL_GRADIENT_COPY] = {.launch = mf_cuda_elementwise_copy},
    [MF_KERNEL_HEAD_FORWARD] = {.product = mf_cuda_linear_head_forward},
    [MF_KERNEL_HEAD_LOSS] = {.launch = mf_cuda_head_loss},
    [MF_KERNEL_HEAD_BACKWARD] = {.product = mf_cuda_linear_head_backward},
    [MF_KERNEL_HEAD_LOGITS] = {.product = mf_cuda_linear_head_logits},
    [MF_KERNEL_GRADIENT_ACCUMULATE] = {.launch = mf_cuda_update_accumulate},
    [MF_KERNEL_GRADIENT_NORM] = {.launch = mf_cuda_update_norm},
    [MF_KERNEL_CLIP] = {.launch = mf_cuda_update_clip},
    [MF_KERNEL_ADAMW] = {.launch = mf_cuda_update_adamw},
};

static enum mf_status launch(const struct mf_cuda_context *context,
                             const struct mf_kernel_call *call)
{
    cudaError_t error = kernels[call->kernel].launch(context, call);
    if (error != cudaErrorNotSupported) {
        return mf_cuda_linear_check(error, mf_kernel_name(call->kernel));
    }
    return mf_status_set(MF_STATUS_UNSUPPORTED,
                         "%s: no CUDA kernel takes this shape (rows %lld, n %lld, head_dim %d)",
                         mf_kernel_name(call->kernel), (long long)call->shape.rows,
                         (long long)call->shape.n, call->shape.head_dim);
}

/* cuDNN where it was chosen and takes the shape, else our own kernels. */
static enum mf_status run_attention(const struct mf_cuda_context *context,
                                    const struct mf_kernel_call *call)
{
    return mf_cuda_cudnn_run(context->cudnn, context, call) ? MF_STATUS_OK : launch(context, call);
}

enum mf_status mf_cuda_run(const struct mf_cuda_context *context, const struct mf_kernel_call *call)
{
    if (kernels[call->kernel].product == NULL) {
        return launch(context, call);
    }
    enum mf_status status = kernels[call->kernel].product(context, call);
    return status == MF_STATUS_OK ? MF_STATUS_OK
                                  : mf_status_context(status, "%s", mf_kernel_name(call->kernel));
}

bool mf_cuda_run_fits(enum mf_kernel kernel, enum mf_lane lane)
{
    if ((unsigned)kernel >= MF_KERNEL_COUNT) {
        return false;
    }
    switch (lane) {
    case MF_LANE_COMPUTE:
        return kernel != MF_KERNEL_COPY;
    case MF_LANE_H2D:
    case MF_LANE_D2H:
        return kernel == MF_KERNEL_COPY;
    case MF_LANE_CPU:
        return kernel == MF_KERNEL_GRADIENT_ACCUMULATE || kernel == MF_KERNEL_GRADIENT_NORM ||
               kernel == MF_KERNEL_CLIP || kernel == MF_KERNEL_ADAMW;
    case MF_LANE_COUNT:
        break;
    }
    return false;
}

enum mf_status mf_cuda_run_load(int32_t shared_bytes)
{
    static cudaError_t (*const loads[])(void) = {
        mf_cuda_elementwise_load, mf_cuda_embedding_load, mf_cuda_norm_load,
        mf_cuda_attention_load,   mf_cuda_head_load,      mf_cuda_update_load,
        mf_cuda_product_load,     mf_cuda_cudnn_lse_load,
    };
    for (size_t index = 0; index < sizeof(loads) / sizeof(loads[0]); index++) {
        MF_TRY(mf_cuda_linear_check(loads[index](), "loading the kernels"));
    }
    MF_TRY(mf_cuda_linear_check(mf_cuda_attention_forward_load(shared_bytes),
                                "loading the attention kernels"));
    return mf_cuda_linear_check(mf_cuda_attention_backward_load(shared_bytes),
                                "loading the attention kernels");
}
