/*
 * A plan's step as it would run: spans of each lane, why compute waits, what memory holds.
 *
 * What: the step graph of a whole optimizer step, walked by the simulator with costs as they are
 *   known now. Tasks shorter than a part of the step are merged with their neighbours, so that the
 *   answer has a size that does not depend on the graph's.
 * Who calls it: PlanService, TrainingService, traces, tests. Owner: what comes out lies in the
 * arena; unit indices are those of the plan. Thread: RPC workers; pure but for looking up plan and
 * costs. Fails: as mf_tune_find_whole; MF_STATUS_INVALID for a number of columns out of range.
 */
#ifndef MF_SERVER_TIMELINE_H
#define MF_SERVER_TIMELINE_H

#include "core/arena.h"
#include "memferry/v1/plan.pb-c.h"
#include "planner/simulate.h"
#include "server/rpc.h"
#include "server/service.h"

/* Fills lanes, memory and counts of `out` from a graph and the span of each of its tasks, in
 * `columns` parts (1..MF_TIMELINE_COLUMNS_MAX) of `step_ns`. Spans that end before they start are
 * left out. */
void mf_timeline_fill(const struct mf_step *step, const struct mf_span *spans, double step_ns,
                      int32_t columns, struct mf_arena *arena,
                      Memferry__V1__GetTimelineResponse *out);
/* PlanService.GetTimeline. */
enum mf_status mf_timeline_answer(struct mf_service *service, struct mf_rpc_call *call,
                                  const void *request, struct mf_arena *arena,
                                  ProtobufCMessage **reply) MF_MUST_USE;
/* TrainingService.GetSessionTimeline. */
enum mf_status mf_timeline_answer_session(struct mf_service *service, struct mf_rpc_call *call,
                                          const void *request, struct mf_arena *arena,
                                          ProtobufCMessage **reply) MF_MUST_USE;

#endif
