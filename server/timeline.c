/* A plan's step as it would run: see timeline.h. */
#include "server/timeline.h"

#include <stdlib.h>
#include <string.h>

#include "planner/cost.h"
#include "server/service_table.h"
#include "server/session.h"
#include "server/trace.h"
#include "server/tune.h"
#include "server/tune_machine.h"

#define COLUMNS_DEFAULT 1000

/* ---- spans ---- */

static Memferry__V1__Span *new_span(const struct mf_task *task, const struct mf_span *span,
                                    struct mf_arena *arena)
{
    Memferry__V1__Span *out =
        MF_SERVICE_TABLE_NEW(arena, Memferry__V1__Span, MEMFERRY__V1__SPAN__INIT);
    out->start_ns = span->start_ns;
    out->kernel = (char *)mf_kernel_name(task->kernel);
    out->phase = (Memferry__V1__Phase)(task->phase + 1);
    out->unit = task->unit;
    out->panel = task->panel;
    out->micro = task->micro;
    return out;
}

/* Adds a task behind what is there; `longest` is that of the tasks merged so far. */
static void add_task(Memferry__V1__Span *span, const struct mf_task *task,
                     const struct mf_span *time, double *longest)
{
    double busy = time->end_ns - time->start_ns;
    span->duration_ns = time->end_ns - span->start_ns;
    span->busy_ns += busy;
    span->task_count++;
    span->link_bytes += task->link_bytes;
    if (busy > *longest) {
        *longest = busy;
        span->kernel = (char *)mf_kernel_name(task->kernel);
        span->phase = (Memferry__V1__Phase)(task->phase + 1);
        span->unit = task->unit;
        span->panel = task->panel;
        span->micro = task->micro;
    }
}

/* Of neighbouring spans that were merged two reach over a part together, so a lane has at most
 * about four spans a part, and mostly fewer than one. */
static Memferry__V1__LaneTimeline *fill_lane(const struct mf_step *step,
                                             const struct mf_span *spans, enum mf_lane lane,
                                             double part_ns, struct mf_arena *arena)
{
    Memferry__V1__LaneTimeline *out =
        MF_SERVICE_TABLE_NEW(arena, Memferry__V1__LaneTimeline, MEMFERRY__V1__LANE_TIMELINE__INIT);
    Memferry__V1__Span *last = NULL;
    double longest = 0;
    size_t capacity = 0;
    out->lane = (char *)mf_kernel_lane_name(lane);
    for (int32_t i = 0; i < step->task_count; i++) {
        const struct mf_task *task = &step->tasks[i];
        if (task->lane != lane || spans[i].end_ns < spans[i].start_ns) {
            continue;
        }
        out->busy_ns += spans[i].end_ns - spans[i].start_ns;
        if (last == NULL || spans[i].end_ns - last->start_ns > part_ns) {
            if (out->n_spans == capacity) {
                Memferry__V1__Span **before = out->spans;
                capacity = capacity > 0 ? 2 * capacity : 256;
                out->spans = mf_arena_alloc(arena, capacity, sizeof(Memferry__V1__Span *));
                if (out->n_spans > 0) {
                    memcpy(out->spans, before, out->n_spans * sizeof(Memferry__V1__Span *));
                }
            }
            last = new_span(task, &spans[i], arena);
            longest = 0;
            out->spans[out->n_spans++] = last;
        }
        add_task(last, task, &spans[i], &longest);
    }
    return out;
}

/* ---- memory ---- */

/* A buffer begins or ends to hold something. */
struct change {
    double at_ns;
    int64_t bytes; /* negative where it ends */
    int32_t row;   /* space * MF_PURPOSE_COUNT + purpose */
};

static int earlier(const void *a, const void *b)
{
    const struct change *left = a;
    const struct change *right = b;
    if (left->at_ns != right->at_ns) {
        return left->at_ns < right->at_ns ? -1 : 1;
    }
    return (left->bytes > right->bytes) - (left->bytes < right->bytes); /* ends first */
}

/* Fills `held` with what lives for the whole job; returns the changes, sorted. */
static struct change *read_buffers(const struct mf_step *step, const struct mf_span *spans,
                                   int64_t *held, size_t *count)
{
    struct change *changes = calloc(2 * (size_t)step->buffer_count + 1, sizeof(*changes));
    MF_ASSERT(changes != NULL);
    *count = 0;
    for (int32_t i = 0; i < step->buffer_count; i++) {
        const struct mf_buffer *buffer = &step->buffers[i];
        int32_t row = (int32_t)buffer->space * MF_PURPOSE_COUNT + (int32_t)buffer->purpose;
        if (buffer->persistent) {
            held[row] += buffer->bytes;
            continue;
        }
        if (buffer->first_task < 0) {
            continue;
        }
        double end = 0;
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            int32_t last = buffer->last_access[lane];
            end = last >= 0 && spans[last].end_ns > end ? spans[last].end_ns : end;
        }
        double start = spans[buffer->first_task].start_ns;
        changes[(*count)++] = (struct change){start, buffer->bytes, row};
        changes[(*count)++] = (struct change){end, -buffer->bytes, row};
    }
    qsort(changes, *count, sizeof(*changes), earlier);
    return changes;
}

static int64_t sum(const int64_t *rows)
{
    int64_t total = 0;
    for (int i = 0; i < MF_PURPOSE_COUNT; i++) {
        total += rows[i];
    }
    return total;
}

/* Keeps for each space the fullest moment of a part. */
static void keep_fullest(const int64_t *held, int64_t *fullest)
{
    for (int space = 0; space < MF_SPACE_COUNT; space++) {
        const int64_t *now = held + (ptrdiff_t)space * MF_PURPOSE_COUNT;
        int64_t *best = fullest + (ptrdiff_t)space * MF_PURPOSE_COUNT;
        if (sum(now) > sum(best)) {
            memcpy(best, now, MF_PURPOSE_COUNT * sizeof(*best));
        }
    }
}

static Memferry__V1__MemorySample *new_sample(double time_ns, const int64_t *rows,
                                              struct mf_arena *arena)
{
    Memferry__V1__MemorySample *out =
        MF_SERVICE_TABLE_NEW(arena, Memferry__V1__MemorySample, MEMFERRY__V1__MEMORY_SAMPLE__INIT);
    int64_t *copy = mf_arena_alloc(arena, 2 * MF_PURPOSE_COUNT, sizeof(*copy));
    memcpy(copy, rows, 2 * MF_PURPOSE_COUNT * sizeof(*copy));
    out->time_ns = time_ns;
    out->n_device_bytes = MF_PURPOSE_COUNT;
    out->device_bytes = copy + (ptrdiff_t)MF_SPACE_DEVICE * MF_PURPOSE_COUNT;
    out->n_host_bytes = MF_PURPOSE_COUNT;
    out->host_bytes = copy + (ptrdiff_t)MF_SPACE_HOST * MF_PURPOSE_COUNT;
    return out;
}

static void fill_memory(const struct mf_step *step, const struct mf_span *spans, double step_ns,
                        int32_t samples, struct mf_arena *arena,
                        Memferry__V1__GetTimelineResponse *out)
{
    int64_t held[MF_SPACE_COUNT * MF_PURPOSE_COUNT] = {0};
    size_t count = 0;
    size_t at = 0;
    struct change *changes = read_buffers(step, spans, held, &count);
    out->memory = mf_arena_alloc(arena, (size_t)samples, sizeof(*out->memory));
    for (int32_t i = 0; i < samples; i++) {
        int64_t fullest[MF_SPACE_COUNT * MF_PURPOSE_COUNT];
        double end_ns = i + 1 < samples ? step_ns * (i + 1) / samples : step_ns * 2;
        memcpy(fullest, held, sizeof(fullest));
        for (; at < count && changes[at].at_ns < end_ns; at++) {
            held[changes[at].row] += changes[at].bytes;
            if (at + 1 == count || changes[at + 1].at_ns > changes[at].at_ns) {
                keep_fullest(held, fullest);
            }
        }
        out->memory[out->n_memory++] = new_sample(step_ns * i / samples, fullest, arena);
    }
    free(changes);
}

void mf_timeline_fill(const struct mf_step *step, const struct mf_span *spans, double step_ns,
                      int32_t columns, struct mf_arena *arena,
                      Memferry__V1__GetTimelineResponse *out)
{
    int32_t samples = columns < MF_TIMELINE_SAMPLES_MAX ? columns : MF_TIMELINE_SAMPLES_MAX;
    out->step_ns = step_ns;
    out->part_ns = step_ns / columns;
    out->task_count = step->task_count;
    out->lanes = mf_arena_alloc(arena, MF_LANE_COUNT, sizeof(*out->lanes));
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        out->lanes[out->n_lanes++] =
            fill_lane(step, spans, (enum mf_lane)lane, out->part_ns, arena);
    }
    out->purposes = mf_arena_alloc(arena, MF_PURPOSE_COUNT, sizeof(*out->purposes));
    for (int i = 0; i < MF_PURPOSE_COUNT; i++) {
        out->purposes[out->n_purposes++] = (char *)mf_plan_purpose_name((enum mf_purpose)i);
    }
    if (step->buffer_count > 0) {
        fill_memory(step, spans, step_ns, samples, arena, out);
    }
}

/* ---- PlanService.GetTimeline ---- */

static void fill_stalls(const struct mf_simulation *simulation, struct mf_arena *arena,
                        Memferry__V1__GetTimelineResponse *out)
{
    out->stalls = mf_arena_alloc(arena, MF_STALL_COUNT, sizeof(*out->stalls));
    for (int i = 0; i < MF_STALL_COUNT; i++) {
        Memferry__V1__StallCause *stall =
            MF_SERVICE_TABLE_NEW(arena, Memferry__V1__StallCause, MEMFERRY__V1__STALL_CAUSE__INIT);
        stall->cause = (char *)mf_simulate_stall_name((enum mf_stall_cause)i);
        stall->stall_ns = simulation->stall_ns[i];
        out->stalls[out->n_stalls++] = stall;
    }
}

static enum mf_status walk(struct mf_service *service, const struct mf_plan *plan,
                           const struct mf_model *model, int32_t columns, struct mf_arena *arena,
                           Memferry__V1__GetTimelineResponse *out)
{
    struct mf_step_request run = mf_step_variant_request(plan, MF_STEP_RUN);
    struct mf_hardware hardware;
    struct mf_profile profile;
    struct mf_simulation simulation;
    struct mf_step step;
    MF_TRY(mf_step_build(model, plan, &run, &step));
    (void)mf_tune_machine_of(service, plan->hardware_fingerprint, &hardware, &profile);
    (void)mf_cost_fill(&hardware, &profile, &step);
    mf_profile_reset(&profile);
    struct mf_span *spans = calloc((size_t)step.task_count + 1, sizeof(*spans));
    MF_ASSERT(spans != NULL);
    mf_simulate(&step, &hardware.contention, &simulation, spans);
    mf_timeline_fill(&step, spans, simulation.step_ns, columns, arena, out);
    fill_stalls(&simulation, arena, out);
    out->plan_id = mf_arena_string(arena, plan->id);
    out->device_reserved_bytes = plan->prediction.device_peak_bytes;
    out->host_reserved_bytes = plan->prediction.host_peak_bytes;
    free(spans);
    mf_step_reset(&step);
    return MF_STATUS_OK;
}

static enum mf_status read_columns(int32_t asked, int32_t *out)
{
    *out = asked != 0 ? asked : COLUMNS_DEFAULT;
    return *out >= 1 && *out <= MF_TIMELINE_COLUMNS_MAX
               ? MF_STATUS_OK
               : mf_status_set(MF_STATUS_INVALID, "columns: 1 to %d, or 0 for %d, found %d",
                               MF_TIMELINE_COLUMNS_MAX, COLUMNS_DEFAULT, asked);
}

enum mf_status mf_timeline_answer(struct mf_service *service, struct mf_rpc_call *call,
                                  const void *request, struct mf_arena *arena,
                                  ProtobufCMessage **reply)
{
    const Memferry__V1__GetTimelineRequest *message = request;
    int32_t columns = 0;
    struct mf_plan plan;
    struct mf_model model;
    (void)call;
    MF_TRY(read_columns(message->columns, &columns));
    MF_TRY(mf_tune_find_whole(service, message->id, &plan, &model));
    Memferry__V1__GetTimelineResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__GetTimelineResponse, MEMFERRY__V1__GET_TIMELINE_RESPONSE__INIT);
    enum mf_status status = walk(service, &plan, &model, columns, arena, out);
    mf_plan_reset(&plan);
    mf_model_reset(&model);
    *reply = &out->base;
    return status;
}

enum mf_status mf_timeline_answer_session(struct mf_service *service, struct mf_rpc_call *call,
                                          const void *request, struct mf_arena *arena,
                                          ProtobufCMessage **reply)
{
    const Memferry__V1__GetSessionTimelineRequest *message = request;
    struct mf_session *session = NULL;
    int32_t columns = 0;
    Memferry__V1__GetSessionTimelineResponse *out =
        MF_SERVICE_TABLE_NEW(arena, Memferry__V1__GetSessionTimelineResponse,
                             MEMFERRY__V1__GET_SESSION_TIMELINE_RESPONSE__INIT);
    MF_TRY(read_columns(message->columns, &columns));
    MF_TRY(
        mf_session_get(service->sessions, mf_rpc_call_peer(call), message->session_id, &session));
    enum mf_status status = mf_trace_timeline(session, columns, arena, out);
    mf_session_put(session);
    *reply = &out->base;
    return status;
}
