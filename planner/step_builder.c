/* Tasks, buffers and the dependencies between them: see step_builder.h. */
#include "planner/step_builder.h"

#include <stdlib.h>
#include <string.h>

#include "core/limits.h"

/* What a kernel does to each operand: r reads, w writes (or reads and writes: the same order). */
static const char *const accesses[MF_KERNEL_COUNT] = {
    [MF_KERNEL_EMBEDDING_FORWARD] = "rrw",
    [MF_KERNEL_EMBEDDING_BACKWARD] = "rrww",
    [MF_KERNEL_POSITION_FORWARD] = "rrw",
    [MF_KERNEL_POSITION_BACKWARD] = "rw",
    [MF_KERNEL_RMS_NORM_FORWARD] = "rrww",
    [MF_KERNEL_RMS_NORM_BACKWARD] = "rrrrw",
    [MF_KERNEL_RMS_NORM_BACKWARD_WEIGHT] = "rrrw",
    [MF_KERNEL_LAYER_NORM_FORWARD] = "rrww",
    [MF_KERNEL_LAYER_NORM_BACKWARD] = "rrrrw",
    [MF_KERNEL_LAYER_NORM_BACKWARD_WEIGHT] = "rrrw",
    [MF_KERNEL_LINEAR_FORWARD] = "rrw",
    [MF_KERNEL_LINEAR_BACKWARD_DATA] = "rrww",
    [MF_KERNEL_LINEAR_BACKWARD_WEIGHT] = "rrw",
    [MF_KERNEL_ROPE_FORWARD] = "rrw",
    [MF_KERNEL_ROPE_BACKWARD] = "rrw",
    [MF_KERNEL_ATTENTION_FORWARD] = "rrrww",
    [MF_KERNEL_ATTENTION_BACKWARD] = "rrrrrrwww",
    [MF_KERNEL_GELU_FORWARD] = "rw",
    [MF_KERNEL_GELU_BACKWARD] = "rrw",
    [MF_KERNEL_SWIGLU_FORWARD] = "rrw",
    [MF_KERNEL_SWIGLU_BACKWARD] = "rrrww",
    [MF_KERNEL_ADD_FORWARD] = "rrw",
    [MF_KERNEL_GRADIENT_COPY] = "rw",
    [MF_KERNEL_HEAD_FORWARD] = "rrrw",
    [MF_KERNEL_HEAD_LOSS] = "rrwww",
    [MF_KERNEL_HEAD_BACKWARD] = "rrrrw",
    [MF_KERNEL_HEAD_LOGITS] = "rrw",
    [MF_KERNEL_GRADIENT_ACCUMULATE] = "rw",
    [MF_KERNEL_GRADIENT_NORM] = "rw",
    [MF_KERNEL_CLIP] = "rw",
    [MF_KERNEL_ADAMW] = "rwwrww",
    [MF_KERNEL_COPY] = "rw",
};

static void *grow(void *array, int32_t *capacity, size_t size)
{
    *capacity = *capacity == 0 ? 256 : *capacity * 2;
    void *grown = realloc(array, (size_t)*capacity * size);
    MF_ASSERT(grown != NULL);
    return grown;
}

static int32_t add_hazards(struct mf_step_builder *builder, int32_t count)
{
    int32_t first = builder->hazard_count;
    while (builder->hazard_count + count > builder->hazard_capacity) {
        builder->hazards =
            grow(builder->hazards, &builder->hazard_capacity, sizeof(*builder->hazards));
    }
    builder->hazard_count += count;
    /* All fields are task indices: bytes of 0xff make each -1, "none". */
    memset(builder->hazards + first, 0xff, (size_t)count * sizeof(*builder->hazards));
    return first;
}

int32_t mf_step_builder_buffer(struct mf_step_builder *builder, enum mf_space space,
                               enum mf_purpose purpose, int64_t bytes, int32_t resources,
                               int32_t unit)
{
    struct mf_step *step = builder->step;
    if (step->buffer_count == builder->buffer_capacity) {
        int32_t before = builder->buffer_capacity;
        int32_t capacity = before;
        step->buffers = grow(step->buffers, &capacity, sizeof(*step->buffers));
        capacity = before;
        builder->hazard_first =
            grow(builder->hazard_first, &capacity, sizeof(*builder->hazard_first));
        builder->first_access =
            grow(builder->first_access, &builder->buffer_capacity, sizeof(*builder->first_access));
    }
    int32_t index = step->buffer_count++;
    struct mf_buffer *buffer = &step->buffers[index];
    *buffer = (struct mf_buffer){
        .space = space,
        .purpose = purpose,
        .unit = unit,
        .bytes = (bytes + MF_BUFFER_ALIGN - 1) / MF_BUFFER_ALIGN * MF_BUFFER_ALIGN,
        .first_task = -1,
        .last_task = -1,
    };
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        buffer->last_access[lane] = -1;
        builder->first_access[index][lane] = -1;
    }
    builder->hazard_first[index] = add_hazards(builder, resources);
    return index;
}

static void depend(struct mf_task *task, const struct mf_task *tasks, int32_t on)
{
    if (on >= 0 && tasks[on].lane != task->lane && on > task->depends[tasks[on].lane]) {
        task->depends[tasks[on].lane] = on;
    }
}

static void touch(struct mf_step_builder *builder, int32_t index, const struct mf_step_ref *ref,
                  bool writes)
{
    struct mf_step *step = builder->step;
    struct mf_task *task = &step->tasks[index];
    for (int32_t i = 0; i < ref->resource_count; i++) {
        int32_t resource = builder->hazard_first[ref->buffer] + ref->resource + i;
        struct mf_step_hazard *hazard = &builder->hazards[resource];
        depend(task, step->tasks, hazard->last_write);
        if (!writes) {
            hazard->last_read[task->lane] = index;
            continue;
        }
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            depend(task, step->tasks, hazard->last_read[lane]);
            hazard->last_read[lane] = -1;
        }
        hazard->last_write = index;
    }
    struct mf_buffer *buffer = &step->buffers[ref->buffer];
    if (buffer->first_task < 0) {
        buffer->first_task = index;
    }
    if (builder->first_access[ref->buffer][task->lane] < 0) {
        builder->first_access[ref->buffer][task->lane] = index;
    }
    buffer->last_task = index;
    buffer->last_access[task->lane] = index;
}

struct mf_task *mf_step_builder_task(struct mf_step_builder *builder, enum mf_lane lane,
                                     enum mf_kernel kernel, struct mf_shape shape,
                                     const struct mf_step_ref *refs, int32_t ref_count)
{
    struct mf_step *step = builder->step;
    if (step->task_count == builder->task_capacity) {
        step->tasks = grow(step->tasks, &builder->task_capacity, sizeof(*step->tasks));
    }
    /* Past the limit the last task is overwritten; mf_step_build refuses the graph. */
    builder->overflow |= step->task_count == MF_TASKS_MAX;
    int32_t index = builder->overflow ? step->task_count - 1 : step->task_count++;
    struct mf_task *task = &step->tasks[index];
    *task = (struct mf_task){
        .kernel = kernel,
        .lane = lane,
        .phase = builder->phase,
        .shape = shape,
        .unit = -1,
        .panel = -1,
        .block = builder->block,
        .micro = builder->micro,
        .pending = builder->pending,
        .speculative = builder->speculative,
    };
    for (int i = 0; i < MF_LANE_COUNT; i++) {
        task->depends[i] = -1;
    }
    for (int32_t i = 0; i < MF_OPERANDS_MAX; i++) {
        task->operands[i].buffer = -1;
    }
    for (int32_t i = 0; i < ref_count; i++) {
        if (refs[i].buffer < 0) {
            continue;
        }
        task->operands[i] = (struct mf_task_operand){
            .buffer = refs[i].buffer,
            .offset = refs[i].offset,
            .stride = refs[i].stride,
            .next = refs[i].next,
        };
        touch(builder, index, &refs[i], accesses[kernel][i] == 'w');
    }
    return task;
}

struct mf_step_ref mf_step_builder_slot(struct mf_step_builder *builder, enum mf_step_ring ring)
{
    struct mf_step_ring_state *state = &builder->rings[ring];
    MF_ASSERT(state->buffer >= 0);
    int32_t slot = state->next;
    state->next = (slot + 1) % state->slots;
    return (struct mf_step_ref){.buffer = state->buffer,
                                .resource = slot,
                                .resource_count = 1,
                                .offset = slot * state->slot_bytes};
}

struct mf_step_ref mf_step_builder_whole(int32_t buffer, int64_t stride)
{
    return (struct mf_step_ref){.buffer = buffer, .resource_count = 1, .stride = stride};
}

void mf_step_builder_copy(struct mf_step_builder *builder, struct mf_step_ref from,
                          struct mf_step_ref to, int64_t bytes, int32_t unit, int32_t panel)
{
    bool to_device = builder->step->buffers[to.buffer].space == MF_SPACE_DEVICE;
    struct mf_step_ref refs[] = {from, to};
    struct mf_task *task =
        mf_step_builder_task(builder, to_device ? MF_LANE_H2D : MF_LANE_D2H, MF_KERNEL_COPY,
                             (struct mf_shape){.n = bytes}, refs, 2);
    task->unit = unit;
    task->panel = panel;
    task->link_bytes = bytes;
}

int32_t mf_step_builder_owner(const struct mf_step_builder *builder, int32_t unit)
{
    return builder->model->units[unit].owner;
}

const struct mf_unit_decision *mf_step_builder_decision(const struct mf_step_builder *builder,
                                                        int32_t unit)
{
    return &builder->plan->units[unit];
}

bool mf_step_builder_sums(const struct mf_step_builder *builder, int32_t owner)
{
    return builder->sums[owner];
}

struct mf_shape mf_step_builder_shape(const struct mf_step_builder *builder, const struct mf_op *op)
{
    return (struct mf_shape){
        .rows = builder->rows,
        .seq_len = builder->plan->workload.seq_len,
        .heads = op->heads,
        .kv_heads = op->kv_heads,
        .head_dim = op->head_dim,
    };
}

struct mf_step_ref mf_step_builder_panel(const struct mf_unit *unit, int32_t buffer, int32_t panel,
                                         int64_t element_bytes)
{
    return (struct mf_step_ref){.buffer = buffer,
                                .resource = panel,
                                .resource_count = 1,
                                .offset = mf_model_panel_offset(unit, panel) * element_bytes};
}

struct mf_step_ref mf_step_builder_next(const struct mf_step_builder *builder,
                                        const struct mf_unit *unit, struct mf_step_ref panel)
{
    if (builder->step->buffers[panel.buffer].twin > 0) {
        panel.next = true;
        panel.resource += unit->panel_count;
    }
    return panel;
}

struct mf_step_ref mf_step_builder_gradient(const struct mf_step_builder *builder, int32_t owner,
                                            int32_t panel)
{
    return mf_step_builder_panel(&builder->model->units[owner],
                                 builder->step->layout.gradient[owner], panel,
                                 mf_step_builder_sums(builder, owner) ? 4 : 2);
}
