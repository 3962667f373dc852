/* Private to server/session*.c and server/run*.c: a session's state. See session.h. */
#ifndef MF_SERVER_SESSION_INTERNAL_H
#define MF_SERVER_SESSION_INTERNAL_H

#include <pthread.h>

#include "memferry/v1/training.pb-c.h"
#include "runtime/executor.h"
#include "server/session.h"

#define MF_SESSION_ANSWERS_MAX MF_SESSION_CALLS_MAX
#define MF_SESSION_WATCHERS_MAX 8

#define MF_SESSION_STATE_MAP(X)                                                                    \
    X(OPENING, "opening")                                                                          \
    X(READY, "ready")                                                                              \
    X(RUNNING, "running")                                                                          \
    X(CLOSING, "closing")                                                                          \
    X(CLOSED, "closed")                                                                            \
    X(FINISHED, "finished")                                                                        \
    X(STOPPED, "stopped")                                                                          \
    X(FAILED, "failed")

#define X(name, text) MF_SESSION_##name,
enum mf_session_state { MF_SESSION_STATE_MAP(X) };
#undef X

struct mf_session_call {
    enum mf_session_verb verb;
    int64_t seq_id;
    void *message;            /* unpacked request, owned */
    struct mf_rpc_call *call; /* held */
    bool running;
};

struct mf_session_answer {
    int64_t seq_id; /* 0 = empty */
    uint8_t *bytes; /* malloc'ed; NULL when it failed */
    size_t count;
    struct mf_error error;
};

struct mf_session {
    struct mf_session_table *table;
    char id[MF_SESSION_ID_MAX];
    struct mf_peer owner;
    struct mf_session_spec spec; /* read-only once the thread runs */

    /* Used by the session's thread and, while it waits, by the device worker. */
    struct mf_executor *executor;
    struct mf_plan plan;
    const char *plan_how;
    int64_t step_ns; /* of work since the last update */

    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t wake;  /* a call came, or stop was set, or it has ended */
    int32_t references;
    int32_t readers; /* others that use the executor now; it is closed when there are none */
    enum mf_session_state state;
    bool stop;
    bool save_on_stop;
    bool ended; /* memory is free, the thread is done */
    struct mf_session_call calls[MF_SESSION_CALLS_MAX];
    int32_t call_count;
    int64_t next_seq;
    struct mf_session_answer answers[MF_SESSION_ANSWERS_MAX];
    struct mf_rpc_call *watchers[MF_SESSION_WATCHERS_MAX];
    int32_t watcher_count;
    int64_t lease_end_ns;
    int64_t trace_end_ns; /* until then every graph is traced, whatever that costs */
    int64_t progress_ns;  /* when progress was last told */
    char plan_id[MF_HASH_TEXT_MAX];
    int64_t device_bytes, host_bytes;
    int64_t step, steps_total;
    double loss, step_ms, tokens_per_second;
    int64_t started_unix_s, ended_unix_s;
    struct mf_error error;
    char note[512]; /* what its maker should know about the plan, "" = nothing */
};

struct mf_session_table {
    struct mf_service *service;
    pthread_mutex_t lock;
    pthread_cond_t ended; /* a session was taken out */
    struct mf_session *sessions[MF_SESSIONS_MAX];
    int32_t count;
    bool closing;
    pthread_t lease_thread;
    pthread_cond_t tick; /* closing was set */
};

const char *mf_session_state_name(enum mf_session_state state);

/* session_event.c: messages to everybody who watches. */
void mf_session_event_progress(struct mf_session *session, const char *what, double done);
void mf_session_event_session(struct mf_session *session, bool finished);
/* The session is open: its description, and the end of CreateSession's stream. */
void mf_session_event_ready(struct mf_session *session);
void mf_session_event_plan(struct mf_session *session);
void mf_session_event_run(struct mf_session *session, Memferry__V1__RunResponse *message);
/* Ends all streams: with the session's error when it failed. */
void mf_session_event_end(struct mf_session *session);

/* session_call.c */
/* Waits for the next call in order; false when the session is to end. The call stays queued, marked
 * as running, and owns its message until it is answered; `out` is a copy. `optim` is its follower
 * when that is an OptimStep, else its seq_id is 0. */
bool mf_session_call_next(struct mf_session *session, struct mf_session_call *out,
                          struct mf_session_call *optim);
/* Answers a call, keeps the answer for retries, and takes it out of the queue. */
void mf_session_call_answer(struct mf_session *session, const struct mf_session_call *call,
                            const ProtobufCMessage *reply);
void mf_session_call_fail(struct mf_session *session, const struct mf_session_call *call);
/* Fails all that wait. */
void mf_session_call_cancel_all(struct mf_session *session);

/* session_open.c */
enum mf_status mf_session_open(struct mf_session *session) MF_MUST_USE;

/* session_work.c: the thread's part. Statuses are of the whole session: OK also when a call failed.
 */
void mf_session_work_calls(struct mf_session *session);
void mf_session_work_close(struct mf_session *session);
/* Runs `job` on the device worker and waits; the status is what the job left in its context. */
struct mf_session_job {
    struct mf_session *session;
    const struct mf_device_interface *interface;
    struct mf_device *device;
    enum mf_status (*run)(struct mf_session_job *job);
    enum mf_status status;
    struct mf_error error;
    void *context;
};
enum mf_status mf_session_work_device(struct mf_session *session, const char *what,
                                      enum mf_status (*run)(struct mf_session_job *job),
                                      void *context) MF_MUST_USE;
/* Before a graph, on the device worker: traces it where that costs nothing, or is asked for. */
void mf_session_work_trace(struct mf_session_job *job);
/* session_state.c: saving and loading through the device worker, unit by unit. */
enum mf_status mf_session_state_save(struct mf_session *session, const char *folder,
                                     bool weights_only, const json_t *extra) MF_MUST_USE;
enum mf_status mf_session_state_load(struct mf_session *session, const char *folder,
                                     bool *optimizer, json_t **extra) MF_MUST_USE;
enum mf_status mf_session_state_init(struct mf_session *session) MF_MUST_USE;

/* session_sample.c: continues a prompt, one device job a token. */
struct mf_session_sample {
    const int32_t *prompt; /* checked against the vocabulary here */
    int32_t prompt_count;
    int32_t max_tokens;
    double temperature;
    int32_t top_k;
    uint64_t seed;
};
/* `out` gets max_tokens ids, malloc'ed; the caller frees. */
enum mf_status mf_session_sample(struct mf_session *session, const struct mf_session_sample *sample,
                                 int32_t **out) MF_MUST_USE;

/* run.c: a whole job. */
enum mf_status mf_run_main(struct mf_session *session) MF_MUST_USE;

#endif
