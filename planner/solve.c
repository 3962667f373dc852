/* Entry of the solver: the request, the final plan and its prediction. See solve.h. */
#include "planner/solve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/format.h"
#include "planner/bound.h"
#include "planner/cost.h"
#include "planner/simulate.h"
#include "planner/solve_context.h"

/* What a default search may cost: tasks built and simulated, at about 6 million a second. Graphs of
 * few tasks get more: they are searched within a second all the same. */
#define SEARCH_TASKS 1200000
#define SEARCH_TASKS_SMALL 5000000
#define SMALL 2500
#define EVALUATIONS_MIN 100
#define EVALUATIONS_DEFAULT_MAX 1000
/* Micro-batches in one evaluation. */
#define MICROS 3
/* A plan counts as measured when fewer than one task in this many is an estimate. */
#define MEASURED_SHARE 20

static enum mf_status check(const struct mf_solve_request *request)
{
    MF_TRY(mf_workload_validate(&request->workload));
    if ((unsigned)request->strategy >= MF_STRATEGY_COUNT) {
        return mf_status_set(MF_STATUS_INVALID, "strategy %d is not known", (int)request->strategy);
    }
    if (request->hardware->device_count < 1) {
        return mf_status_set(MF_STATUS_INVALID, "the hardware has no device to plan for");
    }
    if (request->constraints.device_bytes < 0 || request->constraints.host_bytes < 0) {
        return mf_status_set(MF_STATUS_INVALID, "a budget is negative: device %lld, host %lld",
                             (long long)request->constraints.device_bytes,
                             (long long)request->constraints.host_bytes);
    }
    return MF_STATUS_OK;
}

static int64_t budget(int64_t asked, int64_t there)
{
    int64_t bytes = asked > 0 ? asked : there;
    return bytes > 0 ? bytes : INT64_MAX;
}

static int32_t default_evaluations(const struct mf_solve_context *context)
{
    int32_t micros = context->request->workload.accumulation;
    int64_t tasks = (int64_t)context->work.task_count * 2 * (micros < MICROS ? micros : MICROS);
    int64_t count = (tasks < SMALL ? SEARCH_TASKS_SMALL : SEARCH_TASKS) / (tasks + 100);
    count = count < EVALUATIONS_MIN ? EVALUATIONS_MIN : count;
    return (int32_t)(count > EVALUATIONS_DEFAULT_MAX ? EVALUATIONS_DEFAULT_MAX : count);
}

/* "weights 1.2 GiB, activations 300 MiB, gradients 20 MiB": the largest three of a space. */
static void name_largest(const int64_t bytes[static MF_PURPOSE_COUNT], char *out, size_t size)
{
    bool used[MF_PURPOSE_COUNT] = {false};
    size_t length = 0;
    out[0] = '\0';
    for (int rank = 0; rank < 3; rank++) {
        int largest = -1;
        for (int i = 0; i < MF_PURPOSE_COUNT; i++) {
            if (!used[i] && (largest < 0 || bytes[i] > bytes[largest])) {
                largest = i;
            }
        }
        used[largest] = true;
        if (bytes[largest] > 0 && length < size) {
            char text[MF_FORMAT_MAX];
            int written = snprintf(out + length, size - length, "%s%s %s", rank > 0 ? ", " : "",
                                   mf_plan_purpose_name((enum mf_purpose)largest),
                                   mf_format_bytes(bytes[largest], text));
            length += written > 0 ? (size_t)written : 0;
        }
    }
}

static enum mf_status build_resident(struct mf_solve_context *context, struct mf_plan *plan,
                                     struct mf_solve_score *score)
{
    return mf_solve_strategy_build(context, MF_STRATEGY_RESIDENT, plan, score);
}

/* What the plan that needs least of `space` needs: the most frugal one of the device, and of the
 * host the one without offload, where the device has room for it. */
static enum mf_status find_least(struct mf_solve_context *context, enum mf_space space,
                                 struct mf_solve_score *out)
{
    enum mf_status (*const builds[])(struct mf_solve_context *, struct mf_plan *,
                                     struct mf_solve_score *) = {build_resident,
                                                                 mf_solve_strategy_frugal};
    enum mf_status status = MF_STATUS_OK;
    bool found = false;
    for (size_t i = space == MF_SPACE_HOST ? 0 : 1; i < 2 && !found && status == MF_STATUS_OK;
         i++) {
        struct mf_plan plan;
        mf_solve_decide_start(context, &plan);
        status = builds[i](context, &plan, out);
        if (status == MF_STATUS_OK) {
            status = mf_solve_score_exact(context, &plan, out);
        }
        mf_plan_reset(&plan);
        found = out->bytes[MF_SPACE_DEVICE] <= context->budget[MF_SPACE_DEVICE];
    }
    return status;
}

/* Sets the error for a plan that is too large; `plan` is the smallest its strategy can make. */
static enum mf_status refuse(struct mf_solve_context *context, const struct mf_plan *plan,
                             const struct mf_solve_score *score)
{
    struct mf_solve_score least;
    struct mf_step step;
    bool device = score->bytes[MF_SPACE_DEVICE] > context->budget[MF_SPACE_DEVICE];
    enum mf_space space = device ? MF_SPACE_DEVICE : MF_SPACE_HOST;
    MF_TRY(find_least(context, space, &least));
    struct mf_step_request run = mf_step_variant_request(plan, MF_STEP_RUN);
    MF_TRY(mf_step_build(context->model, plan, &run, &step));
    int64_t purposes[MF_SPACE_COUNT][MF_PURPOSE_COUNT];
    mf_step_purposes(&step, purposes[MF_SPACE_DEVICE], purposes[MF_SPACE_HOST]);
    mf_step_reset(&step);

    char largest[160];
    char needed[MF_FORMAT_MAX];
    char available[MF_FORMAT_MAX];
    char smallest[MF_FORMAT_MAX];
    name_largest(purposes[space], largest, sizeof(largest));
    enum mf_status status = mf_status_set_reason(
        device ? MF_STATUS_NO_DEVICE_MEMORY : MF_STATUS_NO_MEMORY,
        device ? "DEVICE_MEMORY_TOO_SMALL" : "HOST_MEMORY_TOO_SMALL",
        "%s with strategy %s needs %s of %s memory, %s are available; the largest parts: %s; "
        "the most frugal plan needs %s: %s",
        context->model->name, mf_plan_strategy_name(context->request->strategy),
        mf_format_bytes(score->bytes[space], needed), device ? "device" : "host",
        mf_format_bytes(context->budget[space], available), largest,
        mf_format_bytes(least.bytes[space], smallest),
        device ? "use strategy auto, a smaller micro-batch or a shorter sequence, or more memory"
               : "give more host memory, or keep more on the device");
    mf_status_number("needed_bytes", score->bytes[space]);
    mf_status_number("available_bytes", context->budget[space]);
    mf_status_number("smallest_bytes", least.bytes[space]);
    return status;
}

static enum mf_status run(struct mf_solve_context *context, struct mf_plan *plan)
{
    struct mf_solve_score score;
    mf_solve_decide_start(context, plan);
    MF_TRY(mf_solve_strategy_build(context, context->request->strategy, plan, &score));
    MF_TRY(mf_solve_score_exact(context, plan, &score));
    return score.fits ? MF_STATUS_OK : refuse(context, plan, &score);
}

static enum mf_status finish(struct mf_solve_context *context, struct mf_plan *plan)
{
    const struct mf_solve_request *request = context->request;
    plan->strategy = request->strategy;
    plan->constraints = request->constraints;
    mf_hardware_fingerprint(request->hardware, plan->hardware_fingerprint);
    mf_solve_why(context, plan);
    MF_TRY(mf_plan_validate(plan, context->model));
    MF_TRY(mf_solve_predict(context->model, request->hardware, request->profile, plan));
    mf_plan_seal(plan);
    return MF_STATUS_OK;
}

enum mf_status mf_solve(const struct mf_solve_request *request, struct mf_plan *out)
{
    *out = (struct mf_plan){0};
    MF_TRY(check(request));
    const struct mf_hardware_device *device = &request->hardware->devices[0];
    struct mf_solve_context context = {
        .request = request,
        .model = request->model,
        .budget = {[MF_SPACE_DEVICE] =
                       budget(request->constraints.device_bytes, device->memory_bytes),
                   [MF_SPACE_HOST] =
                       budget(request->constraints.host_bytes, request->hardware->host_bytes)},
    };
    enum mf_status status = MF_STATUS_OK;
    MF_TRY_GOTO(mf_solve_decide_open(&context), out);
    MF_TRY_GOTO(mf_work_build(request->model, &request->workload, request->hardware,
                              request->profile, &context.work),
                out);
    context.evaluations_max =
        request->evaluations_max > 0 ? request->evaluations_max : default_evaluations(&context);
    MF_TRY_GOTO(run(&context, out), out);
    status = finish(&context, out);
out:
    mf_work_reset(&context.work);
    mf_solve_decide_close(&context);
    if (status != MF_STATUS_OK) {
        mf_plan_reset(out);
    }
    return status;
}

static void count_bytes(const struct mf_step *step, struct mf_plan_prediction *out)
{
    for (int32_t i = 0; i < step->task_count; i++) {
        const struct mf_task *task = &step->tasks[i];
        switch (task->lane) {
        case MF_LANE_COMPUTE:
            out->direct_bytes += task->link_bytes;
            break;
        case MF_LANE_H2D:
            out->h2d_bytes += task->link_bytes;
            break;
        case MF_LANE_D2H:
            out->d2h_bytes += task->link_bytes;
            break;
        case MF_LANE_CPU:
        case MF_LANE_COUNT:
            break;
        }
    }
}

enum mf_status mf_solve_predict(const struct mf_model *model, const struct mf_hardware *hardware,
                                const struct mf_profile *profile, struct mf_plan *plan)
{
    struct mf_plan_prediction *out = &plan->prediction;
    struct mf_step_request run = mf_step_variant_request(plan, MF_STEP_RUN);
    struct mf_step step;
    struct mf_simulation simulation;
    int64_t peak[MF_SPACE_COUNT];
    MF_TRY(mf_step_peak(model, plan, peak));
    MF_TRY(mf_step_build(model, plan, &run, &step));
    *out = (struct mf_plan_prediction){
        .device_peak_bytes = peak[MF_SPACE_DEVICE],
        .host_peak_bytes = peak[MF_SPACE_HOST],
        .task_count = step.task_count,
        .estimated_tasks = mf_cost_fill(hardware, profile, &step),
    };
    mf_simulate(&step, &hardware->contention, &simulation, NULL);
    out->step_ns = simulation.step_ns;
    memcpy(out->lane_busy_ns, simulation.lane_busy_ns, sizeof(out->lane_busy_ns));
    out->stall_ns = simulation.step_ns - simulation.lane_busy_ns[MF_LANE_COMPUTE];
    count_bytes(&step, out);
    mf_step_purposes(&step, out->device_purpose_bytes, out->host_purpose_bytes);
    mf_step_reset(&step);
    struct mf_bound bound = mf_bound(model, &plan->workload, &plan->constraints, hardware, profile);
    out->bound_ns = fmin(bound.ns, out->step_ns); /* equal up to rounding */
    snprintf(out->bound_lane, sizeof(out->bound_lane), "%s", bound.lane);
    bool measured = profile != NULL && out->estimated_tasks <= out->task_count / MEASURED_SHARE;
    plan->source = measured ? MF_PLAN_MEASURED : MF_PLAN_ESTIMATE;
    return MF_STATUS_OK;
}
