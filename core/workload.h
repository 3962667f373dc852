/*
 * The workload and the constraints of a plan: what one optimizer step does, and what it may use.
 * Plain data; part of a plan's cache key. Fails: validation gives MF_STATUS_INVALID with ranges.
 */
#ifndef MF_CORE_WORKLOAD_H
#define MF_CORE_WORKLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

struct mf_workload {
    int32_t micro_batch;  /* sequences in one forward and backward, 1..MF_MICRO_BATCH_MAX */
    int32_t seq_len;      /* tokens in one sequence, 1..model's position limit */
    int32_t accumulation; /* micro-batches in one optimizer step at most, 1..MF_ACCUMULATION_MAX */
    bool clip; /* the update waits for the global norm (clipping or skip of non-finite) */
};

/* What the plan may use; 0 = what the hardware has free. */
struct mf_constraints {
    int64_t device_bytes;
    int64_t host_bytes;
};

enum mf_status mf_workload_validate(const struct mf_workload *workload) MF_MUST_USE;
/* Tokens of one micro-batch. */
int64_t mf_workload_rows(const struct mf_workload *workload);

#endif
