/*
 * Memory of the CUDA device: regions of device memory under a cap, and pinned host regions.
 *
 * What: a pinned region is mapped, placed near the GPU (numa.h), put on huge pages where there are
 *   any, touched by many threads, and registered in chunks of MF_CUDA_MEMORY_CHUNK_BYTES; a copy
 *   must not cross from one chunk to the next (see mf_cuda_memory_run). Who calls it: device.c,
 * lanes.c. Owner: free() or reset() gives regions back. Thread: one for a list. Fails:
 * NO_DEVICE_MEMORY or NO_MEMORY with what was wanted and what there is; no error stays behind in
 * the CUDA runtime.
 */
#ifndef MF_RUNTIME_CUDA_MEMORY_H
#define MF_RUNTIME_CUDA_MEMORY_H

#include <stdint.h>

#include "core/status.h"
#include "runtime/device.h"

#define MF_CUDA_MEMORY_CHUNK_BYTES (1ll << 30)

struct mf_cuda_region;
struct mf_cuda_memory {
    struct mf_cuda_region *device;
    struct mf_cuda_region *host;
    int64_t device_bytes; /* reserved, up to 256 */
    int64_t cap_bytes;    /* of device_bytes */
    int64_t pinned_bytes;
    int64_t pin_limit_bytes; /* of pinned_bytes */
    int32_t threads;         /* that touch pages */
    char pci_address[32];    /* of the GPU, "" = not known */
    char placed[128];        /* what was done with the last pinned region, for people */
};

enum mf_status mf_cuda_memory_reserve(struct mf_cuda_memory *memory, int64_t bytes,
                                      void **out) MF_MUST_USE;
void mf_cuda_memory_release(struct mf_cuda_memory *memory, void *pointer);
enum mf_status mf_cuda_memory_map(struct mf_cuda_memory *memory, int64_t bytes,
                                  mf_device_progress progress, void *context,
                                  void **out) MF_MUST_USE;
void mf_cuda_memory_unmap(struct mf_cuda_memory *memory, void *pointer);
void mf_cuda_memory_reset(struct mf_cuda_memory *memory);
/* Bytes from `pointer` on that one copy may take: up to the end of its chunk where it lies in a
 * pinned region, else `bytes`. */
int64_t mf_cuda_memory_run(const struct mf_cuda_memory *memory, const void *pointer, int64_t bytes);

#endif
