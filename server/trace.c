/* Chrome traces of sessions: see trace.h. The format is Google's "Trace Event Format": complete
 * events ("X") in microseconds; process 1 holds what was predicted, process 2 what was measured. */
#include "server/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "planner/cost.h"
#include "planner/simulate.h"
#include "server/service_table.h"
#include "server/session_internal.h"
#include "server/timeline.h"

#define WAIT_NS INT64_C(5000000000) /* for a graph to be traced */
#define POLL_NS 20000000

struct snapshot {
    struct mf_step step;      /* a shallow copy, but for its tasks */
    struct mf_span *measured; /* end < start = not traced */
    struct mf_span *predicted;
};

static void free_snapshot(struct snapshot *snapshot)
{
    free(snapshot->step.tasks);
    free(snapshot->measured);
    free(snapshot->predicted);
}

/* On the device worker: the graph and its spans cannot change meanwhile. */
static enum mf_status job_copy(struct mf_session_job *job)
{
    struct snapshot *snapshot = job->context;
    const struct mf_executor *executor = job->session->executor;
    const struct mf_step *graph = mf_executor_graph(executor);
    struct mf_device_span any;
    if (mf_executor_timing(executor)->wall_ns == 0 || !mf_executor_span(executor, 0, &any)) {
        return mf_status_set(MF_STATUS_NOT_FOUND,
                             "session %.8s has done nothing since a trace was asked for: ask "
                             "while it trains",
                             job->session->id);
    }
    size_t count = (size_t)graph->task_count;
    snapshot->step = *graph;
    snapshot->step.tasks = malloc(count * sizeof(struct mf_task));
    snapshot->measured = calloc(count, sizeof(struct mf_span));
    MF_ASSERT(snapshot->step.tasks != NULL && snapshot->measured != NULL);
    memcpy(snapshot->step.tasks, graph->tasks, count * sizeof(struct mf_task));
    int64_t origin_ns = INT64_MAX;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < graph->task_count; i++) {
            struct mf_device_span span;
            snapshot->measured[i] = (struct mf_span){.start_ns = 0, .end_ns = -1};
            if (!mf_executor_span(executor, i, &span)) {
                continue;
            }
            origin_ns = span.start_ns < origin_ns ? span.start_ns : origin_ns;
            snapshot->measured[i].start_ns = (double)(span.start_ns - origin_ns);
            snapshot->measured[i].end_ns = (double)(span.end_ns - origin_ns);
        }
    }
    return MF_STATUS_OK;
}

static void predict(struct mf_session *session, struct snapshot *snapshot)
{
    struct mf_hardware hardware;
    struct mf_profile profile;
    struct mf_simulation simulation;
    mf_tune_hardware(session->table->service, &hardware);
    mf_tune_profile(session->table->service, &profile);
    (void)mf_cost_fill(&hardware, &profile, &snapshot->step);
    snapshot->predicted = calloc((size_t)snapshot->step.task_count, sizeof(struct mf_span));
    MF_ASSERT(snapshot->predicted != NULL);
    mf_simulate(&snapshot->step, &hardware.contention, &simulation, snapshot->predicted);
    mf_profile_reset(&profile);
}

static void write_names(FILE *file)
{
    static const char *const processes[] = {"predicted", "measured"};
    for (int process = 0; process < 2; process++) {
        fprintf(file,
                "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"%s\"}},\n",
                process + 1, processes[process]);
        for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
            fprintf(file,
                    "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,"
                    "\"args\":{\"name\":\"%s\"}},\n",
                    process + 1, lane + 1, mf_kernel_lane_name((enum mf_lane)lane));
        }
    }
}

/* Unit names come from models: no quote or control character can be in them, but a foreign list of
 * units is not traced anyway. */
static void write_spans(FILE *file, const struct mf_session *session,
                        const struct snapshot *snapshot, int process, const struct mf_span *spans)
{
    const struct mf_model *model = &session->spec.model;
    for (int32_t i = 0; i < snapshot->step.task_count; i++) {
        const struct mf_task *task = &snapshot->step.tasks[i];
        if (spans[i].end_ns < spans[i].start_ns) {
            continue;
        }
        fprintf(file,
                "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s\","
                "\"cat\":\"%s\",\"args\":{\"task\":%d,\"unit\":\"%s\",\"panel\":%d,\"micro\":%d,"
                "\"link_bytes\":%lld,\"expected_us\":%.3f}},\n",
                process, task->lane + 1, spans[i].start_ns * 1e-3,
                (spans[i].end_ns - spans[i].start_ns) * 1e-3, mf_kernel_name(task->kernel),
                mf_step_phase_name(task->phase), i,
                task->unit >= 0 ? model->units[task->unit].name : "", task->panel, task->micro,
                (long long)task->link_bytes, task->expected_ns * 1e-3);
    }
}

/* A traced graph, waiting for one if the last was not. */
static enum mf_status copy_traced(struct mf_session *session, struct snapshot *snapshot)
{
    int64_t end_ns = mf_clock_ns() + WAIT_NS;
    pthread_mutex_lock(&session->lock);
    session->trace_end_ns = end_ns;
    pthread_mutex_unlock(&session->lock);
    enum mf_status status = MF_STATUS_OK;
    do {
        status = mf_session_work_device(session, "copying a trace", job_copy, snapshot);
        if (status == MF_STATUS_NOT_FOUND) {
            nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
        }
    } while (status == MF_STATUS_NOT_FOUND && mf_clock_ns() < end_ns);
    return status;
}

static void write_trace(const struct mf_session *session, const struct snapshot *snapshot,
                        char **text, size_t *count)
{
    FILE *file = open_memstream(text, count);
    MF_ASSERT(file != NULL);
    fprintf(file,
            "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"session\":\"%s\","
            "\"plan\":\"%s\"},\"traceEvents\":[\n",
            session->id, session->plan_id);
    write_names(file);
    write_spans(file, session, snapshot, 1, snapshot->predicted);
    write_spans(file, session, snapshot, 2, snapshot->measured);
    fprintf(file, "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":1,"
                  "\"args\":{\"sort_index\":1}}]}\n");
    MF_ASSERT(fclose(file) == 0);
}

/* Also after a failure the snapshot is the caller's to free. */
static enum mf_status take(struct mf_session *session, struct snapshot *snapshot)
{
    pthread_mutex_lock(&session->lock);
    bool open = session->state == MF_SESSION_READY || session->state == MF_SESSION_RUNNING;
    session->readers += open; /* keeps the executor until we are done */
    pthread_mutex_unlock(&session->lock);
    if (!open) {
        return mf_status_set(MF_STATUS_NOT_FOUND, "session %.8s is not running", session->id);
    }
    enum mf_status status = copy_traced(session, snapshot);
    pthread_mutex_lock(&session->lock);
    session->readers--;
    pthread_cond_broadcast(&session->wake);
    pthread_mutex_unlock(&session->lock);
    if (status == MF_STATUS_OK) {
        predict(session, snapshot);
    }
    return status;
}

enum mf_status mf_trace_session(struct mf_session *session, char **text, size_t *count)
{
    struct snapshot snapshot = {0};
    enum mf_status status = take(session, &snapshot);
    if (status == MF_STATUS_OK) {
        write_trace(session, &snapshot, text, count);
    }
    free_snapshot(&snapshot);
    return status;
}

static double last_end(const struct snapshot *snapshot)
{
    double end = 0;
    for (int32_t i = 0; i < snapshot->step.task_count; i++) {
        end = snapshot->measured[i].end_ns > end ? snapshot->measured[i].end_ns : end;
        end = snapshot->predicted[i].end_ns > end ? snapshot->predicted[i].end_ns : end;
    }
    return end;
}

enum mf_status mf_trace_timeline(struct mf_session *session, int32_t columns,
                                 struct mf_arena *arena,
                                 Memferry__V1__GetSessionTimelineResponse *out)
{
    struct snapshot snapshot = {0};
    enum mf_status status = take(session, &snapshot);
    if (status == MF_STATUS_OK) {
        double end_ns = last_end(&snapshot);
        Memferry__V1__GetTimelineResponse **sides[] = {&out->predicted, &out->measured};
        const struct mf_span *spans[] = {snapshot.predicted, snapshot.measured};
        snapshot.step.buffer_count = 0; /* those of the executor, which may be gone */
        for (int i = 0; i < 2; i++) {
            *sides[i] = MF_SERVICE_TABLE_NEW(arena, Memferry__V1__GetTimelineResponse,
                                             MEMFERRY__V1__GET_TIMELINE_RESPONSE__INIT);
            mf_timeline_fill(&snapshot.step, spans[i], end_ns, columns, arena, *sides[i]);
            (*sides[i])->plan_id = mf_arena_string(arena, session->plan_id);
        }
        out->plan_id = mf_arena_string(arena, session->plan_id);
    }
    free_snapshot(&snapshot);
    return status;
}
