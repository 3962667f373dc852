/*
 * When the GPU work of each task ran, from CUPTI's activity records.
 *
 * What: kernels, copies and fills queued between push and pop are joined to a task by external
 *   correlation ids; a task's span is the extent of its work, on CLOCK_MONOTONIC.
 * Who calls it: the CUDA module's lanes, for graphs that are traced; compiled into that module, as
 *   CUPTI sees one process-wide client. Owner: open/close by the lanes; all memory is had in open.
 *   Thread: the device's; CUPTI's own thread hands records over behind a lock that is never held
 *   across a flush. Fails: open, with a reason for a person ("CUPTI held by ...", "CUPTI
 *   not found"); afterwards a task without records simply has no span.
 *
 * Order of use: open, then for every graph: begin, push / pop around each submit, and after the
 * device is idle: span. Closing costs the running program nothing more.
 */
#ifndef MF_PROFILER_CUPTI_TRACE_H
#define MF_PROFILER_CUPTI_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"

struct mf_cupti_trace;

/* Room for graphs of `task_count` tasks. MF_STATUS_UNSUPPORTED: taken, forbidden or not there;
 * the text is a few words and fits behind "CUDA events". */
enum mf_status mf_cupti_trace_open(int32_t task_count, struct mf_cupti_trace **out) MF_MUST_USE;
/* Ends all recording. NULL is allowed. */
void mf_cupti_trace_close(struct mf_cupti_trace *trace);
/* Forgets all spans. The device is idle. */
void mf_cupti_trace_begin(struct mf_cupti_trace *trace);
/* What this thread queues from here to pop belongs to `task`, 0 to task_count - 1. */
void mf_cupti_trace_push(struct mf_cupti_trace *trace, int32_t task);
void mf_cupti_trace_pop(struct mf_cupti_trace *trace);
/* The device is idle. false: no record names the task. */
bool mf_cupti_trace_span(struct mf_cupti_trace *trace, int32_t task, int64_t *start_ns,
                         int64_t *end_ns);
/* Records lost since open, as there was no room for them. */
int64_t mf_cupti_trace_dropped(const struct mf_cupti_trace *trace);

#endif
