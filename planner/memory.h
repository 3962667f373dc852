/*
 * Placing buffers: an offset in its arena for every buffer of a step graph.
 *
 * What: persistent buffers first, in order; the others share memory where their lifetimes (first
 *   to last task in issue order) do not meet. Lanes run side by side, so sharing memory is only
 *   right together with the edges that mf_memory_order() adds: the first task on each lane that
 *   touches a buffer waits for the last tasks that touched what lay there before.
 * Who calls it: planner/step.c. Owner: the caller's arrays are written in place. Pure. No failures.
 */
#ifndef MF_PLANNER_MEMORY_H
#define MF_PLANNER_MEMORY_H

#include "planner/step.h"

/* Fills `offset` of every buffer and space_bytes (the exact extent of each arena, a multiple of
 * MF_BUFFER_ALIGN). Buffers that no task touches and that are not persistent take no room.
 * Deterministic. */
void mf_memory_place(struct mf_buffer *buffers, int32_t count,
                     int64_t space_bytes[static MF_SPACE_COUNT]);
/* Adds the dependencies that shared memory needs. `touch[t]` lists are not needed: a buffer's first
 * tasks of each lane are given by first_access. depends[] keeps the latest task of each lane. */
void mf_memory_order(struct mf_step *step, const int32_t (*first_access)[MF_LANE_COUNT]);
/* Largest sum of live bytes over time in `space`: no placement can need less. */
int64_t mf_memory_live_peak(const struct mf_buffer *buffers, int32_t count, enum mf_space space);

#endif
