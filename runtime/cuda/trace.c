/* CUPTI's records where they can be had; see trace.h. */
#include "runtime/cuda/trace.h"

#include <stdio.h>

#include "profiler/cupti_trace.h"

/* Profiling alternates between traced graphs and plain ones that fill operands; opening CUPTI anew
 * for each would cost more than measuring. */
#define UNTRACED_MAX 64

void mf_cuda_trace_reset(struct mf_cuda_trace *trace)
{
    mf_cupti_trace_close(trace->records);
    trace->records = NULL;
    trace->task_count = 0;
    trace->refused = false;
}

static void open_records(struct mf_cuda_trace *trace, int32_t task_count)
{
    mf_cuda_trace_reset(trace);
    trace->task_count = task_count;
    if (mf_cupti_trace_open(task_count, &trace->records) != MF_STATUS_OK) {
        trace->refused = true;
        (void)snprintf(trace->reason, sizeof(trace->reason), "%s", mf_status_text());
    }
}

void mf_cuda_trace_begin(struct mf_cuda_trace *trace, int32_t task_count, bool on)
{
    if (!on) {
        trace->untraced += trace->untraced <= UNTRACED_MAX;
        if (trace->untraced == UNTRACED_MAX) {
            mf_cuda_trace_reset(trace);
        }
        return;
    }
    trace->untraced = 0;
    if (task_count > trace->task_count || (trace->records == NULL && !trace->refused)) {
        open_records(trace, task_count);
    }
    if (trace->records != NULL) {
        mf_cupti_trace_begin(trace->records);
    }
}

void mf_cuda_trace_push(struct mf_cuda_trace *trace, int32_t task)
{
    if (trace->records != NULL) {
        mf_cupti_trace_push(trace->records, task);
    }
}

void mf_cuda_trace_pop(struct mf_cuda_trace *trace)
{
    if (trace->records != NULL) {
        mf_cupti_trace_pop(trace->records);
    }
}

bool mf_cuda_trace_span(struct mf_cuda_trace *trace, int32_t task, struct mf_device_span *out)
{
    return trace->records != NULL &&
           mf_cupti_trace_span(trace->records, task, &out->start_ns, &out->end_ns);
}

const char *mf_cuda_trace_method(struct mf_cuda_trace *trace)
{
    int64_t dropped = trace->records != NULL ? mf_cupti_trace_dropped(trace->records) : 0;
    if (trace->records == NULL) {
        bool reason = trace->reason[0] != '\0';
        (void)snprintf(trace->method, sizeof(trace->method), "CUDA events%s%.48s%s",
                       reason ? " (" : "", trace->reason, reason ? ")" : "");
    } else if (dropped > 0) {
        (void)snprintf(trace->method, sizeof(trace->method), "CUPTI (%lld records dropped)",
                       (long long)dropped);
    } else {
        (void)snprintf(trace->method, sizeof(trace->method), "CUPTI");
    }
    return trace->method;
}
