/* What a session tells those who watch it. A slow reader loses events, never the end. */
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "proto/wire.h"
#include "server/convert.h"
#include "server/session_internal.h"

#define PROGRESS_INTERVAL_NS 100000000ll

/* With the lock held: sends to all, forgetting those who have gone. */
static void send_all(struct mf_session *session, const ProtobufCMessage *message)
{
    size_t count = 0;
    uint8_t *bytes = mf_wire_pack(message, &count);
    for (int32_t i = session->watcher_count - 1; i >= 0; i--) {
        enum mf_status status = mf_rpc_call_send(session->watchers[i], bytes, count);
        if (status != MF_STATUS_OK && status != MF_STATUS_BUSY) {
            mf_rpc_call_release(session->watchers[i]);
            session->watchers[i] = session->watchers[--session->watcher_count];
        }
    }
    free(bytes);
}

/* A run's stream carries RunResponse, a session's CreateSessionResponse; they share the events. */
static void send_event(struct mf_session *session, Memferry__V1__SessionProgress *progress,
                       Memferry__V1__Session *description)
{
    Memferry__V1__CreateSessionResponse created = MEMFERRY__V1__CREATE_SESSION_RESPONSE__INIT;
    Memferry__V1__RunResponse run = MEMFERRY__V1__RUN_RESPONSE__INIT;
    if (progress != NULL) {
        created.event_case = MEMFERRY__V1__CREATE_SESSION_RESPONSE__EVENT_PROGRESS;
        created.progress = progress;
        run.event_case = MEMFERRY__V1__RUN_RESPONSE__EVENT_PROGRESS;
        run.progress = progress;
    } else {
        created.event_case = MEMFERRY__V1__CREATE_SESSION_RESPONSE__EVENT_SESSION;
        created.session = description;
        run.event_case = MEMFERRY__V1__RUN_RESPONSE__EVENT_SESSION;
        run.session = description;
    }
    pthread_mutex_lock(&session->lock);
    send_all(session, session->spec.run != NULL ? &run.base : &created.base);
    pthread_mutex_unlock(&session->lock);
}

void mf_session_event_progress(struct mf_session *session, const char *what, double done)
{
    int64_t now = mf_clock_ns();
    if (done > 0 && done < 1 && now - session->progress_ns < PROGRESS_INTERVAL_NS) {
        return;
    }
    session->progress_ns = now;
    Memferry__V1__SessionProgress progress = MEMFERRY__V1__SESSION_PROGRESS__INIT;
    progress.what = (char *)what;
    progress.done = done;
    send_event(session, &progress, NULL);
}

void mf_session_event_session(struct mf_session *session, bool finished)
{
    struct mf_arena arena;
    mf_arena_init(&arena);
    Memferry__V1__Session description;
    mf_session_describe(session, &arena, &description);
    if (finished) {
        Memferry__V1__RunResponse run = MEMFERRY__V1__RUN_RESPONSE__INIT;
        run.event_case = MEMFERRY__V1__RUN_RESPONSE__EVENT_FINISHED;
        run.finished = &description;
        mf_session_event_run(session, &run);
    } else {
        send_event(session, NULL, &description);
    }
    mf_arena_reset(&arena);
}

void mf_session_event_plan(struct mf_session *session)
{
    struct mf_arena arena;
    mf_arena_init(&arena);
    Memferry__V1__RunResponse run = MEMFERRY__V1__RUN_RESPONSE__INIT;
    run.event_case = MEMFERRY__V1__RUN_RESPONSE__EVENT_PLAN;
    if (mf_convert_plan(session->table->service, &session->plan, &session->spec.model, &arena,
                        &run.plan) == MF_STATUS_OK) {
        mf_session_event_run(session, &run);
    } else {
        mf_log_warn("session %.8s: its plan cannot be shown: %s", session->id, mf_status_text());
    }
    mf_arena_reset(&arena);
}

void mf_session_event_run(struct mf_session *session, Memferry__V1__RunResponse *message)
{
    pthread_mutex_lock(&session->lock);
    send_all(session, &message->base);
    pthread_mutex_unlock(&session->lock);
}

/* `error` NULL = they end well. */
static void end_streams(struct mf_session *session, const struct mf_error *error)
{
    pthread_mutex_lock(&session->lock);
    for (int32_t i = 0; i < session->watcher_count; i++) {
        if (error != NULL) {
            mf_rpc_call_fail(session->watchers[i], error);
        } else {
            mf_rpc_call_finish(session->watchers[i]);
        }
        mf_rpc_call_release(session->watchers[i]);
    }
    session->watcher_count = 0;
    pthread_mutex_unlock(&session->lock);
}

void mf_session_event_ready(struct mf_session *session)
{
    mf_session_event_session(session, false);
    if (session->spec.run == NULL) { /* CreateSession has said all; a run's stream goes on */
        end_streams(session, NULL);
    }
}

void mf_session_event_end(struct mf_session *session)
{
    bool failed = session->state == MF_SESSION_FAILED;
    if (session->spec.run != NULL && !failed) {
        mf_session_event_session(session, true);
    }
    end_streams(session, failed ? &session->error : NULL);
}

enum mf_status mf_session_watch(struct mf_session *session, struct mf_rpc_call *call)
{
    enum mf_status status = MF_STATUS_OK;
    pthread_mutex_lock(&session->lock);
    if (session->ended) {
        status = mf_status_set_reason(MF_STATUS_NOT_FOUND, "SESSION_ENDED",
                                      "session %.8s has ended", session->id);
    } else if (session->spec.run == NULL && session->state != MF_SESSION_OPENING) {
        status = mf_status_set_reason(MF_STATUS_INVALID, "SESSION_IS_NO_RUN",
                                      "session %.8s is driven by calls: there is nothing to watch",
                                      session->id);
    } else if (session->watcher_count == MF_SESSION_WATCHERS_MAX) {
        status = mf_status_set_reason(MF_STATUS_BUSY, "WATCHERS_FULL",
                                      "%d clients watch session %.8s already",
                                      MF_SESSION_WATCHERS_MAX, session->id);
    } else {
        mf_rpc_call_hold(call);
        session->watchers[session->watcher_count++] = call;
    }
    pthread_mutex_unlock(&session->lock);
    return status;
}
