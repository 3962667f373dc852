/* bf16 and fp32: the upper half of a float, rounded to nearest even, NaN kept and made quiet.
 * Inline, no state, any thread. */
#ifndef MF_RUNTIME_HOST_BF16_H
#define MF_RUNTIME_HOST_BF16_H

#include <stdint.h>
#include <string.h>

static inline float mf_bf16_to_float(uint16_t value)
{
    uint32_t bits = (uint32_t)value << 16;
    float result;
    memcpy(&result, &bits, sizeof(result));
    return result;
}

static inline uint16_t mf_bf16_from_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#endif
