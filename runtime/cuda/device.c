/* The CUDA device: the table of runtime/device.h on one NVIDIA GPU. This is a module of its own, so
 * it has its own copy of core's error text: each failing call hands its error to the program. */
#include "runtime/device.h"

#include <cuda_runtime_api.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "profiler/cupti_counters.h"
#include "runtime/cuda/lanes.h"
#include "runtime/cuda/memory.h"
#include "runtime/host/memory.h"

/* What other users of the GPU and the driver may need beside our regions. */
#define RESERVE_BYTES (256ll << 20)

struct mf_device {
    struct mf_device_options options;
    int32_t threads;
    struct mf_cuda_memory memory;
    struct mf_cuda_lanes *lanes;
};

/* The program's mf_status_restore. */
static enum mf_status (*restore_error)(const struct mf_error *error);

static enum mf_status hand_over(enum mf_status status)
{
    if (status != MF_STATUS_OK) {
        struct mf_error error = *mf_status_error();
        error.status = status;
        (void)restore_error(&error);
    }
    return status;
}

/* The device is per thread in the CUDA runtime. */
static enum mf_status enter(const struct mf_device *device)
{
    cudaError_t error = cudaSetDevice(device->options.index);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return mf_status_set(MF_STATUS_DEVICE, "GPU %d cannot be used: %s", device->options.index,
                             cudaGetErrorString(error));
    }
    return MF_STATUS_OK;
}

static int32_t count_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0) {
        return 1;
    }
    int count = CPU_COUNT(&set);
    return count > 0 ? count : 1;
}

/* ---- open, close, describe ---- */

/* The least compute capability with bf16 products. */
#define CAPABILITY_MIN 80

static enum mf_status check_gpu(int32_t index)
{
    int driver = 0;
    int count = 0;
    int major = 0;
    int minor = 0;
    (void)cudaDriverGetVersion(&driver);
    if (driver == 0) {
        return mf_status_set(MF_STATUS_UNSUPPORTED, "no CUDA device: there is no NVIDIA driver "
                                                    "(libcuda.so.1) on this machine");
    }
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || index < 0 || index >= count) {
        (void)cudaGetLastError();
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "no CUDA device %d: %d GPUs are visible (%s; driver for CUDA %d.%d, "
                             "built with %d.%d)",
                             index, error == cudaSuccess ? count : 0, cudaGetErrorString(error),
                             driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                             CUDART_VERSION % 1000 / 10);
    }
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
    if (major * 10 + minor < CAPABILITY_MIN) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "GPU %d has compute capability %d.%d: bf16 training needs 8.0 "
                             "(Ampere) or later",
                             index, major, minor);
    }
    return MF_STATUS_OK;
}

static void close_device(struct mf_device *device)
{
    if (device == NULL) {
        return;
    }
    (void)enter(device);
    mf_cuda_lanes_close(device->lanes);
    mf_cuda_memory_reset(&device->memory);
    free(device);
}

static void pci_address(struct mf_device *device, char *out, int32_t size)
{
    out[0] = '\0';
    if (cudaDeviceGetPCIBusId(out, size, device->options.index) != cudaSuccess) {
        (void)cudaGetLastError();
    }
}

static enum mf_status open_all(struct mf_device *device)
{
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    MF_TRY(mf_host_memory_pin_limit(&device->memory.pin_limit_bytes));
    MF_TRY(enter(device));
    pci_address(device, device->memory.pci_address, sizeof(device->memory.pci_address));
    MF_TRY(mf_cuda_lanes_open(&device->options, device->options.threads, &device->memory,
                              &device->lanes));
    cudaError_t error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return mf_status_set(MF_STATUS_DEVICE, "asking GPU %d for its memory failed: %s",
                             device->options.index, cudaGetErrorString(error));
    }
    int64_t available = (int64_t)free_bytes - RESERVE_BYTES;
    available = available > 0 ? available : 0;
    bool capped = device->options.memory_bytes > 0 && device->options.memory_bytes < available;
    device->memory.cap_bytes = capped ? device->options.memory_bytes : available;
    return MF_STATUS_OK;
}

static enum mf_status open_device(const struct mf_device_options *options, struct mf_device **out)
{
    *out = NULL;
    enum mf_status status = MF_STATUS_OK;
    if (options->memory_bytes < 0 || options->threads < 0 || options->threads > 1024 ||
        options->jitter_ns_max < 0) {
        return hand_over(mf_status_set(MF_STATUS_INVALID,
                                       "the options of a CUDA device must not be negative "
                                       "(threads: 0 to 1024)"));
    }
    status = check_gpu(options->index);
    if (status != MF_STATUS_OK) {
        return hand_over(status);
    }
    struct mf_device *device = calloc(1, sizeof(*device));
    if (device == NULL) {
        return hand_over(mf_status_set(MF_STATUS_NO_MEMORY, "no memory for a device"));
    }
    device->options = *options;
    device->threads = options->threads > 0 ? options->threads : count_cores();
    device->memory.threads = device->threads;
    status = open_all(device);
    if (status != MF_STATUS_OK) {
        (void)hand_over(status);
        close_device(device);
        return status;
    }
    *out = device;
    return MF_STATUS_OK;
}

/* "580.159.04": the kernel module's version; the CUDA version it serves where that is not shown. */
static void read_driver(char *out, size_t size)
{
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    char line[256] = "";
    char *rest = NULL;
    int driver = 0;
    if (file != NULL) {
        if (fgets(line, sizeof(line), file) == NULL) {
            line[0] = '\0';
        }
        fclose(file);
    }
    for (char *word = strtok_r(line, " \t\n", &rest); word != NULL;
         word = strtok_r(NULL, " \t\n", &rest)) {
        int major;
        int minor;
        if (sscanf(word, "%d.%d", &major, &minor) == 2) {
            snprintf(out, size, "%s", word);
            return;
        }
    }
    (void)cudaDriverGetVersion(&driver);
    snprintf(out, size, "for CUDA %d.%d", driver / 1000, driver % 1000 / 10);
}

static enum mf_status describe_gpu(struct mf_device *device, struct mf_hardware_device *out)
{
    struct cudaDeviceProp properties;
    char libraries[32] = "";
    MF_TRY(enter(device));
    cudaError_t error = cudaGetDeviceProperties(&properties, device->options.index);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return mf_status_set(MF_STATUS_DEVICE, "asking GPU %d for its properties failed: %s",
                             device->options.index, cudaGetErrorString(error));
    }
    memset(out, 0, sizeof(*out));
    snprintf(out->kind, sizeof(out->kind), "cuda");
    snprintf(out->name, sizeof(out->name), "%.*s", (int)sizeof(out->name) - 1, properties.name);
    out->memory_bytes = device->memory.cap_bytes;
    out->multiprocessors = properties.multiProcessorCount;
    out->compute_capability = properties.major * 10 + properties.minor;
    read_driver(out->driver, sizeof(out->driver));
    mf_cuda_lanes_version(device->lanes, libraries, sizeof(libraries));
    snprintf(out->runtime, sizeof(out->runtime), "CUDA %d.%d, %s", CUDART_VERSION / 1000,
             CUDART_VERSION % 1000 / 10, libraries);
    return MF_STATUS_OK;
}

static enum mf_status describe(struct mf_device *device, struct mf_hardware_device *out)
{
    return hand_over(describe_gpu(device, out));
}

/* ---- memory ---- */

static enum mf_status reserve(struct mf_device *device, int64_t bytes, void **out)
{
    *out = NULL;
    enum mf_status status = enter(device);
    if (status == MF_STATUS_OK) {
        status = mf_cuda_memory_reserve(&device->memory, bytes, out);
    }
    return hand_over(status);
}

static void release(struct mf_device *device, void *memory)
{
    (void)enter(device);
    mf_cuda_memory_release(&device->memory, memory);
}

static int64_t reserved_bytes(struct mf_device *device)
{
    return device->memory.device_bytes;
}

static enum mf_status map_host(struct mf_device *device, int64_t bytes, mf_device_progress progress,
                               void *context, void **out)
{
    *out = NULL;
    enum mf_status status = enter(device);
    if (status == MF_STATUS_OK) {
        status = mf_cuda_memory_map(&device->memory, bytes, progress, context, out);
    }
    return hand_over(status);
}

static void unmap_host(struct mf_device *device, void *memory)
{
    (void)enter(device);
    mf_cuda_memory_unmap(&device->memory, memory);
}

static void host_memory(struct mf_device *device, char *out, int32_t size)
{
    snprintf(out, (size_t)size, "%s", device->memory.placed);
}

static void *device_address(struct mf_device *device, void *memory)
{
    void *address = NULL;
    (void)enter(device);
    if (cudaHostGetDevicePointer(&address, memory, 0) != cudaSuccess) {
        (void)cudaGetLastError();
        return memory; /* one address space: the same everywhere that we run */
    }
    return address;
}

/* ---- work ---- */

static enum mf_status prepare(struct mf_device *device, int32_t task_count)
{
    enum mf_status status = enter(device);
    return hand_over(status == MF_STATUS_OK ? mf_cuda_lanes_prepare(device->lanes, task_count)
                                            : status);
}

static enum mf_status begin(struct mf_device *device, bool trace)
{
    enum mf_status status = enter(device);
    return hand_over(status == MF_STATUS_OK ? mf_cuda_lanes_begin(device->lanes, trace) : status);
}

static enum mf_status submit(struct mf_device *device, enum mf_lane lane,
                             const struct mf_kernel_call *call, int32_t task)
{
    return hand_over(mf_cuda_lanes_submit(device->lanes, lane, call, task));
}

static enum mf_status record(struct mf_device *device, enum mf_lane lane, int32_t task)
{
    return hand_over(mf_cuda_lanes_record(device->lanes, lane, task));
}

static enum mf_status wait_event(struct mf_device *device, enum mf_lane lane, int32_t task)
{
    return hand_over(mf_cuda_lanes_wait(device->lanes, lane, task));
}

static enum mf_status sync_lanes(struct mf_device *device)
{
    return hand_over(mf_cuda_lanes_sync(device->lanes));
}

static bool span(struct mf_device *device, int32_t task, struct mf_device_span *out)
{
    return mf_cuda_lanes_span(device->lanes, task, out);
}

static const char *trace_method(struct mf_device *device)
{
    return mf_cuda_lanes_trace_method(device->lanes);
}

static void attention(struct mf_device *device, char *out, int32_t size)
{
    mf_cuda_lanes_attention(device->lanes, out, (size_t)size);
}

/* CUPTI's counters and its records exclude each other: tracing opens anew when it is wanted. */
static enum mf_status count(struct mf_device *device, mf_device_work work, void *context,
                            struct mf_device_counts *out)
{
    struct mf_cupti_counts counts;
    enum mf_status status = enter(device);
    if (status == MF_STATUS_OK) {
        mf_cuda_lanes_end_trace(device->lanes);
        status = mf_cupti_counters_count(device->options.index, work, context, &counts);
    }
    for (int way = 0; way < 2 && status == MF_STATUS_OK; way++) {
        out->link_bytes[way] = counts.pcie_bytes[way];
        out->memory_bytes[way] = counts.memory_bytes[way];
    }
    return hand_over(status);
}

/* What runtime/device_cuda.c looks for. */
__attribute__((visibility("default"))) const struct mf_device_interface *
    mf_device_cuda_entry(enum mf_status (*restore)(const struct mf_error *error));

const struct mf_device_interface *
    mf_device_cuda_entry(enum mf_status (*restore)(const struct mf_error *error))
{
    static const struct mf_device_interface table = {
        .abi = MF_DEVICE_ABI,
        .name = "cuda",
        .open = open_device,
        .close = close_device,
        .describe = describe,
        .reserve = reserve,
        .release = release,
        .reserved_bytes = reserved_bytes,
        .map_host = map_host,
        .unmap_host = unmap_host,
        .device_address = device_address,
        .prepare = prepare,
        .begin = begin,
        .submit = submit,
        .record = record,
        .wait = wait_event,
        .sync = sync_lanes,
        .span = span,
        .trace_method = trace_method,
        .pci_address = pci_address,
        .attention = attention,
        .host_memory = host_memory,
        .count = count,
    };
    restore_error = restore;
    return &table;
}
