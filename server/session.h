/*
 * Sessions: a client's model in training, with its memory, its calls in order, and its lease.
 *
 * What: each session has a thread of its own that carries out its calls in the order of their
 *   seq_id and posts the work to the device worker, so that sessions take turns on the device and
 *   no RPC thread ever waits. A run is a session whose thread does a whole job.
 * Who calls it: service_training.c, service_hardware.c (counts), memferryd.c (open, close).
 * Owner: the table owns sessions; a found session is borrowed until mf_session_put. Thread: any,
 *   but a session's executor is used by its own thread and the device worker only.
 * Fails: MF_STATUS_NOT_FOUND for ids that are not there or belong to another user;
 *   MF_STATUS_BUSY with reason SESSIONS_FULL or CALLS_FULL; MF_STATUS_INVALID for seq_ids.
 */
#ifndef MF_SERVER_SESSION_H
#define MF_SERVER_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/model.h"
#include "core/plan.h"
#include "server/rpc.h"
#include "server/run_config.h"
#include "server/service.h"
#include "server/tune.h"

struct mf_session;
struct mf_session_table;

#define MF_SESSION_ID_MAX 33

/* Marks sessions that a previous daemon left open as lost. */
enum mf_status mf_session_table_open(struct mf_service *service,
                                     struct mf_session_table **out) MF_MUST_USE;
/* Refuses new sessions and asks all to end: runs save a checkpoint at the next step unless `force`.
 * Does not wait; close does. */
void mf_session_table_stop(struct mf_session_table *table, bool force);
/* Stops, waits until all have ended, frees. No call may come any more. */
void mf_session_table_close(struct mf_session_table *table, bool force);
int32_t mf_session_table_count(struct mf_session_table *table);
/* Bytes all sessions have reserved. */
void mf_session_table_reserved(struct mf_session_table *table, int64_t *device, int64_t *host);

/* What a new session is to be. Model and pins are taken over by the session. */
struct mf_session_spec {
    struct mf_model model;
    const char *folder; /* with weights; NULL = random initialisation */
    struct mf_workload workload;
    struct mf_constraints constraints;
    enum mf_strategy strategy;
    enum mf_effort effort;
    const char *plan_id; /* "" = ask for a plan */
    struct mf_pin *pins;
    int32_t pin_count;
    uint64_t seed;
    double lease_s;
    struct mf_run_config *run; /* NULL = driven by calls; taken over */
    const char *resume;        /* of a run: "", "latest" or a folder */
    struct mf_arena arena;     /* holds the strings and pins above; taken over */
};

/* Starts a session for the peer of `call`, whose stream gets progress and then the session (or, for
 * a run, everything). The spec is taken over in every case. */
enum mf_status mf_session_start(struct mf_session_table *table, struct mf_rpc_call *call,
                                struct mf_session_spec *spec) MF_MUST_USE;
/* By id or unique prefix, if the peer may see it; renews the lease. */
enum mf_status mf_session_get(struct mf_session_table *table, const struct mf_peer *peer,
                              const char *id, struct mf_session **out) MF_MUST_USE;
void mf_session_put(struct mf_session *session);
/* All that the peer may see; each is put back by the caller. */
int32_t mf_session_list(struct mf_session_table *table, const struct mf_peer *peer,
                        struct mf_session *out[static MF_SESSIONS_MAX]);

/* The kinds of calls a session carries out. */
enum mf_session_verb {
    MF_SESSION_FORWARD_BACKWARD,
    MF_SESSION_OPTIM_STEP,
    MF_SESSION_FORWARD,
    MF_SESSION_SAMPLE,
    MF_SESSION_SAVE,
    MF_SESSION_LOAD,
    MF_SESSION_VERB_COUNT
};

/* Queues a call; `message` (the unpacked request of that verb) is taken over in every case. */
enum mf_status mf_session_post(struct mf_session *session, enum mf_session_verb verb,
                               int64_t seq_id, void *message, struct mf_rpc_call *call) MF_MUST_USE;
/* Attaches a stream that gets the events of a run from now on. */
enum mf_status mf_session_watch(struct mf_session *session, struct mf_rpc_call *call) MF_MUST_USE;
/* Asks the session's thread to end: at the next micro-batch or step. `save`: a run writes a
 * checkpoint first. */
void mf_session_stop(struct mf_session *session, bool save);
/* Waits until its memory is free. */
void mf_session_wait_closed(struct mf_session *session);

/* What is known of a session at this moment, as the contract's message; strings are borrowed from
 * `arena`. */
struct Memferry__V1__Session;
void mf_session_describe(struct mf_session *session, struct mf_arena *arena,
                         struct Memferry__V1__Session *out);

#endif
