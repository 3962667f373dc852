/* Activity records of CUPTI joined to tasks: see cupti_trace.h. */
#include "profiler/cupti_trace.h"

#include <cupti.h> /* types; the functions are looked up */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "profiler/cupti_library.h"

#define BUFFERS 12
#define BUFFER_BYTES (1 << 20)
#define BUFFER_ALIGNMENT 4096
/* API calls of a task on average, generous: each takes one correlation id. */
#define LINKS_PER_TASK 32
#define LINKS_MIN (1 << 16)
#define WORK_PER_TASK 8 /* kernels, copies and fills */
#define WORK_MIN (1 << 14)
#define CLIENT_NAME "memferry"

_Static_assert(CUPTI_API_VERSION >= 130000, "cuptiSubscribe_v2 and these records need CUDA 13");

#define FUNCTIONS(X)                                                                               \
    X(cuptiSubscribe_v2)                                                                           \
    X(cuptiUnsubscribe)                                                                            \
    X(cuptiGetResultString)                                                                        \
    X(cuptiActivityEnable)                                                                         \
    X(cuptiActivityDisable)                                                                        \
    X(cuptiActivityRegisterCallbacks)                                                              \
    X(cuptiActivityRegisterTimestampCallback)                                                      \
    X(cuptiActivityFlushAll)                                                                       \
    X(cuptiActivityGetNextRecord)                                                                  \
    X(cuptiActivityGetNumDroppedRecords)                                                           \
    X(cuptiActivityPushExternalCorrelationId)                                                      \
    X(cuptiActivityPopExternalCorrelationId)

/* Correlation records come with those of API calls, so these are asked for as well. */
static const CUpti_ActivityKind kinds[] = {
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
    CUPTI_ACTIVITY_KIND_RUNTIME,
    CUPTI_ACTIVITY_KIND_DRIVER,
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
};
#define KIND_COUNT ((int)(sizeof(kinds) / sizeof(kinds[0])))

/* CUPTI counts its correlation ids up from 1; they are found again modulo the table's size. */
struct link {
    uint32_t correlation;
    uint32_t task;
};

struct work {
    uint64_t start_ns;
    uint64_t end_ns;
    uint32_t correlation;
};

struct mf_cupti_trace {
    CUpti_SubscriberHandle subscriber;
    int kinds_on;
    int32_t task_count;
    bool collected; /* since begin */
    int64_t *starts_ns;
    int64_t *ends_ns; /* [task_count]; 0 = no record */
    /* Guarded by current_lock: */
    struct link *links; /* [links_size], a power of two */
    uint32_t links_size;
    struct work *works;
    int64_t works_size;
    int64_t works_count;
    int64_t dropped;
};

static struct {
#define X(name) __typeof__(&(name)) name;
    FUNCTIONS(X)
#undef X
} cupti;

/* CUPTI's callbacks have no argument of ours. The lock is held while the trace is used, so that
 * closing waits for a callback that runs. */
static pthread_mutex_t current_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mf_cupti_trace *current;
/* What CUPTI writes into: beyond a trace's life, as a buffer may come back late. */
static struct {
    char *memory;
    char *free[BUFFERS];
    int free_count;
} pool;

/* ---- the library ---- */

static enum mf_status load(void)
{
    static const struct mf_cupti_library_function functions[] = {
#define X(name) {#name, &cupti.name},
        FUNCTIONS(X)
#undef X
    };
    return mf_cupti_library_load(functions, sizeof(functions) / sizeof(functions[0]));
}

static enum mf_status check(CUptiResult result, const char *what)
{
    const char *text = "unknown";
    if (result == CUPTI_SUCCESS) {
        return MF_STATUS_OK;
    }
    (void)cupti.cuptiGetResultString(result, &text);
    return mf_status_set(MF_STATUS_UNSUPPORTED, "CUPTI %s: %s", what, text);
}

/* ---- callbacks ---- */

static uint64_t CUPTIAPI read_clock(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void CUPTIAPI ignore_callback(void *context, CUpti_CallbackDomain domain,
                                     CUpti_CallbackId id, const void *data)
{
    (void)context;
    (void)domain;
    (void)id;
    (void)data;
}

/* No buffer left: CUPTI drops the records and counts them. */
static void CUPTIAPI request_buffer(uint8_t **buffer, size_t *size, size_t *records_max)
{
    *buffer = NULL;
    *size = 0;
    *records_max = 0;
    pthread_mutex_lock(&current_lock);
    if (current != NULL && pool.free_count > 0) {
        *buffer = (uint8_t *)pool.free[--pool.free_count];
        *size = BUFFER_BYTES;
    }
    pthread_mutex_unlock(&current_lock);
}

static void put_work(struct mf_cupti_trace *trace, uint64_t start_ns, uint64_t end_ns,
                     uint32_t correlation)
{
    if (start_ns == 0 || end_ns < start_ns) {
        return; /* had not ended when the buffer was given back */
    }
    if (trace->works_count == trace->works_size) {
        trace->dropped++;
        return;
    }
    trace->works[trace->works_count++] = (struct work){start_ns, end_ns, correlation};
}

static void put_record(struct mf_cupti_trace *trace, const CUpti_Activity *record)
{
    const void *body = record;
    if (record->kind == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION) {
        const CUpti_ActivityExternalCorrelation *found = body;
        trace->links[found->correlationId & (trace->links_size - 1)] =
            (struct link){found->correlationId, (uint32_t)found->externalId};
    } else if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const CUpti_ActivityKernel10 *kernel = body;
        put_work(trace, kernel->start, kernel->end, kernel->correlationId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const CUpti_ActivityMemcpy6 *copy = body;
        put_work(trace, copy->start, copy->end, copy->correlationId);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const CUpti_ActivityMemset4 *fill = body;
        put_work(trace, fill->start, fill->end, fill->correlationId);
    }
}

static void CUPTIAPI complete_buffer(CUcontext context, uint32_t stream, uint8_t *buffer,
                                     size_t size, size_t valid)
{
    CUpti_Activity *record = NULL;
    size_t dropped = 0;
    (void)size;
    /* Reading records and counts takes no lock of CUPTI's that a flush would hold. */
    (void)cupti.cuptiActivityGetNumDroppedRecords(context, stream, &dropped);
    pthread_mutex_lock(&current_lock);
    if (current != NULL) {
        current->dropped += (int64_t)dropped;
        while (valid > 0 &&
               cupti.cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
            put_record(current, record);
        }
    }
    if (buffer != NULL) {
        pool.free[pool.free_count++] = (char *)buffer;
    }
    pthread_mutex_unlock(&current_lock);
}

/* ---- opening ---- */

static bool fill_pool(void)
{
    if (pool.memory == NULL) {
        pool.memory = aligned_alloc(BUFFER_ALIGNMENT, (size_t)BUFFERS * BUFFER_BYTES);
        for (int i = 0; i < BUFFERS && pool.memory != NULL; i++) {
            pool.free[pool.free_count++] = pool.memory + (size_t)i * BUFFER_BYTES;
        }
    }
    return pool.memory != NULL;
}

static enum mf_status allocate(struct mf_cupti_trace *trace, int32_t task_count)
{
    size_t count = (size_t)task_count;
    trace->task_count = task_count;
    trace->links_size = LINKS_MIN;
    while (trace->links_size < (1u << 26) && trace->links_size < count * LINKS_PER_TASK) {
        trace->links_size *= 2;
    }
    trace->works_size = WORK_MIN + (int64_t)task_count * WORK_PER_TASK;
    trace->starts_ns = calloc(count + 1, sizeof(*trace->starts_ns));
    trace->ends_ns = calloc(count + 1, sizeof(*trace->ends_ns));
    trace->links = calloc(trace->links_size, sizeof(*trace->links));
    trace->works = calloc((size_t)trace->works_size, sizeof(*trace->works));
    if (trace->starts_ns == NULL || trace->ends_ns == NULL || trace->links == NULL ||
        trace->works == NULL || !fill_pool()) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for CUPTI's records");
    }
    return MF_STATUS_OK;
}

static enum mf_status subscribe(struct mf_cupti_trace *trace)
{
    char holder[CUPTI_OLD_SUBSCRIBER_NAME_MIN_LEN] = "";
    CUpti_SubscriberParams parameters = {
        .structSize = CUpti_SubscriberParams_STRUCT_SIZE,
        .subscriberName = CLIENT_NAME,
        .oldSubscriberName = holder,
        .oldSubscriberSize = sizeof(holder),
    };
    CUptiResult result =
        cupti.cuptiSubscribe_v2(&trace->subscriber, ignore_callback, NULL, &parameters);
    if (result == CUPTI_SUCCESS) {
        return MF_STATUS_OK;
    }
    trace->subscriber = NULL;
    if (result == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
        holder[sizeof(holder) - 1] = '\0';
        bool named = holder[0] != '\0' && holder[0] != '<'; /* "<not provided>" */
        return mf_status_set(MF_STATUS_UNSUPPORTED, "CUPTI held by %.32s",
                             named ? holder : "another tool");
    }
    return check(result, "refused");
}

static enum mf_status start(struct mf_cupti_trace *trace)
{
    MF_TRY(subscribe(trace));
    MF_TRY(check(cupti.cuptiActivityRegisterTimestampCallback(read_clock), "clock"));
    MF_TRY(check(cupti.cuptiActivityRegisterCallbacks(request_buffer, complete_buffer), "buffers"));
    while (trace->kinds_on < KIND_COUNT) {
        MF_TRY(check(cupti.cuptiActivityEnable(kinds[trace->kinds_on]), "records"));
        trace->kinds_on++;
    }
    return MF_STATUS_OK;
}

enum mf_status mf_cupti_trace_open(int32_t task_count, struct mf_cupti_trace **out)
{
    *out = NULL;
    struct mf_cupti_trace *trace = calloc(1, sizeof(*trace));
    if (trace == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for CUPTI's records");
    }
    pthread_mutex_lock(&current_lock);
    bool taken = current != NULL;
    if (!taken) {
        current = trace;
    }
    pthread_mutex_unlock(&current_lock);
    if (taken) {
        free(trace);
        return mf_status_set(MF_STATUS_UNSUPPORTED, "CUPTI held by another device of memferry");
    }
    enum mf_status status = load();
    if (status == MF_STATUS_OK) {
        status = allocate(trace, task_count);
    }
    if (status == MF_STATUS_OK) {
        status = start(trace);
    }
    if (status != MF_STATUS_OK) {
        mf_cupti_trace_close(trace);
        return status;
    }
    *out = trace;
    return MF_STATUS_OK;
}

void mf_cupti_trace_close(struct mf_cupti_trace *trace)
{
    if (trace == NULL) {
        return;
    }
    for (int kind = trace->kinds_on - 1; kind >= 0; kind--) {
        (void)cupti.cuptiActivityDisable(kinds[kind]);
    }
    if (trace->kinds_on > 0) {
        (void)cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    }
    if (trace->subscriber != NULL) {
        (void)cupti.cuptiUnsubscribe(trace->subscriber);
    }
    pthread_mutex_lock(&current_lock);
    current = NULL;
    if (pool.free_count == BUFFERS) {
        free(pool.memory);
        pool.memory = NULL;
        pool.free_count = 0;
    }
    pthread_mutex_unlock(&current_lock);
    free(trace->starts_ns);
    free(trace->ends_ns);
    free(trace->links);
    free(trace->works);
    free(trace);
}

/* ---- graphs ---- */

void mf_cupti_trace_begin(struct mf_cupti_trace *trace)
{
    if (!trace->collected) { /* records of a graph that nobody asked about */
        (void)cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    }
    pthread_mutex_lock(&current_lock);
    trace->works_count = 0;
    pthread_mutex_unlock(&current_lock);
    memset(trace->ends_ns, 0, (size_t)trace->task_count * sizeof(*trace->ends_ns));
    trace->collected = false;
}

void mf_cupti_trace_push(struct mf_cupti_trace *trace, int32_t task)
{
    (void)trace;
    (void)cupti.cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                                                       (uint64_t)task);
}

void mf_cupti_trace_pop(struct mf_cupti_trace *trace)
{
    uint64_t last = 0;
    (void)trace;
    (void)cupti.cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0,
                                                      &last);
}

static void join(struct mf_cupti_trace *trace, const struct work *work)
{
    const struct link *link = &trace->links[work->correlation & (trace->links_size - 1)];
    if (link->correlation != work->correlation || link->task >= (uint32_t)trace->task_count) {
        return; /* queued outside of a task: waits, delays of tests */
    }
    int64_t start_ns = (int64_t)work->start_ns;
    int64_t end_ns = (int64_t)work->end_ns;
    int64_t *first = &trace->starts_ns[link->task];
    int64_t *last = &trace->ends_ns[link->task];
    *first = *last == 0 || start_ns < *first ? start_ns : *first;
    *last = end_ns > *last ? end_ns : *last;
}

static void collect(struct mf_cupti_trace *trace)
{
    (void)cupti.cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    pthread_mutex_lock(&current_lock);
    for (int64_t i = 0; i < trace->works_count; i++) {
        join(trace, &trace->works[i]);
    }
    trace->works_count = 0;
    pthread_mutex_unlock(&current_lock);
    trace->collected = true;
}

bool mf_cupti_trace_span(struct mf_cupti_trace *trace, int32_t task, int64_t *start_ns,
                         int64_t *end_ns)
{
    if (!trace->collected) {
        collect(trace);
    }
    if (task < 0 || task >= trace->task_count || trace->ends_ns[task] == 0) {
        return false;
    }
    *start_ns = trace->starts_ns[task];
    *end_ns = trace->ends_ns[task];
    return true;
}

int64_t mf_cupti_trace_dropped(const struct mf_cupti_trace *trace)
{
    pthread_mutex_lock(&current_lock);
    int64_t dropped = trace->dropped;
    pthread_mutex_unlock(&current_lock);
    return dropped;
}
