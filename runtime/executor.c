/* Opening a job and running its graphs: see executor.h. */
#include "runtime/executor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "core/limits.h"
#include "runtime/executor_internal.h"
#include "runtime/rope.h"

void *mf_executor_host_pointer(const struct mf_executor *executor, int32_t buffer, int64_t offset)
{
    const struct mf_buffer *place = &executor->steps[0].buffers[buffer];
    return executor->bases[place->space] + place->offset + place->twin * executor->second_half +
           offset;
}

void *mf_executor_transfer(const struct mf_executor *executor)
{
    return mf_executor_host_pointer(executor, executor->steps[0].layout.transfer, 0);
}

static struct mf_control *control_block(const struct mf_executor *executor)
{
    return mf_executor_host_pointer(executor, executor->steps[0].layout.control, 0);
}

/* ---- opening ---- */

static enum mf_status build_steps(struct mf_executor *executor)
{
    for (int variant = 0; variant < MF_STEP_VARIANT_COUNT; variant++) {
        struct mf_step *step = &executor->steps[variant];
        struct mf_step_request request =
            mf_step_variant_request(executor->plan, (enum mf_step_variant)variant);
        MF_TRY(mf_step_build(executor->model, executor->plan, &request, step));
        for (int space = 0; space < MF_SPACE_COUNT; space++) {
            if (step->space_bytes[space] > executor->space_bytes[space]) {
                executor->space_bytes[space] = step->space_bytes[space];
            }
        }
    }
    return MF_STATUS_OK;
}

static void build_shadows(struct mf_executor *executor)
{
    const struct mf_model *model = executor->model;
    const struct mf_step_layout *layout = &executor->steps[0].layout;
    int32_t count = 0;
    executor->shadow_first = calloc((size_t)model->unit_count, sizeof(int32_t));
    executor->weights = malloc((size_t)layout->persistent_count * sizeof(*executor->weights));
    MF_ASSERT(executor->shadow_first != NULL && executor->weights != NULL);
    for (int32_t i = 0; i < layout->persistent_count; i++) {
        executor->weights[i].unit = -1;
    }
    for (int32_t i = 0; i < model->unit_count; i++) {
        int32_t owner = model->units[i].owner;
        executor->shadow_first[i] = owner == i ? count : executor->shadow_first[owner];
        if (owner != i) {
            continue;
        }
        count += model->units[i].panel_count;
        if (layout->weight_device[i] >= 0) {
            executor->weights[layout->weight_device[i]] =
                (struct mf_executor_weights){i, MF_SPACE_DEVICE};
        }
        if (layout->weight_host[i] >= 0) {
            executor->weights[layout->weight_host[i]] =
                (struct mf_executor_weights){i, MF_SPACE_HOST};
        }
    }
    executor->shadows = calloc((size_t)count + 1, sizeof(*executor->shadows));
    MF_ASSERT(executor->shadows != NULL);
}

static enum mf_status reserve(struct mf_executor *executor, mf_device_progress progress,
                              void *context)
{
    const struct mf_device_interface *interface = executor->interface;
    void *memory = NULL;
    MF_TRY(interface->reserve(executor->device, executor->space_bytes[MF_SPACE_DEVICE], &memory));
    executor->bases[MF_SPACE_DEVICE] = memory;
    MF_TRY(interface->map_host(executor->device, executor->space_bytes[MF_SPACE_HOST], progress,
                               context, &memory));
    executor->bases[MF_SPACE_HOST] = memory;
    executor->host_on_device = interface->device_address(executor->device, memory);
    int32_t tasks = 1;
    for (int variant = 0; variant < MF_STEP_VARIANT_COUNT; variant++) {
        if (executor->steps[variant].task_count > tasks) {
            tasks = executor->steps[variant].task_count;
        }
    }
    return interface->prepare(executor->device, tasks);
}

/* The rope table goes to the device in pieces of the transfer buffer's size. */
static enum mf_status load_rope(struct mf_executor *executor)
{
    const struct mf_step *step = &executor->steps[0];
    if (step->layout.rope_table < 0) {
        return MF_STATUS_OK;
    }
    enum mf_status status = MF_STATUS_OK;
    int64_t bytes = executor->plan->workload.seq_len * executor->model->head_dim * 4;
    int64_t piece_max = step->buffers[step->layout.transfer].bytes;
    float *table = malloc((size_t)bytes);
    MF_ASSERT(table != NULL);
    mf_rope_table(executor->model, executor->plan->workload.seq_len, table);
    for (int64_t done = 0; done < bytes && status == MF_STATUS_OK; done += piece_max) {
        int64_t piece = bytes - done < piece_max ? bytes - done : piece_max;
        memcpy(mf_executor_transfer(executor), (char *)table + done, (size_t)piece);
        status = mf_executor_copy(executor, MF_LANE_H2D, mf_executor_transfer(executor),
                                  mf_executor_host_pointer(executor, step->layout.rope_table, done),
                                  piece);
    }
    free(table);
    return status;
}

enum mf_status mf_executor_open(const struct mf_device_interface *interface,
                                struct mf_device *device, const struct mf_model *model,
                                const struct mf_plan *plan, mf_device_progress progress,
                                void *context, struct mf_executor **out)
{
    enum mf_status status = MF_STATUS_OK;
    *out = NULL;
    if (!model->executable) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "a bare list of units can be planned but not trained here: give a "
                             "Hugging Face folder, a config.json or a preset");
    }
    struct mf_executor *executor = calloc(1, sizeof(*executor));
    MF_ASSERT(executor != NULL);
    executor->interface = interface;
    executor->device = device;
    executor->model = model;
    executor->plan = plan;
    executor->speculating = plan->speculate;
    MF_TRY_GOTO(build_steps(executor), failed);
    build_shadows(executor);
    MF_TRY_GOTO(reserve(executor, progress, context), failed);
    MF_TRY_GOTO(load_rope(executor), failed);
    *out = executor;
    return MF_STATUS_OK;
failed:
    mf_executor_close(executor);
    return status;
}

void mf_executor_close(struct mf_executor *executor)
{
    if (executor == NULL) {
        return;
    }
    struct mf_error error = *mf_status_error(); /* closing after a failure keeps its text */
    if (executor->bases[MF_SPACE_HOST] != NULL) {
        executor->interface->unmap_host(executor->device, executor->bases[MF_SPACE_HOST]);
    }
    if (executor->bases[MF_SPACE_DEVICE] != NULL) {
        executor->interface->release(executor->device, executor->bases[MF_SPACE_DEVICE]);
    }
    for (int variant = 0; variant < MF_STEP_VARIANT_COUNT; variant++) {
        mf_step_reset(&executor->steps[variant]);
    }
    free(executor->shadows);
    free(executor->shadow_first);
    free(executor->weights);
    free(executor);
    (void)mf_status_restore(&error);
}

int64_t mf_executor_bytes(const struct mf_executor *executor, enum mf_space space)
{
    return executor->space_bytes[space];
}

int64_t mf_executor_step(const struct mf_executor *executor)
{
    return executor->step;
}

void mf_executor_set_step(struct mf_executor *executor, int64_t step)
{
    executor->step = step;
}

void mf_executor_set_trace(struct mf_executor *executor, bool trace)
{
    executor->trace = trace;
}

/* ---- running a graph ---- */

/* Reports to the shadows what a task does to weights. */
static void follow_weights(struct mf_executor *executor, const struct mf_step *step,
                           const struct mf_task *task)
{
    bool copy = task->kernel == MF_KERNEL_COPY;
    bool update = task->kernel == MF_KERNEL_ADAMW;
    const struct mf_executor_weights none = {.unit = -1};
    struct mf_executor_weights uses[6] = {none, none, none, none, none, none};
    for (int i = 0; i < 6; i++) {
        int32_t buffer = task->operands[i].buffer;
        if (buffer >= 0 && buffer < step->layout.persistent_count) {
            uses[i] = executor->weights[buffer];
        }
    }
    for (int i = 0; i < 6; i++) {
        if (uses[i].unit < 0 || task->panel < 0) {
            continue;
        }
        struct mf_shadow *shadow =
            &executor->shadows[executor->shadow_first[uses[i].unit] + task->panel];
        if (copy && i == 1 && uses[0].unit == uses[1].unit) {
            mf_shadow_copy(shadow, uses[i].space);
        } else if (update && i == 2) { /* the weight holds the upper half of the master */
            mf_shadow_read(shadow, uses[i].space);
            mf_shadow_write(shadow, uses[i].space);
        } else if ((copy && i == 1) || (update && i == 5)) {
            mf_shadow_write(shadow, uses[i].space);
        } else {
            mf_shadow_read(shadow, uses[i].space);
        }
    }
}

static void resolve(const struct mf_executor *executor, const struct mf_step *step,
                    const struct mf_task *task, int32_t position, struct mf_kernel_call *call)
{
    bool on_host = task->lane == MF_LANE_CPU || task->kernel == MF_KERNEL_COPY;
    *call = (struct mf_kernel_call){
        .kernel = task->kernel,
        .shape = task->shape,
        .index0 = task->index0,
        .index1 = task->kernel == MF_KERNEL_HEAD_LOGITS ? position : task->index1,
        .scalar0 = task->scalar0,
    };
    for (int i = 0; i < MF_OPERANDS_MAX; i++) {
        if (task->operands[i].buffer < 0) {
            continue;
        }
        const struct mf_buffer *buffer = &step->buffers[task->operands[i].buffer];
        char *base = buffer->space == MF_SPACE_HOST && !on_host ? executor->host_on_device
                                                                : executor->bases[buffer->space];
        int half = task->operands[i].next ^ executor->second_half;
        call->operands[i].pointer =
            base + buffer->offset + buffer->twin * half + task->operands[i].offset;
        call->operands[i].stride = task->operands[i].stride;
    }
}

static enum mf_status issue(struct mf_executor *executor, const struct mf_step *step,
                            int32_t position)
{
    const struct mf_device_interface *interface = executor->interface;
    struct mf_device *device = executor->device;
    for (int32_t i = 0; i < step->task_count; i++) {
        const struct mf_task *task = &step->tasks[i];
        struct mf_kernel_call call;
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            if (task->depends[lane] >= 0) {
                MF_TRY(interface->wait(device, task->lane, task->depends[lane]));
            }
        }
        /* Without its work a task still orders those around it. */
        if ((!task->pending || executor->pending) &&
            (!task->speculative || executor->speculating)) {
            follow_weights(executor, step, task);
            resolve(executor, step, task, position, &call);
            MF_TRY(interface->submit(device, task->lane, &call, i));
        }
        if (task->signals) {
            MF_TRY(interface->record(device, task->lane, i));
        }
    }
    return MF_STATUS_OK;
}

static void measure(struct mf_executor *executor, const struct mf_step *step, int64_t issue_ns,
                    int64_t wall_ns)
{
    struct mf_executor_timing *timing = &executor->timing;
    *timing = (struct mf_executor_timing){.wall_ns = wall_ns, .issue_ns = issue_ns};
    int64_t busy_ns = 0;
    for (int32_t i = 0; i < step->task_count; i++) {
        const struct mf_task *task = &step->tasks[i];
        struct mf_device_span span;
        timing->h2d_bytes += task->lane == MF_LANE_H2D ? task->link_bytes : 0;
        timing->d2h_bytes += task->lane == MF_LANE_D2H ? task->link_bytes : 0;
        timing->direct_bytes += task->lane == MF_LANE_COMPUTE ? task->link_bytes : 0;
        if (executor->trace && task->lane == MF_LANE_COMPUTE &&
            executor->interface->span(executor->device, i, &span)) {
            busy_ns += span.end_ns - span.start_ns;
        }
    }
    if (executor->trace && wall_ns > 0) {
        double idle = 1.0 - (double)busy_ns / (double)wall_ns;
        timing->stall = idle > 0 ? idle : 0;
    }
}

/* The scalars of updates, complete before a graph starts: the tokens are counted here, not by the
 * graph, so that an update may run while the backward goes on. Pending updates find those of their
 * step in the second block. */
static void set_control(struct mf_executor *executor, const struct mf_step *step,
                        const struct mf_adam *adam)
{
    bool clip = executor->plan->workload.clip;
    struct mf_control *control = control_block(executor);
    if (step->request.pending && executor->pending) {
        control[1] = control[0];
    }
    if (adam == NULL) {
        return;
    }
    *control = (struct mf_control){
        .learning_rate = adam->learning_rate,
        .beta1 = adam->beta1,
        .beta2 = adam->beta2,
        .eps = adam->eps,
        .weight_decay = adam->weight_decay,
        .clip_norm = clip ? adam->clip_norm : 0,
        .step = executor->step + 1,
        .token_count = executor->token_count,
        .gradient_scale = executor->token_count > 0 ? 1.0 / (double)executor->token_count : 0,
        .skip_nonfinite = clip && adam->skip_nonfinite,
        .skipped = executor->token_count == 0,
    };
}

/* `adam`: of the update in this graph, NULL = it has none. */
static enum mf_status run_graph(struct mf_executor *executor, enum mf_step_variant variant,
                                int32_t position, const struct mf_adam *adam)
{
    variant = executor->redo ? mf_step_variant_redo(variant) : variant;
    const struct mf_step *step = &executor->steps[variant];
    if (executor->failed) {
        return mf_status_set(MF_STATUS_DEVICE, "the job failed before; it can only be closed");
    }
    set_control(executor, step, adam);
    int64_t start_ns = mf_clock_ns();
    int64_t issued_ns = start_ns;
    enum mf_status status = executor->interface->begin(executor->device, executor->trace);
    if (status == MF_STATUS_OK) {
        status = issue(executor, step, position);
        issued_ns = mf_clock_ns();
        enum mf_status synced = executor->interface->sync(executor->device);
        status = status == MF_STATUS_OK ? synced : status;
    }
    executor->failed = status != MF_STATUS_OK;
    executor->pending &= !step->request.pending;
    executor->redo &= !step->request.pending;
    executor->last_variant = variant;
    if (!executor->failed) {
        measure(executor, step, issued_ns - start_ns, mf_clock_ns() - start_ns);
    }
    return status;
}

/* ---- what callers ask for ---- */

static enum mf_status check_ids(const int32_t *ids, const char *what, int64_t vocab,
                                const struct mf_workload *workload, bool may_ignore)
{
    int64_t rows = mf_workload_rows(workload);
    for (int64_t i = 0; i < rows; i++) {
        if ((ids[i] >= 0 && ids[i] < vocab) || (may_ignore && ids[i] == -100)) {
            continue;
        }
        (void)mf_status_set_reason(
            MF_STATUS_INVALID, "TOKEN_OUT_OF_RANGE",
            "%s %d in sequence %lld at position %lld is not in the vocabulary 0..%lld%s", what,
            ids[i], (long long)(i / workload->seq_len), (long long)(i % workload->seq_len),
            (long long)vocab - 1, may_ignore ? " (-100 = ignored)" : "");
        mf_status_number("token", ids[i]);
        mf_status_number("sequence", i / workload->seq_len);
        mf_status_number("position", i % workload->seq_len);
        mf_status_number("vocab", vocab);
        return MF_STATUS_INVALID;
    }
    return MF_STATUS_OK;
}

enum mf_status mf_executor_check_tokens(const struct mf_model *model,
                                        const struct mf_workload *workload, const int32_t *tokens,
                                        const int32_t *labels)
{
    MF_TRY(check_ids(tokens, "token", model->vocab, workload, false));
    return labels == NULL ? MF_STATUS_OK : check_ids(labels, "label", model->vocab, workload, true);
}

enum mf_status mf_executor_check_adam(const struct mf_workload *workload,
                                      const struct mf_adam *adam)
{
    const struct {
        const char *name;
        double value, low, high;
        bool below; /* the upper end is excluded */
    } ranges[] = {
        {"learning_rate", adam->learning_rate, 0, 1e6, false},
        {"beta1", adam->beta1, 0, 1, true},
        {"beta2", adam->beta2, 0, 1, true},
        {"eps", adam->eps, 1e-30, 1, false},
        {"weight_decay", adam->weight_decay, 0, 1e6, false},
        {"clip_norm", adam->clip_norm, 0, 1e30, false},
    };
    for (size_t i = 0; i < sizeof(ranges) / sizeof(ranges[0]); i++) {
        bool high =
            ranges[i].below ? ranges[i].value < ranges[i].high : ranges[i].value <= ranges[i].high;
        if (!(ranges[i].value >= ranges[i].low && high)) {
            return mf_status_set(MF_STATUS_INVALID, "%s must be from %g to %s%g, found %g",
                                 ranges[i].name, ranges[i].low, ranges[i].below ? "below " : "",
                                 ranges[i].high, ranges[i].value);
        }
    }
    if (adam->clip_norm > 0 && !workload->clip) {
        return mf_status_set(MF_STATUS_INVALID,
                             "clip_norm is %g but the plan was made without clipping: plan again "
                             "without no_clip",
                             adam->clip_norm);
    }
    return MF_STATUS_OK;
}

static void stage(struct mf_executor *executor, const int32_t *tokens, const int32_t *labels,
                  int32_t count)
{
    const struct mf_step_layout *layout = &executor->steps[0].layout;
    size_t bytes = (size_t)(mf_workload_rows(&executor->plan->workload) * count) * sizeof(int32_t);
    memcpy(mf_executor_host_pointer(executor, layout->tokens_host, 0), tokens, bytes);
    if (labels != NULL) {
        memcpy(mf_executor_host_pointer(executor, layout->labels_host, 0), labels, bytes);
    }
}

static int64_t count_labels(const int32_t *labels, int64_t count)
{
    int64_t counted = 0;
    for (int64_t i = 0; i < count; i++) {
        counted += labels[i] != -100;
    }
    return counted;
}

static struct mf_micro_result read_result(const struct mf_executor *executor, int32_t micro)
{
    const double *result =
        mf_executor_host_pointer(executor, executor->steps[0].layout.results, micro * 16ll);
    return (struct mf_micro_result){.loss_sum = result[0], .token_count = (int64_t)result[1]};
}

/* Whether what speculated in the last graph counts: it took the gradient's scale to be what it is
 * without clipping. If not, its halves are forgotten, and the weights it sent to the device are
 * sent again. Where the last norm was clipped the next will be, more often than not: then no work
 * is spent on speculation. */
static void judge_speculation(struct mf_executor *executor, bool speculated)
{
    const struct mf_control *control = control_block(executor);
    bool held =
        control->skipped == 0 && control->gradient_scale == 1.0 / (double)control->token_count;
    executor->second_half ^= speculated && held;
    executor->redo = speculated ? !held : control->skipped == 0;
    executor->speculating = held;
}

/* `alone`: the update had a graph of its own, in which nothing speculates. */
static void finish_update(struct mf_executor *executor, bool alone, struct mf_update_result *update)
{
    const struct mf_control *control = control_block(executor);
    executor->step += control->skipped == 0;
    executor->pending = control->skipped == 0 && executor->plan->deferred_blocks > 0;
    if (executor->plan->speculate) {
        judge_speculation(executor, executor->speculating && !alone);
        executor->pending = control->skipped == 0 || executor->redo;
    }
    *update = (struct mf_update_result){
        .step = executor->step,
        .norm = control->norm,
        .skipped = control->skipped != 0,
        .redone = executor->redo,
        .token_count = executor->token_count,
        .loss_sum = executor->loss_sum,
    };
    mf_executor_discard(executor);
}

void mf_executor_discard(struct mf_executor *executor)
{
    executor->micro_count = 0;
    executor->token_count = 0;
    executor->loss_sum = 0;
}

enum mf_status mf_executor_forward_backward(struct mf_executor *executor, const int32_t *tokens,
                                            const int32_t *labels, const struct mf_adam *adam,
                                            struct mf_micro_result *out,
                                            struct mf_update_result *update)
{
    const struct mf_workload *workload = &executor->plan->workload;
    MF_TRY(mf_executor_check_tokens(executor->model, workload, tokens, labels));
    if (executor->micro_count == workload->accumulation) {
        return mf_status_set_reason(MF_STATUS_INVALID, "ACCUMULATION_EXCEEDED",
                                    "the session was planned for %d micro-batches between "
                                    "updates: call OptimStep, or plan with more accumulation",
                                    workload->accumulation);
    }
    if (adam != NULL) {
        MF_TRY(mf_executor_check_adam(workload, adam));
    }
    bool first = executor->micro_count == 0;
    stage(executor, tokens, labels, 1);
    executor->token_count += count_labels(labels, mf_workload_rows(workload));
    enum mf_step_variant variant = adam == NULL ? (first ? MF_STEP_FIRST : MF_STEP_LATER)
                                   : first      ? MF_STEP_FIRST_UPDATE
                                                : MF_STEP_LATER_UPDATE;
    MF_TRY(run_graph(executor, variant, 0, adam));
    *out = read_result(executor, 0);
    executor->micro_count++;
    executor->loss_sum += out->loss_sum;
    if (adam != NULL) {
        finish_update(executor, false, update);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_executor_update(struct mf_executor *executor, const struct mf_adam *adam,
                                  struct mf_update_result *update)
{
    MF_TRY(mf_executor_check_adam(&executor->plan->workload, adam));
    if (executor->micro_count == 0) {
        return mf_status_set_reason(MF_STATUS_INVALID, "NO_GRADIENTS",
                                    "there is nothing to update with: no ForwardBackward since "
                                    "the last OptimStep");
    }
    MF_TRY(run_graph(executor, MF_STEP_UPDATE, 0, adam));
    finish_update(executor, true, update);
    return MF_STATUS_OK;
}

enum mf_status mf_executor_run(struct mf_executor *executor, const int32_t *tokens,
                               const int32_t *labels, const struct mf_adam *adam,
                               struct mf_update_result *update)
{
    const struct mf_workload *workload = &executor->plan->workload;
    int64_t rows = mf_workload_rows(workload);
    int32_t count = workload->accumulation;
    MF_ASSERT(executor->micro_count == 0);
    MF_TRY(mf_executor_check_adam(workload, adam));
    for (int32_t i = 0; i < count; i++) {
        MF_TRY(mf_executor_check_tokens(executor->model, workload, tokens + i * rows,
                                        labels + i * rows));
    }
    stage(executor, tokens, labels, count);
    executor->token_count = count_labels(labels, rows * count);
    MF_TRY(run_graph(executor, MF_STEP_RUN, 0, adam));
    for (int32_t i = 0; i < count; i++) {
        executor->loss_sum += read_result(executor, i).loss_sum;
    }
    finish_update(executor, false, update);
    return MF_STATUS_OK;
}

enum mf_status mf_executor_flush(struct mf_executor *executor)
{
    return executor->pending ? run_graph(executor, MF_STEP_FLUSH, 0, NULL) : MF_STATUS_OK;
}

enum mf_status mf_executor_evaluate(struct mf_executor *executor, const int32_t *tokens,
                                    const int32_t *labels, struct mf_micro_result *out,
                                    float *logprobs)
{
    const struct mf_workload *workload = &executor->plan->workload;
    MF_TRY(mf_executor_check_tokens(executor->model, workload, tokens, labels));
    MF_TRY(mf_executor_flush(executor));
    stage(executor, tokens, labels, 1);
    MF_TRY(run_graph(executor, MF_STEP_EVALUATE, 0, NULL));
    *out = read_result(executor, 0);
    if (logprobs != NULL) {
        memcpy(logprobs, mf_executor_host_pointer(executor, executor->steps[0].layout.logprobs, 0),
               (size_t)mf_workload_rows(workload) * sizeof(float));
    }
    return MF_STATUS_OK;
}

enum mf_status mf_executor_logits(struct mf_executor *executor, const int32_t *tokens,
                                  int32_t position, const float **out)
{
    const struct mf_workload *workload = &executor->plan->workload;
    MF_ASSERT(position >= 0 && position < workload->seq_len);
    MF_TRY(mf_executor_check_tokens(executor->model, workload, tokens, NULL));
    MF_TRY(mf_executor_flush(executor));
    stage(executor, tokens, NULL, 1);
    MF_TRY(run_graph(executor, MF_STEP_LOGITS, position, NULL));
    *out = mf_executor_host_pointer(executor, executor->steps[0].layout.logits, 0);
    return MF_STATUS_OK;
}

const struct mf_executor_timing *mf_executor_timing(const struct mf_executor *executor)
{
    return &executor->timing;
}

const struct mf_step *mf_executor_graph(const struct mf_executor *executor)
{
    return &executor->steps[executor->last_variant];
}

bool mf_executor_span(const struct mf_executor *executor, int32_t task, struct mf_device_span *out)
{
    return executor->trace && executor->interface->span(executor->device, task, out);
}
