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
    accumulate((const uint16_t *)call->operands[0].pointer + first,
               (float *)call->operands[1].pointer + first,
               (call->shape.flags & MF_SHAPE_FIRST_MICRO) != 0, end - first);
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

/* Elements of one call of `adamw`: converted gradients wait on the stack, in the first cache. */
#define ADAMW_GRAIN 1024

/* Elements between two rounds of prefetches: whole cache lines of every array. */
#define ADAMW_BLOCK 64
/* How far ahead, in elements: 2 KiB of each fp32 array, so that the processor's own prefetching,
 * which ends at a page, need not begin anew. Measured: 3 to 5% on one core of a Zen 5. */
#define ADAMW_AHEAD 512

MF_HOST_INLINE void adamw_prefetch(const float *state, int64_t at)
{
    for (int64_t line = 0; line < ADAMW_BLOCK; line += 16) {
        __builtin_prefetch(state + at + line, 1);
    }
}

MF_HOST_INLINE void adamw_elements(const struct mf_adamw_scalars *s, float decay,
                                   const float *restrict gradient, float *restrict master,
                                   float *restrict m, float *restrict v, uint16_t *restrict weight,
                                   int64_t count)
{
    for (int64_t index = 0; index < count; index++) {
        mf_adamw_element(s, decay, gradient[index], &master[index], &m[index], &v[index]);
        weight[index] = mf_bf16_from_float(master[index]);
    }
}

MF_HOST_INLINE void adamw_body(const struct mf_adamw_scalars *scalars, float decay,
                               const float *gradient, float *master, float *m, float *v,
                               uint16_t *weight, int64_t count)
{
    const struct mf_adamw_scalars s = *scalars;
    int64_t at = 0;
    for (; at + ADAMW_BLOCK <= count; at += ADAMW_BLOCK) {
        adamw_prefetch(master, at + ADAMW_AHEAD);
        adamw_prefetch(m, at + ADAMW_AHEAD);
        adamw_prefetch(v, at + ADAMW_AHEAD);
        adamw_elements(&s, decay, gradient + at, master + at, m + at, v + at, weight + at,
                       ADAMW_BLOCK);
    }
    adamw_elements(&s, decay, gradient + at, master + at, m + at, v + at, weight + at, count - at);
}
MF_HOST_SIMD(adamw,
             (const struct mf_adamw_scalars *scalars, float decay, const float *gradient,
              float *master, float *m, float *v, uint16_t *weight, int64_t count),
             (scalars, decay, gradient, master, m, v, weight, count))

struct adamw_job {
    const struct mf_kernel_call *call;
    struct mf_adamw_scalars scalars;
};

/* Copies past the caches: what is written here is not read again in this step. An ordinary store
 * would first read the line it overwrites. settle() makes such stores visible to others. */
#ifdef __SSE2__
static void stream_out(void *to, const void *from, size_t bytes)
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
static void stream_out(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static void settle(void)
{
}
#endif

/* As adamw from `start` on, with other places for the results. */
static void adamw_apart(const struct adamw_job *job, float decay, const float *gradient,
                        int64_t start, int64_t count)
{
    const struct mf_operand *operands = job->call->operands;
    int64_t n = job->call->shape.n;
    size_t bytes = (size_t)count * sizeof(float);
    float state[3][ADAMW_GRAIN];
    uint16_t weight[ADAMW_GRAIN];
    for (int part = 0; part < 3; part++) {
        memcpy(state[part], (const float *)operands[1].pointer + part * n + start, bytes);
    }
    adamw(&job->scalars, decay, gradient, state[0], state[1], state[2], weight, count);
    for (int part = 0; part < 3; part++) {
        stream_out((float *)operands[4].pointer + part * n + start, state[part], bytes);
    }
    stream_out((uint16_t *)operands[5].pointer + start, weight, bytes / 2);
}

/* Elements first..end, all of one segment. */
static void adamw_segment(const struct adamw_job *job, bool decayed, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = job->call;
    int64_t n = call->shape.n;
    float *state = call->operands[1].pointer;
    uint16_t *weight = call->operands[2].pointer;
    bool fp32 = (call->shape.flags & MF_SHAPE_GRADIENT_FP32) != 0;
    for (int64_t start = first; start < end; start += ADAMW_GRAIN) {
        int64_t count = end - start < ADAMW_GRAIN ? end - start : ADAMW_GRAIN;
        float widened[ADAMW_GRAIN];
        const float *gradient = widened;
        if (fp32) {
            gradient = (const float *)call->operands[0].pointer + start;
        } else {
            accumulate((const uint16_t *)call->operands[0].pointer + start, widened, true, count);
        }
        float decay = decayed ? job->scalars.decay : 1.0f;
        if (call->operands[4].pointer != NULL) {
            adamw_apart(job, decay, gradient, start, count);
        } else {
            adamw(&job->scalars, decay, gradient, state + start, state + n + start,
                  state + 2 * n + start, weight + start, count);
        }
    }
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

/* What a skipped update leaves: the weight may lie in a slot that is copied home. */
static void adamw_skipped(const void *argument, int64_t first, int64_t end)
{
    const struct mf_kernel_call *call = argument;
    const float *master = call->operands[1].pointer;
    uint16_t *weight = call->operands[2].pointer;
    for (int64_t i = first; i < end; i++) {
        weight[i] = mf_bf16_from_float(master[i]);
    }
}

enum mf_status mf_host_update_adamw(struct mf_host_context *context,
                                    const struct mf_kernel_call *call)
{
    const struct mf_control *control = call->operands[3].pointer;
    if (control->skipped != 0) {
        mf_host_context_rows(context, call->shape.n, UPDATE_WORK, adamw_skipped, call);
        return MF_STATUS_OK;
    }
    struct adamw_job job = {.call = call, .scalars = mf_adamw_prepare(control)};
    mf_host_context_rows(context, call->shape.n, UPDATE_WORK, adamw_range, &job);
    return MF_STATUS_OK;
}
