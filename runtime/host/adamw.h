/*
 * The arithmetic of AdamW and of clipping, shared by every device so that their updates agree bit
 * for bit.
 *
 * What: scalars computed once in double and rounded once to fp32; one element's update as a fixed
 *   sequence of single IEEE operations; the master as weight and rest. A file that includes this
 * must be compiled without contraction into fused multiply-add (gcc -ffp-contract=off, nvcc
 * -fmad=false). Who calls it: update.c, the CUDA device, and what loads and saves parameters.
 * Owner: the caller. Thread: any. Fails: no.
 */
#ifndef MF_RUNTIME_HOST_ADAMW_H
#define MF_RUNTIME_HOST_ADAMW_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "core/kernel.h"

/* A CUDA file sets this to __host__ __device__ inline before it includes this header. */
#ifndef MF_ADAMW_INLINE
#define MF_ADAMW_INLINE static inline __attribute__((always_inline))
#endif

struct mf_adamw_scalars {
    float gradient_scale;
    float decay; /* 1 - learning_rate * weight_decay */
    float beta1;
    float beta1_rest; /* 1 - beta1 */
    float beta2;
    float beta2_rest;
    float correction; /* sqrt(1 - beta2^step) */
    float eps;
    float step_size; /* learning_rate / (1 - beta1^step) */
};

/* base^exponent by squaring: the same bits from every compiler, unlike pow(). */
MF_ADAMW_INLINE double mf_adamw_power(double base, int64_t exponent)
{
    double result = 1;
    for (; exponent > 0; exponent >>= 1) {
        if ((exponent & 1) != 0) {
            result *= base;
        }
        base *= base;
    }
    return result;
}

MF_ADAMW_INLINE struct mf_adamw_scalars mf_adamw_prepare(const struct mf_control *control)
{
    struct mf_adamw_scalars s;
    s.gradient_scale = (float)control->gradient_scale;
    s.decay = (float)(1 - control->learning_rate * control->weight_decay);
    s.beta1 = (float)control->beta1;
    s.beta1_rest = (float)(1 - control->beta1);
    s.beta2 = (float)control->beta2;
    s.beta2_rest = (float)(1 - control->beta2);
    s.correction = (float)sqrt(1 - mf_adamw_power(control->beta2, control->step));
    s.eps = (float)control->eps;
    s.step_size =
        (float)(control->learning_rate / (1 - mf_adamw_power(control->beta1, control->step)));
    return s;
}

/* PyTorch's AdamW. `gradient` as stored; master, m and v are read and written. */
MF_ADAMW_INLINE void mf_adamw_element(const struct mf_adamw_scalars *s, float decay, float gradient,
                                      float *master, float *m, float *v)
{
    float g = gradient * s->gradient_scale;
    float p = *master * decay;
    float first = s->beta1 * *m + s->beta1_rest * g;
    float second = s->beta2 * *v + s->beta2_rest * g * g;
    float root = sqrtf(second) / s->correction + s->eps;
    *m = first;
    *v = second;
    *master = p - s->step_size * first / root;
}

MF_ADAMW_INLINE uint32_t mf_adamw_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

MF_ADAMW_INLINE float mf_adamw_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* The master and the second moment of what is stored (MF_STATE_BYTES in core/kernel.h). */
MF_ADAMW_INLINE float mf_adamw_join(uint16_t weight, int16_t rest, float v)
{
    uint32_t tie = mf_adamw_bits(v) >> 31;
    return mf_adamw_float((((uint32_t)weight + tie) << 16) + (uint32_t)(int32_t)rest);
}

MF_ADAMW_INLINE float mf_adamw_moment(float v)
{
    return mf_adamw_float(mf_adamw_bits(v) & 0x7fffffffu);
}

/* The other way; the sign of `moment` is dropped. */
MF_ADAMW_INLINE void mf_adamw_split(float master, float moment, uint16_t *weight, int16_t *rest,
                                    float *v)
{
    uint32_t bits = mf_adamw_bits(master);
    bits = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
    uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t away = (bits + 0x8000u) >> 16; /* differs where a tie went to an even weight below */
    *weight = (uint16_t)nearest;
    *rest = (int16_t)(uint16_t)(bits & 0xffffu);
    *v = mf_adamw_float((mf_adamw_bits(moment) & 0x7fffffffu) | (away - nearest) << 31);
}

/* The update of an element as it is stored. */
MF_ADAMW_INLINE void mf_adamw_stored(const struct mf_adamw_scalars *s, float decay, float gradient,
                                     float *m, float *v, int16_t *rest, uint16_t *weight)
{
    float master = mf_adamw_join(*weight, *rest, *v);
    float moment = mf_adamw_moment(*v);
    mf_adamw_element(s, decay, gradient, &master, m, &moment);
    mf_adamw_split(master, moment, weight, rest, v);
}

/* What CLIP does once the squares are summed; kernel.h and docs say what each field means. */
MF_ADAMW_INLINE void mf_adamw_clip(double total, struct mf_control *control)
{
    double tokens = (double)control->token_count;
    double norm = control->token_count > 0 ? sqrt(total) / tokens : 0.0;
    control->norm = norm;
    if (!(control->clip_norm > 0) && control->skip_nonfinite == 0) {
        return; /* updates may be running with the scale that the executor has set */
    }
    double scale = control->token_count > 0 ? 1.0 / tokens : 0.0;
    if (control->clip_norm > 0) {
        double coefficient = control->clip_norm / (norm + 1e-6);
        scale = coefficient >= 1 ? scale : scale * coefficient; /* NaN stays NaN, as in PyTorch */
    }
    control->gradient_scale = scale;
    control->skipped = control->token_count <= 0 || (control->skip_nonfinite && !isfinite(norm));
}

#endif
