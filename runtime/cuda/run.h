/*
 * The table of the CUDA device's kernels: what a call on the compute lane queues.
 *
 * Who calls it: lanes.c. Owner: nothing. Thread: the device's. Fails: MF_STATUS_DEVICE with the
 *   kernel's name; MF_STATUS_UNSUPPORTED for a shape no kernel takes.
 */
#ifndef MF_RUNTIME_CUDA_RUN_H
#define MF_RUNTIME_CUDA_RUN_H

#include <stdbool.h>

#include "core/status.h"
#include "runtime/cuda/kernels.h"

enum mf_status mf_cuda_run(const struct mf_cuda_context *context,
                           const struct mf_kernel_call *call) MF_MUST_USE;
/* Whether `lane` may run `kernel`. */
bool mf_cuda_run_fits(enum mf_kernel kernel, enum mf_lane lane);
/* Makes the code of all kernels resident. */
enum mf_status mf_cuda_run_load(int32_t shared_bytes) MF_MUST_USE;

#endif
