/*
 * cuDNN, opened at run time, and its plans for attention, one a shape.
 *
 * What: a shape's plan is built when the shape is first run (its code is compiled then: some tenths
 *   of a second, with the device drained) and kept until close; the same shape has the same plan
 *   wherever its operands lie. A backward pass whose workspace does not fit the scratch memory is
 *   cut into equal parts of whole sequences or whole key heads, each with its own sums.
 * Who calls it: cudnn.c. Owner: open/close. Thread: the device's. Fails: open with
 *   MF_STATUS_UNSUPPORTED and what is missing; run does not: it says whether it queued the call.
 */
#ifndef MF_RUNTIME_CUDA_CUDNN_PLANS_H
#define MF_RUNTIME_CUDA_CUDNN_PLANS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"
#include "runtime/cuda/kernels.h"

struct mf_cuda_cudnn_plans;

#ifdef MF_HAVE_CUDNN
enum mf_status mf_cuda_cudnn_plans_open(cudaStream_t stream, enum mf_status (*drain)(void *lanes),
                                        void *lanes, struct mf_cuda_cudnn_plans **out) MF_MUST_USE;
void mf_cuda_cudnn_plans_close(struct mf_cuda_cudnn_plans *plans);
bool mf_cuda_cudnn_plans_run(struct mf_cuda_cudnn_plans *plans,
                             const struct mf_cuda_context *context,
                             const struct mf_kernel_call *call);
/* "cuDNN 9.14.0"; good while the library is open. */
const char *mf_cuda_cudnn_plans_version(const struct mf_cuda_cudnn_plans *plans);
/* The last shape that was not taken, and why; "" = none. Good until the next run. */
const char *mf_cuda_cudnn_plans_refused(const struct mf_cuda_cudnn_plans *plans);
#else /* built without cuDNN's headers: it never opens, so nothing else is called */
static inline enum mf_status mf_cuda_cudnn_plans_open(cudaStream_t stream,
                                                      enum mf_status (*drain)(void *lanes),
                                                      void *lanes, struct mf_cuda_cudnn_plans **out)
{
    (void)stream;
    (void)drain;
    (void)lanes;
    *out = NULL;
    return mf_status_set(MF_STATUS_UNSUPPORTED, "memferry was built without cuDNN's headers");
}

static inline void mf_cuda_cudnn_plans_close(struct mf_cuda_cudnn_plans *plans)
{
    (void)plans;
}

static inline bool mf_cuda_cudnn_plans_run(struct mf_cuda_cudnn_plans *plans,
                                           const struct mf_cuda_context *context,
                                           const struct mf_kernel_call *call)
{
    (void)plans;
    (void)context;
    (void)call;
    return false;
}

static inline const char *mf_cuda_cudnn_plans_version(const struct mf_cuda_cudnn_plans *plans)
{
    (void)plans;
    return "";
}

static inline const char *mf_cuda_cudnn_plans_refused(const struct mf_cuda_cudnn_plans *plans)
{
    (void)plans;
    return "";
}
#endif

#endif
