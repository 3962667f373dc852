/*
 * Which clock tells when tasks of a traced graph ran: CUPTI's records where they can be had.
 *
 * Who calls it: lanes.c, which keeps spans by CUDA events beside them. Owner: the lanes hold the
 *   structure, all zero before the first begin; reset frees. Thread: the device's. Fails: no; where
 *   CUPTI is taken or forbidden the method says so and there are no records.
 */
#ifndef MF_RUNTIME_CUDA_TRACE_H
#define MF_RUNTIME_CUDA_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/device.h"

struct mf_cupti_trace;

struct mf_cuda_trace {
    struct mf_cupti_trace *records; /* NULL: events only */
    int32_t task_count;             /* what there is room for */
    int32_t untraced;               /* graphs since the last traced one */
    bool refused;                   /* not asked again while tracing goes on */
    char reason[64];
    char method[64];
};

void mf_cuda_trace_reset(struct mf_cuda_trace *trace);
/* A new graph, traced or not. Recording ends some untraced graphs after the last traced one. */
void mf_cuda_trace_begin(struct mf_cuda_trace *trace, int32_t task_count, bool on);
/* Around what is queued for a task of a traced graph. */
void mf_cuda_trace_push(struct mf_cuda_trace *trace, int32_t task);
void mf_cuda_trace_pop(struct mf_cuda_trace *trace);
/* false: ask the events. */
bool mf_cuda_trace_span(struct mf_cuda_trace *trace, int32_t task, struct mf_device_span *out);
/* See trace_method in runtime/device.h. */
const char *mf_cuda_trace_method(struct mf_cuda_trace *trace);

#endif
