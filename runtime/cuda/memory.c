/* Device regions and pinned host regions; see memory.h. */
#include "runtime/cuda/memory.h"

#include <cuda_runtime_api.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "core/format.h"
#include "runtime/cuda/numa.h"
#include "runtime/host/memory.h"

#define REGION_ALIGN 256
#define HUGE_PAGE_BYTES (2ll << 20)
#define PAGE_BYTES 4096
#define TOUCH_THREADS_MAX 16
#define PROBE_BYTES_MIN (16ll << 20)

struct mf_cuda_region {
    struct mf_cuda_region *next;
    unsigned char *pointer; /* what the caller has */
    int64_t bytes;
    unsigned char *mapping; /* host: what was mapped, to align the pointer */
    int64_t mapping_bytes;
    int64_t registered_bytes;
};

static struct mf_cuda_region *take(struct mf_cuda_region **list, const void *pointer)
{
    struct mf_cuda_region **link = list;
    while (*link != NULL && (*link)->pointer != pointer) {
        link = &(*link)->next;
    }
    struct mf_cuda_region *region = *link;
    MF_ASSERT(region != NULL);
    *link = region->next;
    return region;
}

static enum mf_status new_region(int64_t bytes, struct mf_cuda_region **out)
{
    if (bytes < 0 || bytes > INT64_MAX / 2) {
        return mf_status_set(MF_STATUS_INVALID, "a region of %lld bytes", (long long)bytes);
    }
    *out = calloc(1, sizeof(**out));
    if (*out == NULL) {
        return mf_status_set(MF_STATUS_NO_MEMORY, "no memory for the list of regions");
    }
    int64_t size = (bytes + REGION_ALIGN - 1) / REGION_ALIGN * REGION_ALIGN;
    (*out)->bytes = size > 0 ? size : REGION_ALIGN;
    return MF_STATUS_OK;
}

/* ---- device memory ---- */

static enum mf_status too_small(int64_t needed, int64_t available, const char *of)
{
    char needed_text[MF_FORMAT_MAX];
    char available_text[MF_FORMAT_MAX];
    (void)mf_status_set_reason(MF_STATUS_NO_DEVICE_MEMORY, "DEVICE_MEMORY_TOO_SMALL",
                               "the GPU has %s left of %s, and %s are needed",
                               mf_format_bytes(available, available_text), of,
                               mf_format_bytes(needed, needed_text));
    mf_status_number("needed_bytes", needed);
    mf_status_number("available_bytes", available);
    return MF_STATUS_NO_DEVICE_MEMORY;
}

static enum mf_status allocate(struct mf_cuda_memory *memory, struct mf_cuda_region *region)
{
    int64_t left = memory->cap_bytes - memory->device_bytes;
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    if (region->bytes > left) {
        return too_small(region->bytes, left, "its memory cap");
    }
    void *pointer = NULL;
    cudaError_t error = cudaMalloc(&pointer, (size_t)region->bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        (void)cudaMemGetInfo(&free_bytes, &total_bytes);
        return too_small(region->bytes, (int64_t)free_bytes, "its memory, which others use too");
    }
    if (error == cudaSuccess) {
        error = cudaMemset(pointer, 0, (size_t)region->bytes);
        error = error == cudaSuccess ? cudaDeviceSynchronize() : error;
    }
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        (void)cudaFree(pointer);
        return mf_status_set(MF_STATUS_DEVICE, "reserving %lld bytes on the GPU failed: %s",
                             (long long)region->bytes, cudaGetErrorString(error));
    }
    region->pointer = pointer;
    return MF_STATUS_OK;
}

enum mf_status mf_cuda_memory_reserve(struct mf_cuda_memory *memory, int64_t bytes, void **out)
{
    struct mf_cuda_region *region = NULL;
    *out = NULL;
    MF_TRY(new_region(bytes, &region));
    enum mf_status status = allocate(memory, region);
    if (status != MF_STATUS_OK) {
        free(region);
        return status;
    }
    region->next = memory->device;
    memory->device = region;
    memory->device_bytes += region->bytes;
    *out = region->pointer;
    return MF_STATUS_OK;
}

void mf_cuda_memory_release(struct mf_cuda_memory *memory, void *pointer)
{
    struct mf_cuda_region *region = take(&memory->device, pointer);
    memory->device_bytes -= region->bytes;
    (void)cudaFree(region->pointer);
    free(region);
}

/* ---- pinned host memory ---- */

struct touch_job {
    unsigned char *memory;
    int64_t bytes;
};

/* A write to each page: the system zeroes it, on the node of the thread that writes. */
static void *touch(void *argument)
{
    const struct touch_job *job = argument;
    for (int64_t at = 0; at < job->bytes; at += PAGE_BYTES) {
        *(volatile unsigned char *)(job->memory + at) = 0;
    }
    return NULL;
}

static void touch_chunk(unsigned char *memory, int64_t bytes, int32_t threads)
{
    pthread_t running[TOUCH_THREADS_MAX];
    struct touch_job jobs[TOUCH_THREADS_MAX];
    bool started[TOUCH_THREADS_MAX];
    int32_t count = threads < TOUCH_THREADS_MAX ? threads : TOUCH_THREADS_MAX;
    count = count > 1 && bytes > 16 * HUGE_PAGE_BYTES ? count : 1;
    int64_t share = (bytes / count + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    for (int32_t index = 0; index < count; index++) {
        int64_t first = index * share < bytes ? index * share : bytes;
        int64_t size = bytes - first < share ? bytes - first : share;
        jobs[index] = (struct touch_job){memory + first, size};
        started[index] =
            index + 1 < count && pthread_create(&running[index], NULL, touch, &jobs[index]) == 0;
        if (!started[index]) {
            (void)touch(&jobs[index]);
        }
    }
    for (int32_t index = 0; index < count; index++) {
        if (started[index]) {
            pthread_join(running[index], NULL);
        }
    }
}

/* How much of a chunk that could not be registered whole can be, in halves: where the next plan has
 * to fit. Nothing stays registered. */
static int64_t probe(unsigned char *start, int64_t chunk)
{
    unsigned char *kept[8]; /* 512 MiB down to 16 MiB are 6 */
    int32_t count = 0;
    int64_t done = 0;
    for (int64_t size = chunk / 2 / PROBE_BYTES_MIN * PROBE_BYTES_MIN; size >= PROBE_BYTES_MIN;
         size = size / 2 / PROBE_BYTES_MIN * PROBE_BYTES_MIN) {
        if (cudaHostRegister(start + done, (size_t)size, cudaHostRegisterMapped) == cudaSuccess) {
            kept[count++] = start + done;
            done += size;
        }
    }
    while (count > 0) {
        (void)cudaHostUnregister(kept[--count]);
    }
    (void)cudaGetLastError();
    return done;
}

static enum mf_status cannot_pin(const struct mf_cuda_region *region, int64_t chunk,
                                 cudaError_t error)
{
    struct rlimit limit;
    char limit_text[MF_FORMAT_MAX] = "unlimited";
    char why[192];
    (void)cudaGetLastError();
    int64_t more = probe(region->pointer + region->registered_bytes, chunk);
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
        mf_format_bytes((int64_t)limit.rlim_cur, limit_text);
    }
    snprintf(why, sizeof(why), "CUDA: %s; the limit of locked memory, ulimit -l, is %s",
             cudaGetErrorString(error), limit_text);
    return mf_host_memory_not_pinned(region->bytes, region->registered_bytes + more, why);
}

/* What the machine has is looked at before each chunk: machines exist whose memory grows as it is
 * used, and none should be driven into the out-of-memory killer. */
static enum mf_status check_memory(const struct mf_cuda_memory *memory,
                                   const struct mf_cuda_region *region, int64_t chunk)
{
    struct mf_host_memory_limits limits;
    int64_t done = region->registered_bytes;
    int64_t left = memory->pin_limit_bytes - memory->pinned_bytes - done;
    mf_host_memory_limits(&limits);
    if (chunk > left && left < limits.available_bytes) {
        return mf_host_memory_not_pinned(region->bytes, done + left,
                                         "the limit is MEMFERRY_PIN_LIMIT");
    }
    if (chunk > limits.available_bytes) {
        char why[64];
        snprintf(why, sizeof(why), "%s has no more", limits.limited_by);
        return mf_host_memory_not_pinned(region->bytes, done + limits.available_bytes, why);
    }
    return MF_STATUS_OK;
}

static enum mf_status pin(struct mf_cuda_memory *memory, struct mf_cuda_region *region,
                          mf_device_progress progress, void *context)
{
    while (region->registered_bytes < region->bytes) {
        unsigned char *start = region->pointer + region->registered_bytes;
        int64_t left = region->bytes - region->registered_bytes;
        int64_t chunk = left < MF_CUDA_MEMORY_CHUNK_BYTES ? left : MF_CUDA_MEMORY_CHUNK_BYTES;
        MF_TRY(check_memory(memory, region, chunk));
        touch_chunk(start, chunk, memory->threads);
        cudaError_t error = cudaHostRegister(start, (size_t)chunk,
                                             cudaHostRegisterPortable | cudaHostRegisterMapped);
        if (error != cudaSuccess) {
            return cannot_pin(region, chunk, error);
        }
        region->registered_bytes += chunk;
        if (progress != NULL && !progress(context, region->registered_bytes, region->bytes)) {
            return mf_status_set(MF_STATUS_CANCELLED, "given up while memory was being pinned");
        }
    }
    return MF_STATUS_OK;
}

static void free_host(struct mf_cuda_region *region)
{
    for (int64_t done = 0; done < region->registered_bytes; done += MF_CUDA_MEMORY_CHUNK_BYTES) {
        (void)cudaHostUnregister(region->pointer + done);
    }
    (void)cudaGetLastError();
    if (region->mapping != NULL) {
        munmap(region->mapping, (size_t)region->mapping_bytes);
    }
    free(region);
}

enum mf_status mf_cuda_memory_map(struct mf_cuda_memory *memory, int64_t bytes,
                                  mf_device_progress progress, void *context, void **out)
{
    struct mf_cuda_region *region = NULL;
    *out = NULL;
    MF_TRY(new_region(bytes, &region));
    region->mapping_bytes =
        (region->bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES + HUGE_PAGE_BYTES;
    void *mapping = mmap(NULL, (size_t)region->mapping_bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) {
        enum mf_status status =
            mf_status_set(MF_STATUS_NO_MEMORY, "mapping %lld bytes of pinned memory failed: %s",
                          (long long)region->bytes, strerror(errno));
        free(region);
        return status;
    }
    region->mapping = mapping;
    uintptr_t aligned = ((uintptr_t)mapping + (uintptr_t)HUGE_PAGE_BYTES - 1) /
                        (uintptr_t)HUGE_PAGE_BYTES * (uintptr_t)HUGE_PAGE_BYTES;
    region->pointer = region->mapping + (aligned - (uintptr_t)mapping);
    bool huge = madvise(region->mapping, (size_t)region->mapping_bytes, MADV_HUGEPAGE) == 0;
    (void)madvise(region->mapping, (size_t)region->mapping_bytes, MADV_DONTFORK);
    char node[sizeof(memory->placed) - 32];
    mf_cuda_numa_place(memory->pci_address, region->mapping, region->mapping_bytes, node,
                       sizeof(node));
    snprintf(memory->placed, sizeof(memory->placed), "%s, %s pages", node, huge ? "huge" : "small");
    enum mf_status status = pin(memory, region, progress, context);
    if (status != MF_STATUS_OK) {
        free_host(region);
        return status;
    }
    region->next = memory->host;
    memory->host = region;
    memory->pinned_bytes += region->bytes;
    *out = region->pointer;
    return MF_STATUS_OK;
}

void mf_cuda_memory_unmap(struct mf_cuda_memory *memory, void *pointer)
{
    struct mf_cuda_region *region = take(&memory->host, pointer);
    memory->pinned_bytes -= region->bytes;
    free_host(region);
}

void mf_cuda_memory_reset(struct mf_cuda_memory *memory)
{
    while (memory->device != NULL) {
        mf_cuda_memory_release(memory, memory->device->pointer);
    }
    while (memory->host != NULL) {
        mf_cuda_memory_unmap(memory, memory->host->pointer);
    }
}

int64_t mf_cuda_memory_run(const struct mf_cuda_memory *memory, const void *pointer, int64_t bytes)
{
    const unsigned char *start = pointer;
    for (const struct mf_cuda_region *region = memory->host; region != NULL;
         region = region->next) {
        if (start >= region->pointer && start < region->pointer + region->bytes) {
            int64_t left =
                MF_CUDA_MEMORY_CHUNK_BYTES - (start - region->pointer) % MF_CUDA_MEMORY_CHUNK_BYTES;
            return left < bytes ? left : bytes;
        }
    }
    return bytes;
}
