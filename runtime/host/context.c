/* Scratch memory and row loops of the host device's kernels; see context.h. */
#include "runtime/host/context.h"

#include <string.h>
#include <sys/mman.h>

#include "core/format.h"
#include "runtime/host/bf16.h"
#include "runtime/host/simd.h"

#define SCRATCH_ALIGN 64
#define SCRATCH_GRAIN (1ll << 20)
/* Elements of one chunk: about 10 microseconds of work, well above the cost of handing it out. */
#define CHUNK_ELEMENTS 16384

enum mf_status mf_host_context_open_on(const char *name, int32_t threads,
                                       const struct mf_host_cores *own, struct mf_host_context *out)
{
    memset(out, 0, sizeof(*out));
    return mf_host_pool_open(name, threads, own, &out->pool);
}

enum mf_status mf_host_context_open(const char *name, int32_t threads, struct mf_host_context *out)
{
    return mf_host_context_open_on(name, threads, NULL, out);
}

static void drop_scratch(struct mf_host_context *context)
{
    if (context->scratch != NULL) {
        munmap(context->scratch, (size_t)context->scratch_bytes);
    }
    context->scratch = NULL;
    context->scratch_bytes = 0;
}

void mf_host_context_close(struct mf_host_context *context)
{
    mf_host_pool_close(context->pool);
    drop_scratch(context);
    context->pool = NULL;
}

/* Bytes of a piece up to the alignment, or INT64_MAX / 2 where that is beyond counting. */
static int64_t piece_bytes(const struct mf_host_piece *piece)
{
    int64_t bytes;
    if (__builtin_mul_overflow(piece->count, piece->size, &bytes) || bytes > INT64_MAX / 64) {
        return INT64_MAX / 64;
    }
    return (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
}

enum mf_status mf_host_context_scratch(struct mf_host_context *context,
                                       const struct mf_host_piece *pieces, int32_t count)
{
    int64_t total = 0;
    for (int32_t index = 0; index < count; index++) {
        total += piece_bytes(&pieces[index]);
    }
    if (total > context->scratch_bytes) {
        drop_scratch(context);
        int64_t bytes = (total + SCRATCH_GRAIN - 1) / SCRATCH_GRAIN * SCRATCH_GRAIN;
        void *memory =
            mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            char text[MF_FORMAT_MAX];
            return mf_status_set(MF_STATUS_NO_MEMORY,
                                 "no host memory for %s of fp32 copies of a kernel's operands",
                                 mf_format_bytes(bytes, text));
        }
        context->scratch = memory;
        context->scratch_bytes = bytes;
        context->scratch_growths++;
    }
    int64_t offset = 0;
    for (int32_t index = 0; index < count; index++) {
        *pieces[index].out = context->scratch + offset;
        offset += piece_bytes(&pieces[index]);
    }
    return MF_STATUS_OK;
}

struct rows_job {
    int64_t rows;
    int64_t chunk;
    mf_host_context_rows_body body;
    const void *argument;
};

static void run_rows(const void *argument, int64_t item, int32_t worker)
{
    (void)worker;
    const struct rows_job *job = argument;
    int64_t first = item * job->chunk;
    int64_t end = first + job->chunk < job->rows ? first + job->chunk : job->rows;
    job->body(job->argument, first, end);
}

void mf_host_context_rows(struct mf_host_context *context, int64_t rows, int64_t work,
                          mf_host_context_rows_body body, const void *argument)
{
    int64_t chunk = work > 0 ? CHUNK_ELEMENTS / work : CHUNK_ELEMENTS;
    struct rows_job job = {
        .rows = rows, .chunk = chunk > 0 ? chunk : 1, .body = body, .argument = argument};
    mf_host_pool_run(context->pool, (rows + job.chunk - 1) / job.chunk, run_rows, &job);
}

struct widen_job {
    const uint16_t *from;
    int64_t stride;
    int64_t width;
    float *out;
};

MF_HOST_INLINE void widen_row_body(const uint16_t *restrict from, float *restrict out,
                                   int64_t count)
{
    for (int64_t index = 0; index < count; index++) {
        out[index] = mf_bf16_to_float(from[index]);
    }
}
MF_HOST_SIMD(widen_row, (const uint16_t *from, float *out, int64_t count), (from, out, count))

static void widen_rows(const void *argument, int64_t first, int64_t end)
{
    const struct widen_job *job = argument;
    for (int64_t row = first; row < end; row++) {
        widen_row(job->from + row * job->stride, job->out + row * job->width, job->width);
    }
}

void mf_host_context_widen(struct mf_host_context *context, const uint16_t *from, int64_t stride,
                           int64_t rows, int64_t width, float *out)
{
    struct widen_job job = {.from = from, .stride = stride, .width = width, .out = out};
    mf_host_context_rows(context, rows, width, widen_rows, &job);
}
