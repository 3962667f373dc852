/*
 * Weight gradients on their way from the kernel that computes them to where the update reads them.
 *
 * Each contribution (one micro-batch, one use of the parameters) is a bf16 panel. A single
 * contribution is the gradient; several are added in fp32, in the order they are computed.
 */
#include "planner/step_builder.h"

/* A table's gradient is zero but for the rows that tokens name. Where one kernel a step writes it,
 * into the buffer that the update reads, what it wrote the last time is known: only those rows and
 * the new ones cross the link. */
uint32_t mf_step_direct_flags(enum mf_unit_kind kind, bool sums)
{
    bool touched = kind == MF_UNIT_EMBEDDING && !sums;
    return MF_SHAPE_OUTPUT_HOST | (touched ? (uint32_t)MF_SHAPE_TOUCHED : 0u);
}

struct mf_step_ref mf_step_gradient_marks(const struct mf_step_builder *builder, int32_t index,
                                          int32_t panel)
{
    int32_t owner = mf_step_builder_owner(builder, index);
    const struct mf_unit *unit = &builder->model->units[owner];
    return (struct mf_step_ref){.buffer = builder->step->layout.marks[owner],
                                .resource = panel,
                                .resource_count = 1,
                                .offset = mf_model_panel_first_row(unit, panel)};
}

struct mf_step_ref mf_step_gradient_target(struct mf_step_builder *builder, int32_t index,
                                           int32_t panel, uint32_t *flags)
{
    int32_t owner = mf_step_builder_owner(builder, index);
    enum mf_gradient choice = mf_step_builder_decision(builder, owner)->gradient;
    bool sums = mf_step_builder_sums(builder, owner);
    if (choice == MF_GRADIENT_DIRECT) {
        *flags |= mf_step_direct_flags(builder->model->units[owner].kind, sums);
        return sums ? mf_step_builder_slot(builder, MF_RING_STAGING)
                    : mf_step_builder_gradient(builder, owner, panel);
    }
    if (choice == MF_GRADIENT_DEVICE && !sums) {
        return mf_step_builder_gradient(builder, owner, panel);
    }
    return mf_step_builder_slot(builder, MF_RING_GRADIENT);
}

/* The first contribution of an optimizer step: of the unit used last in the forward. */
static bool is_first(const struct mf_step_builder *builder, int32_t index, int32_t owner)
{
    if (builder->request.micro_first + builder->micro > 0) {
        return false;
    }
    for (int32_t i = index + 1; i < builder->model->unit_count; i++) {
        if (builder->model->units[i].owner == owner) {
            return false;
        }
    }
    return true;
}

/* The last one: of the owner, in the last micro-batch of a graph that goes on to the update. */
static bool is_last(const struct mf_step_builder *builder, int32_t index, int32_t owner)
{
    return builder->request.update && builder->micro == builder->request.micro_count - 1 &&
           index == owner;
}

static void accumulate(struct mf_step_builder *builder, enum mf_lane lane, int32_t index,
                       int32_t panel, struct mf_step_ref from)
{
    int32_t owner = mf_step_builder_owner(builder, index);
    struct mf_step_ref refs[] = {from, mf_step_builder_gradient(builder, owner, panel)};
    struct mf_shape shape = {
        .n = mf_model_panel_size(&builder->model->units[owner], panel),
        .flags = is_first(builder, index, owner) ? MF_SHAPE_FIRST_MICRO : 0,
    };
    struct mf_task *task =
        mf_step_builder_task(builder, lane, MF_KERNEL_GRADIENT_ACCUMULATE, shape, refs, 2);
    task->unit = index;
    task->panel = panel;
}

void mf_step_gradient_deliver(struct mf_step_builder *builder, int32_t index, int32_t panel,
                              struct mf_step_ref target)
{
    int32_t owner = mf_step_builder_owner(builder, index);
    enum mf_gradient choice = mf_step_builder_decision(builder, owner)->gradient;
    bool sums = mf_step_builder_sums(builder, owner);
    int64_t bytes = mf_model_panel_size(&builder->model->units[owner], panel) * 2;

    struct mf_step_ref computed = target;
    if (choice == MF_GRADIENT_COPY) {
        struct mf_step_ref to = sums ? mf_step_builder_slot(builder, MF_RING_STAGING)
                                     : mf_step_builder_gradient(builder, owner, panel);
        mf_step_builder_copy(builder, target, to, bytes, index, panel);
        target = to;
    }
    if (sums) {
        enum mf_lane lane = choice == MF_GRADIENT_DEVICE ? MF_LANE_COMPUTE : MF_LANE_CPU;
        accumulate(builder, lane, index, panel, target);
    }
    if (is_last(builder, index, owner)) {
        mf_step_update_gradient(builder, owner, panel,
                                sums ? mf_step_builder_gradient(builder, owner, panel) : computed);
    }
}
