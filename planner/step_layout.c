/* The persistent buffers of a plan: the same list, in the same order, in each of its graphs. */
#include <stdlib.h>

#include "planner/step_builder.h"

static int32_t *per_unit(const struct mf_step_builder *builder)
{
    int32_t count = builder->model->unit_count;
    int32_t *array = malloc((size_t)(count > 0 ? count : 1) * sizeof(*array));
    MF_ASSERT(array != NULL);
    for (int32_t i = 0; i < count; i++) {
        array[i] = -1;
    }
    return array;
}

/* Parameters or state in host memory; twice where an update may have to be undone. */
static int32_t host_panels(struct mf_step_builder *builder, int32_t index, enum mf_purpose purpose,
                           int64_t bytes)
{
    int32_t panels = builder->model->units[index].panel_count;
    bool twins = mf_step_update_speculates(builder, index);
    int64_t half = (bytes + MF_BUFFER_ALIGN - 1) / MF_BUFFER_ALIGN * MF_BUFFER_ALIGN;
    int32_t buffer =
        mf_step_builder_buffer(builder, MF_SPACE_HOST, purpose, twins ? 2 * half : bytes,
                               twins ? 2 * panels : panels, index);
    builder->step->buffers[buffer].twin = twins ? half : 0;
    return buffer;
}

static void build_unit(struct mf_step_builder *builder, int32_t index)
{
    struct mf_step_layout *layout = &builder->step->layout;
    const struct mf_unit *unit = &builder->model->units[index];
    const struct mf_unit_decision *decision = mf_step_builder_decision(builder, index);
    bool resident = decision->forward == MF_WEIGHT_FORWARD_RESIDENT;
    int32_t panels = unit->panel_count;

    if (resident) {
        layout->weight_device[index] = mf_step_builder_buffer(
            builder, MF_SPACE_DEVICE, MF_PURPOSE_WEIGHT, unit->elements * 2, panels, index);
    }
    if (!resident || decision->optimizer == MF_OPTIMIZER_CPU ||
        mf_step_update_speculates(builder, index)) {
        layout->weight_host[index] =
            host_panels(builder, index, MF_PURPOSE_WEIGHT, unit->elements * 2);
    }
    int64_t gradient_bytes = unit->elements * (mf_step_builder_sums(builder, index) ? 4 : 2);
    enum mf_space gradient_space =
        decision->gradient == MF_GRADIENT_DEVICE ? MF_SPACE_DEVICE : MF_SPACE_HOST;
    layout->gradient[index] = mf_step_builder_buffer(builder, gradient_space, MF_PURPOSE_GRADIENT,
                                                     gradient_bytes, panels, index);
    uint32_t flags = mf_step_direct_flags(unit->kind, mf_step_builder_sums(builder, index));
    if (decision->gradient == MF_GRADIENT_DIRECT && (flags & MF_SHAPE_TOUCHED) != 0) {
        layout->marks[index] = mf_step_builder_buffer(builder, MF_SPACE_DEVICE, MF_PURPOSE_GRADIENT,
                                                      unit->rows, panels, index);
    }
    layout->state[index] =
        decision->optimizer == MF_OPTIMIZER_GPU
            ? mf_step_builder_buffer(builder, MF_SPACE_DEVICE, MF_PURPOSE_STATE,
                                     unit->elements * MF_STATE_BYTES, panels, index)
            : host_panels(builder, index, MF_PURPOSE_STATE, unit->elements * MF_STATE_BYTES);
}

static void want(int64_t *slot_bytes, bool wanted, int64_t bytes)
{
    if (wanted && bytes > *slot_bytes) {
        *slot_bytes = bytes;
    }
}

/* Slot sizes: the largest panel among the units that use each ring. */
static void measure_rings(const struct mf_step_builder *builder,
                          int64_t slot_bytes[static MF_RING_COUNT])
{
    for (int32_t i = 0; i < builder->model->unit_count; i++) {
        const struct mf_unit *unit = &builder->model->units[i];
        const struct mf_unit_decision *decision = mf_step_builder_decision(builder, i);
        int64_t panel = unit->panel_elements;
        bool through_ring = (decision->forward == MF_WEIGHT_FORWARD_STREAM &&
                             decision->backward != MF_WEIGHT_BACKWARD_KEEP) ||
                            decision->backward == MF_WEIGHT_BACKWARD_STREAM;
        want(&slot_bytes[MF_RING_WEIGHT], through_ring, panel * 2);
        if (unit->owner != i) {
            continue;
        }
        bool sums = mf_step_builder_sums(builder, i);
        bool on_device = decision->gradient == MF_GRADIENT_DEVICE;
        bool passes = decision->optimizer == MF_OPTIMIZER_GPU_STREAM;
        bool by_cpu = decision->optimizer == MF_OPTIMIZER_CPU;
        bool resident = decision->forward == MF_WEIGHT_FORWARD_RESIDENT;
        want(&slot_bytes[MF_RING_GRADIENT],
             decision->gradient == MF_GRADIENT_COPY || (on_device && sums), panel * 2);
        want(&slot_bytes[MF_RING_STAGING], !on_device && sums, panel * 2);
        want(&slot_bytes[MF_RING_STAGING], on_device && by_cpu, panel * (sums ? 4 : 2));
        want(&slot_bytes[MF_RING_STATE], passes, panel * MF_STATE_BYTES);
        want(&slot_bytes[MF_RING_UPDATE_WEIGHT], !by_cpu && !resident, panel * 2);
        want(&slot_bytes[MF_RING_UPDATE_GRADIENT], passes && !on_device, panel * (sums ? 4 : 2));
    }
}

static void build_rings(struct mf_step_builder *builder)
{
    static const struct {
        enum mf_space space;
        enum mf_purpose purpose;
        int32_t slots;
    } kinds[MF_RING_COUNT] = {
        [MF_RING_WEIGHT] = {MF_SPACE_DEVICE, MF_PURPOSE_RING, 0},
        [MF_RING_GRADIENT] = {MF_SPACE_DEVICE, MF_PURPOSE_GRADIENT, MF_STEP_GRADIENT_SLOTS},
        [MF_RING_STAGING] = {MF_SPACE_HOST, MF_PURPOSE_GRADIENT, MF_STEP_STAGING_SLOTS},
        [MF_RING_STATE] = {MF_SPACE_DEVICE, MF_PURPOSE_STATE, MF_STEP_PASSING_SLOTS},
        [MF_RING_UPDATE_WEIGHT] = {MF_SPACE_DEVICE, MF_PURPOSE_STATE, MF_STEP_PASSING_SLOTS},
        [MF_RING_UPDATE_GRADIENT] = {MF_SPACE_DEVICE, MF_PURPOSE_STATE, MF_STEP_PASSING_SLOTS},
    };
    int64_t slot_bytes[MF_RING_COUNT] = {0};
    measure_rings(builder, slot_bytes);
    for (int ring = 0; ring < MF_RING_COUNT; ring++) {
        struct mf_step_ring_state *state = &builder->rings[ring];
        *state = (struct mf_step_ring_state){.buffer = -1};
        if (slot_bytes[ring] == 0) {
            continue;
        }
        state->slots = ring == MF_RING_WEIGHT ? builder->plan->ring_slots : kinds[ring].slots;
        state->slot_bytes =
            (slot_bytes[ring] + MF_BUFFER_ALIGN - 1) / MF_BUFFER_ALIGN * MF_BUFFER_ALIGN;
        state->buffer = mf_step_builder_buffer(builder, kinds[ring].space, kinds[ring].purpose,
                                               state->slots * state->slot_bytes, state->slots, -1);
    }
}

static int32_t host(struct mf_step_builder *builder, int64_t bytes, int32_t resources)
{
    return mf_step_builder_buffer(builder, MF_SPACE_HOST, MF_PURPOSE_WORKSPACE, bytes, resources,
                                  -1);
}

static void build_shared(struct mf_step_builder *builder)
{
    const struct mf_model *model = builder->model;
    const struct mf_workload *workload = &builder->plan->workload;
    struct mf_step_layout *layout = &builder->step->layout;
    int32_t micros = workload->accumulation;
    layout->control = host(builder, 2 * (int64_t)sizeof(struct mf_control), 3);
    layout->squares = host(builder, builder->square_count * 8ll, builder->square_count);
    int64_t panel_elements = 0;
    for (int32_t i = 0; i < model->unit_count; i++) {
        want(&panel_elements, true, model->units[i].panel_elements);
    }
    layout->transfer = host(builder, panel_elements * (MF_STATE_BYTES + 2), 1);
    layout->rope_table = -1;
    layout->logits = -1;
    layout->tokens_host = layout->labels_host = layout->results = layout->logprobs = -1;
    if (!model->executable) {
        return;
    }
    layout->tokens_host = host(builder, micros * builder->rows * 4, micros);
    layout->labels_host = host(builder, micros * builder->rows * 4, micros);
    layout->results = host(builder, micros * 16ll, micros);
    layout->logprobs = host(builder, micros * builder->rows * 4, micros);
    layout->logits = host(builder, workload->micro_batch * model->vocab * 4, 1);
    for (int32_t i = 0; i < model->op_count && layout->rope_table < 0; i++) {
        if (model->ops[i].kind == MF_OP_ROPE) {
            layout->rope_table =
                mf_step_builder_buffer(builder, MF_SPACE_DEVICE, MF_PURPOSE_WORKSPACE,
                                       workload->seq_len * model->head_dim * 4, 1, -1);
        }
    }
}

void mf_step_layout_build(struct mf_step_builder *builder)
{
    const struct mf_model *model = builder->model;
    struct mf_step_layout *layout = &builder->step->layout;
    layout->weight_device = per_unit(builder);
    layout->weight_host = per_unit(builder);
    layout->gradient = per_unit(builder);
    layout->marks = per_unit(builder);
    layout->state = per_unit(builder);
    builder->square_first = per_unit(builder);
    for (int32_t i = 0; i < model->unit_count; i++) {
        if (model->units[i].owner == i) {
            builder->square_first[i] = builder->square_count;
            builder->square_count += model->units[i].panel_count;
        }
    }
    build_shared(builder);
    for (int32_t i = 0; i < model->unit_count; i++) {
        if (model->units[i].owner == i) {
            build_unit(builder, i);
        }
    }
    for (int32_t i = 0; i < model->unit_count; i++) {
        int32_t owner = model->units[i].owner;
        layout->weight_device[i] = layout->weight_device[owner];
        layout->weight_host[i] = layout->weight_host[owner];
        layout->gradient[i] = layout->gradient[owner];
        layout->state[i] = layout->state[owner];
    }
    build_rings(builder);
    layout->persistent_count = builder->step->buffer_count;
    for (int32_t i = 0; i < layout->persistent_count; i++) {
        builder->step->buffers[i].persistent = true;
    }
}
