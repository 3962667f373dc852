/* Gradients and the optimizer on the host: what the CPU lane runs, for the host device and beside a
 * GPU. kernel.h says what each operand is, adamw.h holds the arithmetic. */
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "runtime/host/adamw.h"
#include "runtime/host/bf16.h"
#include "runtime/host/kernels.h"
#include "runtime/host/simd.h"

/* Work of an element as chunks of rows count it: pieces of 4096 elements, 100 KiB of an update's
 * arrays, so that many threads share even a small panel evenly. */
#define UPDATE_WORK 4

/* Copies past the caches: what is written here is not read again in this step. An ordinary store
 * would first read the line it overwrites. settle() makes such stores visible to others. */
#ifdef __SSE2__
MF_HOST_INLINE void stream_out(void *to, const void *from, size_t bytes)
{
    unsigned char *out = to;
    const unsigned char *in = from;
    size_t head = (16 - ((uintptr_t)out & 15)) & 15;
    head = head < bytes ? head : bytes;
    memcpy(out, in, head);
    size_t at = head;
    for (; at + 16 <= bytes; at += 16) {
        _mm_stream_si128((__m128i *)(void *)(out + at),
                         _mm_loadu_si128((const __m128i *)(const void *)(in + at)));
    }
    memcpy(out + at, in + at, bytes - at);
}

static void settle(void)
{
    _mm_sfence();
}
#else
MF_HOST_INLINE void stream_out(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static void settle(void)
{
}
#endif

/* Elements whose results wait in the first cache before they are streamed out. */
#define GRAIN 1024

MF_HOST_INLINE void accumulate_body(const uint16_t *restrict from, float *restrict sum, bool first,
                                    int64_t count)
{
    if (first) {
        for (int64_t index = 0; index < count; index++) {
            sum[index] = mf_bf16_to_float(from[index]);
        }
    } else {
        for (int64_t index = 0; index < count; index++) {
            sum[index] += mf_bf16_to_float(from[index]);
        }
    }
}
MF_HOST_SIMD(accumulate, (const uint16_t *from, float *sum, bool first, int64_t count),
             (from, sum, first, count))

static void accumulate_range(const void *argument, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = argument;
    const uint16_t *from = call->operands[0].pointer;
    float *sum = call->operands[1].pointer;
    if ((call->shape.flags & MF_SHAPE_FIRST_MICRO) == 0) {
        accumulate(from + first, sum + first, false, end - first);
        return;
    }
    for (int64_t start = first; start < end; start += GRAIN) {
        int64_t count = end - start < GRAIN ? end - start : GRAIN;
        float wide[GRAIN];
        accumulate(from + start, wide, true, count);
        stream_out(sum + start, wide, (size_t)count * sizeof(*wide));
    }
    settle();
}

enum mf_status mf_host_update_accumulate(struct mf_host_context *context,
                                         const struct mf_kernel_call *call)
{
    mf_host_context_rows(context, call->shape.n, UPDATE_WORK, accumulate_range, call);
    return MF_STATUS_OK;
}

/* Elements of one pass of a block through the lanes, as double. */
MF_HOST_INLINE double gradient_at(const void *gradient, bool fp32, int64_t index)
{
    return fp32 ? (double)((const float *)gradient)[index]
                : (double)mf_bf16_to_float(((const uint16_t *)gradient)[index]);
}

/* The sum of squares of one block, in the order that kernel.h fixes for every device. */
MF_HOST_INLINE void square_body(const void *gradient, bool fp32, int64_t count, double *out)
{
    double lanes[MF_SQUARE_LANES] = {0};
    int64_t index = 0;
    for (; index + MF_SQUARE_LANES <= count; index += MF_SQUARE_LANES) {
        for (int lane = 0; lane < MF_SQUARE_LANES; lane++) {
            double value = gradient_at(gradient, fp32, index + lane);
            lanes[lane] += value * value;
        }
    }
    for (int lane = 0; index + lane < count; lane++) {
        double value = gradient_at(gradient, fp32, index + lane);
        lanes[lane] += value * value;
    }
    for (int half = MF_SQUARE_LANES / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; lane++) {
            lanes[lane] += lanes[lane + half];
        }
    }
    *out = lanes[0];
}

MF_HOST_INLINE void square_fp32_body(const void *gradient, int64_t count, double *out)
{
    square_body(gradient, true, count, out);
}
MF_HOST_SIMD(square_fp32, (const void *gradient, int64_t count, double *out),
             (gradient, count, out))

MF_HOST_INLINE void square_bf16_body(const void *gradient, int64_t count, double *out)
{
    square_body(gradient, false, count, out);
}
MF_HOST_SIMD(square_bf16, (const void *gradient, int64_t count, double *out),
             (gradient, count, out))

struct norm_job {
    const struct mf_kernel_call *call;
    double *blocks;
};

static void norm_blocks(const void *argument, int64_t first, int64_t end)
{
    const struct norm_job *job = argument;
    int64_t n = job->call->shape.n;
    for (int64_t block = first; block < end; block++) {
        int64_t start = block * MF_SQUARE_BLOCK;
        int64_t count = n - start < MF_SQUARE_BLOCK ? n - start : MF_SQUARE_BLOCK;
        const unsigned char *gradient = job->call->operands[0].pointer;
        if ((job->call->shape.flags & MF_SHAPE_GRADIENT_FP32) != 0) {
            square_fp32(gradient + start * (int64_t)sizeof(float), count, &job->blocks[block]);
        } else {
            square_bf16(gradient + start * (int64_t)sizeof(uint16_t), count, &job->blocks[block]);
        }
    }
}

enum mf_status mf_host_update_norm(struct mf_host_context *context,
                                   const struct mf_kernel_call *call)
{
    int64_t blocks = (call->shape.n + MF_SQUARE_BLOCK - 1) / MF_SQUARE_BLOCK;
    struct norm_job job = {.call = call};
    struct mf_host_piece piece = {(void **)&job.blocks, blocks, sizeof(double)};
    MF_TRY(mf_host_context_scratch(context, &piece, 1));
    mf_host_context_rows(context, blocks, MF_SQUARE_BLOCK, norm_blocks, &job);
    double total = 0;
    for (int64_t block = 0; block < blocks; block++) {
        total += job.blocks[block];
    }
    *(double *)call->operands[1].pointer = total;
    return MF_STATUS_OK;
}

enum mf_status mf_host_update_clip(struct mf_host_context *context,
                                   const struct mf_kernel_call *call)
{
    (void)context;
    const double *squares = call->operands[0].pointer;
    double total = 0;
    for (int64_t index = 0; index < call->shape.n; index++) {
        total += squares[index];
    }
    mf_adamw_clip(total, call->operands[1].pointer);
    return MF_STATUS_OK;
}

/* Elements between two rounds of prefetches: whole cache lines of every array. */
#define ADAMW_BLOCK 64
/* How far ahead, in elements: 2 KiB of each fp32 array, so that the processor's own prefetching,
 * which ends at a page, need not begin anew. Measured: 3 to 5% on one core of a Zen 5. */
#define ADAMW_AHEAD 512

/* The arrays of an update, from one of its elements on. */
struct adamw_arrays {
    float *m;
    float *v;
    int16_t *rest;
    uint16_t *weight;
};

MF_HOST_INLINE void prefetch(const void *array, int64_t at, int64_t element_bytes)
{
    const char *first = (const char *)array + (at + ADAMW_AHEAD) * element_bytes;
    for (int64_t line = 0; line < ADAMW_BLOCK * element_bytes; line += 64) {
        __builtin_prefetch(first + line, 1);
    }
}

MF_HOST_INLINE void adamw_elements(const struct mf_adamw_scalars *s, float decay,
                                   const void *restrict gradient, bool fp32, float *restrict m,
                                   float *restrict v, int16_t *restrict rest,
                                   uint16_t *restrict weight, int64_t count)
{
    for (int64_t index = 0; index < count; index++) {
        float value = fp32 ? ((const float *)gradient)[index]
                           : mf_bf16_to_float(((const uint16_t *)gradient)[index]);
        mf_adamw_stored(s, decay, value, &m[index], &v[index], &rest[index], &weight[index]);
    }
}

/* At most ADAMW_BLOCK elements whose results have places of their own. */
MF_HOST_INLINE void adamw_apart(const struct mf_adamw_scalars *s, float decay,
                                const unsigned char *gradient, bool fp32,
                                const struct adamw_arrays *from, const struct adamw_arrays *to,
                                int64_t at, int64_t count)
{
    float m[ADAMW_BLOCK];
    float v[ADAMW_BLOCK];
    int16_t rest[ADAMW_BLOCK];
    uint16_t weight[ADAMW_BLOCK];
    size_t wide = (size_t)count * sizeof(float);
    size_t narrow = (size_t)count * sizeof(uint16_t);
    memcpy(m, from->m + at, wide);
    memcpy(v, from->v + at, wide);
    memcpy(rest, from->rest + at, narrow);
    memcpy(weight, from->weight + at, narrow);
    adamw_elements(s, decay, gradient, fp32, m, v, rest, weight, count);
    stream_out(to->m + at, m, wide);
    stream_out(to->v + at, v, wide);
    stream_out(to->rest + at, rest, narrow);
    stream_out(to->weight + at, weight, narrow);
}

/* `from` and `to` are the same, or apart. */
MF_HOST_INLINE void adamw_body(const struct mf_adamw_scalars *scalars, float decay,
                               const unsigned char *gradient, bool fp32,
                               const struct adamw_arrays *read, const struct adamw_arrays *written,
                               int64_t count)
{
    const struct mf_adamw_scalars s = *scalars;
    const struct adamw_arrays from = *read;
    const struct adamw_arrays to = *written;
    int64_t size = fp32 ? 4 : 2;
    int64_t at = 0;
    bool apart = from.m != to.m;
    for (; at + ADAMW_BLOCK <= count; at += ADAMW_BLOCK) {
        prefetch(gradient, at, size);
        prefetch(from.m, at, sizeof(*from.m));
        prefetch(from.v, at, sizeof(*from.v));
        prefetch(from.rest, at, sizeof(*from.rest));
        prefetch(from.weight, at, sizeof(*from.weight));
        if (apart) {
            adamw_apart(&s, decay, gradient + at * size, fp32, &from, &to, at, ADAMW_BLOCK);
        } else {
            adamw_elements(&s, decay, gradient + at * size, fp32, to.m + at, to.v + at,
                           to.rest + at, to.weight + at, ADAMW_BLOCK);
        }
    }
    if (apart) {
        adamw_apart(&s, decay, gradient + at * size, fp32, &from, &to, at, count - at);
    } else {
        adamw_elements(&s, decay, gradient + at * size, fp32, to.m + at, to.v + at, to.rest + at,
                       to.weight + at, count - at);
    }
}

MF_HOST_INLINE void adamw_fp32_body(const struct mf_adamw_scalars *scalars, float decay,
                                    const unsigned char *gradient, const struct adamw_arrays *from,
                                    const struct adamw_arrays *to, int64_t count)
{
    adamw_body(scalars, decay, gradient, true, from, to, count);
}
MF_HOST_SIMD(adamw_fp32,
             (const struct mf_adamw_scalars *scalars, float decay, const unsigned char *gradient,
              const struct adamw_arrays *from, const struct adamw_arrays *to, int64_t count),
             (scalars, decay, gradient, from, to, count))

MF_HOST_INLINE void adamw_bf16_body(const struct mf_adamw_scalars *scalars, float decay,
                                    const unsigned char *gradient, const struct adamw_arrays *from,
                                    const struct adamw_arrays *to, int64_t count)
{
    adamw_body(scalars, decay, gradient, false, from, to, count);
}
MF_HOST_SIMD(adamw_bf16,
             (const struct mf_adamw_scalars *scalars, float decay, const unsigned char *gradient,
              const struct adamw_arrays *from, const struct adamw_arrays *to, int64_t count),
             (scalars, decay, gradient, from, to, count))

struct adamw_job {
    const struct mf_kernel_call *call;
    struct mf_adamw_scalars scalars;
};

static struct adamw_arrays arrays_at(const struct mf_operand *state,
                                     const struct mf_operand *weight, int64_t n, int64_t start)
{
    float *m = state->pointer;
    int16_t *rest = (int16_t *)(void *)(m + 2 * n);
    return (struct adamw_arrays){m + start, m + n + start, rest + start,
                                 (uint16_t *)weight->pointer + start};
}

static void adamw(const struct adamw_job *job, float decay, int64_t start,
                  const struct adamw_arrays *from, const struct adamw_arrays *to, int64_t count)
{
    const unsigned char *gradient = job->call->operands[0].pointer;
    if ((job->call->shape.flags & MF_SHAPE_GRADIENT_FP32) != 0) {
        adamw_fp32(&job->scalars, decay, gradient + start * 4, from, to, count);
    } else {
        adamw_bf16(&job->scalars, decay, gradient + start * 2, from, to, count);
    }
}

/* Elements first..end, all of one segment. */
static void adamw_segment(const struct adamw_job *job, bool decayed, int64_t first, int64_t end)
{
    const struct mf_operand *operands = job->call->operands;
    int64_t n = job->call->shape.n;
    float decay = decayed ? job->scalars.decay : 1.0f;
    struct adamw_arrays from = arrays_at(&operands[1], &operands[2], n, first);
    if (operands[4].pointer == NULL) {
        adamw(job, decay, first, &from, &from, end - first);
        return;
    }
    struct adamw_arrays to = arrays_at(&operands[4], &operands[5], n, first);
    adamw(job, decay, first, &from, &to, end - first);
    settle();
}

static void adamw_range(const void *argument, int64_t first, int64_t end)
{
    const struct adamw_job *job = argument;
    int64_t border = job->call->shape.k;
    border = border < first ? first : border > end ? end : border;
    adamw_segment(job, (job->call->shape.flags & MF_SHAPE_DECAY_FIRST) != 0, first, border);
    adamw_segment(job, (job->call->shape.flags & MF_SHAPE_DECAY_REST) != 0, border, end);
}

enum mf_status mf_host_update_adamw(struct mf_host_context *context,
                                    const struct mf_kernel_call *call)
{
    const struct mf_control *control = call->operands[3].pointer;
    if (control->skipped != 0) {
        return MF_STATUS_OK;
    }
    struct adamw_job job = {.call = call, .scalars = mf_adamw_prepare(control)};
    mf_host_context_rows(context, call->shape.n, UPDATE_WORK, adamw_range, &job);
    return MF_STATUS_OK;
}
