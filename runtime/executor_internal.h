/* Private to runtime/executor*.c: the executor's state. See executor.h for the contract. */
#ifndef MF_RUNTIME_EXECUTOR_INTERNAL_H
#define MF_RUNTIME_EXECUTOR_INTERNAL_H

#include "runtime/executor.h"
#include "runtime/shadow.h"

/* What the shadow rules need to know of a persistent buffer: whose weights it holds. */
struct mf_executor_weights {
    int32_t unit; /* -1 = no weights */
    enum mf_space space;
};

struct mf_executor {
    const struct mf_device_interface *interface;
    struct mf_device *device;
    const struct mf_model *model;
    const struct mf_plan *plan;
    struct mf_step steps[MF_STEP_VARIANT_COUNT]; /* the same layout in each */
    int64_t space_bytes[MF_SPACE_COUNT];
    char *bases[MF_SPACE_COUNT]; /* as the host sees them (device arena: the device's address) */
    char *host_on_device;        /* the host arena as device lanes see it */
    struct mf_shadow *shadows;   /* one a weight panel */
    int32_t *shadow_first;       /* per unit (tied units: their owner's) */
    struct mf_executor_weights *weights; /* per persistent buffer */
    int64_t step;
    int32_t micro_count; /* gathered since the last update */
    int64_t token_count;
    double loss_sum;
    bool pending;     /* updates that the plan deferred are not done yet, */
    bool redo;        /* or those that speculated, whose results do not count or were not made */
    bool speculating; /* in the next optimizer step: the last norm would have allowed it */
    int second_half;  /* 1 = of twin halves the second is present */
    bool failed;
    bool trace;
    enum mf_step_variant last_variant;
    struct mf_executor_timing timing;
};

/* Address of a byte of a buffer; for device buffers only lanes may follow it. */
void *mf_executor_host_pointer(const struct mf_executor *executor, int32_t buffer, int64_t offset);
/* Does what is pending: before parameters are read or changed. */
enum mf_status mf_executor_flush(struct mf_executor *executor) MF_MUST_USE;
/* One copy outside any graph, waited for. */
enum mf_status mf_executor_copy(struct mf_executor *executor, enum mf_lane lane, void *from,
                                void *to, int64_t bytes) MF_MUST_USE;
/* The host buffer parameters pass through, one panel of state. */
void *mf_executor_transfer(const struct mf_executor *executor);

#endif
