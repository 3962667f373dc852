/* The backward of one micro-batch as tasks. */
#include "planner/step_builder.h"

#include <string.h>

static int32_t workspace(struct mf_step_builder *builder, int64_t bytes)
{
    return mf_step_builder_buffer(builder, MF_SPACE_DEVICE, MF_PURPOSE_WORKSPACE, bytes, 1, -1);
}

/* The gradient of an operation's output: complete when its backward begins. */
static struct mf_step_ref output_gradient(const struct mf_step_builder *builder, int32_t op)
{
    int32_t value = builder->model->ops[op].output;
    return mf_step_builder_whole(builder->value_gradients[value],
                                 builder->model->values[value].width);
}

/* Where the gradient of an input goes; MF_SHAPE_ADD_TO_OUTPUT when something is there already. */
static struct mf_step_ref input_gradient(struct mf_step_builder *builder, int32_t op, int32_t input,
                                         uint32_t *flags)
{
    const struct mf_use *use = &builder->model->ops[op].inputs[input];
    if (use->value < 0) {
        return MF_STEP_NO_REF;
    }
    int64_t width = builder->model->values[use->value].width;
    int32_t *buffer = &builder->value_gradients[use->value];
    if (*buffer < 0) {
        *buffer = workspace(builder, builder->rows * width * 2);
    }
    /* Slices of one value start at multiples of its narrowest slice: a bit for each. */
    int64_t bit = INT64_C(1) << (use->width < width ? use->column / use->width : 0);
    if ((builder->gradient_written[use->value] & bit) != 0) {
        *flags |= MF_SHAPE_ADD_TO_OUTPUT;
    }
    builder->gradient_written[use->value] |= bit;
    struct mf_step_ref ref = mf_step_builder_whole(*buffer, width);
    ref.offset = use->column * 2;
    return ref;
}

static void backward_weight(struct mf_step_builder *builder, int32_t unit, int32_t panel,
                            enum mf_kernel kernel, struct mf_shape shape, int64_t index0,
                            const struct mf_step_ref *inputs, int32_t input_count)
{
    struct mf_step_ref target = mf_step_gradient_target(builder, unit, panel, &shape.flags);
    struct mf_step_ref refs[MF_OPERANDS_MAX];
    memcpy(refs, inputs, (size_t)input_count * sizeof(*refs));
    int32_t count = input_count;
    refs[count++] = target;
    if ((shape.flags & MF_SHAPE_TOUCHED) != 0) {
        refs[count++] = mf_step_gradient_marks(builder, unit, panel);
    }
    struct mf_task *task =
        mf_step_builder_task(builder, MF_LANE_COMPUTE, kernel, shape, refs, count);
    task->unit = unit;
    task->panel = panel;
    task->index0 = index0;
    if ((shape.flags & MF_SHAPE_OUTPUT_HOST) != 0) {
        task->link_bytes = mf_step_forward_direct_bytes(
            builder, &builder->model->units[unit], panel, (shape.flags & MF_SHAPE_TOUCHED) != 0);
    }
    mf_step_gradient_deliver(builder, unit, panel, target);
}

static void backward_table(struct mf_step_builder *builder, int32_t index)
{
    const struct mf_op *op = &builder->model->ops[index];
    const struct mf_unit *unit = &builder->model->units[op->unit];
    bool position = op->kind == MF_OP_POSITION;
    struct mf_step_ref dy = output_gradient(builder, index);
    struct mf_step_ref with_tokens[] = {mf_step_builder_whole(builder->tokens, 0), dy};
    for (int32_t panel = 0; panel < unit->panel_count; panel++) {
        struct mf_shape shape = mf_step_builder_shape(builder, op);
        shape.n = unit->columns;
        shape.k = mf_model_panel_row_count(unit, panel);
        shape.heads = position ? 0 : unit->panel_count;
        backward_weight(builder, op->unit, panel,
                        position ? MF_KERNEL_POSITION_BACKWARD : MF_KERNEL_EMBEDDING_BACKWARD,
                        shape, mf_model_panel_first_row(unit, panel),
                        position ? with_tokens + 1 : with_tokens, position ? 1 : 2);
    }
    if (position) { /* y = x + table: the gradient passes through unchanged */
        builder->value_gradients[op->inputs[0].value] = dy.buffer;
        builder->gradient_written[op->inputs[0].value] = 1;
    }
}

static void backward_norm(struct mf_step_builder *builder, int32_t index)
{
    const struct mf_op *op = &builder->model->ops[index];
    bool rms = op->kind == MF_OP_RMS_NORM;
    struct mf_shape shape = mf_step_builder_shape(builder, op);
    shape.n = builder->model->units[op->unit].rows;
    struct mf_shape data = shape;
    struct mf_step_ref weight = mf_step_weight_panel(builder, op->unit, 0, &data.flags);
    struct mf_step_ref x = mf_step_forward_use(builder, index, 0);
    struct mf_step_ref stats = mf_step_builder_whole(builder->aux[index], 0);
    struct mf_step_ref dy = output_gradient(builder, index);
    struct mf_step_ref dx = input_gradient(builder, index, 0, &data.flags);
    struct mf_step_ref refs[] = {x, weight, stats, dy, dx};
    struct mf_task *task = mf_step_builder_task(
        builder, MF_LANE_COMPUTE, rms ? MF_KERNEL_RMS_NORM_BACKWARD : MF_KERNEL_LAYER_NORM_BACKWARD,
        data, refs, 5);
    task->unit = op->unit;
    task->panel = 0;
    task->scalar0 = op->eps;
    struct mf_step_ref inputs[] = {x, stats, dy};
    backward_weight(builder, op->unit, 0,
                    rms ? MF_KERNEL_RMS_NORM_BACKWARD_WEIGHT : MF_KERNEL_LAYER_NORM_BACKWARD_WEIGHT,
                    shape, 0, inputs, 3);
}

/* dx of one panel: summed in fp32 over the panels, rounded with the last. */
static void backward_data(struct mf_step_builder *builder, int32_t index, int32_t panel,
                          struct mf_step_ref dy, struct mf_step_ref weight, struct mf_step_ref sum,
                          uint32_t flags)
{
    const struct mf_op *op = &builder->model->ops[index];
    const struct mf_unit *unit = &builder->model->units[op->unit];
    bool last = panel == unit->panel_count - 1;
    struct mf_shape shape = mf_step_builder_shape(builder, op);
    shape.n = mf_model_panel_row_count(unit, panel);
    shape.k = unit->columns;
    shape.flags =
        flags | (panel == 0 ? MF_SHAPE_FIRST_PANEL : 0) | (last ? MF_SHAPE_LAST_PANEL : 0);
    struct mf_step_ref dx = last ? input_gradient(builder, index, 0, &shape.flags) : MF_STEP_NO_REF;
    struct mf_step_ref refs[] = {dy, weight, sum, dx};
    struct mf_task *task = mf_step_builder_task(builder, MF_LANE_COMPUTE,
                                                MF_KERNEL_LINEAR_BACKWARD_DATA, shape, refs, 4);
    task->unit = op->unit;
    task->panel = panel;
    if ((flags & MF_SHAPE_WEIGHT_HOST) != 0) {
        task->link_bytes = mf_model_panel_size(unit, panel) * 2;
    }
}

static struct mf_step_ref sum_buffer(struct mf_step_builder *builder, const struct mf_unit *unit)
{
    return unit->panel_count == 1
               ? MF_STEP_NO_REF
               : mf_step_builder_whole(workspace(builder, builder->rows * unit->columns * 4),
                                       unit->columns);
}

static void backward_linear(struct mf_step_builder *builder, int32_t index)
{
    const struct mf_op *op = &builder->model->ops[index];
    const struct mf_unit *unit = &builder->model->units[op->unit];
    bool wanted = op->inputs[0].value >= 0;
    struct mf_step_ref x = mf_step_forward_use(builder, index, 0);
    struct mf_step_ref sum = wanted ? sum_buffer(builder, unit) : MF_STEP_NO_REF;
    for (int32_t panel = 0; panel < unit->panel_count; panel++) {
        struct mf_step_ref dy = output_gradient(builder, index);
        dy.offset = mf_model_panel_first_row(unit, panel) * 2;
        if (wanted) {
            uint32_t flags = 0;
            struct mf_step_ref weight = mf_step_weight_panel(builder, op->unit, panel, &flags);
            backward_data(builder, index, panel, dy, weight, sum, flags);
        }
        struct mf_shape shape = mf_step_builder_shape(builder, op);
        shape.n = mf_model_panel_row_count(unit, panel);
        shape.k = unit->columns;
        shape.flags = unit->bias.name != NULL ? MF_SHAPE_BIAS : 0;
        struct mf_step_ref inputs[] = {x, dy};
        backward_weight(builder, op->unit, panel, MF_KERNEL_LINEAR_BACKWARD_WEIGHT, shape, 0,
                        inputs, 2);
    }
}

static void backward_head(struct mf_step_builder *builder, int32_t index)
{
    const struct mf_op *op = &builder->model->ops[index];
    const struct mf_unit *unit = &builder->model->units[op->unit];
    struct mf_step_ref x = mf_step_forward_use(builder, index, 0);
    struct mf_step_ref sum = sum_buffer(builder, unit);
    for (int32_t panel = 0; panel < unit->panel_count; panel++) {
        struct mf_shape shape = mf_step_builder_shape(builder, op);
        shape.n = mf_model_panel_row_count(unit, panel);
        shape.k = unit->columns;
        struct mf_shape logits = shape;
        struct mf_step_ref weight = mf_step_weight_panel(builder, op->unit, panel, &logits.flags);
        struct mf_step_ref dlogits =
            mf_step_builder_whole(workspace(builder, builder->rows * shape.n * 2), shape.n);
        struct mf_step_ref refs[] = {x, weight, mf_step_builder_whole(builder->labels, 0),
                                     mf_step_builder_whole(builder->lse, 0), dlogits};
        struct mf_task *task = mf_step_builder_task(builder, MF_LANE_COMPUTE,
                                                    MF_KERNEL_HEAD_BACKWARD, logits, refs, 5);
        task->unit = op->unit;
        task->panel = panel;
        task->index0 = mf_model_panel_first_row(unit, panel);
        if ((logits.flags & MF_SHAPE_WEIGHT_HOST) != 0) {
            task->link_bytes = mf_model_panel_size(unit, panel) * 2;
        }
        backward_data(builder, index, panel, dlogits, weight, sum, logits.flags);
        struct mf_step_ref inputs[] = {x, dlogits};
        backward_weight(builder, op->unit, panel, MF_KERNEL_LINEAR_BACKWARD_WEIGHT, shape, 0,
                        inputs, 2);
    }
}

static void backward_rope(struct mf_step_builder *builder, int32_t index)
{
    struct mf_shape shape = mf_step_builder_shape(builder, &builder->model->ops[index]);
    struct mf_step_ref dy = output_gradient(builder, index);
    struct mf_step_ref dx = input_gradient(builder, index, 0, &shape.flags);
    struct mf_step_ref refs[] = {dy, mf_step_builder_whole(builder->step->layout.rope_table, 0),
                                 dx};
    mf_step_builder_task(builder, MF_LANE_COMPUTE, MF_KERNEL_ROPE_BACKWARD, shape, refs, 3);
}

static void backward_attention(struct mf_step_builder *builder, int32_t index)
{
    const struct mf_op *op = &builder->model->ops[index];
    struct mf_shape shape = mf_step_builder_shape(builder, op);
    uint32_t flags = 0;
    struct mf_step_ref refs[9] = {
        mf_step_forward_use(builder, index, 0),
        mf_step_forward_use(builder, index, 1),
        mf_step_forward_use(builder, index, 2),
        mf_step_builder_whole(builder->values[op->output],
                              builder->model->values[op->output].width),
        mf_step_builder_whole(builder->aux[index], 0),
        output_gradient(builder, index),
    };
    for (int32_t i = 0; i < 3; i++) {
        refs[6 + i] = input_gradient(builder, index, i, &flags);
    }
    MF_ASSERT(flags == 0); /* q, k and v have no other use in any family */
    mf_step_builder_task(builder, MF_LANE_COMPUTE, MF_KERNEL_ATTENTION_BACKWARD, shape, refs, 9);
}

static void backward_gelu(struct mf_step_builder *builder, int32_t index)
{
    struct mf_shape shape = mf_step_builder_shape(builder, &builder->model->ops[index]);
    shape.n = builder->model->values[builder->model->ops[index].output].width;
    struct mf_step_ref x = mf_step_forward_use(builder, index, 0);
    struct mf_step_ref dy = output_gradient(builder, index);
    struct mf_step_ref refs[] = {x, dy, input_gradient(builder, index, 0, &shape.flags)};
    MF_ASSERT((shape.flags & MF_SHAPE_ADD_TO_OUTPUT) == 0);
    mf_step_builder_task(builder, MF_LANE_COMPUTE, MF_KERNEL_GELU_BACKWARD, shape, refs, 3);
}

static void backward_swiglu(struct mf_step_builder *builder, int32_t index)
{
    struct mf_shape shape = mf_step_builder_shape(builder, &builder->model->ops[index]);
    shape.n = builder->model->values[builder->model->ops[index].output].width;
    struct mf_step_ref gate = mf_step_forward_use(builder, index, 0);
    struct mf_step_ref up = mf_step_forward_use(builder, index, 1);
    struct mf_step_ref dy = output_gradient(builder, index);
    struct mf_step_ref dgate = input_gradient(builder, index, 0, &shape.flags);
    struct mf_step_ref dup = input_gradient(builder, index, 1, &shape.flags);
    MF_ASSERT((shape.flags & MF_SHAPE_ADD_TO_OUTPUT) == 0);
    struct mf_step_ref refs[] = {gate, up, dy, dgate, dup};
    mf_step_builder_task(builder, MF_LANE_COMPUTE, MF_KERNEL_SWIGLU_BACKWARD, shape, refs, 5);
}

/*
 * y = a + b: both gradients are y's. Where nothing has been written for an input its gradient is
 * y's buffer itself: its readers come before whatever is added to it later, because the other uses
 * of `a` come before the producer of `b` in every family (checked by the model's tests).
 */
static void backward_add(struct mf_step_builder *builder, int32_t index)
{
    const struct mf_op *op = &builder->model->ops[index];
    struct mf_step_ref dy = output_gradient(builder, index);
    for (int32_t i = 1; i >= 0; i--) {
        int32_t value = op->inputs[i].value;
        if (builder->value_gradients[value] < 0) {
            builder->value_gradients[value] = dy.buffer;
            builder->gradient_written[value] = 1;
            continue;
        }
        struct mf_shape shape = mf_step_builder_shape(builder, op);
        shape.n = builder->model->values[value].width;
        struct mf_step_ref refs[] = {dy, input_gradient(builder, index, i, &shape.flags)};
        mf_step_builder_task(builder, MF_LANE_COMPUTE, MF_KERNEL_GRADIENT_COPY, shape, refs, 2);
    }
}

static void (*const backwards[MF_OP_KIND_COUNT])(struct mf_step_builder *, int32_t) = {
    [MF_OP_EMBEDDING] = backward_table,     [MF_OP_POSITION] = backward_table,
    [MF_OP_RMS_NORM] = backward_norm,       [MF_OP_LAYER_NORM] = backward_norm,
    [MF_OP_LINEAR] = backward_linear,       [MF_OP_ROPE] = backward_rope,
    [MF_OP_ATTENTION] = backward_attention, [MF_OP_GELU] = backward_gelu,
    [MF_OP_SWIGLU] = backward_swiglu,       [MF_OP_ADD] = backward_add,
    [MF_OP_HEAD] = backward_head,
};

/* Brings an offloaded buffer back into device memory. */
static void restore(struct mf_step_builder *builder, int32_t *device, int32_t *host_copy)
{
    if (*host_copy < 0) {
        return;
    }
    int64_t bytes = builder->step->buffers[*host_copy].bytes;
    *device = mf_step_builder_buffer(builder, MF_SPACE_DEVICE, MF_PURPOSE_ACTIVATION, bytes, 1, -1);
    mf_step_builder_copy(builder, mf_step_builder_whole(*host_copy, 0),
                         mf_step_builder_whole(*device, 0), bytes, -1, -1);
    *host_copy = -1;
}

static void restore_block(struct mf_step_builder *builder, const struct mf_block *block)
{
    for (int32_t i = block->op_first + block->op_count - 1; i >= block->op_first; i--) {
        const struct mf_op *op = &builder->model->ops[i];
        restore(builder, &builder->aux[i], &builder->aux_host[i]);
        if (op->output >= 0 && mf_step_forward_saves[op->kind].output) {
            restore(builder, &builder->values[op->output], &builder->values_host[op->output]);
        }
        for (int32_t input = 0; input < op->input_count; input++) {
            int32_t value = op->inputs[input].value;
            if (value >= 0 && (mf_step_forward_saves[op->kind].inputs >> input & 1) != 0) {
                restore(builder, &builder->values[value], &builder->values_host[value]);
            }
        }
    }
}

/* Runs again those operations of a block whose results its backward reads. */
static void recompute_block(struct mf_step_builder *builder, const struct mf_block *block)
{
    const struct mf_model *model = builder->model;
    int32_t last = block->op_first + block->op_count - 1;
    bool needed[256] = {false}; /* by operation of the block */
    MF_ASSERT(block->op_count <= 256);
    for (int32_t i = last; i >= block->op_first; i--) {
        const struct mf_op *op = &model->ops[i];
        const struct mf_step_saves *saves = &mf_step_forward_saves[op->kind];
        bool self = saves->output || saves->aux;
        for (int32_t j = i + 1; j <= last && !self; j++) {
            const struct mf_op *user = &model->ops[j];
            for (int32_t input = 0; input < user->input_count; input++) {
                bool reads = user->inputs[input].value == op->output;
                bool saved = (mf_step_forward_saves[user->kind].inputs >> input & 1) != 0;
                self |= reads && (saved || needed[j - block->op_first]);
            }
        }
        needed[i - block->op_first] = self;
    }
    for (int32_t i = block->op_first; i <= last; i++) {
        if (needed[i - block->op_first]) {
            mf_step_forward_op(builder, i);
        }
    }
}

void mf_step_backward_micro(struct mf_step_builder *builder)
{
    const struct mf_model *model = builder->model;
    builder->phase = MF_PHASE_BACKWARD;
    int32_t last_output = model->ops[model->op_count - 1].output;
    if (last_output >= 0) { /* a bare list of units: its loss is computed elsewhere */
        builder->value_gradients[last_output] =
            workspace(builder, builder->rows * model->values[last_output].width * 2);
    }
    mf_step_weight_load_late(builder, model->block_count - 1);
    for (int32_t b = model->block_count - 1; b >= 0; b--) {
        const struct mf_block *block = &model->blocks[b];
        builder->block = b;
        if (b > 0) { /* one block ahead, so that the copy has a block's compute to hide behind */
            mf_step_weight_load_late(builder, b - 1);
        }
        if (builder->plan->activations[b] == MF_ACTIVATION_OFFLOAD) {
            restore_block(builder, block);
        } else if (builder->plan->activations[b] == MF_ACTIVATION_RECOMPUTE) {
            recompute_block(builder, block);
        }
        for (int32_t i = block->op_first + block->op_count - 1; i >= block->op_first; i--) {
            backwards[model->ops[i].kind](builder, i);
        }
    }
}
