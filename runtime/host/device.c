/* The host device: the table of runtime/device.h on this machine's cores. Device memory is a capped
 * part of host memory, so host addresses are device addresses; everything else is real. */
#include "runtime/device.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/format.h"
#include "runtime/host/gemm.h"
#include "runtime/host/lanes.h"
#include "runtime/host/memory.h"

#define REGION_ALIGN 256

struct mf_device {
    struct mf_device_options options;
    int32_t threads;
    int64_t cap_bytes;
    int64_t pin_limit_bytes;
    struct mf_host_memory device; /* under the cap */
    struct mf_host_memory host;   /* "pinned" */
    struct mf_host_lanes *lanes;
};

static int32_t count_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0) {
        return 1;
    }
    int count = CPU_COUNT(&set);
    return count > 0 ? count : 1;
}

static void close_device(struct mf_device *device)
{
    if (device == NULL) {
        return;
    }
    mf_host_lanes_close(device->lanes);
    mf_host_memory_reset(&device->device);
    mf_host_memory_reset(&device->host);
    free(device);
}

static enum mf_status open_device(const struct mf_device_options *options, struct mf_device **out)
{
    *out = NULL;
    if (options->memory_bytes < 0 || options->threads < 0 || options->threads > 1024 ||
        !(options->h2d_bytes_per_s >= 0) || !(options->d2h_bytes_per_s >= 0) ||
        options->jitter_ns_max < 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "the options of the host device must not be negative (threads: 0 to "
                             "1024)");
    }
    int64_t pin_limit_bytes;
    MF_TRY(mf_host_memory_pin_limit(&pin_limit_bytes));
    MF_TRY(mf_host_gemm_check());
    struct mf_device *device = calloc(1, sizeof(*device));
    if (device == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for a device");
    }
    struct mf_host_memory_limits limits;
    mf_host_memory_limits(&limits);
    device->options = *options;
    device->pin_limit_bytes = pin_limit_bytes;
    device->threads = options->threads > 0 ? options->threads : count_cores();
    device->cap_bytes = options->memory_bytes > 0 ? options->memory_bytes : limits.total_bytes / 2;
    enum mf_status status = mf_host_lanes_open(device->threads, options, &device->lanes);
    if (status != MF_STATUS_OK) {
        close_device(device);
        return status;
    }
    *out = device;
    return MF_STATUS_OK;
}

/* "AMD EPYC": the CPU's own name, "" where the system does not say. */
static void read_cpu_name(char *out, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    out[0] = '\0';
    while (file != NULL && out[0] == '\0' && fgets(line, sizeof(line), file) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            char *name = colon + 1 + strspn(colon + 1, " \t");
            name[strcspn(name, "\n")] = '\0';
            snprintf(out, size, "%s", name);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

static enum mf_status describe(struct mf_device *device, struct mf_hardware_device *out)
{
    char cpu[80];
    memset(out, 0, sizeof(*out));
    read_cpu_name(cpu, sizeof(cpu));
    snprintf(out->kind, sizeof(out->kind), "host");
    snprintf(out->name, sizeof(out->name), "CPU (%s%s%d thread%s)", cpu, cpu[0] != '\0' ? ", " : "",
             device->threads, device->threads == 1 ? "" : "s");
    out->memory_bytes = device->cap_bytes;
    out->h2d_bytes_per_s = device->options.h2d_bytes_per_s;
    out->d2h_bytes_per_s = device->options.d2h_bytes_per_s;
    out->link_emulated = device->options.h2d_bytes_per_s > 0 || device->options.d2h_bytes_per_s > 0;
    mf_host_gemm_version(out->runtime, sizeof(out->runtime));
    return MF_STATUS_OK;
}

static enum mf_status too_small(int64_t needed, int64_t available, const char *why)
{
    char needed_text[MF_FORMAT_MAX];
    char available_text[MF_FORMAT_MAX];
    (void)mf_status_set_reason(MF_STATUS_NO_DEVICE_MEMORY, "DEVICE_MEMORY_TOO_SMALL",
                               "the host device has %s left of %s, and %s are needed",
                               mf_format_bytes(available, available_text), why,
                               mf_format_bytes(needed, needed_text));
    mf_status_number("needed_bytes", needed);
    mf_status_number("available_bytes", available);
    return MF_STATUS_NO_DEVICE_MEMORY;
}

static enum mf_status reserve(struct mf_device *device, int64_t bytes, void **out)
{
    struct mf_host_memory_limits limits;
    *out = NULL;
    int64_t left = device->cap_bytes - device->device.bytes;
    if (bytes > left - left % REGION_ALIGN) {
        return too_small(bytes, left, "its memory cap");
    }
    mf_host_memory_limits(&limits);
    if (bytes > limits.available_bytes) {
        return too_small(bytes, limits.available_bytes, limits.limited_by);
    }
    return mf_host_memory_map(&device->device, bytes, NULL, NULL, out);
}

static void release(struct mf_device *device, void *memory)
{
    mf_host_memory_free(&device->device, memory);
}

static int64_t reserved_bytes(struct mf_device *device)
{
    return device->device.bytes;
}

static enum mf_status map_host(struct mf_device *device, int64_t bytes, mf_device_progress progress,
                               void *context, void **out)
{
    struct mf_host_memory_limits limits;
    int64_t left = device->pin_limit_bytes - device->host.bytes;
    left -= left % REGION_ALIGN;
    *out = NULL;
    mf_host_memory_limits(&limits);
    if (bytes > left && left < limits.available_bytes) {
        return mf_host_memory_not_pinned(bytes, left, "the limit is MEMFERRY_PIN_LIMIT");
    }
    if (bytes > limits.available_bytes) {
        char why[64];
        snprintf(why, sizeof(why), "%s has no more", limits.limited_by);
        return mf_host_memory_not_pinned(bytes, limits.available_bytes, why);
    }
    return mf_host_memory_map(&device->host, bytes, progress, context, out);
}

static void unmap_host(struct mf_device *device, void *memory)
{
    mf_host_memory_free(&device->host, memory);
}

static void *device_address(struct mf_device *device, void *memory)
{
    (void)device;
    return memory;
}

static enum mf_status prepare(struct mf_device *device, int32_t task_count)
{
    return mf_host_lanes_prepare(device->lanes, task_count);
}

static enum mf_status begin(struct mf_device *device, bool trace)
{
    return mf_host_lanes_begin(device->lanes, trace);
}

static enum mf_status submit(struct mf_device *device, enum mf_lane lane,
                             const struct mf_kernel_call *call, int32_t task)
{
    return mf_host_lanes_submit(device->lanes, lane, call, task);
}

static enum mf_status record(struct mf_device *device, enum mf_lane lane, int32_t task)
{
    return mf_host_lanes_record(device->lanes, lane, task);
}

static enum mf_status wait_event(struct mf_device *device, enum mf_lane lane, int32_t task)
{
    return mf_host_lanes_wait(device->lanes, lane, task);
}

static enum mf_status sync_lanes(struct mf_device *device)
{
    return mf_host_lanes_sync(device->lanes);
}

static bool span(struct mf_device *device, int32_t task, struct mf_device_span *out)
{
    return mf_host_lanes_span(device->lanes, task, out);
}

static const char *trace_method(struct mf_device *device)
{
    (void)device;
    return "host clock";
}

const struct mf_device_interface *mf_device_host(void)
{
    static const struct mf_device_interface table = {
        .abi = MF_DEVICE_ABI,
        .name = "host",
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
    };
    return &table;
}
