/*
 * The step graph: the tasks that a plan means, on lanes, with their buffers and dependencies.
 *
 * What: built from (model, plan) for a part of an optimizer step; then read by the simulator, the
 *   executor and the trace. Tasks are in issue order; each lane runs its tasks in that order.
 *   A task depends on at most one task of each other lane (the latest; earlier ones are implied).
 *   Dependencies are derived from what tasks read and write, and from buffers that share memory,
 *   so a missing edge cannot be forgotten in one place.
 * Who calls it: planner, executor, profiler. Owner: the caller; mf_step_reset. Thread: one builder;
 *   read-only afterwards. Pure: no clock, I/O or globals. Fails: MF_STATUS_INVALID for a plan that
 *   does not validate, or a graph above MF_TASKS_MAX.
 */
#ifndef MF_PLANNER_STEP_H
#define MF_PLANNER_STEP_H

#include <stdbool.h>
#include <stdint.h>

#include "core/kernel.h"
#include "core/model.h"
#include "core/plan.h"
#include "core/status.h"

enum mf_space { MF_SPACE_DEVICE, MF_SPACE_HOST, MF_SPACE_COUNT };
enum mf_phase { MF_PHASE_FORWARD, MF_PHASE_BACKWARD, MF_PHASE_UPDATE, MF_PHASE_COUNT };

/* A piece of device or pinned host memory. Persistent buffers come first, live for the whole job
 * and have the same offsets in every graph of a plan; the others share memory by lifetime. */
struct mf_buffer {
    enum mf_space space;
    enum mf_purpose purpose;
    bool persistent;
    int32_t unit;       /* -1 = of no unit */
    int64_t bytes;      /* a multiple of MF_BUFFER_ALIGN */
    int64_t offset;     /* in its arena */
    int64_t twin;       /* two halves that take turns, so many bytes apart; 0 = one */
    int32_t first_task; /* first and last in issue order that touch it; -1 = none */
    int32_t last_task;
    int32_t last_access[MF_LANE_COUNT]; /* last task of each lane that touches it; -1 = none */
};

#define MF_BUFFER_ALIGN 256

struct mf_task_operand {
    int32_t buffer; /* -1 = operand not given */
    int64_t offset; /* bytes into the buffer */
    int64_t stride; /* elements between rows; 0 where no matrix */
    bool next;      /* of twin halves the one that becomes present when the norm allows */
};

struct mf_task {
    enum mf_kernel kernel;
    enum mf_lane lane;
    enum mf_phase phase;
    struct mf_shape shape;
    int64_t index0;
    int64_t index1;
    double scalar0;
    struct mf_task_operand operands[MF_OPERANDS_MAX];
    int32_t unit;                   /* -1 = of no unit */
    int32_t panel;                  /* -1 = whole */
    int32_t block;                  /* -1 = of no block */
    int32_t micro;                  /* micro-batch within this graph */
    int32_t depends[MF_LANE_COUNT]; /* task index, -1 = none; own lane always -1 */
    bool signals;                   /* a task of another lane depends on this one */
    bool pending;                   /* of an update that the step before left */
    bool speculative;               /* of an update that begins before the norm is known */
    int64_t link_bytes;             /* bytes that cross the link: copies, direct reads and writes */
    double expected_ns;             /* filled by the cost model; 0 until then */
};

/* Where the executor finds things: buffer indices, -1 = not there. All persistent. Per-unit arrays
 * are indexed by unit; a tied unit shows its owner's buffers. */
struct mf_step_layout {
    int32_t *weight_device; /* resident bf16 weights */
    int32_t *weight_host;   /* bf16 weights in host memory */
    int32_t *gradient;      /* bf16, or fp32 where more than one contribution is added */
    int32_t *marks;         /* device: rows of a table's gradient that are not zero, a byte each */
    int32_t *state;         /* MF_STATE_BYTES an element; for each panel as ADAMW wants it */
    int32_t rope_table;     /* device fp32[seq_len, head_dim/2, 2] */
    int32_t tokens_host;    /* host int32[micro_count_max, rows] */
    int32_t labels_host;    /* host int32[micro_count_max, rows] */
    int32_t results;        /* host fp64[micro_count_max, 2]: HEAD_LOSS */
    int32_t logprobs;       /* host fp32[micro_count_max, rows] */
    int32_t squares;        /* host fp64[panels of all owners] */
    int32_t control;        /* host struct mf_control[2]: of this step, and of pending updates */
    int32_t logits;         /* host fp32[micro_batch, vocab] */
    int32_t transfer;       /* host: one panel of state and weights, to load and save them */
    int32_t persistent_count;
};

/* Which part of an optimizer step. */
struct mf_step_request {
    int32_t micro_first; /* 0: gradients start anew; > 0: they are added to what is there */
    int32_t micro_count; /* 0 = no micro-batch: the update or what is pending alone */
    bool backward;
    bool update;  /* norms, clipping, and the updates that are not deferred */
    bool pending; /* the deferred updates of the optimizer step before come first */
    bool redo;    /* among them those whose speculation did not hold */
    bool logits;  /* forward only: logits of one position of each sequence instead of the loss */
};

/* The graphs an executor keeps for a job. Where a plan defers updates, a graph that begins an
 * optimizer step lays those of the step before between the operations of its first forward: each
 * just ahead of the block that reads the weights.
 * The job's memory is the largest of each space over all of
 * them, so everything that can be asked of a session is admitted at once. */
enum mf_step_variant {
    MF_STEP_RUN,          /* a whole optimizer step of `accumulation` micro-batches */
    MF_STEP_FIRST,        /* forward and backward of the first micro-batch */
    MF_STEP_LATER,        /* of a later one */
    MF_STEP_FIRST_UPDATE, /* with the update behind it */
    MF_STEP_LATER_UPDATE,
    MF_STEP_UPDATE,
    MF_STEP_FLUSH,    /* the deferred updates alone */
    MF_STEP_EVALUATE, /* forward only, loss */
    MF_STEP_LOGITS,   /* forward only, logits */
    MF_STEP_RUN_REDO, /* those that begin with pending updates, after speculation failed */
    MF_STEP_FIRST_REDO,
    MF_STEP_FIRST_UPDATE_REDO,
    MF_STEP_FLUSH_REDO,
    MF_STEP_VARIANT_COUNT
};

struct mf_step {
    struct mf_step_request request;
    int32_t task_count;
    struct mf_task *tasks;
    int32_t buffer_count;
    struct mf_buffer *buffers;
    struct mf_step_layout layout;
    int64_t space_bytes[MF_SPACE_COUNT]; /* arena sizes this graph needs, exact */
};

enum mf_status mf_step_build(const struct mf_model *model, const struct mf_plan *plan,
                             const struct mf_step_request *request,
                             struct mf_step *out) MF_MUST_USE;
void mf_step_reset(struct mf_step *step);
/* The variant that also redoes what speculation did wrong; `variant` where there is none. */
enum mf_step_variant mf_step_variant_redo(enum mf_step_variant variant);
/* The request of a variant under the plan's workload. */
struct mf_step_request mf_step_variant_request(const struct mf_plan *plan,
                                               enum mf_step_variant variant);
/* Arena bytes a job of this plan reserves: the maximum over all variants. */
enum mf_status mf_step_peak(const struct mf_model *model, const struct mf_plan *plan,
                            int64_t out[static MF_SPACE_COUNT]) MF_MUST_USE;
/* Lane and space of memory by purpose at the moment of the device peak, for reports. */
void mf_step_purposes(const struct mf_step *step, int64_t device[static MF_PURPOSE_COUNT],
                      int64_t host[static MF_PURPOSE_COUNT]);
/* What a kernel that writes a gradient straight to host memory does: MF_SHAPE_OUTPUT_HOST, and
 * MF_SHAPE_TOUCHED where the rows that stay zero can be left out. */
uint32_t mf_step_direct_flags(enum mf_unit_kind kind, bool sums);
/* Contributions that one optimizer step adds into the gradient of `owner`; > 1 means fp32. */
int32_t mf_step_contributions(const struct mf_model *model, const struct mf_workload *workload,
                              int32_t owner);
const char *mf_step_phase_name(enum mf_phase phase);

#endif
