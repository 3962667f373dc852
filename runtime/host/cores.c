/* CPUs from the affinity mask, /sys and the control group; see cores.h. */
#include "runtime/host/cores.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIBLINGS_MAX 128
#define PATH_SIZE 640

/* The first line of a file, "" when there is none. */
static void read_text(const char *path, char *out, int size)
{
    FILE *file = fopen(path, "r");
    if (file == NULL || fgets(out, size, file) == NULL) {
        out[0] = '\0';
    }
    if (file != NULL) {
        fclose(file);
    }
    out[strcspn(out, "\n")] = '\0';
}

/* Whether no lower CPU of `set` is on the core of `cpu`; the system lists them as "3,19" or "6-7".
 */
static bool is_first(int32_t cpu, const cpu_set_t *set)
{
    char path[PATH_SIZE];
    char siblings[SIBLINGS_MAX];
    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list",
             cpu);
    read_text(path, siblings, sizeof(siblings));
    for (char *at = siblings; *at >= '0' && *at <= '9'; at += *at == ',') {
        long low = strtol(at, &at, 10);
        long high = *at == '-' ? strtol(at + 1, &at, 10) : low;
        for (; low <= high && low < cpu; low++) {
            if (CPU_ISSET((size_t)low, set)) {
                return false;
            }
        }
    }
    return true;
}

/* CPUs' worth of time that one control group grants, `most` when it says nothing. */
static int32_t group_quota(const char *folder, int32_t most)
{
    char path[PATH_SIZE];
    char text[64];
    double quota;
    double period;
    snprintf(path, sizeof(path), "%.600s/cpu.max", folder);
    read_text(path, text, sizeof(text));
    if (sscanf(text, "%lf %lf", &quota, &period) != 2 || !(quota > 0) || !(period > 0) ||
        quota >= period * (double)most) {
        return most; /* "max 100000" among others */
    }
    int32_t cpus = (int32_t)(quota / period);
    return cpus > 0 ? cpus : 1;
}

/* The least quota of this process's control group (version 2) and of those above it. */
static int32_t read_quota(int32_t most)
{
    char folder[512] = "/sys/fs/cgroup";
    char line[400];
    size_t root = strlen(folder);
    FILE *file = fopen("/proc/self/cgroup", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "0::", 3) == 0) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(folder + root, sizeof(folder) - root, "%s", line + 3);
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    while (strlen(folder) >= root) {
        most = group_quota(folder, most);
        *strrchr(folder, '/') = '\0';
    }
    return most;
}

void mf_host_cores_find(struct mf_host_cores *out)
{
    cpu_set_t set;
    out->total = 0;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set) != 0) {
        CPU_SET(0, &set);
    }
    for (int first = 1; first >= 0; first--) {
        for (int32_t cpu = 0; cpu < MF_HOST_CORES_MAX; cpu++) {
            if (CPU_ISSET((size_t)cpu, &set) && is_first(cpu, &set) == (first == 1)) {
                out->cpus[out->total++] = cpu;
            }
        }
    }
    /* The first CPU is left free: interrupts and what is not bound tend to be there. */
    int32_t free_cpu = out->cpus[0];
    memmove(out->cpus, out->cpus + 1, (size_t)(out->total - 1) * sizeof(out->cpus[0]));
    out->cpus[out->total - 1] = free_cpu;
    out->count = read_quota(out->total - (out->total >= MF_HOST_CORES_ISSUE_MIN ? 1 : 0));
}

void mf_host_cores_bind(pthread_t thread, int32_t cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    (void)pthread_setaffinity_np(thread, sizeof(set), &set);
}
