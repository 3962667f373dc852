/*
 * The step builder: private to planner/step*.c. Grows the arrays of tasks and buffers, derives
 * dependencies from what each task reads and writes, and keeps what is known while a micro-batch
 * is laid out.
 *
 * A buffer has one or more resources (its panels or slots); a task names the resources it touches.
 * A read waits for the resource's last write, a write also for all reads since.
 * Owner: the caller of mf_step_build. Thread: one. Fails: only by MF_TASKS_MAX (`overflow`).
 */
#ifndef MF_PLANNER_STEP_BUILDER_H
#define MF_PLANNER_STEP_BUILDER_H

#include "planner/step.h"

/* Slots of the small rings; the weight ring's depth is the plan's decision. */
#define MF_STEP_GRADIENT_SLOTS 3
#define MF_STEP_STAGING_SLOTS 4
/* Updates on the device of what lies in host memory, state or weight: how many wait for it, and the
 * slots for it, so that one waits, one comes in and one goes home. */
#define MF_STEP_PASSING_MAX 1
#define MF_STEP_PASSING_SLOTS 3

enum mf_step_ring {
    MF_RING_WEIGHT,          /* device: streamed weight panels */
    MF_RING_GRADIENT,        /* device: gradient panels on their way out or into a sum */
    MF_RING_STAGING,         /* host: gradient panels on their way into a sum or an update */
    MF_RING_STATE,           /* device: optimizer state passing through */
    MF_RING_UPDATE_WEIGHT,   /* device: weights that pass through to be updated */
    MF_RING_UPDATE_GRADIENT, /* device: gradients on their way to a streamed update */
    MF_RING_COUNT
};

struct mf_step_ring_state {
    int32_t buffer; /* -1 = this plan needs none */
    int32_t slots;
    int64_t slot_bytes;
    int32_t next;
};

/* A use of part of a buffer by a task. */
struct mf_step_ref {
    int32_t buffer; /* -1 = no operand */
    int32_t resource;
    int32_t resource_count;
    int64_t offset;
    int64_t stride;
    bool next; /* see struct mf_task_operand */
};

#define MF_STEP_NO_REF ((struct mf_step_ref){.buffer = -1})

struct mf_step_hazard {
    int32_t last_write;
    int32_t last_read[MF_LANE_COUNT];
};

/* A panel that the CPU updates and the device holds: its copy is issued last. */
struct mf_step_upload {
    int32_t owner;
    int32_t panel;
};

/* An update whose state or weight is on its way to the device. */
struct mf_step_passing {
    int32_t owner;
    int32_t panel;
    struct mf_step_ref gradient;
    struct mf_step_ref state;
    struct mf_step_ref weight;
};

struct mf_step_builder {
    const struct mf_model *model;
    const struct mf_plan *plan;
    struct mf_step_request request;
    struct mf_step *step;
    int64_t rows; /* tokens of a micro-batch */
    bool *sums;   /* per unit: its gradient is a sum of several contributions */
    bool overflow;
    int32_t task_capacity, buffer_capacity, hazard_count, hazard_capacity;
    struct mf_step_hazard *hazards;
    int32_t *hazard_first;                  /* per buffer: its first resource */
    int32_t (*first_access)[MF_LANE_COUNT]; /* per buffer */
    struct mf_step_ring_state rings[MF_RING_COUNT];
    struct mf_step_upload *uploads;
    int32_t upload_count, upload_capacity;
    struct mf_step_passing passing[MF_STEP_PASSING_MAX + 1];
    int32_t passing_count;

    int32_t pending_done; /* panels of the present block of pending updates that are laid out */

    /* Where we are. */
    bool pending;     /* laying out updates of the step before */
    bool speculative; /* or updates before the norm is known */
    enum mf_phase phase;
    int32_t block;
    int32_t micro;

    /* Of the present micro-batch; buffer indices, -1 = none. */
    int32_t tokens, labels, lse, running;
    int32_t *values;      /* per value: device buffer */
    int32_t *values_host; /* per value: offloaded copy */
    int32_t *aux;         /* per op: statistics of a norm, lse of attention */
    int32_t *aux_host;
    int32_t *inputs;           /* per op: outside input of a model that is a bare list of units */
    int32_t *value_gradients;  /* per value */
    int64_t *gradient_written; /* per value: bit mask of the uses' columns already written */
    int32_t *unit_buffers;     /* per unit: whole copy in device memory (keep, late) */
    int32_t *square_first;     /* per unit: index of its first panel in `squares` */
    int32_t square_count;
};

int32_t mf_step_builder_buffer(struct mf_step_builder *builder, enum mf_space space,
                               enum mf_purpose purpose, int64_t bytes, int32_t resources,
                               int32_t unit);
/* Appends a task whose operands are `refs`; what each operand's access is follows from the kernel.
 * Returns its index (valid until the arrays grow; use it as an index only). */
struct mf_task *mf_step_builder_task(struct mf_step_builder *builder, enum mf_lane lane,
                                     enum mf_kernel kernel, struct mf_shape shape,
                                     const struct mf_step_ref *refs, int32_t ref_count);
/* The next slot of a ring; stride 0. */
struct mf_step_ref mf_step_builder_slot(struct mf_step_builder *builder, enum mf_step_ring ring);
/* COPY of `bytes` on the lane that fits the direction. */
void mf_step_builder_copy(struct mf_step_builder *builder, struct mf_step_ref from,
                          struct mf_step_ref to, int64_t bytes, int32_t unit, int32_t panel);
/* Whole buffer, one resource. */
struct mf_step_ref mf_step_builder_whole(int32_t buffer, int64_t stride);

/* A panel of a buffer that holds all of a unit's elements. */
struct mf_step_ref mf_step_builder_panel(const struct mf_unit *unit, int32_t buffer, int32_t panel,
                                         int64_t element_bytes);
/* The same panel in the other half of a buffer of twins; of any other buffer itself. */
struct mf_step_ref mf_step_builder_next(const struct mf_step_builder *builder,
                                        const struct mf_unit *unit, struct mf_step_ref panel);
/* A panel of the whole gradient that the update reads. */
struct mf_step_ref mf_step_builder_gradient(const struct mf_step_builder *builder, int32_t owner,
                                            int32_t panel);
/* What all kernels of an operation share: tokens, sequence length, heads. */
struct mf_shape mf_step_builder_shape(const struct mf_step_builder *builder,
                                      const struct mf_op *op);
/* The unit that owns the parameters of `unit`, and its decision. */
int32_t mf_step_builder_owner(const struct mf_step_builder *builder, int32_t unit);
const struct mf_unit_decision *mf_step_builder_decision(const struct mf_step_builder *builder,
                                                        int32_t unit);
/* Whether the gradient of `owner` is summed in fp32. */
bool mf_step_builder_sums(const struct mf_step_builder *builder, int32_t owner);

/* step_layout.c: all persistent buffers. */
void mf_step_layout_build(struct mf_step_builder *builder);
/* step_weight.c: one panel of a unit's weights for a kernel of this phase; loads it if it must.
 * Sets MF_SHAPE_WEIGHT_HOST in *flags and the bytes read in place. */
struct mf_step_ref mf_step_weight_panel(struct mf_step_builder *builder, int32_t unit,
                                        int32_t panel, uint32_t *flags);
/* Loads the units of `block` that are read in place in the forward and copied for the backward. */
void mf_step_weight_load_late(struct mf_step_builder *builder, int32_t block);
/* step_gradient.c: where a weight-gradient kernel writes its panel, and what happens to it then. */
struct mf_step_ref mf_step_gradient_target(struct mf_step_builder *builder, int32_t unit,
                                           int32_t panel, uint32_t *flags);
/* The marks of such a panel's rows, with MF_SHAPE_TOUCHED. */
struct mf_step_ref mf_step_gradient_marks(const struct mf_step_builder *builder, int32_t unit,
                                          int32_t panel);
void mf_step_gradient_deliver(struct mf_step_builder *builder, int32_t unit, int32_t panel,
                              struct mf_step_ref target);
/* step_update.c: whether the update of `owner` begins before the norm is known. */
bool mf_step_update_speculates(const struct mf_step_builder *builder, int32_t owner);
/* What follows a finished gradient, its norm and, where nothing holds it up, its
 * update; the end of an optimizer step. */
void mf_step_update_gradient(struct mf_step_builder *builder, int32_t owner, int32_t panel,
                             struct mf_step_ref gradient);
void mf_step_update_finish(struct mf_step_builder *builder);
/* Pending updates: as many of `block` as bring those laid out to `part` of `parts`; what the
 * forward of `block` needs finished; all of them. */
void mf_step_update_advance(struct mf_step_builder *builder, int32_t block, int32_t part,
                            int32_t parts);
void mf_step_update_arrive(struct mf_step_builder *builder, int32_t block);
void mf_step_update_flush(struct mf_step_builder *builder);
/* step_forward.c and step_backward.c. */
void mf_step_forward_op(struct mf_step_builder *builder, int32_t op);
void mf_step_forward_micro(struct mf_step_builder *builder);
void mf_step_backward_micro(struct mf_step_builder *builder);
/* A use of a value as an operand, in the buffer it now lies in. */
struct mf_step_ref mf_step_forward_use(struct mf_step_builder *builder, int32_t op, int32_t input);
/* Bytes of a panel that cross the link when a kernel uses it in place: all, or of a table the rows
 * that tokens name, spread evenly over the panels. */
int64_t mf_step_forward_direct_bytes(const struct mf_step_builder *builder,
                                     const struct mf_unit *unit, int32_t panel, bool touched);

/* What the backward of an operation needs from its forward. */
struct mf_step_saves {
    uint32_t inputs; /* bit per input */
    bool output;
    bool aux;
};
extern const struct mf_step_saves mf_step_forward_saves[MF_OP_KIND_COUNT];
/* Bytes of an operation's aux buffer, 0 = it has none. */
int64_t mf_step_forward_aux_bytes(const struct mf_step_builder *builder, int32_t op);

#endif
