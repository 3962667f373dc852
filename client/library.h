/*
 * What the files of libmemferry share: connections, errors, messages from public structs.
 *
 * Who calls it: library*.c. Owner: messages live in the arena given. Thread: any. Fails: no.
 */
#ifndef MF_CLIENT_LIBRARY_H
#define MF_CLIENT_LIBRARY_H

#include <memferry.h>

#include "client/library_call.h"
#include "core/arena.h"
#include "memferry/v1/training.pb-c.h"

struct memferry_connection {
    struct mf_channel *channel;
};

/* Fills `error` (may be NULL) from this thread's error when `status` is one; returns the status. */
enum memferry_status mf_library_end(enum mf_status status, struct memferry_error *error);

Memferry__V1__Model *mf_library_model(struct mf_arena *arena, const struct memferry_model *model);
/* NULL gives the defaults. */
Memferry__V1__Workload *mf_library_workload(struct mf_arena *arena,
                                            const struct memferry_workload *workload);
Memferry__V1__Constraints *mf_library_constraints(struct mf_arena *arena,
                                                  const struct memferry_constraints *constraints);
void mf_library_read_workload(const Memferry__V1__Workload *from, struct memferry_workload *out);
void mf_library_session_info(const Memferry__V1__Session *from, struct memferry_session_info *out);

/* A call of a session with a number: `seq_id`, or with 0 the session's next; see memferry.h.
 * `number` points to the request's seq_id. */
enum mf_status mf_library_session_call(struct memferry_session *session, const char *method,
                                       int64_t seq_id, ProtobufCMessage *request, int64_t *number,
                                       ProtobufCMessage **answer) MF_MUST_USE;

#endif
