/* Regions of the host device and the limits of this machine; see memory.h. */
#include "runtime/host/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/format.h"

#define REGION_ALIGN 256
#define TOUCH_BYTES (64ll << 20) /* between two calls of progress */
#define PAGE_BYTES 4096

struct mf_host_region {
    struct mf_host_region *next;
    void *pointer;
    int64_t bytes;
};

/* The number in a file that holds one, -1 when there is none ("max", or no such file). */
static int64_t read_number(const char *path)
{
    FILE *file = fopen(path, "r");
    long long value = -1;
    if (file != NULL) {
        if (fscanf(file, "%lld", &value) != 1) {
            value = -1;
        }
        fclose(file);
    }
    return value;
}

/* "MemAvailable:   123 kB" and its like: bytes of the line that starts with `key`, -1 = none. */
static int64_t read_line(const char *path, const char *key, int64_t unit)
{
    FILE *file = fopen(path, "r");
    char line[256];
    int64_t result = -1;
    if (file == NULL) {
        return -1;
    }
    while (result < 0 && fgets(line, sizeof(line), file) != NULL) {
        long long value;
        if (strncmp(line, key, strlen(key)) == 0 &&
            sscanf(line + strlen(key), "%lld", &value) == 1) {
            result = value * unit;
        }
    }
    fclose(file);
    return result;
}

static void lower(struct mf_host_memory_limits *limits, int64_t limit, int64_t used)
{
    /* "Unlimited" of version 1 is a number near 2^63. */
    if (limit <= 0 || limit > INT64_MAX / 2) {
        return;
    }
    int64_t available = limit > used ? limit - used : 0;
    if (limit < limits->total_bytes) {
        limits->total_bytes = limit;
        limits->limited_by = "the control group";
    }
    if (available < limits->available_bytes) {
        limits->available_bytes = available;
        limits->limited_by = "the control group";
    }
}

/* One control group; file cache that can be dropped does not count as used. */
static void lower_by_group(struct mf_host_memory_limits *limits, const char *folder, bool second)
{
    char path[600];
    snprintf(path, sizeof(path), "%.500s/%s", folder,
             second ? "memory.max" : "memory.limit_in_bytes");
    int64_t limit = read_number(path);
    snprintf(path, sizeof(path), "%.500s/%s", folder,
             second ? "memory.current" : "memory.usage_in_bytes");
    int64_t used = read_number(path);
    snprintf(path, sizeof(path), "%.500s/memory.stat", folder);
    int64_t cache = read_line(path, second ? "inactive_file " : "total_inactive_file ", 1);
    used = used < 0 ? 0 : used - (cache > 0 && cache < used ? cache : 0);
    lower(limits, limit, used);
}

/* The group of this process and those above it, as far as they are visible here. */
static void lower_by_groups(struct mf_host_memory_limits *limits, const char *root,
                            const char *group, bool second)
{
    char folder[500];
    snprintf(folder, sizeof(folder), "%s%.400s", root, group);
    size_t root_length = strlen(root);
    while (true) {
        lower_by_group(limits, folder, second);
        char *slash = strrchr(folder, '/');
        if (slash == NULL || (size_t)(slash - folder) < root_length) {
            break;
        }
        *slash = '\0';
    }
}

void mf_host_memory_limits(struct mf_host_memory_limits *out)
{
    int64_t total = read_line("/proc/meminfo", "MemTotal:", 1024);
    int64_t available = read_line("/proc/meminfo", "MemAvailable:", 1024);
    out->total_bytes = total > 0 ? total : 1ll << 30;
    out->available_bytes = available > 0 ? available : out->total_bytes;
    out->limited_by = "this machine";
    FILE *file = fopen("/proc/self/cgroup", "r");
    char line[512];
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL) {
            continue;
        }
        if (group == controllers + 1) {
            lower_by_groups(out, "/sys/fs/cgroup", group + 1, true);
        } else if (strncmp(controllers, ":memory:", 8) == 0) {
            lower_by_groups(out, "/sys/fs/cgroup/memory", group + 1, false);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
}

enum mf_status mf_host_memory_pin_limit(int64_t *out)
{
    const char *text = secure_getenv("MEMFERRY_PIN_LIMIT");
    *out = INT64_MAX;
    if (text == NULL || text[0] == '\0') {
        return MF_STATUS_OK;
    }
    enum mf_status status = mf_format_parse_bytes(text, out);
    return status == MF_STATUS_OK ? status : mf_status_context(status, "MEMFERRY_PIN_LIMIT");
}

enum mf_status mf_host_memory_not_pinned(int64_t needed, int64_t reached, const char *why)
{
    char needed_text[MF_FORMAT_MAX];
    char reached_text[MF_FORMAT_MAX];
    (void)mf_status_set_reason(MF_STATUS_NO_MEMORY, "PINNED_MEMORY_LIMIT",
                               "%s of pinned host memory are needed and %s could be pinned (%s)",
                               mf_format_bytes(needed, needed_text),
                               mf_format_bytes(reached, reached_text), why);
    mf_status_number("needed_bytes", needed);
    mf_status_number("available_bytes", reached);
    return MF_STATUS_NO_MEMORY;
}

/* Writes to every page; false when `progress` gave up. */
static bool touch(unsigned char *memory, int64_t bytes, mf_device_progress progress, void *context)
{
    for (int64_t done = 0; done < bytes;) {
        int64_t end = done + TOUCH_BYTES < bytes ? done + TOUCH_BYTES : bytes;
        for (; done < end; done += PAGE_BYTES) {
            *(volatile unsigned char *)(memory + done) = 0;
        }
        done = end;
        if (progress != NULL && !progress(context, done, bytes)) {
            return false;
        }
    }
    return true;
}

static enum mf_status add_region(struct mf_host_memory *memory, void *pointer, int64_t bytes)
{
    struct mf_host_region *region = malloc(sizeof(*region));
    if (region == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for the list of regions");
    }
    region->next = memory->regions;
    region->pointer = pointer;
    region->bytes = bytes;
    memory->regions = region;
    memory->bytes += bytes;
    return MF_STATUS_OK;
}

enum mf_status mf_host_memory_map(struct mf_host_memory *memory, int64_t bytes,
                                  mf_device_progress progress, void *context, void **out)
{
    *out = NULL;
    if (bytes < 0 || bytes > INT64_MAX / 2) {
        return mf_status_set(MF_STATUS_INVALID, "a region of %lld bytes", (long long)bytes);
    }
    int64_t size = (bytes + REGION_ALIGN - 1) / REGION_ALIGN * REGION_ALIGN;
    size = size > 0 ? size : REGION_ALIGN;
    void *pointer =
        mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pointer == MAP_FAILED) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "mapping %lld bytes failed: %s", (long long)size,
                             strerror(errno));
    }
    enum mf_status status = MF_STATUS_OK;
    if (!touch(pointer, size, progress, context)) {
        status = mf_status_set(MF_STATUS_CANCELLED, "given up while memory was being pinned");
    } else {
        status = add_region(memory, pointer, size);
    }
    if (status != MF_STATUS_OK) {
        munmap(pointer, (size_t)size);
        return status;
    }
    *out = pointer;
    return MF_STATUS_OK;
}

void mf_host_memory_free(struct mf_host_memory *memory, void *pointer)
{
    struct mf_host_region **link = &memory->regions;
    while (*link != NULL && (*link)->pointer != pointer) {
        link = &(*link)->next;
    }
    struct mf_host_region *region = *link;
    MF_ASSERT(region != NULL);
    *link = region->next;
    memory->bytes -= region->bytes;
    munmap(region->pointer, (size_t)region->bytes);
    free(region);
}

void mf_host_memory_reset(struct mf_host_memory *memory)
{
    while (memory->regions != NULL) {
        mf_host_memory_free(memory, memory->regions->pointer);
    }
}
