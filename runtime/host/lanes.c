/* The lanes of the host device; see lanes.h. One lock guards queues, events and the error: tasks
 * last microseconds at least, and the lock is never held while one runs. */
#include "runtime/host/lanes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/limits.h"
#include "runtime/host/kernels.h"
#include "runtime/host/pool.h"

/* A task brings at most a run, a record and a wait for each other lane. */
#define ENTRIES_PER_TASK 5
/* The kernel wakes sleepers late by about this much; the rest of a pause is spun. */
#define SPIN_NS 60000

enum entry_kind { ENTRY_RUN, ENTRY_RECORD, ENTRY_WAIT };

struct entry {
    uint32_t kind : 2;
    uint32_t task : 30;
};
_Static_assert(MF_TASKS_MAX <= 1 << 29, "task numbers fit into an entry");

struct lane {
    struct mf_host_lanes *lanes;
    enum mf_lane lane;
    struct mf_host_context context;
    bool open;
    bool busy;       /* an entry has been taken and is not finished */
    int32_t waiting; /* for this event, -1 = none */
    pthread_t thread;
    pthread_cond_t wake;
    struct entry *ring;
    int64_t head; /* entries taken and put since open; the ring index is modulo its size */
    int64_t tail;
    uint64_t random;
};

struct mf_host_lanes {
    struct lane lane[MF_LANE_COUNT];
    double rates[MF_LANE_COUNT]; /* emulated bytes per second of the link's lanes, 0 = none */
    uint64_t jitter_seed;
    int64_t jitter_ns_max;
    uint32_t jitter_lanes;
    pthread_mutex_t lock;
    pthread_cond_t progress; /* a lane became idle, or made room in its queue */
    bool stop;
    bool trace;
    bool failed;
    struct mf_error error;
    uint32_t generation;
    int32_t task_count;
    int64_t ring_size;
    struct mf_kernel_call *calls;
    struct mf_device_span *spans;
    uint32_t *span_generations;
    uint32_t *events;   /* generation in which the lane marked it */
    uint32_t *recorded; /* generation in which the mark was queued; the caller's */
};

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void sleep_until(int64_t end_ns)
{
    int64_t wake_ns = end_ns - SPIN_NS;
    if (now_ns() < wake_ns) {
        struct timespec time = {.tv_sec = wake_ns / 1000000000, .tv_nsec = wake_ns % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL) != 0) {
        }
    }
    while (now_ns() < end_ns) {
    }
}

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t value = *state += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static void delay(struct lane *lane)
{
    const struct mf_host_lanes *lanes = lane->lanes;
    if ((lanes->jitter_lanes >> lane->lane & 1u) != 0 && lanes->jitter_ns_max > 0) {
        uint64_t ns = next_random(&lane->random) % (uint64_t)lanes->jitter_ns_max;
        sleep_until(now_ns() + (int64_t)ns);
    }
}

/* How long the emulated link needs for what `call` moves over it. */
static int64_t link_ns(const struct lane *lane, const struct mf_kernel_call *call)
{
    const double *rates = lane->lanes->rates;
    if (call->kernel == MF_KERNEL_COPY) {
        double rate = rates[lane->lane];
        return rate > 0 ? (int64_t)((double)call->shape.n / rate * 1e9) : 0;
    }
    double in = rates[MF_LANE_H2D];
    double out = rates[MF_LANE_D2H];
    double ns = 0;
    if (in > 0) {
        ns += (double)mf_host_kernels_weight_bytes(call) / in * 1e9;
    }
    if (out > 0) {
        ns += (double)mf_host_kernels_output_bytes(call) / out * 1e9;
    }
    return (int64_t)ns;
}

static void keep_error(struct mf_host_lanes *lanes, enum mf_lane lane, enum mf_kernel kernel,
                       int32_t task, enum mf_status status)
{
    (void)mf_status_context(status, "%s (task %d, %s lane)", mf_kernel_name(kernel), task,
                            mf_kernel_lane_name(lane));
    pthread_mutex_lock(&lanes->lock);
    if (!lanes->failed) {
        lanes->failed = true;
        lanes->error = *mf_status_error();
        lanes->error.status = status;
    }
    pthread_mutex_unlock(&lanes->lock);
}

/* Without the lock: the call and the span belong to this lane until the queue says otherwise. */
static void run_task(struct lane *lane, int32_t task, bool trace, uint32_t generation)
{
    struct mf_host_lanes *lanes = lane->lanes;
    const struct mf_kernel_call *call = &lanes->calls[task];
    delay(lane);
    int64_t start_ns = now_ns();
    enum mf_status status = mf_host_kernels_run(&lane->context, call);
    int64_t minimum_ns = link_ns(lane, call);
    if (minimum_ns > 0) {
        sleep_until(start_ns + minimum_ns);
    }
    if (status != MF_STATUS_OK) {
        keep_error(lanes, lane->lane, call->kernel, task, status);
    } else if (trace) {
        lanes->spans[task] = (struct mf_device_span){start_ns, now_ns()};
        lanes->span_generations[task] = generation;
    }
}

/* One entry; the lock is held on entry and on return. */
static void handle(struct lane *lane, struct entry entry)
{
    struct mf_host_lanes *lanes = lane->lanes;
    switch ((enum entry_kind)entry.kind) {
    case ENTRY_RUN:
        if (!lanes->failed && !lanes->stop) {
            bool trace = lanes->trace;
            uint32_t generation = lanes->generation;
            pthread_mutex_unlock(&lanes->lock);
            run_task(lane, (int32_t)entry.task, trace, generation);
            pthread_mutex_lock(&lanes->lock);
        }
        break;
    case ENTRY_RECORD:
        lanes->events[entry.task] = lanes->generation;
        for (int other = 0; other < MF_LANE_COUNT; other++) {
            if (lanes->lane[other].waiting == (int32_t)entry.task) {
                pthread_cond_signal(&lanes->lane[other].wake);
            }
        }
        break;
    case ENTRY_WAIT:
        lane->waiting = (int32_t)entry.task;
        while (lanes->events[entry.task] != lanes->generation && !lanes->stop) {
            pthread_cond_wait(&lane->wake, &lanes->lock);
        }
        lane->waiting = -1;
        break;
    }
}

static void *run_lane(void *argument)
{
    struct lane *lane = argument;
    struct mf_host_lanes *lanes = lane->lanes;
    pthread_mutex_lock(&lanes->lock);
    while (true) {
        while (lane->head == lane->tail && !lanes->stop) {
            pthread_cond_wait(&lane->wake, &lanes->lock);
        }
        if (lane->head == lane->tail) {
            break;
        }
        struct entry entry = lane->ring[lane->head % lanes->ring_size];
        lane->busy = true;
        bool full = lane->tail - lane->head == lanes->ring_size;
        lane->head++;
        handle(lane, entry);
        lane->busy = false;
        if (full || lane->head == lane->tail) {
            pthread_cond_signal(&lanes->progress);
        }
    }
    pthread_mutex_unlock(&lanes->lock);
    return NULL;
}

static enum mf_status open_lane(struct mf_host_lanes *lanes, enum mf_lane index, int32_t threads)
{
    struct lane *lane = &lanes->lane[index];
    bool many = index == MF_LANE_COMPUTE || index == MF_LANE_CPU;
    char name[16];
    snprintf(name, sizeof(name), "mf-%s", mf_kernel_lane_name(index));
    lane->lanes = lanes;
    lane->lane = index;
    lane->waiting = -1;
    lane->random = lanes->jitter_seed + (uint64_t)index * 0x632be59bd9b4e019u;
    pthread_cond_init(&lane->wake, NULL);
    MF_TRY(mf_host_context_open(name, many ? threads : 1, &lane->context));
    MF_TRY(mf_host_pool_start(&lane->thread, name, run_lane, lane));
    lane->open = true;
    return MF_STATUS_OK;
}

enum mf_status mf_host_lanes_open(int32_t threads, const struct mf_device_options *options,
                                  struct mf_host_lanes **out)
{
    *out = NULL;
    struct mf_host_lanes *lanes = calloc(1, sizeof(*lanes));
    if (lanes == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for the lanes of a device");
    }
    lanes->rates[MF_LANE_H2D] = options->h2d_bytes_per_s;
    lanes->rates[MF_LANE_D2H] = options->d2h_bytes_per_s;
    lanes->jitter_seed = options->jitter_seed;
    lanes->jitter_ns_max = options->jitter_ns_max;
    bool all = options->jitter_lanes == 0;
    lanes->jitter_lanes = options->jitter_seed == 0 ? 0 : all ? ~0u : options->jitter_lanes;
    lanes->generation = 1;
    pthread_mutex_init(&lanes->lock, NULL);
    pthread_cond_init(&lanes->progress, NULL);
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        enum mf_status status = open_lane(lanes, (enum mf_lane)lane, threads);
        if (status != MF_STATUS_OK) {
            mf_host_lanes_close(lanes);
            return status;
        }
    }
    *out = lanes;
    return MF_STATUS_OK;
}

static void free_room(struct mf_host_lanes *lanes)
{
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        free(lanes->lane[lane].ring);
        lanes->lane[lane].ring = NULL;
    }
    free(lanes->calls);
    free(lanes->spans);
    free(lanes->span_generations);
    free(lanes->events);
    free(lanes->recorded);
    lanes->calls = NULL;
    lanes->spans = NULL;
    lanes->span_generations = NULL;
    lanes->events = NULL;
    lanes->recorded = NULL;
    lanes->task_count = 0;
}

void mf_host_lanes_close(struct mf_host_lanes *lanes)
{
    if (lanes == NULL) {
        return;
    }
    pthread_mutex_lock(&lanes->lock);
    lanes->stop = true;
    for (int lane = 0; lane < MF_LANE_COUNT && lanes->lane[lane].lanes != NULL; lane++) {
        pthread_cond_signal(&lanes->lane[lane].wake);
    }
    pthread_mutex_unlock(&lanes->lock);
    for (int index = 0; index < MF_LANE_COUNT; index++) {
        struct lane *lane = &lanes->lane[index];
        if (lane->open) {
            pthread_join(lane->thread, NULL);
        }
    }
    for (int index = 0; index < MF_LANE_COUNT; index++) {
        if (lanes->lane[index].lanes != NULL) {
            mf_host_context_close(&lanes->lane[index].context);
            pthread_cond_destroy(&lanes->lane[index].wake);
        }
    }
    free_room(lanes);
    pthread_cond_destroy(&lanes->progress);
    pthread_mutex_destroy(&lanes->lock);
    free(lanes);
}

static bool idle(const struct mf_host_lanes *lanes)
{
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        if (lanes->lane[lane].busy || lanes->lane[lane].head != lanes->lane[lane].tail) {
            return false;
        }
    }
    return true;
}

static bool allocate_room(struct mf_host_lanes *lanes, int32_t task_count)
{
    size_t count = (size_t)task_count;
    lanes->ring_size = (int64_t)task_count * ENTRIES_PER_TASK;
    lanes->calls = calloc(count, sizeof(*lanes->calls));
    lanes->spans = calloc(count, sizeof(*lanes->spans));
    lanes->span_generations = calloc(count, sizeof(*lanes->span_generations));
    lanes->events = calloc(count, sizeof(*lanes->events));
    lanes->recorded = calloc(count, sizeof(*lanes->recorded));
    bool good = lanes->calls != NULL && lanes->spans != NULL && lanes->span_generations != NULL &&
                lanes->events != NULL && lanes->recorded != NULL;
    for (int index = 0; index < MF_LANE_COUNT; index++) {
        struct lane *lane = &lanes->lane[index];
        lane->ring = calloc((size_t)lanes->ring_size, sizeof(*lane->ring));
        lane->head = 0;
        lane->tail = 0;
        good = good && lane->ring != NULL;
    }
    return good;
}

enum mf_status mf_host_lanes_prepare(struct mf_host_lanes *lanes, int32_t task_count)
{
    if (task_count < 1 || task_count > MF_TASKS_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "%d tasks in one graph: 1 to %d are possible",
                             task_count, MF_TASKS_MAX);
    }
    enum mf_status status = MF_STATUS_OK;
    pthread_mutex_lock(&lanes->lock);
    if (!idle(lanes)) {
        status = mf_status_set(MF_STATUS_BUSY, "the device still works: sync comes first");
    } else if (task_count > lanes->task_count) {
        free_room(lanes);
        if (allocate_room(lanes, task_count)) {
            lanes->task_count = task_count;
        } else {
            free_room(lanes);
            status = mf_status_set(MF_STATUS_NO_MEMORY, "no host memory for the queues of %d tasks",
                                   task_count);
        }
    }
    pthread_mutex_unlock(&lanes->lock);
    return status;
}

enum mf_status mf_host_lanes_begin(struct mf_host_lanes *lanes, bool trace)
{
    enum mf_status status = MF_STATUS_OK;
    pthread_mutex_lock(&lanes->lock);
    if (!idle(lanes)) {
        status = mf_status_set(MF_STATUS_BUSY, "the device still works: sync comes first");
    } else {
        lanes->generation++;
        lanes->trace = trace;
        lanes->failed = false;
    }
    pthread_mutex_unlock(&lanes->lock);
    return status;
}

static enum mf_status check_task(const struct mf_host_lanes *lanes, int32_t task)
{
    if (task < 0 || task >= lanes->task_count) {
        return mf_status_set(MF_STATUS_INVALID, "task %d: the device is prepared for %d tasks",
                             task, lanes->task_count);
    }
    return MF_STATUS_OK;
}

static void put(struct mf_host_lanes *lanes, enum mf_lane index, enum entry_kind kind, int32_t task)
{
    struct lane *lane = &lanes->lane[index];
    pthread_mutex_lock(&lanes->lock);
    /* Full only when a graph marks or waits more than its tasks need; lanes always move on. */
    while (lane->tail - lane->head == lanes->ring_size) {
        pthread_cond_wait(&lanes->progress, &lanes->lock);
    }
    lane->ring[lane->tail % lanes->ring_size] =
        (struct entry){.kind = (uint32_t)kind & 3u, .task = (uint32_t)task & 0x3fffffffu};
    lane->tail++;
    pthread_cond_signal(&lane->wake);
    pthread_mutex_unlock(&lanes->lock);
}

enum mf_status mf_host_lanes_submit(struct mf_host_lanes *lanes, enum mf_lane lane,
                                    const struct mf_kernel_call *call, int32_t task)
{
    MF_TRY(check_task(lanes, task));
    if (!mf_host_kernels_fit(call->kernel, lane)) {
        return mf_status_set(MF_STATUS_INVALID, "task %d: the %s lane does not run %s", task,
                             mf_kernel_lane_name(lane), mf_kernel_name(call->kernel));
    }
    lanes->calls[task] = *call;
    put(lanes, lane, ENTRY_RUN, task);
    return MF_STATUS_OK;
}

enum mf_status mf_host_lanes_record(struct mf_host_lanes *lanes, enum mf_lane lane, int32_t task)
{
    MF_TRY(check_task(lanes, task));
    lanes->recorded[task] = lanes->generation;
    put(lanes, lane, ENTRY_RECORD, task);
    return MF_STATUS_OK;
}

enum mf_status mf_host_lanes_wait(struct mf_host_lanes *lanes, enum mf_lane lane, int32_t task)
{
    MF_TRY(check_task(lanes, task));
    if (lanes->recorded[task] != lanes->generation) {
        return mf_status_set(MF_STATUS_INVALID,
                             "the %s lane would wait for ever: event %d was not recorded",
                             mf_kernel_lane_name(lane), task);
    }
    put(lanes, lane, ENTRY_WAIT, task);
    return MF_STATUS_OK;
}

enum mf_status mf_host_lanes_sync(struct mf_host_lanes *lanes)
{
    enum mf_status status = MF_STATUS_OK;
    pthread_mutex_lock(&lanes->lock);
    while (!idle(lanes)) {
        pthread_cond_wait(&lanes->progress, &lanes->lock);
    }
    if (lanes->failed) {
        status = mf_status_restore(&lanes->error);
    }
    pthread_mutex_unlock(&lanes->lock);
    return status;
}

bool mf_host_lanes_span(struct mf_host_lanes *lanes, int32_t task, struct mf_device_span *out)
{
    bool found = false;
    pthread_mutex_lock(&lanes->lock);
    if (task >= 0 && task < lanes->task_count && idle(lanes) &&
        lanes->span_generations[task] == lanes->generation) {
        *out = lanes->spans[task];
        found = true;
    }
    pthread_mutex_unlock(&lanes->lock);
    return found;
}

int64_t mf_host_lanes_growths(const struct mf_host_lanes *lanes)
{
    int64_t total = 0;
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        total += lanes->lane[lane].context.scratch_growths;
    }
    return total;
}
