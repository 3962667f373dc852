/*
 * What a kernel of the host device works with: threads, and scratch memory for fp32 copies.
 *
 * What: one context a lane. Scratch grows to the largest kernel seen and is then reused, so a
 *   second run of the same graph allocates nothing; it is not device memory and not under its cap.
 * Who calls it: kernels; whoever owns a lane opens and closes. Owner: open/close; scratch is good
 *   until the next kernel of the context. Thread: one at a time. Fails: MF_STATUS_NO_MEMORY.
 */
#ifndef MF_RUNTIME_HOST_CONTEXT_H
#define MF_RUNTIME_HOST_CONTEXT_H

#include <stdint.h>

#include "core/kernel.h"
#include "core/status.h"
#include "runtime/host/pool.h"

struct mf_host_context {
    struct mf_host_pool *pool;
    unsigned char *scratch;
    int64_t scratch_bytes;
    int64_t scratch_growths; /* how often it was allocated */
};

/* A piece of scratch: `count` elements of `size` bytes, 64-byte aligned, not zeroed. */
struct mf_host_piece {
    void **out;
    int64_t count;
    int64_t size;
};

enum mf_status mf_host_context_open(const char *name, int32_t threads,
                                    struct mf_host_context *out) MF_MUST_USE;
/* For a lane that has cores to itself; `own` as in mf_host_pool_open. */
enum mf_status mf_host_context_open_on(const char *name, int32_t threads,
                                       const struct mf_host_cores *own,
                                       struct mf_host_context *out) MF_MUST_USE;
void mf_host_context_close(struct mf_host_context *context);
/* All scratch of one kernel at once; what an earlier call gave is gone. */
enum mf_status mf_host_context_scratch(struct mf_host_context *context,
                                       const struct mf_host_piece *pieces,
                                       int32_t count) MF_MUST_USE;

typedef void (*mf_host_context_rows_body)(const void *argument, int64_t first, int64_t end);
/* Calls `body` over chunks of `rows` rows of about `work` elements each. Chunks are cut without
 * looking at the number of threads; rows must be independent. */
void mf_host_context_rows(struct mf_host_context *context, int64_t rows, int64_t work,
                          mf_host_context_rows_body body, const void *argument);
/* fp32 copy [rows, width], dense, of a bf16 matrix with row stride `stride`. */
void mf_host_context_widen(struct mf_host_context *context, const uint16_t *from, int64_t stride,
                           int64_t rows, int64_t width, float *out);

#endif
