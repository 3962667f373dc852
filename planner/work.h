/*
 * The work of every choice: what each unit and block adds to each lane, and the device memory it
 * holds, under every decision a plan can take for it.
 *
 * What: read from three small step graphs (everything resident with activations kept, recomputed
 *   and offloaded), so it follows the builder; then a plan's lane totals are a sum over its
 *   decisions. That sum never exceeds what the plan's graph does on a lane, which makes it the base
 *   of the lower bound and a cheap filter for the search.
 * Who calls it: bound.c, solve*.c. Owner: the caller; mf_work_reset. Thread: one builder, then
 *   read-only. Pure. Fails: as mf_step_build.
 */
#ifndef MF_PLANNER_WORK_H
#define MF_PLANNER_WORK_H

#include "core/hardware.h"
#include "core/profile.h"
#include "planner/step.h"

/* The valid combinations of a unit's weight choices, and of an owner's gradient and optimizer. */
#define MF_WORK_WEIGHTS 7
#define MF_WORK_UPDATES 7
struct mf_work_weight_choice {
    enum mf_weight_forward forward;
    enum mf_weight_backward backward;
};
struct mf_work_update_choice {
    enum mf_gradient gradient;
    enum mf_optimizer optimizer;
};
extern const struct mf_work_weight_choice mf_work_weights[MF_WORK_WEIGHTS];
extern const struct mf_work_update_choice mf_work_updates[MF_WORK_UPDATES];
#define MF_WORK_WEIGHT_RESIDENT 0 /* its index in mf_work_weights */
/* The index of a decision's choice; -1 for a combination that is not valid. */
int mf_work_find_weight(enum mf_weight_forward forward, enum mf_weight_backward backward);
int mf_work_find_update(enum mf_gradient gradient, enum mf_optimizer optimizer);

struct mf_work_lanes {
    double ns[MF_LANE_COUNT];
};

/* When the work of an owner's update can begin. */
enum mf_work_when {
    MF_WORK_BEFORE, /* gradient kernels and what brings each contribution to its place */
    MF_WORK_NORM,   /* needs the final gradient */
    MF_WORK_AFTER,  /* needs the final gradient (with clipping: all gradients) */
    MF_WORK_FREE,   /* the same, but for copies into the slots of a small ring */
    MF_WORK_WHEN_COUNT
};

struct mf_work_unit {
    struct mf_work_lanes weight[MF_WORK_WEIGHTS];  /* one optimizer step */
    struct mf_work_lanes forward[MF_WORK_WEIGHTS]; /* of that, in forwards */
    int64_t weight_bytes[MF_WORK_WEIGHTS];         /* device memory when the loss is computed */
    /* Of owners; [0] = weights not resident, [1] = resident. */
    struct mf_work_lanes update[2][MF_WORK_UPDATES][MF_WORK_WHEN_COUNT];
    int64_t update_bytes[MF_WORK_UPDATES];
    double copy_ns;        /* all panels to the device */
    double forward_ns;     /* forward kernels of one micro-batch with resident weights */
    bool read_in_backward; /* a kernel of the backward reads the weights */
};

struct mf_work_block {
    struct mf_work_lanes activation[MF_ACTIVATION_COUNT]; /* more than KEEP, one optimizer step */
    int64_t kept_bytes; /* that KEEP holds when the loss is computed and RECOMPUTE does not */
};

struct mf_work {
    int32_t unit_count, block_count;
    struct mf_work_unit *units;
    struct mf_work_block *blocks;
    double compute_ns;          /* kernels of no unit, one optimizer step */
    double compute_forward_ns;  /* of that, in forwards */
    struct mf_work_lanes ahead; /* of MF_WORK_FREE, at most so much comes early */
    int32_t task_count;         /* of one micro-batch with everything resident */
};

enum mf_status mf_work_build(const struct mf_model *model, const struct mf_workload *workload,
                             const struct mf_hardware *hardware, const struct mf_profile *profile,
                             struct mf_work *out) MF_MUST_USE;
void mf_work_reset(struct mf_work *work);
/* What `plan` does on each lane at least, and the device bytes that it holds at least. */
void mf_work_plan(const struct mf_work *work, const struct mf_model *model,
                  const struct mf_plan *plan, struct mf_work_lanes *lanes, int64_t *device_bytes);

#endif
