/* The one clock for durations and deadlines: nanoseconds of CLOCK_MONOTONIC. Any thread; no
 * failures. */
#ifndef MF_CORE_CLOCK_H
#define MF_CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t mf_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

#endif
