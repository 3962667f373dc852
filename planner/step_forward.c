/* The forward of one micro-batch as tasks; also what a block's backward needs computed again. */
#include "planner/step_builder.h"

/* Indexed by enum mf_op_kind. */
const struct mf_step_saves mf_step_forward_saves[MF_OP_KIND_COUNT] = {
    [MF_OP_EMBEDDING] = {0},
    [MF_OP_POSITION] = {0},
    [MF_OP_RMS_NORM] = {.inputs = 1, .aux = true},
    [MF_OP_LAYER_NORM] = {.inputs = 1, .aux = true},
    [MF_OP_LINEAR] = {.inputs = 1},
    [MF_OP_ROPE] = {0},
    [MF_OP_ATTENTION] = {.inputs = 7, .output = true, .aux = true},
    [MF_OP_GELU] = {.inputs = 1},
    [MF_OP_SWIGLU] = {.inputs = 3},
    [MF_OP_ADD] = {0},
    [MF_OP_HEAD] = {.inputs = 1},
};

int64_t mf_step_forward_aux_bytes(const struct mf_step_builder *builder, int32_t op)
{
    const struct mf_op *operation = &builder->model->ops[op];
    switch (operation->kind) {
    case MF_OP_RMS_NORM:
    case MF_OP_LAYER_NORM:
        return builder->rows * operation->heads * 8;
    case MF_OP_ATTENTION:
        return builder->rows * operation->heads * 4;
    default:
        return 0;
    }
}

static int32_t device_buffer(struct mf_step_builder *builder, int64_t bytes)
{
    return mf_step_builder_buffer(builder, MF_SPACE_DEVICE, MF_PURPOSE_ACTIVATION, bytes, 1, -1);
}

struct mf_step_ref mf_step_forward_use(struct mf_step_builder *builder, int32_t op, int32_t input)
{
    const struct mf_use *use = &builder->model->ops[op].inputs[input];
    if (use->value < 0) { /* only in a model that is a bare list of units */
        if (builder->inputs[op] < 0) {
            builder->inputs[op] = device_buffer(builder, builder->rows * use->width * 2);
        }
        return mf_step_builder_whole(builder->inputs[op], use->width);
    }
    struct mf_step_ref ref = mf_step_builder_whole(builder->values[use->value],
                                                   builder->model->values[use->value].width);
    ref.offset = use->column * 2;
    return ref;
}

static struct mf_step_ref output(struct mf_step_builder *builder, int32_t op)
{
    int32_t value = builder->model->ops[op].output;
    int64_t width = builder->model->values[value].width;
    builder->values[value] = device_buffer(builder, builder->rows * width * 2);
    return mf_step_builder_whole(builder->values[value], width);
}

static struct mf_step_ref aux(struct mf_step_builder *builder, int32_t op)
{
    builder->aux[op] = device_buffer(builder, mf_step_forward_aux_bytes(builder, op));
    return mf_step_builder_whole(builder->aux[op], 0);
}

static void label_task(struct mf_task *task, int32_t unit, int32_t panel)
{
    task->unit = unit;
    task->panel = panel;
}

int64_t mf_step_forward_direct_bytes(const struct mf_step_builder *builder,
                                     const struct mf_unit *unit, int32_t panel, bool touched)
{
    int64_t bytes = mf_model_panel_size(unit, panel) * 2;
    int64_t rows = builder->rows * unit->columns * 2 / unit->panel_count;
    return touched && rows < bytes ? rows : bytes;
}

/* Bytes of a weight panel that a kernel reads over the link; of tables only the rows it needs. */
static int64_t direct_bytes(const struct mf_step_builder *builder, const struct mf_unit *unit,
                            int32_t panel, uint32_t flags)
{
    return (flags & MF_SHAPE_WEIGHT_HOST) == 0
               ? 0
               : mf_step_forward_direct_bytes(builder, unit, panel,
                                              unit->kind == MF_UNIT_EMBEDDING);
}

static void forward_table(struct mf_step_builder *builder, int32_t index)
{
    const struct mf_op *op = &builder->model->ops[index];
    const struct mf_unit *unit = &builder->model->units[op->unit];
    bool position = op->kind == MF_OP_POSITION;
    struct mf_step_ref in = position ? mf_step_forward_use(builder, index, 0)
                                     : mf_step_builder_whole(builder->tokens, 0);
    struct mf_step_ref out = output(builder, index);
    for (int32_t panel = 0; panel < unit->panel_count; panel++) {
        struct mf_shape shape = mf_step_builder_shape(builder, op);
        shape.n = unit->columns;
        shape.k = mf_model_panel_row_count(unit, panel);
        shape.heads = position ? 0 : unit->panel_count;
        struct mf_step_ref weight = mf_step_weight_panel(builder, op->unit, panel, &shape.flags);
        struct mf_step_ref refs[] = {in, weight, out};
        struct mf_task *task = mf_step_builder_task(
            builder, MF_LANE_COMPUTE,
            position ? MF_KERNEL_POSITION_FORWARD : MF_KERNEL_EMBEDDING_FORWARD, shape, refs, 3);
        task->index0 = mf_model_panel_first_row(unit, panel);
        task->link_bytes = direct_bytes(builder, unit, panel, shape.flags);
        label_task(task, op->unit, panel);
    }
}

static void forward_norm(struct mf_step_builder *builder, int32_t index)
{
    const struct mf_op *op = &builder->model->ops[index];
    const struct mf_unit *unit = &builder->model->units[op->unit];
    struct mf_shape shape = mf_step_builder_shape(builder, op);
    shape.n = unit->rows;
    struct mf_step_ref weight = mf_step_weight_panel(builder, op->unit, 0, &shape.flags);
    struct mf_step_ref in = mf_step_forward_use(builder, index, 0);
    struct mf_step_ref out = output(builder, index);
    struct mf_step_ref refs[] = {in, weight, out, aux(builder, index)};
    struct mf_task *task = mf_step_builder_task(
        builder, MF_LANE_COMPUTE,
        op->kind == MF_OP_RMS_NORM ? MF_KERNEL_RMS_NORM_FORWARD : MF_KERNEL_LAYER_NORM_FORWARD,
        shape, refs, 4);
    task->scalar0 = op->eps;
    task->link_bytes = direct_bytes(builder, unit, 0, shape.flags);
    label_task(task, op->unit, 0);
}

static void forward_linear(struct mf_step_builder *builder, int32_t index)
{
    const struct mf_op *op = &builder->model->ops[index];
    const struct mf_unit *unit = &builder->model->units[op->unit];
    struct mf_step_ref in = mf_step_forward_use(builder, index, 0);
    struct mf_step_ref out = output(builder, index);
    for (int32_t panel = 0; panel < unit->panel_count; panel++) {
        struct mf_shape shape = mf_step_builder_shape(builder, op);
        shape.n = mf_model_panel_row_count(unit, panel);
        shape.k = unit->columns;
        shape.flags = unit->bias.name != NULL ? MF_SHAPE_BIAS : 0;
        struct mf_step_ref weight = mf_step_weight_panel(builder, op->unit, panel, &shape.flags);
        struct mf_step_ref slice = out;
        slice.offset = mf_model_panel_first_row(unit, panel) * 2;
        struct mf_step_ref refs[] = {in, weight, slice};
        struct mf_task *task = mf_step_builder_task(builder, MF_LANE_COMPUTE,
                                                    MF_KERNEL_LINEAR_FORWARD, shape, refs, 3);
        task->link_bytes = direct_bytes(builder, unit, panel, shape.flags);
        label_task(task, op->unit, panel);
    }
}

static void forward_rope(struct mf_step_builder *builder, int32_t index)
{
    const struct mf_op *op = &builder->model->ops[index];
    struct mf_step_ref in = mf_step_forward_use(builder, index, 0);
    struct mf_step_ref refs[] = {in, mf_step_builder_whole(builder->step->layout.rope_table, 0),
                                 output(builder, index)};
    mf_step_builder_task(builder, MF_LANE_COMPUTE, MF_KERNEL_ROPE_FORWARD,
                         mf_step_builder_shape(builder, op), refs, 3);
}

static void forward_attention(struct mf_step_builder *builder, int32_t index)
{
    struct mf_step_ref q = mf_step_forward_use(builder, index, 0);
    struct mf_step_ref k = mf_step_forward_use(builder, index, 1);
    struct mf_step_ref v = mf_step_forward_use(builder, index, 2);
    struct mf_step_ref out = output(builder, index);
    struct mf_step_ref refs[] = {q, k, v, out, aux(builder, index)};
    mf_step_builder_task(builder, MF_LANE_COMPUTE, MF_KERNEL_ATTENTION_FORWARD,
                         mf_step_builder_shape(builder, &builder->model->ops[index]), refs, 5);
}

static void forward_elementwise(struct mf_step_builder *builder, int32_t index)
{
    static const enum mf_kernel kernels[MF_OP_KIND_COUNT] = {
        [MF_OP_GELU] = MF_KERNEL_GELU_FORWARD,
        [MF_OP_SWIGLU] = MF_KERNEL_SWIGLU_FORWARD,
        [MF_OP_ADD] = MF_KERNEL_ADD_FORWARD,
    };
    const struct mf_op *op = &builder->model->ops[index];
    struct mf_shape shape = mf_step_builder_shape(builder, op);
    shape.n = builder->model->values[op->output].width;
    struct mf_step_ref refs[MF_OP_INPUTS_MAX + 1];
    for (int32_t i = 0; i < op->input_count; i++) {
        refs[i] = mf_step_forward_use(builder, index, i);
    }
    refs[op->input_count] = output(builder, index);
    mf_step_builder_task(builder, MF_LANE_COMPUTE, kernels[op->kind], shape, refs,
                         op->input_count + 1);
}

static void head_panel(struct mf_step_builder *builder, int32_t index, int32_t panel,
                       enum mf_kernel kernel, struct mf_step_ref third, struct mf_step_ref fourth)
{
    const struct mf_op *op = &builder->model->ops[index];
    const struct mf_unit *unit = &builder->model->units[op->unit];
    struct mf_shape shape = mf_step_builder_shape(builder, op);
    shape.n = mf_model_panel_row_count(unit, panel);
    shape.k = unit->columns;
    shape.flags = panel == 0 ? MF_SHAPE_FIRST_PANEL : 0;
    struct mf_step_ref in = mf_step_forward_use(builder, index, 0);
    struct mf_step_ref weight = mf_step_weight_panel(builder, op->unit, panel, &shape.flags);
    struct mf_step_ref refs[] = {in, weight, third, fourth};
    struct mf_task *task = mf_step_builder_task(builder, MF_LANE_COMPUTE, kernel, shape, refs,
                                                fourth.buffer < 0 ? 3 : 4);
    task->index0 = mf_model_panel_first_row(unit, panel);
    task->link_bytes = direct_bytes(builder, unit, panel, shape.flags);
    label_task(task, op->unit, panel);
}

static struct mf_step_ref micro_slot(const struct mf_step_builder *builder, int32_t buffer,
                                     int64_t bytes)
{
    return (struct mf_step_ref){.buffer = buffer,
                                .resource = builder->micro,
                                .resource_count = 1,
                                .offset = builder->micro * bytes};
}

static void forward_head(struct mf_step_builder *builder, int32_t index)
{
    const struct mf_op *op = &builder->model->ops[index];
    const struct mf_unit *unit = &builder->model->units[op->unit];
    const struct mf_step_layout *layout = &builder->step->layout;
    struct mf_step_ref labels = mf_step_builder_whole(builder->labels, 0);

    if (builder->request.logits) {
        for (int32_t panel = 0; panel < unit->panel_count; panel++) {
            struct mf_step_ref logits = mf_step_builder_whole(layout->logits, unit->rows);
            logits.offset = mf_model_panel_first_row(unit, panel) * 4;
            head_panel(builder, index, panel, MF_KERNEL_HEAD_LOGITS, logits, MF_STEP_NO_REF);
        }
        return;
    }
    builder->running = device_buffer(builder, builder->rows * 12);
    builder->lse = device_buffer(builder, builder->rows * 4);
    struct mf_step_ref running = mf_step_builder_whole(builder->running, 0);
    for (int32_t panel = 0; panel < unit->panel_count; panel++) {
        head_panel(builder, index, panel, MF_KERNEL_HEAD_FORWARD, labels, running);
    }
    struct mf_step_ref refs[] = {
        running,
        labels,
        mf_step_builder_whole(builder->lse, 0),
        micro_slot(builder, layout->logprobs, builder->rows * 4),
        micro_slot(builder, layout->results, 16),
    };
    struct mf_task *task = mf_step_builder_task(builder, MF_LANE_COMPUTE, MF_KERNEL_HEAD_LOSS,
                                                mf_step_builder_shape(builder, op), refs, 5);
    task->unit = op->unit;
}

static void (*const forwards[MF_OP_KIND_COUNT])(struct mf_step_builder *, int32_t) = {
    [MF_OP_EMBEDDING] = forward_table,     [MF_OP_POSITION] = forward_table,
    [MF_OP_RMS_NORM] = forward_norm,       [MF_OP_LAYER_NORM] = forward_norm,
    [MF_OP_LINEAR] = forward_linear,       [MF_OP_ROPE] = forward_rope,
    [MF_OP_ATTENTION] = forward_attention, [MF_OP_GELU] = forward_elementwise,
    [MF_OP_SWIGLU] = forward_elementwise,  [MF_OP_ADD] = forward_elementwise,
    [MF_OP_HEAD] = forward_head,
};

void mf_step_forward_op(struct mf_step_builder *builder, int32_t op)
{
    forwards[builder->model->ops[op].kind](builder, op);
}

/* Copies a saved buffer out; the device copy's life ends here. */
static void offload(struct mf_step_builder *builder, int32_t device, int32_t *host_copy)
{
    int64_t bytes = builder->step->buffers[device].bytes;
    *host_copy =
        mf_step_builder_buffer(builder, MF_SPACE_HOST, MF_PURPOSE_ACTIVATION, bytes, 1, -1);
    mf_step_builder_copy(builder, mf_step_builder_whole(device, 0),
                         mf_step_builder_whole(*host_copy, 0), bytes, -1, -1);
}

static void offload_block(struct mf_step_builder *builder, const struct mf_block *block)
{
    for (int32_t i = block->op_first; i < block->op_first + block->op_count; i++) {
        const struct mf_op *op = &builder->model->ops[i];
        const struct mf_step_saves *saves = &mf_step_forward_saves[op->kind];
        for (int32_t input = 0; input < op->input_count; input++) {
            int32_t value = op->inputs[input].value;
            if ((saves->inputs >> input & 1) != 0 && value >= 0 &&
                builder->values_host[value] < 0) {
                offload(builder, builder->values[value], &builder->values_host[value]);
            }
        }
        if (saves->output && builder->values_host[op->output] < 0) {
            offload(builder, builder->values[op->output], &builder->values_host[op->output]);
        }
        if (saves->aux) {
            offload(builder, builder->aux[i], &builder->aux_host[i]);
        }
    }
}

static void load_micro(struct mf_step_builder *builder)
{
    const struct mf_step_layout *layout = &builder->step->layout;
    int64_t bytes = builder->rows * 4;
    int32_t *const device[] = {&builder->tokens, &builder->labels};
    const int32_t host[] = {layout->tokens_host, layout->labels_host};
    for (int i = 0; i < (builder->request.logits ? 1 : 2); i++) {
        *device[i] =
            mf_step_builder_buffer(builder, MF_SPACE_DEVICE, MF_PURPOSE_WORKSPACE, bytes, 1, -1);
        mf_step_builder_copy(builder, micro_slot(builder, host[i], bytes),
                             mf_step_builder_whole(*device[i], 0), bytes, -1, -1);
    }
}

void mf_step_forward_micro(struct mf_step_builder *builder)
{
    const struct mf_model *model = builder->model;
    builder->phase = MF_PHASE_FORWARD;
    builder->block = 0;
    if (model->executable) {
        load_micro(builder);
    }
    bool pending = builder->request.pending && builder->micro == 0;
    if (pending) {
        mf_step_update_advance(builder, 0, 1, 1);
    }
    for (int32_t b = 0; b < model->block_count; b++) {
        int32_t count = model->blocks[b].op_count;
        if (pending) {
            mf_step_update_arrive(builder, b);
        }
        builder->block = b;
        for (int32_t i = 0; i < count; i++) {
            mf_step_forward_op(builder, model->blocks[b].op_first + i);
            if (pending && b + 1 < model->block_count) {
                mf_step_update_advance(builder, b + 1, i + 1, count);
            }
        }
        if (builder->request.backward && builder->plan->activations[b] == MF_ACTIVATION_OFFLOAD) {
            offload_block(builder, &model->blocks[b]);
        }
    }
}
