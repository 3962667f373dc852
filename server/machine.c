/* This machine as hardware: see machine.h. */
#include "server/machine.h"

#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Left to the rest of the machine: a tenth, from 512 MiB to 8 GiB. */
#define RESERVE_SHARE 10
#define RESERVE_MIN (512ll << 20)
#define RESERVE_MAX (8ll << 30)
#define GRAIN (16ll << 20) /* so that a few pages are no other machine */

void mf_machine_read_line(const char *path, char *out, size_t size)
{
    FILE *file = fopen(path, "re");
    out[0] = 0;
    if (file == NULL) {
        return;
    }
    if (fgets(out, (int)size, file) == NULL) {
        out[0] = 0;
    }
    (void)fclose(file);
    out[strcspn(out, "\n")] = 0;
}

/* The value of "Key:  123 kB" in /proc/meminfo, in bytes; 0 when it is not there. */
static int64_t meminfo(const char *key)
{
    char line[256];
    long long value = 0;
    size_t length = strlen(key);
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && value == 0 && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, length) == 0 && line[length] == ':') {
            value = strtoll(line + length + 1, NULL, 10);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return value * 1024;
}

int64_t mf_machine_memory_bytes(void)
{
    return meminfo("MemTotal");
}

int64_t mf_machine_available_bytes(void)
{
    return meminfo("MemAvailable");
}

static void lower(const char *path, int64_t *limit)
{
    char text[64];
    mf_machine_read_line(path, text, sizeof(text));
    char *end = NULL;
    long long value = strtoll(text, &end, 10);
    /* "max" in version 2, and a number near 2^63 in version 1, mean none. */
    if (end != text && value > 0 && value < (1ll << 60) && (*limit == 0 || value < *limit)) {
        *limit = value;
    }
}

/* The limits of the process's group and of all groups above it. */
static void lower_along(const char *mount, const char *group, const char *file, int64_t *limit)
{
    char folder[2048];
    char path[4096];
    (void)snprintf(folder, sizeof(folder), "%s", group);
    for (;;) {
        (void)snprintf(path, sizeof(path), "%s%s/%s", mount, folder, file);
        lower(path, limit);
        char *slash = strrchr(folder, '/');
        if (slash == NULL) {
            return;
        }
        *slash = 0;
    }
}

int64_t mf_machine_cgroup_bytes(void)
{
    char line[2048];
    int64_t limit = 0;
    FILE *file = fopen("/proc/self/cgroup", "re");
    /* Inside a container the group's own folder is the mount itself. */
    lower("/sys/fs/cgroup/memory.max", &limit);
    lower("/sys/fs/cgroup/memory/memory.limit_in_bytes", &limit);
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (group == NULL) {
            continue;
        }
        *group++ = 0;
        if (strcmp(controllers + 1, "") == 0) {
            lower_along("/sys/fs/cgroup", group, "memory.max", &limit);
        } else if (strstr(controllers + 1, "memory") != NULL) {
            lower_along("/sys/fs/cgroup/memory", group, "memory.limit_in_bytes", &limit);
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return limit;
}

int32_t mf_machine_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        return (int32_t)CPU_COUNT(&set);
    }
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (int32_t)count : 1;
}

void mf_machine_cpu_name(char *out, size_t size)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    (void)snprintf(out, size, "unknown CPU");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) == 0 && value != NULL) {
            value += strspn(value, ": \t");
            value[strcspn(value, "\n")] = 0;
            (void)snprintf(out, size, "%s", value);
            break;
        }
    }
    if (file != NULL) {
        (void)fclose(file);
    }
}

int32_t mf_machine_numa_nodes(void)
{
    char text[256];
    mf_machine_read_line("/sys/devices/system/node/online", text, sizeof(text));
    int32_t count = 0;
    char *rest = NULL;
    for (char *part = strtok_r(text, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest)) {
        char *end = NULL;
        long first = strtol(part, &end, 10);
        long last = *end == '-' ? strtol(end + 1, NULL, 10) : first;
        count += last >= first ? (int32_t)(last - first + 1) : 0;
    }
    return count > 0 ? count : 1;
}

static double read_slot(const char *address, const char *name, double fallback)
{
    char path[128];
    char text[64];
    (void)snprintf(path, sizeof(path), "/sys/bus/pci/devices/%.32s/%s", address, name);
    mf_machine_read_line(path, text, sizeof(text));
    char *end = text;
    double value = strtod(text, &end);
    return end != text ? value : fallback;
}

void mf_machine_slot(const char *address, struct mf_machine_slot *out)
{
    /* Transfers of a lane, and the share that its line code leaves for packets. */
    static const struct {
        double transfers_per_s;
        double share;
    } generations[] = {{2.5e9, 0.8},        {5e9, 0.8},          {8e9, 128.0 / 130},
                       {16e9, 128.0 / 130}, {32e9, 128.0 / 130}, {64e9, 242.0 / 256}};
    char lower[32];
    (void)snprintf(lower, sizeof(lower), "%s", address);
    for (char *at = lower; *at != 0; at++) {
        *at = (char)tolower((unsigned char)*at);
    }
    *out = (struct mf_machine_slot){.numa_node = -1};
    if (lower[0] == 0) {
        return;
    }
    double transfers_per_s = read_slot(lower, "max_link_speed", 0) * 1e9;
    out->width = (int32_t)read_slot(lower, "current_link_width", 0);
    out->width_max = (int32_t)read_slot(lower, "max_link_width", 0);
    out->numa_node = (int32_t)read_slot(lower, "numa_node", -1);
    for (int32_t i = 0; i < (int32_t)(sizeof(generations) / sizeof(generations[0])); i++) {
        if (transfers_per_s > 0 && transfers_per_s >= generations[i].transfers_per_s) {
            out->generation = i + 1;
            out->bytes_per_s_max =
                generations[i].transfers_per_s * generations[i].share * out->width / 8;
        }
    }
}

static int64_t free_share(const struct mf_hardware_device *device)
{
    int64_t total = mf_machine_memory_bytes();
    int64_t limit = mf_machine_cgroup_bytes();
    if (limit > 0 && (limit < total || total == 0)) {
        total = limit;
    }
    int64_t reserve = total / RESERVE_SHARE;
    reserve = reserve < RESERVE_MIN ? RESERVE_MIN : reserve;
    reserve = reserve > RESERVE_MAX ? RESERVE_MAX : reserve;
    if (strcmp(device->kind, "host") == 0) { /* its memory is the machine's */
        total -= device->memory_bytes;
    }
    int64_t left = (total - reserve) / GRAIN * GRAIN;
    return left > GRAIN ? left : GRAIN;
}

void mf_machine_describe(const struct mf_hardware_device *device, int64_t host_memory,
                         struct mf_hardware *out)
{
    *out = (struct mf_hardware){.device_count = 1};
    out->devices[0] = *device;
    mf_machine_cpu_name(out->cpu_name, sizeof(out->cpu_name));
    out->cpu_cores = mf_machine_cores();
    out->numa_nodes = mf_machine_numa_nodes();
    out->host_bytes = host_memory > 0 ? host_memory : free_share(device);
    mf_hardware_assume(out);
}

void mf_machine_identity(const struct mf_hardware *hardware, struct mf_hardware *out)
{
    *out = *hardware;
    out->host_bytes = 0;
    out->host_bytes_per_s = 0;
    out->measured = false;
    for (int32_t i = 0; i < out->device_count; i++) {
        struct mf_hardware_device *device = &out->devices[i];
        device->memory_bytes = 0;
        device->matrix_flops = 0;
        device->memory_bytes_per_s = 0;
        device->copy_latency_ns = 0;
        if (!device->link_emulated) { /* an emulated rate is a setting, not a measurement */
            device->h2d_bytes_per_s = 0;
            device->d2h_bytes_per_s = 0;
        }
    }
}
