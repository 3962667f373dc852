/* The optimizer's part of a step: norms, clipping, and the update of each panel where it is due. */
#include <stdlib.h>
#include <string.h>

#include "planner/step_builder.h"

/* Where the gradient lies: on the device its second reading costs next to nothing. */
static void norm(struct mf_step_builder *builder, int32_t owner, int32_t panel,
                 struct mf_step_ref gradient)
{
    const struct mf_unit *unit = &builder->model->units[owner];
    bool on_device = builder->step->buffers[gradient.buffer].space == MF_SPACE_DEVICE;
    int32_t square = builder->square_first[owner] + panel;
    struct mf_step_ref refs[] = {
        gradient,
        {.buffer = builder->step->layout.squares,
         .resource = square,
         .resource_count = 1,
         .offset = square * 8ll},
    };
    struct mf_shape shape = {
        .n = mf_model_panel_size(unit, panel),
        .flags = mf_step_builder_sums(builder, owner) ? MF_SHAPE_GRADIENT_FP32 : 0,
    };
    enum mf_phase phase = builder->phase;
    builder->phase = MF_PHASE_UPDATE;
    struct mf_task *task = mf_step_builder_task(builder, on_device ? MF_LANE_COMPUTE : MF_LANE_CPU,
                                                MF_KERNEL_GRADIENT_NORM, shape, refs, 2);
    task->unit = owner;
    task->panel = panel;
    builder->phase = phase;
}

/* Resources of the control buffer. */
enum { CONTROL, CONTROL_NORM, CONTROL_PENDING };

static void clip(struct mf_step_builder *builder)
{
    struct mf_step_ref refs[] = {
        {.buffer = builder->step->layout.squares, .resource_count = builder->square_count},
        /* Without clipping only the norm is written, which no update reads. */
        {.buffer = builder->step->layout.control,
         .resource = builder->plan->workload.clip ? CONTROL : CONTROL_NORM,
         .resource_count = 1},
    };
    mf_step_builder_task(builder, MF_LANE_CPU, MF_KERNEL_CLIP,
                         (struct mf_shape){.n = builder->square_count}, refs, 2);
}

static struct mf_shape adamw_shape(const struct mf_step_builder *builder, int32_t owner,
                                   int32_t panel)
{
    const struct mf_unit *unit = &builder->model->units[owner];
    struct mf_shape shape = {
        .n = mf_model_panel_size(unit, panel),
        .k = mf_model_panel_row_count(unit, panel) * unit->columns,
    };
    shape.flags |= unit->weight.decay ? MF_SHAPE_DECAY_FIRST : 0;
    shape.flags |= unit->bias.name != NULL && unit->bias.decay ? MF_SHAPE_DECAY_REST : 0;
    shape.flags |= mf_step_builder_sums(builder, owner) ? MF_SHAPE_GRADIENT_FP32 : 0;
    return shape;
}

bool mf_step_update_speculates(const struct mf_step_builder *builder, int32_t owner)
{
    const struct mf_unit_decision *decision = mf_step_builder_decision(builder, owner);
    return builder->plan->workload.clip && builder->plan->speculate &&
           !mf_plan_defers(builder->plan, builder->model->units[owner].block) &&
           decision->optimizer != MF_OPTIMIZER_GPU;
}

/* With speculation what cannot be undone waits for the next forward. */
static bool is_deferred(const struct mf_step_builder *builder, int32_t owner)
{
    return mf_plan_defers(builder->plan, builder->model->units[owner].block) ||
           (builder->plan->workload.clip && builder->plan->speculate &&
            !mf_step_update_speculates(builder, owner));
}

/* What runs in the next forward, of the step before. */
static bool is_pending(const struct mf_step_builder *builder, int32_t owner)
{
    return is_deferred(builder, owner) ||
           (builder->request.redo && mf_step_update_speculates(builder, owner));
}

/* A panel of parameters or state as an update leaves it: a speculative one spares what it read. */
static struct mf_step_ref result(const struct mf_step_builder *builder, int32_t owner,
                                 struct mf_step_ref panel)
{
    return builder->speculative
               ? mf_step_builder_next(builder, &builder->model->units[owner], panel)
               : panel;
}

static void adamw(struct mf_step_builder *builder, enum mf_lane lane, int32_t owner, int32_t panel,
                  struct mf_step_ref gradient, struct mf_step_ref state, struct mf_step_ref weight)
{
    struct mf_step_ref control = {
        .buffer = builder->step->layout.control,
        .resource = builder->pending ? CONTROL_PENDING : CONTROL,
        .resource_count = 1,
        .offset = builder->pending ? (int64_t)sizeof(struct mf_control) : 0,
    };
    /* On the device the results go to the other half with the copies home. */
    bool apart = builder->speculative && lane == MF_LANE_CPU;
    struct mf_shape shape = adamw_shape(builder, owner, panel);
    shape.flags |= apart ? MF_SHAPE_APART : 0;
    struct mf_step_ref refs[] = {gradient,
                                 state,
                                 weight,
                                 control,
                                 result(builder, owner, state),
                                 result(builder, owner, weight)};
    struct mf_task *task =
        mf_step_builder_task(builder, lane, MF_KERNEL_ADAMW, shape, refs, apart ? 6 : 4);
    task->unit = owner;
    task->panel = panel;
}

/* The copy waits for the CPU, and a lane is first in, first out: issued here, it would hold up the
 * weights and states that kernels before the weight's next use still need, so it goes behind them
 * all. */
static void add_upload(struct mf_step_builder *builder, int32_t owner, int32_t panel)
{
    if (builder->upload_count == builder->upload_capacity) {
        builder->upload_capacity =
            builder->upload_capacity == 0 ? 64 : builder->upload_capacity * 2;
        builder->uploads =
            realloc(builder->uploads, (size_t)builder->upload_capacity * sizeof(*builder->uploads));
        MF_ASSERT(builder->uploads != NULL);
    }
    builder->uploads[builder->upload_count++] = (struct mf_step_upload){owner, panel};
}

static void issue_uploads(struct mf_step_builder *builder)
{
    const struct mf_step_layout *layout = &builder->step->layout;
    for (int32_t i = 0; i < builder->upload_count; i++) {
        int32_t owner = builder->uploads[i].owner;
        int32_t panel = builder->uploads[i].panel;
        const struct mf_unit *unit = &builder->model->units[owner];
        builder->block = unit->block;
        struct mf_step_ref from = mf_step_builder_panel(unit, layout->weight_host[owner], panel, 2);
        mf_step_builder_copy(builder, result(builder, owner, from),
                             mf_step_builder_panel(unit, layout->weight_device[owner], panel, 2),
                             mf_model_panel_size(unit, panel) * 2, owner, panel);
    }
    builder->upload_count = 0;
}

static void update_on_cpu(struct mf_step_builder *builder, int32_t owner, int32_t panel)
{
    const struct mf_unit *unit = &builder->model->units[owner];
    const struct mf_step_layout *layout = &builder->step->layout;
    const struct mf_unit_decision *decision = mf_step_builder_decision(builder, owner);
    int64_t elements = mf_model_panel_size(unit, panel);
    struct mf_step_ref gradient = mf_step_builder_gradient(builder, owner, panel);
    struct mf_step_ref weight = mf_step_builder_panel(unit, layout->weight_host[owner], panel, 2);

    if (decision->gradient == MF_GRADIENT_DEVICE) {
        struct mf_step_ref staging = mf_step_builder_slot(builder, MF_RING_STAGING);
        mf_step_builder_copy(builder, gradient, staging,
                             elements * (mf_step_builder_sums(builder, owner) ? 4 : 2), owner,
                             panel);
        gradient = staging;
    }
    adamw(builder, MF_LANE_CPU, owner, panel, gradient,
          mf_step_builder_panel(unit, layout->state[owner], panel, MF_STATE_BYTES), weight);
    if (decision->forward == MF_WEIGHT_FORWARD_RESIDENT) {
        add_upload(builder, owner, panel);
    }
}

/* Where an owner's panel of state and of weights lies between updates. */
static struct mf_step_ref state_at_home(const struct mf_step_builder *builder, int32_t owner,
                                        int32_t panel)
{
    return mf_step_builder_panel(&builder->model->units[owner], builder->step->layout.state[owner],
                                 panel, MF_STATE_BYTES);
}

static struct mf_step_ref weight_at_home(const struct mf_step_builder *builder, int32_t owner,
                                         int32_t panel)
{
    const struct mf_step_layout *layout = &builder->step->layout;
    int32_t buffer = layout->weight_device[owner] >= 0 ? layout->weight_device[owner]
                                                       : layout->weight_host[owner];
    return mf_step_builder_panel(&builder->model->units[owner], buffer, panel, 2);
}

/* What of an update on the device lies in host memory between updates. */
static bool state_passes(const struct mf_step_builder *builder, int32_t owner)
{
    return mf_step_builder_decision(builder, owner)->optimizer == MF_OPTIMIZER_GPU_STREAM;
}

static bool weight_passes(const struct mf_step_builder *builder, int32_t owner)
{
    return mf_step_builder_decision(builder, owner)->forward != MF_WEIGHT_FORWARD_RESIDENT;
}

/* A resident weight that the device may have to take back has its halves in host memory, too. */
static bool is_mirrored(const struct mf_step_builder *builder, int32_t owner)
{
    return !weight_passes(builder, owner) && builder->step->layout.weight_host[owner] >= 0;
}

/* The second half of an update on the device: the kernel, and what goes home. */
static void finish_on_device(struct mf_step_builder *builder, const struct mf_step_passing *passing)
{
    const struct mf_unit *unit = &builder->model->units[passing->owner];
    int32_t owner = passing->owner;
    int32_t panel = passing->panel;
    int64_t elements = mf_model_panel_size(unit, panel);
    int32_t block = builder->block;

    builder->block = unit->block;
    adamw(builder, MF_LANE_COMPUTE, owner, panel, passing->gradient, passing->state,
          passing->weight);
    if (state_passes(builder, owner)) {
        struct mf_step_ref home = state_at_home(builder, owner, panel);
        mf_step_builder_copy(builder, passing->state, result(builder, owner, home),
                             elements * MF_STATE_BYTES, owner, panel);
    }
    if (weight_passes(builder, owner) || is_mirrored(builder, owner)) {
        struct mf_step_ref home =
            mf_step_builder_panel(unit, builder->step->layout.weight_host[owner], panel, 2);
        mf_step_builder_copy(builder, passing->weight, result(builder, owner, home), elements * 2,
                             owner, panel);
    }
    builder->block = block;
}

/* Finishes the oldest updates under way until no more than `left` are. */
static void finish_oldest(struct mf_step_builder *builder, int32_t left)
{
    int32_t done = builder->passing_count > left ? builder->passing_count - left : 0;
    for (int32_t i = 0; i < done; i++) {
        finish_on_device(builder, &builder->passing[i]);
    }
    builder->passing_count -= done;
    memmove(builder->passing, builder->passing + done,
            (size_t)builder->passing_count * sizeof(*builder->passing));
}

/* Copies a panel into the next slot of a ring. */
static struct mf_step_ref bring(struct mf_step_builder *builder, struct mf_step_ref from,
                                enum mf_step_ring ring, int64_t bytes, int32_t owner, int32_t panel)
{
    struct mf_step_ref slot = mf_step_builder_slot(builder, ring);
    mf_step_builder_copy(builder, from, slot, bytes, owner, panel);
    return slot;
}

/* Issues the copies to the device. The kernel follows with the next such update: right behind its
 * own copies it would hold up the compute lane, first in, first out, until they are there. Where
 * nothing comes in it follows at once. */
static void update_on_device(struct mf_step_builder *builder, int32_t owner, int32_t panel)
{
    int64_t elements = mf_model_panel_size(&builder->model->units[owner], panel);
    struct mf_step_passing passing = {.owner = owner,
                                      .panel = panel,
                                      .gradient = mf_step_builder_gradient(builder, owner, panel),
                                      .state = state_at_home(builder, owner, panel),
                                      .weight = weight_at_home(builder, owner, panel)};

    if (!state_passes(builder, owner) && !weight_passes(builder, owner)) {
        finish_on_device(builder, &passing);
        return;
    }
    if (builder->pending && is_mirrored(builder, owner)) { /* speculation has spoilt it */
        mf_step_builder_copy(builder,
                             mf_step_builder_panel(&builder->model->units[owner],
                                                   builder->step->layout.weight_host[owner], panel,
                                                   2),
                             passing.weight, elements * 2, owner, panel);
    }
    if (state_passes(builder, owner)) {
        passing.state =
            bring(builder, passing.state, MF_RING_STATE, elements * MF_STATE_BYTES, owner, panel);
    }
    if (weight_passes(builder, owner)) {
        passing.weight =
            bring(builder, passing.weight, MF_RING_UPDATE_WEIGHT, elements * 2, owner, panel);
    }
    if (mf_step_builder_decision(builder, owner)->gradient != MF_GRADIENT_DEVICE) {
        passing.gradient =
            bring(builder, passing.gradient, MF_RING_UPDATE_GRADIENT,
                  elements * (mf_step_builder_sums(builder, owner) ? 4 : 2), owner, panel);
    }
    builder->passing[builder->passing_count++] = passing;
    finish_oldest(builder, MF_STEP_PASSING_MAX);
}

static void update_panel(struct mf_step_builder *builder, int32_t owner, int32_t panel)
{
    static void (*const updates[MF_OPTIMIZER_COUNT])(struct mf_step_builder *, int32_t, int32_t) = {
        [MF_OPTIMIZER_CPU] = update_on_cpu,
        [MF_OPTIMIZER_GPU] = update_on_device,
        [MF_OPTIMIZER_GPU_STREAM] = update_on_device,
    };
    enum mf_phase phase = builder->phase;
    builder->phase = MF_PHASE_UPDATE;
    updates[mf_step_builder_decision(builder, owner)->optimizer](builder, owner, panel);
    builder->phase = phase;
}

void mf_step_update_gradient(struct mf_step_builder *builder, int32_t owner, int32_t panel,
                             struct mf_step_ref gradient)
{
    norm(builder, owner, panel, gradient);
    builder->speculative = mf_step_update_speculates(builder, owner);
    if (builder->speculative || (!builder->plan->workload.clip && !is_deferred(builder, owner))) {
        update_panel(builder, owner, panel);
    }
    builder->speculative = false;
}

void mf_step_update_finish(struct mf_step_builder *builder)
{
    const struct mf_model *model = builder->model;
    bool alone = builder->request.micro_count == 0;
    bool waits = builder->plan->workload.clip;
    builder->phase = MF_PHASE_UPDATE;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = model->unit_count - 1; i >= 0; i--) {
            bool norms = pass == 0 && alone;
            bool updates = pass == 1 && (alone || waits) && !is_deferred(builder, i) &&
                           !mf_step_update_speculates(builder, i);
            if (model->units[i].owner != i) {
                continue;
            }
            builder->block = model->units[i].block;
            for (int32_t panel = 0; panel < model->units[i].panel_count; panel++) {
                if (norms) {
                    norm(builder, i, panel, mf_step_builder_gradient(builder, i, panel));
                }
                if (updates) {
                    update_panel(builder, i, panel);
                }
            }
        }
        builder->speculative = waits && builder->plan->speculate;
        finish_oldest(builder, 0);
        builder->speculative = false;
        if (pass == 0) {
            builder->block = -1;
            clip(builder);
        }
    }
    builder->speculative = waits && builder->plan->speculate;
    issue_uploads(builder);
    builder->speculative = false;
}

/* ---- updates of the step before ---- */

static int32_t pending_panels(const struct mf_step_builder *builder, int32_t unit)
{
    const struct mf_unit *shape = &builder->model->units[unit];
    return shape->owner == unit && is_pending(builder, unit) ? shape->panel_count : 0;
}

static int32_t count_pending(const struct mf_step_builder *builder, int32_t block)
{
    const struct mf_block *extent = &builder->model->blocks[block];
    int32_t count = 0;
    for (int32_t i = 0; i < extent->unit_count; i++) {
        count += pending_panels(builder, extent->unit_first + i);
    }
    return count;
}

void mf_step_update_advance(struct mf_step_builder *builder, int32_t block, int32_t part,
                            int32_t parts)
{
    const struct mf_block *extent = &builder->model->blocks[block];
    int32_t present = builder->block;
    int32_t wanted = (int32_t)((int64_t)count_pending(builder, block) * part / parts);
    int32_t seen = 0;
    builder->block = block;
    builder->pending = true;
    for (int32_t i = 0; i < extent->unit_count; i++) {
        int32_t count = pending_panels(builder, extent->unit_first + i);
        for (int32_t panel = 0; panel < count; panel++, seen++) {
            if (seen >= builder->pending_done && seen < wanted) {
                update_panel(builder, extent->unit_first + i, panel);
            }
        }
    }
    builder->pending_done = wanted;
    builder->pending = false;
    builder->block = present;
}

void mf_step_update_arrive(struct mf_step_builder *builder, int32_t block)
{
    enum mf_phase phase = builder->phase;
    MF_ASSERT(builder->pending_done == count_pending(builder, block));
    builder->phase = MF_PHASE_UPDATE;
    builder->pending = true;
    builder->pending_done = 0;
    finish_oldest(builder, 0);
    issue_uploads(builder);
    builder->pending = false;
    builder->phase = phase;
}

void mf_step_update_flush(struct mf_step_builder *builder)
{
    for (int32_t block = 0; block < builder->model->block_count; block++) {
        mf_step_update_advance(builder, block, 1, 1);
        mf_step_update_arrive(builder, block);
    }
}
