/* Entry to the step builder, and what is asked of finished graphs: see step.h. */
#include "planner/step.h"

#include <stdlib.h>
#include <string.h>

#include "core/limits.h"
#include "planner/memory.h"
#include "planner/step_builder.h"

int32_t mf_step_contributions(const struct mf_model *model, const struct mf_workload *workload,
                              int32_t owner)
{
    return workload->accumulation * mf_model_use_count(model, owner);
}

const char *mf_step_phase_name(enum mf_phase phase)
{
    static const char *const names[MF_PHASE_COUNT] = {"forward", "backward", "update"};
    return names[phase];
}

enum mf_step_variant mf_step_variant_redo(enum mf_step_variant variant)
{
    switch (variant) {
    case MF_STEP_RUN:
        return MF_STEP_RUN_REDO;
    case MF_STEP_FIRST:
        return MF_STEP_FIRST_REDO;
    case MF_STEP_FIRST_UPDATE:
        return MF_STEP_FIRST_UPDATE_REDO;
    case MF_STEP_FLUSH:
        return MF_STEP_FLUSH_REDO;
    default:
        return variant;
    }
}

struct mf_step_request mf_step_variant_request(const struct mf_plan *plan,
                                               enum mf_step_variant variant)
{
    static const struct {
        struct mf_step_request request;
        bool begins; /* an optimizer step: what the one before left comes first */
    } kinds[MF_STEP_VARIANT_COUNT] = {
        [MF_STEP_RUN] = {{.backward = true, .update = true}, true},
        [MF_STEP_FIRST] = {{.micro_count = 1, .backward = true}, true},
        [MF_STEP_LATER] = {{.micro_first = 1, .micro_count = 1, .backward = true}, false},
        [MF_STEP_FIRST_UPDATE] = {{.micro_count = 1, .backward = true, .update = true}, true},
        [MF_STEP_LATER_UPDATE] =
            {{.micro_first = 1, .micro_count = 1, .backward = true, .update = true}, false},
        [MF_STEP_UPDATE] = {{.update = true}, false},
        [MF_STEP_FLUSH] = {{0}, true},
        [MF_STEP_EVALUATE] = {{.micro_count = 1}, false},
        [MF_STEP_LOGITS] = {{.micro_count = 1, .logits = true}, false},
    };
    for (int plain = 0; plain < MF_STEP_VARIANT_COUNT; plain++) {
        if (plain != (int)variant && mf_step_variant_redo((enum mf_step_variant)plain) == variant) {
            struct mf_step_request request =
                mf_step_variant_request(plan, (enum mf_step_variant)plain);
            request.redo = plan->speculate;
            return request;
        }
    }
    struct mf_step_request request = kinds[variant].request;
    if (variant == MF_STEP_RUN) {
        request.micro_count = plan->workload.accumulation;
    }
    request.pending = kinds[variant].begins && (plan->deferred_blocks > 0 || plan->speculate);
    return request;
}

static int32_t *indices(int32_t count)
{
    int32_t *array = malloc((size_t)(count > 0 ? count : 1) * sizeof(*array));
    MF_ASSERT(array != NULL);
    return array;
}

/* The arrays that describe the micro-batch being laid out, and how long each is. */
#define MICRO_ARRAYS 8
static void micro_arrays(struct mf_step_builder *builder, int32_t **arrays[static MICRO_ARRAYS],
                         int32_t counts[static MICRO_ARRAYS])
{
    const struct mf_model *model = builder->model;
    int32_t **const list[MICRO_ARRAYS] = {
        &builder->values, &builder->values_host,     &builder->aux,          &builder->aux_host,
        &builder->inputs, &builder->value_gradients, &builder->unit_buffers, NULL,
    };
    const int32_t lengths[MICRO_ARRAYS] = {
        model->value_count, model->value_count, model->op_count,   model->op_count,
        model->op_count,    model->value_count, model->unit_count, 0,
    };
    memcpy(arrays, list, sizeof(list));
    memcpy(counts, lengths, sizeof(lengths));
}

/* Asked for every panel, so counted once. */
static bool *find_sums(const struct mf_model *model, const struct mf_workload *workload)
{
    int32_t *uses = calloc((size_t)model->unit_count + 1, sizeof(*uses));
    bool *sums = calloc((size_t)model->unit_count + 1, sizeof(*sums));
    MF_ASSERT(uses != NULL && sums != NULL);
    for (int32_t i = 0; i < model->op_count; i++) {
        if (model->ops[i].unit >= 0) {
            uses[model->units[model->ops[i].unit].owner]++;
        }
    }
    for (int32_t i = 0; i < model->unit_count; i++) {
        sums[i] = uses[i] * workload->accumulation > 1;
    }
    free(uses);
    return sums;
}

static void open_builder(struct mf_step_builder *builder)
{
    builder->sums = find_sums(builder->model, &builder->plan->workload);
    int32_t **arrays[MICRO_ARRAYS];
    int32_t counts[MICRO_ARRAYS];
    micro_arrays(builder, arrays, counts);
    for (int i = 0; arrays[i] != NULL; i++) {
        *arrays[i] = indices(counts[i]);
    }
    builder->gradient_written =
        calloc((size_t)builder->model->value_count + 1, sizeof(*builder->gradient_written));
    MF_ASSERT(builder->gradient_written != NULL);
}

static void close_builder(struct mf_step_builder *builder)
{
    int32_t **arrays[MICRO_ARRAYS];
    int32_t counts[MICRO_ARRAYS];
    micro_arrays(builder, arrays, counts);
    for (int i = 0; arrays[i] != NULL; i++) {
        free(*arrays[i]);
    }
    free(builder->gradient_written);
    free(builder->sums);
    free(builder->uploads);
    free(builder->hazards);
    free(builder->hazard_first);
    free(builder->first_access);
    free(builder->square_first);
}

static void build_micro(struct mf_step_builder *builder)
{
    int32_t **arrays[MICRO_ARRAYS];
    int32_t counts[MICRO_ARRAYS];
    micro_arrays(builder, arrays, counts);
    for (int i = 0; arrays[i] != NULL; i++) {
        memset(*arrays[i], 0xff, (size_t)counts[i] * sizeof(int32_t)); /* -1 = none */
    }
    memset(builder->gradient_written, 0,
           (size_t)builder->model->value_count * sizeof(*builder->gradient_written));
    builder->tokens = builder->labels = builder->lse = builder->running = -1;
    mf_step_forward_micro(builder);
    if (builder->request.backward) {
        mf_step_backward_micro(builder);
    }
}

static void mark_signals(struct mf_step *step)
{
    for (int32_t i = 0; i < step->task_count; i++) {
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            if (step->tasks[i].depends[lane] >= 0) {
                step->tasks[step->tasks[i].depends[lane]].signals = true;
            }
        }
    }
}

enum mf_status mf_step_build(const struct mf_model *model, const struct mf_plan *plan,
                             const struct mf_step_request *request, struct mf_step *out)
{
    memset(out, 0, sizeof(*out));
    MF_TRY(mf_plan_validate(plan, model));
    out->request = *request;
    struct mf_step_builder builder = {
        .model = model,
        .plan = plan,
        .request = *request,
        .step = out,
        .rows = mf_workload_rows(&plan->workload),
        .block = -1,
    };
    open_builder(&builder);
    mf_step_layout_build(&builder);
    for (int32_t micro = 0; micro < request->micro_count && !builder.overflow; micro++) {
        builder.micro = micro;
        build_micro(&builder);
    }
    if (request->pending && request->micro_count == 0) {
        mf_step_update_flush(&builder);
    }
    if (request->update) {
        mf_step_update_finish(&builder);
    }
    mf_memory_place(out->buffers, out->buffer_count, out->space_bytes);
    mf_memory_order(out, builder.first_access);
    mark_signals(out);
    bool overflow = builder.overflow;
    close_builder(&builder);
    if (overflow) {
        mf_step_reset(out);
        return mf_status_set(MF_STATUS_INVALID,
                             "one optimizer step would be more than %d tasks: use fewer "
                             "micro-batches than %d, or larger panels",
                             MF_TASKS_MAX, plan->workload.accumulation);
    }
    return MF_STATUS_OK;
}

void mf_step_reset(struct mf_step *step)
{
    free(step->tasks);
    free(step->buffers);
    free(step->layout.weight_device);
    free(step->layout.weight_host);
    free(step->layout.gradient);
    free(step->layout.marks);
    free(step->layout.state);
    memset(step, 0, sizeof(*step));
}

/* Variants whose graph is another's, or is not asked for. A later micro-batch differs from a first
 * only in adding to gradients that are there. */
static bool repeats(const struct mf_model *model, const struct mf_plan *plan,
                    enum mf_step_variant variant)
{
    switch (variant) {
    case MF_STEP_FIRST_UPDATE:
        return plan->workload.accumulation == 1; /* that is MF_STEP_RUN */
    case MF_STEP_LATER:
    case MF_STEP_LATER_UPDATE:
        return true; /* as MF_STEP_FIRST and MF_STEP_FIRST_UPDATE */
    case MF_STEP_UPDATE:
    case MF_STEP_FLUSH:
    case MF_STEP_FLUSH_REDO:
    case MF_STEP_RUN_REDO:
    case MF_STEP_FIRST_REDO:
    case MF_STEP_FIRST_UPDATE_REDO:
        return true; /* has only the persistent buffers, which all have */
    case MF_STEP_LOGITS:
        return !model->executable;
    case MF_STEP_RUN:
    case MF_STEP_FIRST:
    case MF_STEP_EVALUATE:
    case MF_STEP_VARIANT_COUNT:
        break;
    }
    return false;
}

enum mf_status mf_step_peak(const struct mf_model *model, const struct mf_plan *plan,
                            int64_t out[static MF_SPACE_COUNT])
{
    memset(out, 0, MF_SPACE_COUNT * sizeof(*out));
    for (int variant = 0; variant < MF_STEP_VARIANT_COUNT; variant++) {
        struct mf_step_request request =
            mf_step_variant_request(plan, (enum mf_step_variant)variant);
        if (repeats(model, plan, (enum mf_step_variant)variant)) {
            continue;
        }
        struct mf_step step;
        MF_TRY(mf_step_build(model, plan, &request, &step));
        for (int space = 0; space < MF_SPACE_COUNT; space++) {
            if (step.space_bytes[space] > out[space]) {
                out[space] = step.space_bytes[space];
            }
        }
        mf_step_reset(&step);
    }
    return MF_STATUS_OK;
}

/* The task during which most bytes of `space` are live. */
static int32_t fullest_task(const struct mf_step *step, enum mf_space space)
{
    int64_t *change = calloc((size_t)step->task_count + 2, sizeof(*change));
    MF_ASSERT(change != NULL);
    for (int32_t i = 0; i < step->buffer_count; i++) {
        const struct mf_buffer *buffer = &step->buffers[i];
        if (buffer->space == space && !buffer->persistent && buffer->first_task >= 0) {
            change[buffer->first_task] += buffer->bytes;
            change[buffer->last_task + 1] -= buffer->bytes;
        }
    }
    int64_t live = 0;
    int64_t most = -1;
    int32_t fullest = 0;
    for (int32_t i = 0; i <= step->task_count; i++) {
        live += change[i];
        if (live > most) {
            most = live;
            fullest = i;
        }
    }
    free(change);
    return fullest;
}

void mf_step_purposes(const struct mf_step *step, int64_t device[static MF_PURPOSE_COUNT],
                      int64_t host[static MF_PURPOSE_COUNT])
{
    int64_t *const sums[MF_SPACE_COUNT] = {device, host};
    for (int space = 0; space < MF_SPACE_COUNT; space++) {
        memset(sums[space], 0, MF_PURPOSE_COUNT * sizeof(int64_t));
        int32_t at = fullest_task(step, (enum mf_space)space);
        for (int32_t i = 0; i < step->buffer_count; i++) {
            const struct mf_buffer *buffer = &step->buffers[i];
            bool live = buffer->persistent || (buffer->first_task >= 0 &&
                                               buffer->first_task <= at && buffer->last_task >= at);
            if ((int)buffer->space == space && live) {
                sums[space][buffer->purpose] += buffer->bytes;
            }
        }
    }
}
