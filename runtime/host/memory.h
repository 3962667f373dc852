/*
 * Memory of the host device: page-aligned zeroed regions, and how much this machine has.
 *
 * What: regions from mmap in a list, counted; the machine's memory as the smaller of RAM and the
 *   control groups' limits. Who calls it: device.c. Owner: free() or reset() gives regions back.
 * Thread: one for a list; mf_host_memory_limits any. Fails: MF_STATUS_NO_MEMORY, with what was
 *   wanted and what there is.
 */
#ifndef MF_RUNTIME_HOST_MEMORY_H
#define MF_RUNTIME_HOST_MEMORY_H

#include "core/status.h"
#include "runtime/device.h"

struct mf_host_region;
struct mf_host_memory {
    struct mf_host_region *regions;
    int64_t bytes; /* of all regions, as asked for, up to 256 */
};

/* Bytes that exist, and that a new region may take now without the machine running short. */
struct mf_host_memory_limits {
    int64_t total_bytes;
    int64_t available_bytes;
    const char *limited_by; /* "this machine" or "the control group" */
};
void mf_host_memory_limits(struct mf_host_memory_limits *out);
/* The most that a device may pin, from $MEMFERRY_PIN_LIMIT ("40GiB"); INT64_MAX when it is not set.
 * MF_STATUS_INVALID when it is no size. For machines shared with others, and for tests. */
enum mf_status mf_host_memory_pin_limit(int64_t *out) MF_MUST_USE;
/* The error of map_host, of every device: `reached` of `needed` bytes could be pinned, and why not
 * more. Returns MF_STATUS_NO_MEMORY. */
enum mf_status mf_host_memory_not_pinned(int64_t needed, int64_t reached,
                                         const char *why) MF_MUST_USE;

/* Every page is touched before it returns, so that memory the machine does not have is missed here
 * and not in a step. MF_STATUS_CANCELLED when `progress` says so. */
enum mf_status mf_host_memory_map(struct mf_host_memory *memory, int64_t bytes,
                                  mf_device_progress progress, void *context,
                                  void **out) MF_MUST_USE;
void mf_host_memory_free(struct mf_host_memory *memory, void *region);
void mf_host_memory_reset(struct mf_host_memory *memory);

#endif
