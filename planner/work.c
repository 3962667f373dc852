/* What every choice costs on every lane: see work.h. */
#include "planner/work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost.h"

const struct mf_work_weight_choice mf_work_weights[MF_WORK_WEIGHTS] = {
    {MF_WEIGHT_FORWARD_RESIDENT, MF_WEIGHT_BACKWARD_KEEP},
    {MF_WEIGHT_FORWARD_STREAM, MF_WEIGHT_BACKWARD_STREAM},
    {MF_WEIGHT_FORWARD_STREAM, MF_WEIGHT_BACKWARD_KEEP},
    {MF_WEIGHT_FORWARD_STREAM, MF_WEIGHT_BACKWARD_DIRECT},
    {MF_WEIGHT_FORWARD_DIRECT, MF_WEIGHT_BACKWARD_DIRECT},
    {MF_WEIGHT_FORWARD_DIRECT, MF_WEIGHT_BACKWARD_STREAM},
    {MF_WEIGHT_FORWARD_DIRECT, MF_WEIGHT_BACKWARD_LATE},
};

const struct mf_work_update_choice mf_work_updates[MF_WORK_UPDATES] = {
    {MF_GRADIENT_COPY, MF_OPTIMIZER_CPU},          {MF_GRADIENT_DIRECT, MF_OPTIMIZER_CPU},
    {MF_GRADIENT_DEVICE, MF_OPTIMIZER_CPU},        {MF_GRADIENT_DEVICE, MF_OPTIMIZER_GPU},
    {MF_GRADIENT_DEVICE, MF_OPTIMIZER_GPU_STREAM}, {MF_GRADIENT_COPY, MF_OPTIMIZER_GPU_STREAM},
    {MF_GRADIENT_DIRECT, MF_OPTIMIZER_GPU_STREAM},
};

int mf_work_find_weight(enum mf_weight_forward forward, enum mf_weight_backward backward)
{
    for (int i = 0; i < MF_WORK_WEIGHTS; i++) {
        if (mf_work_weights[i].forward == forward && mf_work_weights[i].backward == backward) {
            return i;
        }
    }
    return -1;
}

int mf_work_find_update(enum mf_gradient gradient, enum mf_optimizer optimizer)
{
    for (int i = 0; i < MF_WORK_UPDATES; i++) {
        if (mf_work_updates[i].gradient == gradient && mf_work_updates[i].optimizer == optimizer) {
            return i;
        }
    }
    return -1;
}

/* While the table is made. */
struct builder {
    const struct mf_model *model;
    const struct mf_workload *workload;
    const struct mf_hardware *hardware;
    const struct mf_profile *profile;
    struct mf_work *work;
    double micros; /* micro-batches in an optimizer step */
};

static double cost(const struct builder *builder, enum mf_lane lane, enum mf_kernel kernel,
                   struct mf_shape shape)
{
    return mf_cost_ns(builder->hardware, builder->profile, lane, kernel, &shape, NULL);
}

static double copy_cost(const struct builder *builder, enum mf_lane lane, int64_t bytes)
{
    return cost(builder, lane, MF_KERNEL_COPY, (struct mf_shape){.n = bytes});
}

/* How a kernel uses its unit's parameters. */
enum use { USE_NONE, USE_READ, USE_READ_AGAIN, USE_GRADIENT };
static const enum use uses[MF_KERNEL_COUNT] = {
    [MF_KERNEL_EMBEDDING_FORWARD] = USE_READ,
    [MF_KERNEL_POSITION_FORWARD] = USE_READ,
    [MF_KERNEL_RMS_NORM_FORWARD] = USE_READ,
    [MF_KERNEL_RMS_NORM_BACKWARD] = USE_READ,
    [MF_KERNEL_LAYER_NORM_FORWARD] = USE_READ,
    [MF_KERNEL_LAYER_NORM_BACKWARD] = USE_READ,
    [MF_KERNEL_LINEAR_FORWARD] = USE_READ,
    [MF_KERNEL_LINEAR_BACKWARD_DATA] = USE_READ,
    [MF_KERNEL_HEAD_FORWARD] = USE_READ,
    [MF_KERNEL_HEAD_BACKWARD] = USE_READ,
    [MF_KERNEL_EMBEDDING_BACKWARD] = USE_GRADIENT,
    [MF_KERNEL_POSITION_BACKWARD] = USE_GRADIENT,
    [MF_KERNEL_RMS_NORM_BACKWARD_WEIGHT] = USE_GRADIENT,
    [MF_KERNEL_LAYER_NORM_BACKWARD_WEIGHT] = USE_GRADIENT,
    [MF_KERNEL_LINEAR_BACKWARD_WEIGHT] = USE_GRADIENT,
};

/* The head's backward uses one load of a panel for two kernels. */
static enum use use_of(const struct builder *builder, const struct mf_task *task)
{
    if (task->kernel == MF_KERNEL_LINEAR_BACKWARD_DATA &&
        builder->model->units[task->unit].kind == MF_UNIT_HEAD) {
        return USE_READ_AGAIN;
    }
    return uses[task->kernel];
}

static void add_read(const struct builder *builder, const struct mf_task *task, bool again)
{
    const struct mf_unit *unit = &builder->model->units[task->unit];
    struct mf_work_unit *work = &builder->work->units[task->unit];
    bool forward = task->phase == MF_PHASE_FORWARD;
    struct mf_shape host_shape = task->shape;
    host_shape.flags |= MF_SHAPE_WEIGHT_HOST;
    double on_device = task->expected_ns * builder->micros;
    double in_place = cost(builder, MF_LANE_COMPUTE, task->kernel, host_shape) * builder->micros;
    double load =
        again ? 0
              : copy_cost(builder, MF_LANE_H2D, mf_model_panel_size(unit, task->panel) * 2) *
                    builder->micros;
    for (int i = 0; i < MF_WORK_WEIGHTS; i++) {
        const struct mf_work_weight_choice *choice = &mf_work_weights[i];
        bool direct = forward ? choice->forward == MF_WEIGHT_FORWARD_DIRECT
                              : choice->backward == MF_WEIGHT_BACKWARD_DIRECT;
        bool loads = forward ? choice->forward == MF_WEIGHT_FORWARD_STREAM
                             : choice->backward == MF_WEIGHT_BACKWARD_STREAM;
        work->weight[i].ns[MF_LANE_COMPUTE] += direct ? in_place : on_device;
        work->weight[i].ns[MF_LANE_H2D] += loads ? load : 0;
        if (forward) {
            work->forward[i] = work->weight[i]; /* forwards come first in the graph */
        }
    }
    work->forward_ns += forward ? task->expected_ns : 0;
    work->read_in_backward |= !forward;
}

/* The first sum of a step only assigns; which one that is depends on the plan. */
static double sum_cost(const struct builder *builder, enum mf_lane lane, int64_t size)
{
    struct mf_shape later = {.n = size};
    struct mf_shape first = {.n = size, .flags = MF_SHAPE_FIRST_MICRO};
    return fmin(cost(builder, lane, MF_KERNEL_GRADIENT_ACCUMULATE, later),
                cost(builder, lane, MF_KERNEL_GRADIENT_ACCUMULATE, first));
}

/* A kernel that computes a panel of the gradient: what it costs, and what is done to the result
 * before the update. */
static void add_gradient(const struct builder *builder, const struct mf_task *task)
{
    int32_t owner = builder->model->units[task->unit].owner;
    struct mf_work_unit *work = &builder->work->units[owner];
    int64_t size = mf_model_panel_size(&builder->model->units[owner], task->panel);
    bool sums = mf_step_contributions(builder->model, builder->workload, owner) > 1;
    struct mf_shape host_shape = task->shape;
    host_shape.flags |= mf_step_direct_flags(builder->model->units[owner].kind, sums);
    double in_place = cost(builder, MF_LANE_COMPUTE, task->kernel, host_shape);
    double by_device = sum_cost(builder, MF_LANE_COMPUTE, size);
    double by_cpu = sum_cost(builder, MF_LANE_CPU, size);
    double out = copy_cost(builder, MF_LANE_D2H, size * 2);
    for (int i = 0; i < MF_WORK_UPDATES; i++) {
        enum mf_gradient gradient = mf_work_updates[i].gradient;
        bool device = gradient == MF_GRADIENT_DEVICE;
        for (int resident = 0; resident < 2; resident++) {
            double *ns = work->update[resident][i][MF_WORK_BEFORE].ns;
            ns[MF_LANE_COMPUTE] +=
                builder->micros * (gradient == MF_GRADIENT_DIRECT ? in_place : task->expected_ns);
            ns[MF_LANE_D2H] += gradient == MF_GRADIENT_COPY ? builder->micros * out : 0;
            ns[MF_LANE_COMPUTE] += sums && device ? builder->micros * by_device : 0;
            ns[MF_LANE_CPU] += sums && !device ? builder->micros * by_cpu : 0;
        }
    }
}

/* The update of one panel, as step_update.c lays it out. */
static void add_update(const struct builder *builder, int32_t owner, int32_t panel)
{
    const struct mf_unit *unit = &builder->model->units[owner];
    struct mf_work_unit *work = &builder->work->units[owner];
    int64_t size = mf_model_panel_size(unit, panel);
    bool sums = mf_step_contributions(builder->model, builder->workload, owner) > 1;
    struct mf_shape adamw = {.n = size, .k = mf_model_panel_row_count(unit, panel) * unit->columns};
    adamw.flags |= unit->weight.decay ? MF_SHAPE_DECAY_FIRST : 0;
    adamw.flags |= unit->bias.name != NULL && unit->bias.decay ? MF_SHAPE_DECAY_REST : 0;
    adamw.flags |= sums ? MF_SHAPE_GRADIENT_FP32 : 0;
    struct mf_shape norm = {.n = size, .flags = sums ? MF_SHAPE_GRADIENT_FP32 : 0};
    int64_t gradient_bytes = size * (sums ? 4 : 2);
    for (int i = 0; i < 2 * MF_WORK_UPDATES; i++) {
        bool resident = i % 2 == 1;
        const struct mf_work_update_choice *choice = &mf_work_updates[i / 2];
        struct mf_work_lanes *lanes = work->update[resident][i / 2];
        bool device = choice->gradient == MF_GRADIENT_DEVICE;
        bool by_cpu = choice->optimizer == MF_OPTIMIZER_CPU;
        bool passes = choice->optimizer == MF_OPTIMIZER_GPU_STREAM;
        bool norm_on_device = device || (choice->gradient == MF_GRADIENT_COPY && !sums);
        enum mf_lane norm_lane = norm_on_device ? MF_LANE_COMPUTE : MF_LANE_CPU;
        enum mf_lane update_lane = by_cpu ? MF_LANE_CPU : MF_LANE_COMPUTE;
        lanes[MF_WORK_NORM].ns[norm_lane] +=
            cost(builder, norm_lane, MF_KERNEL_GRADIENT_NORM, norm);
        lanes[MF_WORK_AFTER].ns[update_lane] += cost(builder, update_lane, MF_KERNEL_ADAMW, adamw);
        if (by_cpu && device) {
            lanes[MF_WORK_FREE].ns[MF_LANE_D2H] += copy_cost(builder, MF_LANE_D2H, gradient_bytes);
        }
        if (!by_cpu && !device) {
            lanes[MF_WORK_FREE].ns[MF_LANE_H2D] += copy_cost(builder, MF_LANE_H2D, gradient_bytes);
        }
        if (passes) {
            int64_t state_bytes = size * MF_STATE_BYTES;
            lanes[MF_WORK_FREE].ns[MF_LANE_H2D] += copy_cost(builder, MF_LANE_H2D, state_bytes);
            lanes[MF_WORK_AFTER].ns[MF_LANE_D2H] += copy_cost(builder, MF_LANE_D2H, state_bytes);
        }
        if (!by_cpu && !resident) { /* the weight holds the upper half of the master */
            lanes[MF_WORK_FREE].ns[MF_LANE_H2D] += copy_cost(builder, MF_LANE_H2D, size * 2);
        }
        if (by_cpu == resident) {
            enum mf_lane lane = by_cpu ? MF_LANE_H2D : MF_LANE_D2H;
            lanes[MF_WORK_AFTER].ns[lane] += copy_cost(builder, lane, size * 2);
        }
    }
}

/* How far copies into the rings of the update can run ahead: no ring has more slots. */
#define AHEAD_SLOTS 4
static void add_ahead(const struct builder *builder, const struct mf_unit *unit)
{
    double *ns = builder->work->ahead.ns;
    int64_t panel = unit->panel_elements;
    double in = copy_cost(builder, MF_LANE_H2D, panel * MF_STATE_BYTES) +
                copy_cost(builder, MF_LANE_H2D, panel * 2) +
                copy_cost(builder, MF_LANE_H2D, panel * 4);
    double out = copy_cost(builder, MF_LANE_D2H, panel * 4);
    ns[MF_LANE_H2D] = fmax(ns[MF_LANE_H2D], AHEAD_SLOTS * in);
    ns[MF_LANE_D2H] = fmax(ns[MF_LANE_D2H], AHEAD_SLOTS * out);
}

static void add_owner(const struct builder *builder, int32_t owner)
{
    const struct mf_unit *unit = &builder->model->units[owner];
    struct mf_work_unit *work = &builder->work->units[owner];
    bool sums = mf_step_contributions(builder->model, builder->workload, owner) > 1;
    add_ahead(builder, unit);
    for (int32_t panel = 0; panel < unit->panel_count; panel++) {
        add_update(builder, owner, panel);
    }
    for (int i = 0; i < MF_WORK_UPDATES; i++) {
        const struct mf_work_update_choice *choice = &mf_work_updates[i];
        work->update_bytes[i] =
            (choice->gradient == MF_GRADIENT_DEVICE ? unit->elements * (sums ? 4 : 2) : 0) +
            (choice->optimizer == MF_OPTIMIZER_GPU ? unit->elements * MF_STATE_BYTES : 0);
    }
}

/* Weight copies that take device memory at the loss, and the late copies, which come whole whether
 * a kernel reads them or not. */
static void add_copies(const struct builder *builder, int32_t index)
{
    const struct mf_unit *unit = &builder->model->units[index];
    struct mf_work_unit *work = &builder->work->units[index];
    for (int32_t panel = 0; panel < unit->panel_count; panel++) {
        work->copy_ns += copy_cost(builder, MF_LANE_H2D, mf_model_panel_size(unit, panel) * 2);
    }
    for (int i = 0; i < MF_WORK_WEIGHTS; i++) {
        const struct mf_work_weight_choice *choice = &mf_work_weights[i];
        bool stays = i == MF_WORK_WEIGHT_RESIDENT
                         ? unit->owner == index
                         : choice->backward == MF_WEIGHT_BACKWARD_KEEP && work->read_in_backward;
        work->weight_bytes[i] = stays ? unit->elements * 2 : 0;
        if (choice->backward == MF_WEIGHT_BACKWARD_LATE) {
            work->weight[i].ns[MF_LANE_H2D] += work->copy_ns * builder->micros;
        }
    }
}

/* One micro-batch, forward and backward, everything resident. */
static enum mf_status build_step(const struct builder *builder, enum mf_activation activation,
                                 struct mf_step *out)
{
    struct mf_plan plan;
    struct mf_workload workload = *builder->workload;
    workload.accumulation = 1;
    mf_plan_init(builder->model, &workload, &plan);
    for (int32_t i = 1; i + 1 < plan.block_count; i++) {
        plan.activations[i] = activation;
    }
    struct mf_step_request request = {.micro_count = 1, .backward = true};
    enum mf_status status = mf_step_build(builder->model, &plan, &request, out);
    mf_plan_reset(&plan);
    if (status == MF_STATUS_OK) {
        (void)mf_cost_fill(builder->hardware, builder->profile, out);
    }
    return status;
}

static void read_kept(const struct builder *builder, const struct mf_step *step)
{
    int32_t loss = -1;
    for (int32_t i = 0; i < step->task_count && loss < 0; i++) {
        loss = step->tasks[i].phase == MF_PHASE_BACKWARD ? i - 1 : -1;
    }
    for (int32_t i = 0; i < step->buffer_count; i++) {
        const struct mf_buffer *buffer = &step->buffers[i];
        if (buffer->space != MF_SPACE_DEVICE || buffer->persistent || buffer->first_task < 0 ||
            buffer->first_task >= loss || buffer->last_task <= loss) {
            continue;
        }
        /* What leaves its block belongs to the next one, whatever this one does. */
        int32_t block = step->tasks[buffer->first_task].block;
        if (block == step->tasks[buffer->last_task].block && block >= 0) {
            builder->work->blocks[block].kept_bytes += buffer->bytes;
        }
    }
}

static void read_base(const struct builder *builder, const struct mf_step *step)
{
    builder->work->task_count = step->task_count;
    for (int32_t i = 0; i < step->task_count; i++) {
        const struct mf_task *task = &step->tasks[i];
        enum use use = task->unit >= 0 ? use_of(builder, task) : USE_NONE;
        if (task->lane != MF_LANE_COMPUTE || task->kernel == MF_KERNEL_GRADIENT_ACCUMULATE ||
            task->kernel == MF_KERNEL_GRADIENT_NORM) {
            continue; /* tied gradients are summed: that depends on where, see add_gradient */
        }
        switch (use) {
        case USE_NONE:
            builder->work->compute_ns += task->expected_ns * builder->micros;
            builder->work->compute_forward_ns +=
                task->phase == MF_PHASE_FORWARD ? task->expected_ns * builder->micros : 0;
            break;
        case USE_READ:
        case USE_READ_AGAIN:
            add_read(builder, task, use == USE_READ_AGAIN);
            break;
        case USE_GRADIENT:
            add_gradient(builder, task);
            break;
        }
    }
    read_kept(builder, step);
}

/* Adds (sign = 1) or takes away (-1) the work of a step to each block's `activation`. */
static void read_activation(const struct builder *builder, const struct mf_step *step,
                            enum mf_activation activation, double sign)
{
    for (int32_t i = 0; i < step->task_count; i++) {
        const struct mf_task *task = &step->tasks[i];
        if (task->block < 0) {
            continue;
        }
        double ns = task->expected_ns;
        if (task->unit >= 0 && uses[task->kernel] == USE_READ) {
            struct mf_shape shape = task->shape;
            shape.flags |= MF_SHAPE_WEIGHT_HOST;
            ns = fmin(ns, cost(builder, task->lane, task->kernel, shape));
        }
        builder->work->blocks[task->block].activation[activation].ns[task->lane] +=
            sign * ns * builder->micros;
    }
}

static enum mf_status fill(const struct builder *builder)
{
    struct mf_step base;
    MF_TRY(build_step(builder, MF_ACTIVATION_KEEP, &base));
    read_base(builder, &base);
    enum mf_status status = MF_STATUS_OK;
    static const enum mf_activation others[] = {MF_ACTIVATION_RECOMPUTE, MF_ACTIVATION_OFFLOAD};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]) && status == MF_STATUS_OK; i++) {
        struct mf_step step;
        status = build_step(builder, others[i], &step);
        if (status == MF_STATUS_OK) {
            read_activation(builder, &step, others[i], 1);
            read_activation(builder, &base, others[i], -1);
            mf_step_reset(&step);
        }
    }
    mf_step_reset(&base);
    return status;
}

enum mf_status mf_work_build(const struct mf_model *model, const struct mf_workload *workload,
                             const struct mf_hardware *hardware, const struct mf_profile *profile,
                             struct mf_work *out)
{
    *out = (struct mf_work){.unit_count = model->unit_count, .block_count = model->block_count};
    out->units = calloc((size_t)model->unit_count + 1, sizeof(*out->units));
    out->blocks = calloc((size_t)model->block_count + 1, sizeof(*out->blocks));
    MF_ASSERT(out->units != NULL && out->blocks != NULL);
    struct builder builder = {
        .model = model,
        .workload = workload,
        .hardware = hardware,
        .profile = profile,
        .work = out,
        .micros = workload->accumulation,
    };
    enum mf_status status = fill(&builder);
    for (int32_t i = 0; i < model->unit_count && status == MF_STATUS_OK; i++) {
        add_copies(&builder, i);
        if (model->units[i].owner == i) {
            add_owner(&builder, i);
        }
    }
    if (status != MF_STATUS_OK) {
        mf_work_reset(out);
    }
    return status;
}

void mf_work_reset(struct mf_work *work)
{
    free(work->units);
    free(work->blocks);
    *work = (struct mf_work){0};
}

static void add_lanes(struct mf_work_lanes *sum, const struct mf_work_lanes *more)
{
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        sum->ns[lane] += more->ns[lane];
    }
}

void mf_work_plan(const struct mf_work *work, const struct mf_model *model,
                  const struct mf_plan *plan, struct mf_work_lanes *lanes, int64_t *device_bytes)
{
    *lanes = (struct mf_work_lanes){{[MF_LANE_COMPUTE] = work->compute_ns}};
    *device_bytes = 0;
    for (int32_t i = 0; i < work->unit_count; i++) {
        const struct mf_unit_decision *decision = &plan->units[i];
        const struct mf_work_unit *unit = &work->units[i];
        int weight = mf_work_find_weight(decision->forward, decision->backward);
        MF_ASSERT(weight >= 0);
        add_lanes(lanes, &unit->weight[weight]);
        *device_bytes += unit->weight_bytes[weight];
        if (model->units[i].owner != i) {
            continue;
        }
        int update = mf_work_find_update(decision->gradient, decision->optimizer);
        MF_ASSERT(update >= 0);
        for (int when = 0; when < MF_WORK_WHEN_COUNT; when++) {
            add_lanes(lanes, &unit->update[weight == MF_WORK_WEIGHT_RESIDENT][update][when]);
        }
        *device_bytes += unit->update_bytes[update];
    }
    for (int32_t i = 0; i < work->block_count; i++) {
        add_lanes(lanes, &work->blocks[i].activation[plan->activations[i]]);
        *device_bytes +=
            plan->activations[i] == MF_ACTIVATION_KEEP ? work->blocks[i].kept_bytes : 0;
    }
}
