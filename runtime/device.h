/*
 * The one seam to a device: memory, lanes, kernels. `host` implements it on CPU threads, `cuda`
 * in a module loaded at run time.
 *
 * What: a table of functions and an opaque device. Who calls it: executor, profiler, doctor.
 * Owner: close frees everything that reserve and map_host gave. Thread: one thread at a time (the
 *   device worker) calls; work runs on the device's own lanes. Fails: as said at each entry; an
 *   error of asynchronous work is kept and returned by the next sync.
 *
 * Order of use: open, describe, reserve / map_host, prepare, then for every graph: begin, any
 * number of submit / record / wait, sync; at the end release / unmap_host, close.
 */
#ifndef MF_RUNTIME_DEVICE_H
#define MF_RUNTIME_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/hardware.h"
#include "core/kernel.h"
#include "core/status.h"

#define MF_DEVICE_ABI 6

struct mf_device; /* each implementation's own */

struct mf_device_options {
    int64_t memory_bytes;   /* cap of device memory; 0 = all there is (host device: half of RAM) */
    double h2d_bytes_per_s; /* host device: emulated link rates, 0 = as fast as memcpy */
    double d2h_bytes_per_s;
    int32_t threads;      /* host device: compute threads, 0 = all cores */
    int32_t index;        /* which GPU */
    uint64_t jitter_seed; /* tests: random delays before tasks, 0 = none */
    int64_t jitter_ns_max;
    uint32_t jitter_lanes; /* bit of each lane that is delayed, 0 = all */
};

/* When a task ran, on the device's clock. */
struct mf_device_span {
    int64_t start_ns;
    int64_t end_ns;
};

/* Work that is counted: it submits and syncs, and does not mind being done several times. */
typedef enum mf_status (*mf_device_work)(void *context);

/* What crossed the link, towards the device and back, by the device's own counters; -1 = it has no
 * such counter. */
struct mf_device_counts {
    int64_t link_bytes[2];   /* on the bus, headers included */
    int64_t memory_bytes[2]; /* of host memory, as kernels read and wrote it */
};

/* Called while host memory is being pinned; `done` of `total` bytes. Return false to give up. */
typedef bool (*mf_device_progress)(void *context, int64_t done, int64_t total);

struct mf_device_interface {
    uint32_t abi; /* MF_DEVICE_ABI */
    const char *name;

    enum mf_status (*open)(const struct mf_device_options *options, struct mf_device **out);
    void (*close)(struct mf_device *device);
    /* Names, sizes and versions at once; rates are 0 until the profiler has measured them. */
    enum mf_status (*describe)(struct mf_device *device, struct mf_hardware_device *out);

    /* Device memory, 256-byte aligned, zeroed. MF_STATUS_NO_DEVICE_MEMORY with needed and available
     * when the cap would be passed: nothing is allocated then. */
    enum mf_status (*reserve)(struct mf_device *device, int64_t bytes, void **out);
    void (*release)(struct mf_device *device, void *memory);
    int64_t (*reserved_bytes)(struct mf_device *device);
    /* Pinned host memory that device kernels can address, 4096-byte aligned, zeroed. `progress` may
     * be NULL. MF_STATUS_NO_MEMORY, PINNED_MEMORY_LIMIT with needed_bytes and available_bytes (what
     * could have been pinned): nothing stays pinned then. */
    enum mf_status (*map_host)(struct mf_device *device, int64_t bytes, mf_device_progress progress,
                               void *context, void **out);
    void (*unmap_host)(struct mf_device *device, void *memory);
    /* The address under which device lanes see `memory`, which lies in a map_host region. */
    void *(*device_address)(struct mf_device *device, void *memory);

    /* Room for graphs of `task_count` tasks (queues, events, spans): afterwards nothing below
     * allocates. Keeps the largest so far. */
    enum mf_status (*prepare)(struct mf_device *device, int32_t task_count);
    /* A new graph: all lanes are idle, all events forgotten. With `trace` every task's span is
     * kept until the next begin. */
    enum mf_status (*begin)(struct mf_device *device, bool trace);
    /* Queues a kernel on a lane as task number `task` (its trace and event id, unique in the
     * graph). Compute: every kernel but COPY. H2D, D2H: COPY only. CPU: GRADIENT_ACCUMULATE,
     * GRADIENT_NORM, CLIP, ADAMW with host addresses. Operand addresses: as the lane sees them. */
    enum mf_status (*submit)(struct mf_device *device, enum mf_lane lane,
                             const struct mf_kernel_call *call, int32_t task);
    /* Marks event `task` as done when all work queued on `lane` so far is done. */
    enum mf_status (*record)(struct mf_device *device, enum mf_lane lane, int32_t task);
    /* `lane` goes no further until event `task`, recorded before, is done. */
    enum mf_status (*wait)(struct mf_device *device, enum mf_lane lane, int32_t task);
    /* Waits for all lanes; the first error of any task since begin, whose text names the task. */
    enum mf_status (*sync)(struct mf_device *device);
    /* After sync, with trace: the span of `task`. false when it did not run or was not traced. */
    bool (*span)(struct mf_device *device, int32_t task, struct mf_device_span *out);
    /* What spans rest on, good until the next call: "host clock", "CUPTI", "CUDA events (CUPTI held
     * by ...)". May be NULL: not said. */
    const char *(*trace_method)(struct mf_device *device);
    /* Where it is plugged in, "0000:3b:00.0", for what the kernel tells about the slot. May be
     * NULL: nowhere. */
    void (*pci_address)(struct mf_device *device, char *out, int32_t size);
    /* How the last region of map_host lies, for people: "node 1, the GPU's, huge pages"; "" before
     * the first. May be NULL: nothing to say. */
    void (*host_memory)(struct mf_device *device, char *out, int32_t size);
    /* Counts what `work` moves over the link; between graphs. MF_STATUS_UNSUPPORTED says why that
     * cannot be known. May be NULL: there is no link. */
    enum mf_status (*count)(struct mf_device *device, mf_device_work work, void *context,
                            struct mf_device_counts *out);
    /* Who computes attention and why, for people: "own kernels: they were written for this GPU".
     * May be NULL: nobody but the device's own. */
    void (*attention)(struct mf_device *device, char *out, int32_t size);
};

/* The device that runs on this machine's CPU cores. */
const struct mf_device_interface *mf_device_host(void);
/* Opens build/lib/memferry-cuda.so beside the program (or $MEMFERRY_CUDA_MODULE).
 * MF_STATUS_UNSUPPORTED says why there is none. */
enum mf_status mf_device_cuda(const struct mf_device_interface **out) MF_MUST_USE;

#endif
