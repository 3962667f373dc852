/* Weights on their way to a kernel: resident, streamed, read in place, or loaded late. */
#include "planner/step_builder.h"

static struct mf_step_ref panel_ref(const struct mf_unit *unit, int32_t buffer, int32_t panel)
{
    struct mf_step_ref ref = mf_step_builder_panel(unit, buffer, panel, 2);
    ref.stride = unit->columns;
    return ref;
}

static void load(struct mf_step_builder *builder, int32_t index, int32_t panel,
                 struct mf_step_ref to)
{
    const struct mf_unit *unit = &builder->model->units[index];
    struct mf_step_ref from = panel_ref(unit, builder->step->layout.weight_host[index], panel);
    mf_step_builder_copy(builder, from, to, mf_model_panel_size(unit, panel) * 2, index, panel);
}

/* A whole copy of the unit in device memory; made when the forward or the late load first asks. */
static int32_t whole_copy(struct mf_step_builder *builder, int32_t index)
{
    const struct mf_unit *unit = &builder->model->units[index];
    if (builder->unit_buffers[index] < 0) {
        builder->unit_buffers[index] =
            mf_step_builder_buffer(builder, MF_SPACE_DEVICE, MF_PURPOSE_WEIGHT, unit->elements * 2,
                                   unit->panel_count, index);
    }
    return builder->unit_buffers[index];
}

struct mf_step_ref mf_step_weight_panel(struct mf_step_builder *builder, int32_t index,
                                        int32_t panel, uint32_t *flags)
{
    const struct mf_unit *unit = &builder->model->units[index];
    const struct mf_unit_decision *decision = mf_step_builder_decision(builder, index);
    const struct mf_step_layout *layout = &builder->step->layout;
    bool forward = builder->phase == MF_PHASE_FORWARD;
    bool direct = forward ? decision->forward == MF_WEIGHT_FORWARD_DIRECT
                          : decision->backward == MF_WEIGHT_BACKWARD_DIRECT;
    struct mf_step_ref ref;

    if (decision->forward == MF_WEIGHT_FORWARD_RESIDENT) {
        return panel_ref(unit, layout->weight_device[index], panel);
    }
    if (direct) {
        *flags |= MF_SHAPE_WEIGHT_HOST;
        return panel_ref(unit, layout->weight_host[index], panel);
    }
    if (decision->backward == MF_WEIGHT_BACKWARD_KEEP) {
        ref = panel_ref(unit, whole_copy(builder, index), panel);
        if (forward) {
            load(builder, index, panel, ref);
        }
        return ref;
    }
    if (!forward && decision->backward == MF_WEIGHT_BACKWARD_LATE) {
        return panel_ref(unit, whole_copy(builder, index), panel);
    }
    ref = mf_step_builder_slot(builder, MF_RING_WEIGHT);
    ref.stride = unit->columns;
    load(builder, index, panel, ref);
    return ref;
}

void mf_step_weight_load_late(struct mf_step_builder *builder, int32_t block)
{
    const struct mf_block *extent = &builder->model->blocks[block];
    for (int32_t i = extent->unit_count - 1; i >= 0; i--) {
        int32_t index = extent->unit_first + i;
        const struct mf_unit *unit = &builder->model->units[index];
        if (mf_step_builder_decision(builder, index)->backward != MF_WEIGHT_BACKWARD_LATE ||
            builder->unit_buffers[index] >= 0) {
            continue;
        }
        int32_t buffer = whole_copy(builder, index);
        for (int32_t panel = 0; panel < unit->panel_count; panel++) {
            load(builder, index, panel, panel_ref(unit, buffer, panel));
        }
    }
}
