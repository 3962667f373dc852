/*
 * The kernels of core/kernel.h in plain C, one function each, for the lanes of the host device.
 *
 * What: run() looks a call up in a table and runs it on the caller's context. Operands may lie
 *   anywhere; results depend on nothing but the operands' values: not on addresses, threads or what
 *   else runs. Who calls it: lanes; the CUDA device may use it for its CPU lane. Owner: operands
 *   are the caller's. Thread: as the context. Fails: MF_STATUS_NO_MEMORY when scratch cannot grow.
 */
#ifndef MF_RUNTIME_HOST_KERNELS_H
#define MF_RUNTIME_HOST_KERNELS_H

#include <stdbool.h>

#include "core/kernel.h"
#include "runtime/host/context.h"

#define MF_HOST_KERNEL(name)                                                                       \
    enum mf_status name(struct mf_host_context *context, const struct mf_kernel_call *call)        \
        MF_MUST_USE

MF_HOST_KERNEL(mf_host_kernels_run);
/* Whether `lane` may run `kernel`. */
bool mf_host_kernels_fit(enum mf_kernel kernel, enum mf_lane lane);
/* Bytes that a direct access of `call` moves over the link; 0 without the flag. */
int64_t mf_host_kernels_weight_bytes(const struct mf_kernel_call *call);
int64_t mf_host_kernels_output_bytes(const struct mf_kernel_call *call);
/* Zeros behind `elements` elements of a gradient panel up to the 64 that panels are padded to. */
void mf_host_kernels_pad(uint16_t *panel, int64_t elements);

/* embedding.c */
MF_HOST_KERNEL(mf_host_embedding_forward);
MF_HOST_KERNEL(mf_host_embedding_backward);
MF_HOST_KERNEL(mf_host_embedding_position_forward);
MF_HOST_KERNEL(mf_host_embedding_position_backward);
/* norm.c: RMS and layer norm */
MF_HOST_KERNEL(mf_host_norm_forward);
MF_HOST_KERNEL(mf_host_norm_backward);
MF_HOST_KERNEL(mf_host_norm_backward_weight);
/* linear.c */
MF_HOST_KERNEL(mf_host_linear_forward);
MF_HOST_KERNEL(mf_host_linear_backward_data);
MF_HOST_KERNEL(mf_host_linear_backward_weight);
/* attention.c, attention_backward.c */
MF_HOST_KERNEL(mf_host_attention_forward);
MF_HOST_KERNEL(mf_host_attention_backward);
/* elementwise.c: activations, rope, sums */
MF_HOST_KERNEL(mf_host_elementwise_rope);
MF_HOST_KERNEL(mf_host_elementwise_gelu_forward);
MF_HOST_KERNEL(mf_host_elementwise_gelu_backward);
MF_HOST_KERNEL(mf_host_elementwise_swiglu_forward);
MF_HOST_KERNEL(mf_host_elementwise_swiglu_backward);
MF_HOST_KERNEL(mf_host_elementwise_add);
MF_HOST_KERNEL(mf_host_elementwise_copy);
/* head.c */
MF_HOST_KERNEL(mf_host_head_forward);
MF_HOST_KERNEL(mf_host_head_loss);
MF_HOST_KERNEL(mf_host_head_backward);
MF_HOST_KERNEL(mf_host_head_logits);
/* update.c: what the CPU lane runs */
MF_HOST_KERNEL(mf_host_update_accumulate);
MF_HOST_KERNEL(mf_host_update_norm);
MF_HOST_KERNEL(mf_host_update_clip);
MF_HOST_KERNEL(mf_host_update_adamw);

#endif
