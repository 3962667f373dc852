/* The CPU lane's thread and queue; see cpu.h. */
#include "runtime/cuda/cpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "core/limits.h"
#include "runtime/host/context.h"
#include "runtime/host/cores.h"
#include "runtime/host/kernels.h"
#include "runtime/host/pool.h"

/* A task brings at most a run, a record and a wait for each other lane. */
#define ENTRIES_PER_TASK 5
/* How the lane waits, for the GPU and for entries: it looks again and again for a while, since the
 * end of most waits is near; then it sleeps, so that a long wait costs no core. */
#define SPIN_NS 100000
#define EVENT_SLEEP_NS 20000
#define PAUSES 16 /* a question takes the driver's lock, which the issuing thread needs */

struct entry {
    uint32_t kind : 2;
    uint32_t task : 30;
};
_Static_assert(MF_TASKS_MAX <= 1 << 29, "task numbers fit into an entry");

struct mf_cuda_cpu {
    struct mf_host_context context;
    struct mf_host_cores cores;
    struct mf_device_options options;
    bool open; /* the thread runs */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_cond_t progress; /* the lane became idle, or made room in its queue */
    bool stop;
    bool busy;
    bool trace;
    bool failed;
    struct mf_error error;
    uint32_t generation;
    uint64_t random;
    int32_t task_count;
    int64_t ring_size;
    struct entry *ring;
    int64_t head;          /* entries taken and put since open; the ring index is modulo its size */
    _Atomic(int64_t) tail; /* changes under the lock, is also looked at without it */
    struct mf_kernel_call *calls;
    struct mf_device_span *spans;
    uint32_t *span_generations;
    const cudaEvent_t *events;
    uint32_t *flags;
};

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void delay(struct mf_cuda_cpu *cpu)
{
    const struct mf_device_options *options = &cpu->options;
    bool wanted = options->jitter_lanes == 0 || (options->jitter_lanes >> MF_LANE_CPU & 1u) != 0;
    if (!wanted || options->jitter_seed == 0 || options->jitter_ns_max <= 0) {
        return;
    }
    cpu->random = cpu->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    int64_t ns = (int64_t)((cpu->random >> 33) % (uint64_t)options->jitter_ns_max);
    struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    (void)nanosleep(&time, NULL);
}

static void keep_error(struct mf_cuda_cpu *cpu, enum mf_status status, const char *what,
                       int32_t task)
{
    (void)mf_status_context(status, "%s (task %d, cpu lane)", what, task);
    pthread_mutex_lock(&cpu->lock);
    if (!cpu->failed) {
        cpu->failed = true;
        cpu->error = *mf_status_error();
        cpu->error.status = status;
    }
    pthread_mutex_unlock(&cpu->lock);
}

static enum mf_status run_kernel(struct mf_cuda_cpu *cpu, const struct mf_kernel_call *call)
{
    switch (call->kernel) {
    case MF_KERNEL_GRADIENT_ACCUMULATE:
        return mf_host_update_accumulate(&cpu->context, call);
    case MF_KERNEL_GRADIENT_NORM:
        return mf_host_update_norm(&cpu->context, call);
    case MF_KERNEL_CLIP:
        return mf_host_update_clip(&cpu->context, call);
    case MF_KERNEL_ADAMW:
        return mf_host_update_adamw(&cpu->context, call);
    default:
        return mf_status_set(MF_STATUS_INTERNAL, "not a kernel of the CPU lane");
    }
}

/* Without the lock: the call and the span belong to this thread until the queue says otherwise. */
static void run_task(struct mf_cuda_cpu *cpu, int32_t task, bool trace, uint32_t generation)
{
    const struct mf_kernel_call *call = &cpu->calls[task];
    delay(cpu);
    int64_t start_ns = now_ns();
    enum mf_status status = run_kernel(cpu, call);
    if (status != MF_STATUS_OK) {
        keep_error(cpu, status, mf_kernel_name(call->kernel), task);
    } else if (trace) {
        cpu->spans[task] = (struct mf_device_span){start_ns, now_ns()};
        cpu->span_generations[task] = generation;
    }
}

/* cudaEventSynchronize would spin to the end, however far that is. */
static cudaError_t poll_event(cudaEvent_t event)
{
    cudaError_t error = cudaEventQuery(event);
    int64_t end_ns = error == cudaErrorNotReady ? now_ns() + SPIN_NS : 0;
    while (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        if (now_ns() >= end_ns) {
            struct timespec time = {.tv_nsec = EVENT_SLEEP_NS};
            (void)nanosleep(&time, NULL);
        } else {
            mf_host_pool_pause(PAUSES);
        }
        error = cudaEventQuery(event);
    }
    return error;
}

static void wait_event(struct mf_cuda_cpu *cpu, int32_t task)
{
    cudaError_t error = poll_event(cpu->events[task]);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        enum mf_status status = mf_status_set(MF_STATUS_DEVICE, "%s (CUDA error %d)",
                                              cudaGetErrorString(error), (int)error);
        keep_error(cpu, status, "waiting for the GPU", task);
    }
}

/* One entry; the lock is held on entry and on return. */
static void handle(struct mf_cuda_cpu *cpu, struct entry entry)
{
    int32_t task = (int32_t)entry.task;
    bool run = !cpu->failed && !cpu->stop;
    bool trace = cpu->trace;
    uint32_t generation = cpu->generation;
    pthread_mutex_unlock(&cpu->lock);
    switch ((enum mf_cuda_cpu_entry)entry.kind) {
    case MF_CUDA_CPU_RUN:
        if (run) {
            run_task(cpu, task, trace, generation);
        }
        break;
    case MF_CUDA_CPU_RECORD: /* even after a failure: streams must not wait for ever */
        __atomic_store_n(&cpu->flags[task], generation, __ATOMIC_SEQ_CST);
        break;
    case MF_CUDA_CPU_WAIT:
        if (run) {
            wait_event(cpu, task);
        }
        break;
    }
    pthread_mutex_lock(&cpu->lock);
}

/* The lock is held on entry and on return: there is an entry, or the lane stops. */
static void wait_for_entry(struct mf_cuda_cpu *cpu)
{
    int64_t head = cpu->head;
    if (head == cpu->tail && !cpu->stop) {
        pthread_mutex_unlock(&cpu->lock);
        for (int64_t end_ns = now_ns() + SPIN_NS; head == cpu->tail && now_ns() < end_ns;) {
            mf_host_pool_pause(PAUSES);
        }
        pthread_mutex_lock(&cpu->lock);
    }
    while (cpu->head == cpu->tail && !cpu->stop) {
        pthread_cond_wait(&cpu->wake, &cpu->lock);
    }
}

static void *run_lane(void *argument)
{
    struct mf_cuda_cpu *cpu = argument;
    (void)cudaSetDevice(cpu->options.index);
    (void)prctl(PR_SET_TIMERSLACK, 1ul); /* else a sleep of EVENT_SLEEP_NS lasts 50 us longer */
    mf_host_cores_bind(pthread_self(), cpu->cores.cpus[0]);
    pthread_mutex_lock(&cpu->lock);
    while (true) {
        wait_for_entry(cpu);
        if (cpu->head == cpu->tail) {
            break;
        }
        struct entry entry = cpu->ring[cpu->head % cpu->ring_size];
        bool full = cpu->tail - cpu->head == cpu->ring_size;
        cpu->busy = true;
        cpu->head++;
        handle(cpu, entry);
        cpu->busy = false;
        if (full || cpu->head == cpu->tail) {
            pthread_cond_signal(&cpu->progress);
        }
    }
    pthread_mutex_unlock(&cpu->lock);
    return NULL;
}

enum mf_status mf_cuda_cpu_open(const struct mf_device_options *options, int32_t threads,
                                struct mf_cuda_cpu **out)
{
    *out = NULL;
    struct mf_cuda_cpu *cpu = calloc(1, sizeof(*cpu));
    if (cpu == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for the lanes of a device");
    }
    cpu->options = *options;
    cpu->random = options->jitter_seed;
    pthread_mutex_init(&cpu->lock, NULL);
    pthread_cond_init(&cpu->wake, NULL);
    pthread_cond_init(&cpu->progress, NULL);
    mf_host_cores_find(&cpu->cores);
    threads = threads > 0 ? threads : cpu->cores.count;
    enum mf_status status = mf_host_context_open_on("mf-cpu", threads, &cpu->cores, &cpu->context);
    if (status == MF_STATUS_OK) {
        status = mf_host_pool_start(&cpu->thread, "mf-cpu", run_lane, cpu);
        cpu->open = status == MF_STATUS_OK;
    }
    if (status != MF_STATUS_OK) {
        mf_cuda_cpu_close(cpu);
        return status;
    }
    *out = cpu;
    return MF_STATUS_OK;
}

static void free_room(struct mf_cuda_cpu *cpu)
{
    free(cpu->ring);
    free(cpu->calls);
    free(cpu->spans);
    free(cpu->span_generations);
    cpu->ring = NULL;
    cpu->calls = NULL;
    cpu->spans = NULL;
    cpu->span_generations = NULL;
}

void mf_cuda_cpu_close(struct mf_cuda_cpu *cpu)
{
    if (cpu == NULL) {
        return;
    }
    if (cpu->open) {
        pthread_mutex_lock(&cpu->lock);
        cpu->stop = true;
        pthread_cond_signal(&cpu->wake);
        pthread_mutex_unlock(&cpu->lock);
        pthread_join(cpu->thread, NULL);
    }
    if (cpu->context.pool != NULL) {
        mf_host_context_close(&cpu->context);
    }
    free_room(cpu);
    pthread_cond_destroy(&cpu->wake);
    pthread_cond_destroy(&cpu->progress);
    pthread_mutex_destroy(&cpu->lock);
    free(cpu);
}

enum mf_status mf_cuda_cpu_prepare(struct mf_cuda_cpu *cpu, int32_t task_count,
                                   const cudaEvent_t *events, uint32_t *flags)
{
    enum mf_status status = MF_STATUS_OK;
    size_t count = (size_t)task_count;
    pthread_mutex_lock(&cpu->lock);
    free_room(cpu);
    cpu->task_count = task_count;
    cpu->ring_size = (int64_t)task_count * ENTRIES_PER_TASK;
    cpu->head = 0;
    cpu->tail = 0;
    cpu->events = events;
    cpu->flags = flags;
    cpu->ring = calloc((size_t)cpu->ring_size, sizeof(*cpu->ring));
    cpu->calls = calloc(count, sizeof(*cpu->calls));
    cpu->spans = calloc(count, sizeof(*cpu->spans));
    cpu->span_generations = calloc(count, sizeof(*cpu->span_generations));
    if (cpu->ring == NULL || cpu->calls == NULL || cpu->spans == NULL ||
        cpu->span_generations == NULL) {
        free_room(cpu);
        status = mf_status_set(MF_STATUS_NO_MEMORY, "no host memory for the queues of %d tasks",
                               task_count);
    }
    pthread_mutex_unlock(&cpu->lock);
    return status;
}

void mf_cuda_cpu_begin(struct mf_cuda_cpu *cpu, uint32_t generation, bool trace)
{
    pthread_mutex_lock(&cpu->lock);
    cpu->generation = generation;
    cpu->trace = trace;
    cpu->failed = false;
    pthread_mutex_unlock(&cpu->lock);
}

bool mf_cuda_cpu_idle(struct mf_cuda_cpu *cpu)
{
    pthread_mutex_lock(&cpu->lock);
    bool idle = !cpu->busy && cpu->head == cpu->tail;
    pthread_mutex_unlock(&cpu->lock);
    return idle;
}

void mf_cuda_cpu_put(struct mf_cuda_cpu *cpu, enum mf_cuda_cpu_entry entry, int32_t task,
                     const struct mf_kernel_call *call)
{
    if (call != NULL) {
        cpu->calls[task] = *call;
    }
    pthread_mutex_lock(&cpu->lock);
    /* Full only when a graph marks or waits more than its tasks need; the lane always moves on. */
    while (cpu->tail - cpu->head == cpu->ring_size) {
        pthread_cond_wait(&cpu->progress, &cpu->lock);
    }
    cpu->ring[cpu->tail % cpu->ring_size] =
        (struct entry){.kind = (uint32_t)entry & 3u, .task = (uint32_t)task & 0x3fffffffu};
    cpu->tail++;
    pthread_cond_signal(&cpu->wake);
    pthread_mutex_unlock(&cpu->lock);
}

void mf_cuda_cpu_drain(struct mf_cuda_cpu *cpu)
{
    pthread_mutex_lock(&cpu->lock);
    while (cpu->busy || cpu->head != cpu->tail) {
        pthread_cond_wait(&cpu->progress, &cpu->lock);
    }
    pthread_mutex_unlock(&cpu->lock);
}

bool mf_cuda_cpu_failed(struct mf_cuda_cpu *cpu, struct mf_error *out)
{
    pthread_mutex_lock(&cpu->lock);
    bool failed = cpu->failed;
    if (failed) {
        *out = cpu->error;
    }
    pthread_mutex_unlock(&cpu->lock);
    return failed;
}

bool mf_cuda_cpu_span(struct mf_cuda_cpu *cpu, int32_t task, struct mf_device_span *out)
{
    bool found = false;
    pthread_mutex_lock(&cpu->lock);
    if (cpu->span_generations[task] == cpu->generation) {
        *out = cpu->spans[task];
        found = true;
    }
    pthread_mutex_unlock(&cpu->lock);
    return found;
}
