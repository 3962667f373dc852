/* Which of the compiled vector paths runs; see simd.h. */
#include "runtime/host/simd.h"

#include <stdatomic.h>

static _Atomic(int) limit = MF_HOST_SIMD_COUNT - 1;

/* A few loads from what the compiler's library found out at start, the system's support included.
 */
#if defined(__x86_64__)
static enum mf_host_simd_level supported(void)
{
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
        return MF_HOST_SIMD_AVX512;
    }
    return __builtin_cpu_supports("avx2") ? MF_HOST_SIMD_AVX2 : MF_HOST_SIMD_BASELINE;
}
#else
static enum mf_host_simd_level supported(void)
{
    return MF_HOST_SIMD_BASELINE;
}
#endif

enum mf_host_simd_level mf_host_simd_level(void)
{
    enum mf_host_simd_level level = supported();
    enum mf_host_simd_level most =
        (enum mf_host_simd_level)atomic_load_explicit(&limit, memory_order_relaxed);
    return level < most ? level : most;
}

void mf_host_simd_limit(enum mf_host_simd_level level)
{
    atomic_store_explicit(&limit, (int)level, memory_order_relaxed);
}
