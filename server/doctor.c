/* Checks of the installation: see doctor.h. */
#include "server/doctor.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/format.h"
#include "runtime/device.h"
#include "server/machine.h"
#include "server/tune.h"

#define DISK_LOW (1ll << 30)
#define LINK_LOW_BYTES_PER_S 10e9
/* Large copies reach 0.87 of what the line carries: packet headers take the rest. */
#define LINK_REACHED 0.87
#define LINK_POOR 0.7

struct doctor {
    struct mf_service *service;
    struct mf_hardware hardware;
    const struct mf_hardware_device *device;
    bool host;                     /* the host device */
    struct mf_machine_slot slot;   /* of the GPU */
    struct mf_doctor_check *check; /* the one being made */
};

static void value(struct doctor *doctor, const char *format, ...) MF_PRINTF(2, 3);
static void value(struct doctor *doctor, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(doctor->check->value, sizeof(doctor->check->value), format, arguments);
    va_end(arguments);
}

static void say(struct doctor *doctor, enum mf_doctor_verdict verdict, const char *format, ...)
    MF_PRINTF(3, 4);
static void say(struct doctor *doctor, enum mf_doctor_verdict verdict, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    doctor->check->verdict = verdict;
    (void)vsnprintf(doctor->check->meaning, sizeof(doctor->check->meaning), format, arguments);
    va_end(arguments);
}

/* Whether a GPU could be used instead of the host device; the status text says why not. */
static bool try_gpu(void)
{
    const struct mf_device_options options = {0};
    const struct mf_device_interface *cuda = NULL;
    struct mf_device *device = NULL;
    if (mf_device_cuda(&cuda) != MF_STATUS_OK || cuda->open(&options, &device) != MF_STATUS_OK) {
        return false;
    }
    cuda->close(device);
    return true;
}

static void check_device(struct doctor *doctor)
{
    char memory[MF_FORMAT_MAX];
    value(doctor, "%s, %s", doctor->device->name,
          mf_format_bytes(doctor->device->memory_bytes, memory));
    if (!doctor->host) {
        say(doctor, MF_DOCTOR_GOOD, "training runs on this GPU");
    } else if (try_gpu()) {
        say(doctor, MF_DOCTOR_NOTE,
            "training runs on the CPU though this installation can use a GPU: start memferryd with "
            "--device cuda");
    } else {
        say(doctor, MF_DOCTOR_NOTE,
            "training runs on the CPU, with the same plans and results as on a GPU but slowly; no "
            "GPU is used because: %.180s",
            mf_status_text());
    }
}

static void check_cpu(struct doctor *doctor)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    value(doctor, "%s, %d cores", doctor->hardware.cpu_name, doctor->hardware.cpu_cores);
    if (doctor->hardware.cpu_cores < online) {
        say(doctor, MF_DOCTOR_NOTE,
            "this process may use %d of %ld cores (affinity or cpuset); the CPU update and the "
            "host device use no more",
            doctor->hardware.cpu_cores, online);
    } else {
        say(doctor, MF_DOCTOR_GOOD, "all cores may be used by the CPU update%s",
            doctor->host ? " and the host device" : "");
    }
}

static void check_matrix(struct doctor *doctor)
{
    double rate = doctor->device->matrix_flops;
    value(doctor, "%s%s", doctor->device->runtime,
          doctor->device->runtime[0] == 0 ? "unknown" : "");
    if (rate <= 0) {
        say(doctor, MF_DOCTOR_NOTE, "not measured: plans rest on cautious guesses");
        return;
    }
    say(doctor, MF_DOCTOR_GOOD,
        "matrix products reach %.1f GFLOP/s: a lower bound of every step is its operations at this "
        "rate",
        rate / 1e9);
}

static void check_attention(struct doctor *doctor)
{
    char text[MF_DEVICE_ATTENTION_MAX];
    mf_device_worker_attention(doctor->service->worker, text, sizeof(text));
    bool own = strncmp(text, "own", 3) == 0 || text[0] == 0;
    value(doctor, "%s", own ? "own kernels" : "cuDNN");
    say(doctor, MF_DOCTOR_GOOD, "%.300s",
        text[0] != 0 ? text : "computed by the device's own kernels");
}

static void check_driver(struct doctor *doctor)
{
    value(doctor, "%s", doctor->host ? "none in use" : doctor->device->driver);
    if (doctor->host) {
        say(doctor, MF_DOCTOR_GOOD, "the host device needs no driver");
    } else {
        say(doctor, MF_DOCTOR_GOOD, "it runs %s; another version of either means measuring again",
            doctor->device->runtime);
    }
}

/* A measured GPU link beside what its slot could carry. */
static void check_slot(struct doctor *doctor, double up)
{
    const struct mf_machine_slot *slot = &doctor->slot;
    double expected = slot->bytes_per_s_max * LINK_REACHED;
    if (slot->width < slot->width_max) {
        say(doctor, MF_DOCTOR_NOTE,
            "PCIe %d with %d of %d lanes: another slot, or reseating the card, would make "
            "streaming "
            "up to %.1f times as fast",
            slot->generation, slot->width, slot->width_max,
            (double)slot->width_max / (slot->width > 0 ? slot->width : 1));
    } else if (up < slot->bytes_per_s_max * LINK_POOR) {
        say(doctor, MF_DOCTOR_NOTE,
            "PCIe %d x%d should give about %.1f GB/s: other traffic, a slower bridge above the "
            "slot "
            "or memory on another node keeps streamed weights waiting",
            slot->generation, slot->width, expected / 1e9);
    } else {
        say(doctor, MF_DOCTOR_GOOD,
            "PCIe %d x%d, of which about %.1f GB/s are expected: what streamed weights, gradients "
            "and states move at",
            slot->generation, slot->width, expected / 1e9);
    }
}

static void check_link(struct doctor *doctor)
{
    double up = doctor->device->h2d_bytes_per_s;
    double down = doctor->device->d2h_bytes_per_s;
    value(doctor, "%.2f GB/s to, %.2f GB/s from the device%s", up / 1e9, down / 1e9,
          doctor->device->link_emulated ? " (emulated)" : "");
    if (doctor->device->link_emulated) {
        say(doctor, MF_DOCTOR_NOTE,
            "these rates are a setting (--emulate-h2d, --emulate-d2h), not those of a real link");
    } else if (up <= 0 || down <= 0) {
        say(doctor, MF_DOCTOR_NOTE, "not measured: plans rest on cautious guesses");
    } else if (doctor->host) {
        say(doctor, MF_DOCTOR_GOOD, "copies within host memory: the host device has no link");
    } else if (doctor->slot.bytes_per_s_max > 0) {
        check_slot(doctor, up);
    } else if (up < LINK_LOW_BYTES_PER_S) {
        say(doctor, MF_DOCTOR_NOTE,
            "less than a PCIe 3.0 x16 slot gives: look at the slot's width (lspci -vv: LnkSta); "
            "streaming weights is bound by it");
    } else {
        say(doctor, MF_DOCTOR_GOOD, "what streamed weights, gradients and states move at");
    }
}

static void check_update(struct doctor *doctor)
{
    double rate = doctor->hardware.host_bytes_per_s;
    value(doctor, "%.2f GB/s", rate / 1e9);
    if (rate <= 0) {
        say(doctor, MF_DOCTOR_NOTE, "not measured");
        return;
    }
    say(doctor, MF_DOCTOR_GOOD, "AdamW on the CPU updates %.0f million parameters a second",
        rate / 28e6);
}

static void check_contention(struct doctor *doctor)
{
    const struct mf_contention *found = &doctor->hardware.contention;
    const double *cpu = found->slowdown[MF_LOAD_CPU];
    double most_ns = 0;
    for (int from = 0; from < MF_LANE_COUNT; from++) {
        for (int to = 0; to < MF_LANE_COUNT; to++) {
            double ns = found->handover_ns[from][to];
            most_ns = ns > most_ns ? ns : most_ns;
        }
    }
    value(doctor, "%s", found->measured ? "measured" : "assumed");
    if (!found->measured) {
        say(doctor, MF_DOCTOR_NOTE,
            "what lanes cost each other is not measured, as the machine was too busy: plans "
            "count with what is usual; memferry profile MODEL measures it");
        return;
    }
    say(doctor, MF_DOCTOR_GOOD,
        "the CPU update takes %.2f times as long beside copies in and %.2f beside copies out, "
        "copies %.2f and %.2f beside each other, direct reads %.2f beside copies in; lanes wait "
        "for each other up to %.0f us a time",
        cpu[MF_LOAD_H2D], cpu[MF_LOAD_D2H], found->slowdown[MF_LOAD_H2D][MF_LOAD_D2H],
        found->slowdown[MF_LOAD_D2H][MF_LOAD_H2D],
        found->slowdown[MF_LOAD_DIRECT_READ][MF_LOAD_H2D], most_ns / 1e3);
}

static void check_memory(struct doctor *doctor)
{
    char all[MF_FORMAT_MAX];
    char there[MF_FORMAT_MAX];
    int64_t available = mf_machine_available_bytes();
    int64_t wanted =
        doctor->hardware.host_bytes + (doctor->host ? doctor->device->memory_bytes : 0);
    value(doctor, "%s for sessions, %s available now",
          mf_format_bytes(doctor->hardware.host_bytes, all), mf_format_bytes(available, there));
    if (wanted > available) {
        say(doctor, MF_DOCTOR_NOTE,
            "other programs hold memory that sessions are promised: a large session may be refused "
            "or drive the machine out of memory; end them, or lower --host-memory");
    } else {
        say(doctor, MF_DOCTOR_GOOD, "the budget of all sessions is there");
    }
}

static void check_cgroup(struct doctor *doctor)
{
    char text[MF_FORMAT_MAX];
    int64_t limit = mf_machine_cgroup_bytes();
    if (limit == 0) {
        value(doctor, "no limit");
        say(doctor, MF_DOCTOR_GOOD, "no control group limits this process's memory");
        return;
    }
    value(doctor, "%s", mf_format_bytes(limit, text));
    bool over =
        doctor->hardware.host_bytes + (doctor->host ? doctor->device->memory_bytes : 0) > limit;
    say(doctor, over ? MF_DOCTOR_BAD : MF_DOCTOR_GOOD,
        over ? "memory for sessions is more than the control group allows: the kernel would end "
               "the daemon; lower --host-memory or --device-memory"
             : "the control group's limit is above what sessions may use");
}

static void check_pinning(struct doctor *doctor)
{
    struct rlimit limit = {0};
    char text[MF_FORMAT_MAX];
    (void)getrlimit(RLIMIT_MEMLOCK, &limit);
    bool unlimited = limit.rlim_cur == RLIM_INFINITY;
    value(doctor, "%s", unlimited ? "unlimited" : mf_format_bytes((int64_t)limit.rlim_cur, text));
    if (unlimited || (int64_t)limit.rlim_cur >= doctor->hardware.host_bytes) {
        say(doctor, MF_DOCTOR_GOOD, "all host memory of sessions can be locked");
    } else {
        say(doctor, MF_DOCTOR_NOTE,
            "%s; raise it with LimitMEMLOCK=infinity (systemd) or ulimit -l",
            doctor->host ? "the host device then works with memory that can be swapped out"
                         : "where the driver minds it, pinning more fails");
    }
}

static void check_numa(struct doctor *doctor)
{
    char near[32] = "";
    char memory[128];
    mf_device_worker_memory(doctor->service->worker, memory, sizeof(memory));
    if (!doctor->host && doctor->slot.numa_node >= 0) {
        (void)snprintf(near, sizeof(near), ", the GPU at node %d", doctor->slot.numa_node);
    }
    value(doctor, "%d node%s%s", doctor->hardware.numa_nodes,
          doctor->hardware.numa_nodes == 1 ? "" : "s", near);
    if (memory[0] != 0) {
        bool placed = strstr(memory, "not placed") == NULL;
        say(doctor, placed ? MF_DOCTOR_GOOD : MF_DOCTOR_NOTE,
            "the last session's pinned memory: %s", memory);
    } else if (doctor->hardware.numa_nodes == 1) {
        say(doctor, MF_DOCTOR_GOOD, "all memory is equally near");
    } else if (doctor->host) {
        say(doctor, MF_DOCTOR_NOTE,
            "memory on another node than the threads is slower: start memferryd under numactl "
            "--cpunodebind and --membind of its node");
    } else {
        say(doctor, MF_DOCTOR_GOOD,
            "pinned memory is put on the GPU's node, or over all nodes where that is too small");
    }
}

static void check_huge_pages(struct doctor *doctor)
{
    char text[128];
    mf_machine_read_line("/sys/kernel/mm/transparent_hugepage/enabled", text, sizeof(text));
    char *chosen = strchr(text, '[');
    char *end = chosen != NULL ? strchr(chosen, ']') : NULL;
    if (end == NULL) {
        value(doctor, "unknown");
        say(doctor, MF_DOCTOR_NOTE, "this kernel does not say whether it has huge pages");
        return;
    }
    *end = 0;
    value(doctor, "%s", chosen + 1);
    if (strcmp(chosen + 1, "never") == 0) {
        say(doctor, MF_DOCTOR_NOTE,
            "large arrays are walked in small pages: the CPU update loses some percent; set "
            "/sys/kernel/mm/transparent_hugepage/enabled to madvise");
    } else {
        say(doctor, MF_DOCTOR_GOOD, "large arrays can lie in huge pages");
    }
}

static void check_store(struct doctor *doctor)
{
    char path[MF_CONFIG_PATH_MAX + 16];
    char text[MF_FORMAT_MAX];
    char left[MF_FORMAT_MAX];
    struct stat info = {0};
    struct statvfs disk = {0};
    const char *aside = mf_store_set_aside(doctor->service->store);
    (void)snprintf(path, sizeof(path), "%s/memferry.db", doctor->service->config.home);
    (void)stat(path, &info);
    (void)statvfs(doctor->service->config.home, &disk);
    int64_t free_bytes = (int64_t)(disk.f_bavail * disk.f_frsize);
    value(doctor, "%.80s, %s, %s free", path, mf_format_bytes(info.st_size, text),
          mf_format_bytes(free_bytes, left));
    if (aside[0] != 0) {
        say(doctor, MF_DOCTOR_NOTE,
            "the file was damaged and set aside as %.200s; plans and "
            "measurements are made anew",
            aside);
    } else if (free_bytes < DISK_LOW) {
        say(doctor, MF_DOCTOR_NOTE,
            "the disk is nearly full: plans are not kept when it is, and "
            "checkpoints cannot be written");
    } else {
        say(doctor, MF_DOCTOR_GOOD, "plans and measurements are kept here");
    }
}

/* How SQLite writes: byte 18 of a database file is 2 when it keeps a write-ahead log. */
static void check_journal(struct doctor *doctor)
{
    char path[MF_CONFIG_PATH_MAX + 16];
    unsigned char header[20] = {0};
    (void)snprintf(path, sizeof(path), "%s/memferry.db", doctor->service->config.home);
    FILE *file = fopen(path, "re");
    size_t got = file != NULL ? fread(header, 1, sizeof(header), file) : 0;
    if (file != NULL) {
        (void)fclose(file);
    }
    bool ahead = got == sizeof(header) && header[18] == 2;
    value(doctor, "%s", got < sizeof(header) ? "unknown" : ahead ? "write-ahead log" : "rollback");
    if (ahead) {
        say(doctor, MF_DOCTOR_GOOD, "a plan is read while another is written");
    } else {
        say(doctor, MF_DOCTOR_NOTE,
            "the file system has no write-ahead log (a network disk?): several daemons on one "
            "store wait for each other");
    }
}

static void check_profile(struct doctor *doctor)
{
    struct mf_profile profile;
    mf_tune_profile(doctor->service, &profile);
    value(doctor, "%d kernels", profile.count);
    say(doctor, profile.count > 0 ? MF_DOCTOR_GOOD : MF_DOCTOR_NOTE,
        profile.count > 0 ? "measured on this hardware; plans use them"
                          : "nothing is measured on this hardware yet: memferry profile MODEL");
    mf_profile_reset(&profile);
}

/* What measured times rest on. */
static void check_timing(struct doctor *doctor)
{
    struct mf_profile profile;
    mf_tune_profile(doctor->service, &profile);
    bool events = strncmp(profile.method, "CUDA events", 11) == 0;
    value(doctor, "%s", profile.method[0] != 0 ? profile.method : "not used yet");
    if (profile.method[0] == 0) {
        say(doctor, MF_DOCTOR_NOTE, "nothing was timed yet");
    } else if (events) {
        say(doctor, MF_DOCTOR_NOTE,
            "times of kernels include the gaps between them, some microseconds each: end the "
            "profiler that holds CUPTI (or install its library) and profile again");
    } else if (strchr(profile.method, '(') != NULL) {
        say(doctor, MF_DOCTOR_NOTE, "some times are missing or rest on CUDA events: profile again");
    } else {
        say(doctor, MF_DOCTOR_GOOD, "times of kernels are those of the %s",
            doctor->host ? "threads that ran them" : "GPU itself");
    }
    mf_profile_reset(&profile);
}

static void check_access(struct doctor *doctor)
{
    const struct mf_config *config = &doctor->service->config;
    if (config->root_count == 0 && config->tcp[0] == 0) {
        value(doctor, "every folder");
        say(doctor, MF_DOCTOR_GOOD,
            "who may use the socket may name every folder this user can read; --root narrows it");
    } else {
        value(doctor, "%d folders", config->root_count + 1);
        say(doctor, MF_DOCTOR_GOOD, "clients may name files in these folders only: %.200s%s",
            config->root_count > 0 ? config->roots[0] : config->home,
            config->root_count > 1 ? ", ..." : "");
    }
}

int32_t mf_doctor_run(struct mf_service *service,
                      struct mf_doctor_check out[static MF_DOCTOR_CHECKS_MAX])
{
    static const struct {
        const char *name;
        void (*run)(struct doctor *);
    } checks[] = {
        {"device", check_device},
        {"driver", check_driver},
        {"CPU", check_cpu},
        {"matrix products", check_matrix},
        {"attention", check_attention},
        {"link", check_link},
        {"CPU update", check_update},
        {"side by side", check_contention},
        {"host memory", check_memory},
        {"cgroup limit", check_cgroup},
        {"pinning limit", check_pinning},
        {"NUMA", check_numa},
        {"huge pages", check_huge_pages},
        {"store", check_store},
        {"store journal", check_journal},
        {"measurements", check_profile},
        {"timing", check_timing},
        {"file access", check_access},
    };
    _Static_assert(sizeof(checks) / sizeof(checks[0]) <= MF_DOCTOR_CHECKS_MAX, "all fit");
    struct doctor doctor = {.service = service};
    int32_t count = (int32_t)(sizeof(checks) / sizeof(checks[0]));
    mf_tune_hardware(service, &doctor.hardware);
    doctor.device = &doctor.hardware.devices[0];
    mf_machine_slot(mf_device_worker_pci_address(service->worker), &doctor.slot);
    doctor.host = strcmp(doctor.device->kind, "host") == 0;
    for (int32_t i = 0; i < count; i++) {
        doctor.check = &out[i];
        *doctor.check = (struct mf_doctor_check){.name = checks[i].name};
        checks[i].run(&doctor);
    }
    return count;
}
