/*
 * A session's last graph as a Chrome trace: predicted beside measured, one track a lane.
 *
 * Who calls it: service_training.c. Owner: the caller frees the text. Thread: RPC workers; the
 * measured spans are copied by one device job. Fails: MF_STATUS_NOT_FOUND before the first step,
 * MF_STATUS_CANCELLED when the session ends.
 */
#ifndef MF_SERVER_TRACE_H
#define MF_SERVER_TRACE_H

#include <stddef.h>

#include "core/arena.h"
#include "memferry/v1/training.pb-c.h"
#include "server/session.h"

/* `text` is malloc'ed JSON of `count` bytes. */
enum mf_status mf_trace_session(struct mf_session *session, char **text, size_t *count) MF_MUST_USE;
/* The same as merged spans in `columns` parts of the longer of both; messages of the arena. */
enum mf_status mf_trace_timeline(struct mf_session *session, int32_t columns,
                                 struct mf_arena *arena,
                                 Memferry__V1__GetSessionTimelineResponse *out) MF_MUST_USE;

#endif
