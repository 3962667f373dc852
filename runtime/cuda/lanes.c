/* Streams, events and flags of the CUDA device; see lanes.h. */
#include "runtime/cuda/lanes.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/limits.h"
#include "runtime/cuda/blas.h"
#include "runtime/cuda/cpu.h"
#include "runtime/cuda/cudnn.h"
#include "runtime/cuda/direct.h"
#include "runtime/cuda/linear.h"
#include "runtime/cuda/run.h"
#include "runtime/cuda/trace.h"

#define STREAM_COUNT 3 /* compute, H2D, D2H: the lanes before the CPU's */
_Static_assert(MF_LANE_CPU == STREAM_COUNT, "lanes below MF_LANE_CPU are streams");

typedef CUresult (*wait_value_function)(CUstream stream, CUdeviceptr address, cuuint32_t value,
                                        unsigned int flags);

struct mf_cuda_lanes {
    struct mf_device_options options;
    const struct mf_cuda_memory *memory;
    cudaStream_t streams[STREAM_COUNT];
    struct mf_cuda_context context;
    struct mf_cuda_blas *blas;
    struct mf_cuda_cudnn *cudnn;
    struct mf_cuda_direct direct;
    struct mf_cuda_cpu *cpu;
    wait_value_function wait_value; /* NULL: a small kernel waits instead */
    uint32_t generation;
    uint64_t random;
    bool trace;
    bool lost; /* the GPU failed; only closing is left */
    int32_t task_count;
    cudaEvent_t *events;        /* [task_count] */
    cudaEvent_t *spans;         /* [2 * task_count], from the first traced graph on */
    uint32_t *span_generations; /* of tasks on streams */
    uint32_t *recorded;         /* generation in which the mark was queued */
    uint8_t *recorded_lanes;
    uint32_t *flags; /* pinned: generation in which the CPU lane did the task */
    uint32_t *flags_on_device;
    cudaEvent_t base; /* when a traced graph began, */
    int64_t base_ns;  /* and on the CPU's clock */
    struct mf_cuda_trace records;
};

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* ---- waiting for everything ---- */

static enum mf_status drain(void *context)
{
    struct mf_cuda_lanes *lanes = context;
    cudaError_t first = cudaSuccess;
    for (int lane = 0; lane < STREAM_COUNT; lane++) {
        cudaError_t error = cudaStreamSynchronize(lanes->streams[lane]);
        first = first == cudaSuccess ? error : first;
    }
    mf_cuda_cpu_drain(lanes->cpu);
    if (first == cudaSuccess) {
        return MF_STATUS_OK;
    }
    (void)cudaGetLastError();
    lanes->lost = true;
    return mf_status_set(MF_STATUS_DEVICE,
                         "the GPU failed in one of the tasks of this graph: %s (CUDA error %d); "
                         "CUDA_LAUNCH_BLOCKING=1 tells which",
                         cudaGetErrorString(first), (int)first);
}

/* ---- opening ---- */

static void find_wait_value(struct mf_cuda_lanes *lanes)
{
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    cudaError_t error = cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &function, 12000,
                                                         cudaEnableDefault, &found);
    if (error == cudaSuccess && found == cudaDriverEntryPointSuccess && function != NULL) {
        memcpy(&lanes->wait_value, &function, sizeof(function));
    }
    (void)cudaGetLastError();
}

static enum mf_status open_context(struct mf_cuda_lanes *lanes)
{
    struct mf_cuda_context *context = &lanes->context;
    void *scratch = NULL;
    int device = lanes->options.index;
    for (int lane = 0; lane < STREAM_COUNT; lane++) {
        MF_TRY(mf_cuda_linear_check(
            cudaStreamCreateWithFlags(&lanes->streams[lane], cudaStreamNonBlocking),
            "creating a stream"));
    }
    MF_TRY(mf_cuda_linear_check(cudaEventCreate(&lanes->base), "creating an event"));
    MF_TRY(mf_cuda_linear_check(cudaMalloc(&scratch, MF_CUDA_LANES_SCRATCH_BYTES),
                                "reserving scratch memory of the kernels"));
    context->stream = lanes->streams[MF_LANE_COMPUTE];
    context->scratch = scratch;
    context->scratch_bytes = MF_CUDA_LANES_SCRATCH_BYTES;
    MF_TRY(mf_cuda_linear_check(
        cudaDeviceGetAttribute(&context->multiprocessors, cudaDevAttrMultiProcessorCount, device),
        "asking for multiprocessors"));
    MF_TRY(mf_cuda_linear_check(cudaDeviceGetAttribute(&context->shared_bytes,
                                                       cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                                       device),
                                "asking for shared memory"));
    MF_TRY(mf_cuda_run_load(context->shared_bytes));
    MF_TRY(mf_cuda_cudnn_open(context, drain, lanes, &lanes->cudnn));
    context->cudnn = lanes->cudnn;
    MF_TRY(mf_cuda_linear_check(mf_cuda_attention_warm(context), "loading the attention kernels"));
    MF_TRY(mf_cuda_direct_open(device, &lanes->direct));
    context->direct = &lanes->direct;
    MF_TRY(mf_cuda_blas_open(drain, lanes, &lanes->blas));
    context->blas = lanes->blas;
    return MF_STATUS_OK;
}

enum mf_status mf_cuda_lanes_open(const struct mf_device_options *options, int32_t threads,
                                  const struct mf_cuda_memory *memory, struct mf_cuda_lanes **out)
{
    *out = NULL;
    struct mf_cuda_lanes *lanes = calloc(1, sizeof(*lanes));
    if (lanes == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for the lanes of a device");
    }
    lanes->options = *options;
    lanes->memory = memory;
    lanes->random = options->jitter_seed;
    lanes->generation = 1;
    find_wait_value(lanes);
    enum mf_status status = open_context(lanes);
    if (status == MF_STATUS_OK) {
        status = mf_cuda_cpu_open(options, threads, &lanes->cpu);
    }
    if (status != MF_STATUS_OK) {
        mf_cuda_lanes_close(lanes);
        return status;
    }
    *out = lanes;
    return MF_STATUS_OK;
}

static void destroy_events(cudaEvent_t *events, int64_t count)
{
    for (int64_t index = 0; events != NULL && index < count; index++) {
        if (events[index] != NULL) {
            (void)cudaEventDestroy(events[index]);
        }
    }
    free(events);
}

static void free_room(struct mf_cuda_lanes *lanes)
{
    destroy_events(lanes->events, lanes->task_count);
    destroy_events(lanes->spans, 2 * (int64_t)lanes->task_count);
    free(lanes->span_generations);
    free(lanes->recorded);
    free(lanes->recorded_lanes);
    if (lanes->flags != NULL) {
        (void)cudaFreeHost(lanes->flags);
    }
    lanes->events = NULL;
    lanes->spans = NULL;
    lanes->span_generations = NULL;
    lanes->recorded = NULL;
    lanes->recorded_lanes = NULL;
    lanes->flags = NULL;
    lanes->task_count = 0;
}

void mf_cuda_lanes_close(struct mf_cuda_lanes *lanes)
{
    if (lanes == NULL) {
        return;
    }
    mf_cuda_trace_reset(&lanes->records);
    mf_cuda_cpu_close(lanes->cpu);
    for (int lane = 0; lane < STREAM_COUNT; lane++) {
        if (lanes->streams[lane] != NULL) {
            (void)cudaStreamSynchronize(lanes->streams[lane]);
            (void)cudaStreamDestroy(lanes->streams[lane]);
        }
    }
    free_room(lanes);
    if (lanes->base != NULL) {
        (void)cudaEventDestroy(lanes->base);
    }
    mf_cuda_cudnn_close(lanes->cudnn);
    mf_cuda_blas_close(lanes->blas);
    (void)cudaFree(lanes->context.scratch);
    (void)cudaGetLastError();
    free(lanes);
}

void mf_cuda_lanes_version(const struct mf_cuda_lanes *lanes, char *out, size_t size)
{
    const char *attention = mf_cuda_cudnn_version(lanes->cudnn);
    (void)snprintf(out, size, "%s%s%s", mf_cuda_blas_version(lanes->blas),
                   attention[0] != '\0' ? ", " : "", attention);
}

void mf_cuda_lanes_attention(const struct mf_cuda_lanes *lanes, char *out, size_t size)
{
    mf_cuda_cudnn_text(lanes->cudnn, out, size);
}

/* ---- room for graphs ---- */

static enum mf_status create_events(int64_t count, unsigned int flags, cudaEvent_t **out)
{
    cudaEvent_t *events = calloc((size_t)count, sizeof(*events));
    *out = events;
    if (events == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no host memory for %lld events",
                             (long long)count);
    }
    for (int64_t index = 0; index < count; index++) {
        MF_TRY(mf_cuda_linear_check(cudaEventCreateWithFlags(&events[index], flags),
                                    "creating events"));
    }
    return MF_STATUS_OK;
}

static enum mf_status allocate_room(struct mf_cuda_lanes *lanes, int32_t task_count)
{
    size_t count = (size_t)task_count;
    void *on_device = NULL;
    lanes->task_count = task_count;
    lanes->span_generations = calloc(count, sizeof(*lanes->span_generations));
    lanes->recorded = calloc(count, sizeof(*lanes->recorded));
    lanes->recorded_lanes = calloc(count, sizeof(*lanes->recorded_lanes));
    if (lanes->span_generations == NULL || lanes->recorded == NULL ||
        lanes->recorded_lanes == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no host memory for the queues of %d tasks",
                             task_count);
    }
    MF_TRY(create_events(task_count, cudaEventDisableTiming, &lanes->events));
    MF_TRY(mf_cuda_linear_check(cudaHostAlloc((void **)&lanes->flags, count * sizeof(uint32_t),
                                              cudaHostAllocMapped | cudaHostAllocPortable),
                                "pinning the flags of tasks"));
    memset(lanes->flags, 0, count * sizeof(uint32_t));
    MF_TRY(mf_cuda_linear_check(cudaHostGetDevicePointer(&on_device, lanes->flags, 0),
                                "mapping the flags of tasks"));
    lanes->flags_on_device = on_device;
    return mf_cuda_cpu_prepare(lanes->cpu, task_count, lanes->events, lanes->flags);
}

static enum mf_status check_idle(struct mf_cuda_lanes *lanes)
{
    bool idle = mf_cuda_cpu_idle(lanes->cpu);
    for (int lane = 0; lane < STREAM_COUNT && idle; lane++) {
        cudaError_t error = cudaStreamQuery(lanes->streams[lane]);
        if (error != cudaSuccess && error != cudaErrorNotReady) {
            return mf_cuda_linear_check(error, "the GPU failed before");
        }
        idle = error == cudaSuccess;
    }
    (void)cudaGetLastError();
    return idle ? MF_STATUS_OK
                : mf_status_set(MF_STATUS_BUSY, "the device still works: sync comes first");
}

enum mf_status mf_cuda_lanes_prepare(struct mf_cuda_lanes *lanes, int32_t task_count)
{
    if (task_count < 1 || task_count > MF_TASKS_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "%d tasks in one graph: 1 to %d are possible",
                             task_count, MF_TASKS_MAX);
    }
    MF_TRY(check_idle(lanes));
    if (task_count <= lanes->task_count) {
        return MF_STATUS_OK;
    }
    free_room(lanes);
    enum mf_status status = allocate_room(lanes, task_count);
    if (status != MF_STATUS_OK) {
        free_room(lanes);
    }
    return status;
}

/* ---- running ---- */

enum mf_status mf_cuda_lanes_begin(struct mf_cuda_lanes *lanes, bool trace)
{
    MF_TRY(check_idle(lanes));
    lanes->generation++;
    lanes->trace = trace;
    mf_cuda_cpu_begin(lanes->cpu, lanes->generation, trace);
    mf_cuda_trace_begin(&lanes->records, lanes->task_count, trace);
    if (!trace) {
        return MF_STATUS_OK;
    }
    if (lanes->spans == NULL && lanes->task_count > 0) {
        MF_TRY(create_events(2 * (int64_t)lanes->task_count, cudaEventDefault, &lanes->spans));
    }
    cudaStream_t stream = lanes->streams[MF_LANE_COMPUTE];
    MF_TRY(mf_cuda_linear_check(cudaEventRecord(lanes->base, stream), "starting the clock"));
    MF_TRY(mf_cuda_linear_check(cudaEventSynchronize(lanes->base), "starting the clock"));
    lanes->base_ns = now_ns();
    return MF_STATUS_OK;
}

static enum mf_status check_task(const struct mf_cuda_lanes *lanes, int32_t task)
{
    if (task < 0 || task >= lanes->task_count) {
        return mf_status_set(MF_STATUS_INVALID, "task %d: the device is prepared for %d tasks",
                             task, lanes->task_count);
    }
    return MF_STATUS_OK;
}

/* In pieces, each within one registered chunk on either side. */
static enum mf_status copy(const struct mf_cuda_lanes *lanes, cudaStream_t stream,
                           const struct mf_kernel_call *call)
{
    const char *from = call->operands[0].pointer;
    char *to = call->operands[1].pointer;
    for (int64_t left = call->shape.n; left > 0;) {
        int64_t piece = mf_cuda_memory_run(lanes->memory, from, left);
        piece = mf_cuda_memory_run(lanes->memory, to, piece);
        MF_TRY(mf_cuda_linear_check(
            cudaMemcpyAsync(to, from, (size_t)piece, cudaMemcpyDefault, stream), "copy"));
        from += piece;
        to += piece;
        left -= piece;
    }
    return MF_STATUS_OK;
}

static enum mf_status delay(struct mf_cuda_lanes *lanes, enum mf_lane lane)
{
    const struct mf_device_options *options = &lanes->options;
    bool wanted = options->jitter_lanes == 0 || (options->jitter_lanes >> lane & 1u) != 0;
    if (!wanted || options->jitter_seed == 0 || options->jitter_ns_max <= 0) {
        return MF_STATUS_OK;
    }
    lanes->random = lanes->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    int64_t ns = (int64_t)((lanes->random >> 33) % (uint64_t)options->jitter_ns_max);
    return mf_cuda_linear_check(mf_cuda_elementwise_delay(lanes->streams[lane], ns), "delay");
}

static enum mf_status queue(struct mf_cuda_lanes *lanes, cudaStream_t stream,
                            const struct mf_kernel_call *call)
{
    return call->kernel == MF_KERNEL_COPY ? copy(lanes, stream, call)
                                          : mf_cuda_run(&lanes->context, call);
}

static enum mf_status run_on_stream(struct mf_cuda_lanes *lanes, enum mf_lane lane,
                                    const struct mf_kernel_call *call, int32_t task)
{
    cudaStream_t stream = lanes->streams[lane];
    MF_TRY(delay(lanes, lane));
    if (!lanes->trace) {
        return queue(lanes, stream, call);
    }
    MF_TRY(mf_cuda_linear_check(cudaEventRecord(lanes->spans[2 * task], stream), "tracing"));
    mf_cuda_trace_push(&lanes->records, task);
    enum mf_status status = queue(lanes, stream, call);
    mf_cuda_trace_pop(&lanes->records);
    MF_TRY(status);
    MF_TRY(mf_cuda_linear_check(cudaEventRecord(lanes->spans[2 * task + 1], stream), "tracing"));
    lanes->span_generations[task] = lanes->generation;
    return MF_STATUS_OK;
}

enum mf_status mf_cuda_lanes_submit(struct mf_cuda_lanes *lanes, enum mf_lane lane,
                                    const struct mf_kernel_call *call, int32_t task)
{
    MF_TRY(check_task(lanes, task));
    if (!mf_cuda_run_fits(call->kernel, lane)) {
        return mf_status_set(MF_STATUS_INVALID, "task %d: the %s lane does not run %s", task,
                             mf_kernel_lane_name(lane), mf_kernel_name(call->kernel));
    }
    if (lane == MF_LANE_CPU) {
        mf_cuda_cpu_put(lanes->cpu, MF_CUDA_CPU_RUN, task, call);
        return MF_STATUS_OK;
    }
    enum mf_status status = run_on_stream(lanes, lane, call, task);
    return status == MF_STATUS_OK
               ? status
               : mf_status_context(status, "task %d, %s lane", task, mf_kernel_lane_name(lane));
}

enum mf_status mf_cuda_lanes_record(struct mf_cuda_lanes *lanes, enum mf_lane lane, int32_t task)
{
    MF_TRY(check_task(lanes, task));
    lanes->recorded[task] = lanes->generation;
    lanes->recorded_lanes[task] = (uint8_t)lane;
    if (lane == MF_LANE_CPU) {
        mf_cuda_cpu_put(lanes->cpu, MF_CUDA_CPU_RECORD, task, NULL);
        return MF_STATUS_OK;
    }
    return mf_cuda_linear_check(cudaEventRecord(lanes->events[task], lanes->streams[lane]),
                                "recording an event");
}

/* A stream waits for the CPU lane's flag. */
static enum mf_status wait_flag(struct mf_cuda_lanes *lanes, cudaStream_t stream, int32_t task)
{
    uint32_t *flag = lanes->flags_on_device + task;
    if (lanes->wait_value == NULL) {
        return mf_cuda_linear_check(mf_cuda_elementwise_wait(stream, flag, lanes->generation),
                                    "waiting for the CPU");
    }
    CUresult result = lanes->wait_value(stream, (CUdeviceptr)(uintptr_t)flag, lanes->generation,
                                        CU_STREAM_WAIT_VALUE_EQ);
    if (result != CUDA_SUCCESS) {
        return mf_status_set(MF_STATUS_DEVICE, "waiting for the CPU lane failed: driver error %d",
                             (int)result);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_cuda_lanes_wait(struct mf_cuda_lanes *lanes, enum mf_lane lane, int32_t task)
{
    MF_TRY(check_task(lanes, task));
    if (lanes->recorded[task] != lanes->generation) {
        return mf_status_set(MF_STATUS_INVALID,
                             "the %s lane would wait for ever: event %d was not recorded",
                             mf_kernel_lane_name(lane), task);
    }
    enum mf_lane recorded = (enum mf_lane)lanes->recorded_lanes[task];
    if (recorded == lane) {
        return MF_STATUS_OK; /* in order already */
    }
    if (lane == MF_LANE_CPU) {
        mf_cuda_cpu_put(lanes->cpu, MF_CUDA_CPU_WAIT, task, NULL);
        return MF_STATUS_OK;
    }
    if (recorded == MF_LANE_CPU) {
        return wait_flag(lanes, lanes->streams[lane], task);
    }
    return mf_cuda_linear_check(cudaStreamWaitEvent(lanes->streams[lane], lanes->events[task], 0),
                                "waiting for an event");
}

enum mf_status mf_cuda_lanes_sync(struct mf_cuda_lanes *lanes)
{
    struct mf_error error;
    if (lanes->lost) {
        return mf_status_set(MF_STATUS_DEVICE, "the GPU failed before; open the device again");
    }
    enum mf_status status = drain(lanes);
    if (status == MF_STATUS_OK && mf_cuda_cpu_failed(lanes->cpu, &error)) {
        status = mf_status_restore(&error);
    }
    return status;
}

bool mf_cuda_lanes_span(struct mf_cuda_lanes *lanes, int32_t task, struct mf_device_span *out)
{
    float start_ms = 0;
    float length_ms = 0;
    if (!lanes->trace || task < 0 || task >= lanes->task_count) {
        return false;
    }
    if (lanes->span_generations[task] != lanes->generation) {
        return mf_cuda_cpu_span(lanes->cpu, task, out);
    }
    if (mf_cuda_trace_span(&lanes->records, task, out)) {
        return true;
    }
    if (cudaEventElapsedTime(&start_ms, lanes->base, lanes->spans[2 * task]) != cudaSuccess ||
        cudaEventElapsedTime(&length_ms, lanes->spans[2 * task], lanes->spans[2 * task + 1]) !=
            cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    out->start_ns = lanes->base_ns + (int64_t)((double)start_ms * 1e6);
    out->end_ns = out->start_ns + (int64_t)((double)length_ms * 1e6);
    return true;
}

const char *mf_cuda_lanes_trace_method(struct mf_cuda_lanes *lanes)
{
    return mf_cuda_trace_method(&lanes->records);
}

void mf_cuda_lanes_end_trace(struct mf_cuda_lanes *lanes)
{
    mf_cuda_trace_reset(&lanes->records);
}
