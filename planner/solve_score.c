/* What a plan would take: time from the simulator, memory from the graph. See solve_context.h. */
#include <math.h>
#include <stdlib.h>

#include "planner/cost.h"
#include "planner/simulate.h"
#include "planner/solve_context.h"

/* Micro-batches that are simulated: the first starts cold, the third repeats the second. */
#define MICROS_MAX 3
/* The graphs of a job differ by little: below 31/32 of a budget none of them is above it. */
#define NEAR_SHARE 32

/* What one more micro-batch adds: the distance of two starts, or the busiest lane's work. */
static double marginal_ns(const struct mf_step *step, const struct mf_span *spans)
{
    double starts[MICROS_MAX] = {-1, -1, -1};
    double busiest = 0;
    for (int32_t i = 0; i < step->task_count; i++) {
        const struct mf_task *task = &step->tasks[i];
        if (task->lane == MF_LANE_COMPUTE && task->phase == MF_PHASE_FORWARD &&
            starts[task->micro] < 0) {
            starts[task->micro] = spans[i].start_ns;
        }
    }
    double last[MF_LANE_COUNT] = {0};
    for (int32_t i = 0; i < step->task_count; i++) {
        const struct mf_task *task = &step->tasks[i];
        if (task->micro == MICROS_MAX - 2 && task->phase != MF_PHASE_UPDATE) {
            last[task->lane] += spans[i].end_ns - spans[i].start_ns;
        }
    }
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        busiest = fmax(busiest, last[lane]);
    }
    return fmax(starts[2] - starts[1], busiest);
}

static bool within(const struct mf_solve_context *context, const int64_t bytes[MF_SPACE_COUNT])
{
    return bytes[MF_SPACE_DEVICE] <= context->budget[MF_SPACE_DEVICE] &&
           bytes[MF_SPACE_HOST] <= context->budget[MF_SPACE_HOST];
}

static enum mf_status measure(struct mf_solve_context *context, const struct mf_plan *plan,
                              int32_t micros, struct mf_solve_score *out)
{
    struct mf_step_request request = mf_step_variant_request(plan, MF_STEP_RUN);
    int32_t left = request.micro_count - micros;
    request.micro_count = micros;
    struct mf_step step;
    MF_TRY(mf_step_build(context->model, plan, &request, &step));
    (void)mf_cost_fill(context->request->hardware, context->request->profile, &step);
    struct mf_span *spans = malloc(((size_t)step.task_count + 1) * sizeof(*spans));
    MF_ASSERT(spans != NULL);
    struct mf_simulation simulation;
    mf_simulate(&step, &context->request->hardware->contention, &simulation, spans);
    out->ns = simulation.step_ns;
    if (left > 0) {
        out->ns += left * marginal_ns(&step, spans);
    }
    for (int space = 0; space < MF_SPACE_COUNT; space++) {
        out->bytes[space] = step.space_bytes[space];
    }
    out->fits = within(context, out->bytes);
    free(spans);
    mf_step_reset(&step);
    context->evaluations++;
    return MF_STATUS_OK;
}

enum mf_status mf_solve_score_plan(struct mf_solve_context *context, const struct mf_plan *plan,
                                   struct mf_solve_score *out)
{
    int32_t micros = plan->workload.accumulation;
    return measure(context, plan, micros < MICROS_MAX ? micros : MICROS_MAX, out);
}

enum mf_status mf_solve_score_verify(struct mf_solve_context *context, const struct mf_plan *plan,
                                     struct mf_solve_score *score)
{
    bool near = false;
    for (int space = 0; space < MF_SPACE_COUNT; space++) {
        int64_t slack = context->budget[space] / NEAR_SHARE;
        near = near || score->bytes[space] > context->budget[space] - slack;
    }
    if (!near || !score->fits) {
        return MF_STATUS_OK;
    }
    MF_TRY(mf_step_peak(context->model, plan, score->bytes));
    score->fits = within(context, score->bytes);
    return MF_STATUS_OK;
}

enum mf_status mf_solve_score_exact(struct mf_solve_context *context, const struct mf_plan *plan,
                                    struct mf_solve_score *out)
{
    MF_TRY(measure(context, plan, plan->workload.accumulation, out));
    MF_TRY(mf_step_peak(context->model, plan, out->bytes));
    out->fits = within(context, out->bytes);
    return MF_STATUS_OK;
}

bool mf_solve_score_spent(const struct mf_solve_context *context)
{
    const struct mf_solve_request *request = context->request;
    return context->evaluations >= context->evaluations_max ||
           (request->expired != NULL && request->expired(request->context));
}
