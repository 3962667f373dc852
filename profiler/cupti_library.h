/*
 * CUPTI's library, opened at run time, so that the CUDA module loads on machines without it.
 *
 * Who calls it: cupti_trace.c, cupti_counters.cu. Owner: the library stays loaded. Thread: the
 *   device's. Fails: MF_STATUS_UNSUPPORTED, with what is missing.
 */
#ifndef MF_PROFILER_CUPTI_LIBRARY_H
#define MF_PROFILER_CUPTI_LIBRARY_H

#include <stddef.h>

#include "core/status.h"

struct mf_cupti_library_function {
    const char *name;
    void *to; /* a pointer to a pointer to such a function */
};

/* Looks all of them up in the CUPTI of the toolkit's version that this was built with. */
enum mf_status mf_cupti_library_load(const struct mf_cupti_library_function *functions,
                                     size_t count) MF_MUST_USE;
/* Before counters are used: the libraries that CUPTI looks for by their names alone, from where it
 * lies itself. What is not there is CUPTI's to complain about. */
void mf_cupti_library_load_counters(void);

#endif
