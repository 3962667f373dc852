/*
 * Inner loops: compiled for the machine's vectors, and the arithmetic whose bits must depend on
 * nothing but the element.
 *
 * What: MF_HOST_SIMD makes `name` from the always-inline `name_body`, for the baseline, AVX2
 *   and AVX-512, chosen from a table when called. All give the same bits: every operation is a
 *   single IEEE operation on each element (no contraction), and sums go through MF_HOST_LANES
 *   fixed lanes. Who calls it: the kernels of the host device. Memory: none. Thread: any. Fails:
 *   no.
 */
#ifndef MF_RUNTIME_HOST_SIMD_H
#define MF_RUNTIME_HOST_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define MF_HOST_INLINE static inline __attribute__((always_inline))

enum mf_host_simd_level {
    MF_HOST_SIMD_BASELINE,
    MF_HOST_SIMD_AVX2,
    MF_HOST_SIMD_AVX512,
    MF_HOST_SIMD_COUNT
};

/* The path that this CPU takes. */
enum mf_host_simd_level mf_host_simd_level(void);
/* No path above `level` is taken from now on: for tests, which compare the paths. */
void mf_host_simd_limit(enum mf_host_simd_level level);

#if defined(__x86_64__)
#define MF_HOST_WIDE "avx512f,avx512bw,avx512dq,avx512vl"
#define MF_HOST_SIMD(name, parameters, arguments)                                                  \
    static void name##_baseline parameters                                                         \
    {                                                                                              \
        name##_body arguments;                                                                     \
    }                                                                                              \
    __attribute__((target("avx2"))) static void name##_avx2 parameters                             \
    {                                                                                              \
        name##_body arguments;                                                                     \
    }                                                                                              \
    __attribute__((target(MF_HOST_WIDE))) static void name##_avx512 parameters                     \
    {                                                                                              \
        name##_body arguments;                                                                     \
    }                                                                                              \
    static void name parameters                                                                    \
    {                                                                                              \
        static void(*const paths[MF_HOST_SIMD_COUNT])                                              \
            parameters = {name##_baseline, name##_avx2, name##_avx512};                            \
        paths[mf_host_simd_level()] arguments;                                                     \
    }
#else
#define MF_HOST_SIMD(name, parameters, arguments)                                                  \
    static void name parameters                                                                    \
    {                                                                                              \
        name##_body arguments;                                                                     \
    }
#endif

/* Before a loop over elements whose output may lie exactly where an input lies: it may become
 * vector code without a check. clang has no such word and keeps its check. */
#if defined(__clang__)
#define MF_HOST_IVDEP
#else
#define MF_HOST_IVDEP _Pragma("GCC ivdep")
#endif

/* A sum over a row: element i goes to lane i % MF_HOST_LANES, in order; then lanes pairwise. */
#define MF_HOST_LANES 16

MF_HOST_INLINE float mf_host_simd_sum(float lanes[MF_HOST_LANES])
{
    for (int half = MF_HOST_LANES / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; lane++) {
            lanes[lane] += lanes[lane + half];
        }
    }
    return lanes[0];
}

/* exp(x) within 2 units of the last place (Cephes' polynomial); 0 below -87.3, infinity above
 * 88.3, NaN stays. Branch-free, so loops over it become vector code. */
MF_HOST_INLINE float mf_host_simd_exp(float x)
{
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    float clamped = x > 88.3f ? 88.3f : x;
    clamped = clamped < -87.3f ? -87.3f : clamped;
    float shifted = clamped * 1.44269504088896341f + magic;
    float power = shifted - magic;
    float r = clamped - power * 0.693359375f;
    r = r - power * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits << 23) + 0x3f800000u;
    float scale;
    memcpy(&scale, &bits, sizeof(scale));
    float result = p * scale;
    result = x > 88.3f ? INFINITY : result;
    return x < -87.3f ? 0.0f : result;
}

#endif
