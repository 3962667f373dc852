/* A session's calls: in order of seq_id, retry-safe, bounded. */
#include <stdlib.h>
#include <string.h>

#include "core/limits.h"
#include "proto/wire.h"
#include "server/session_internal.h"

static struct mf_session_call *find_call(struct mf_session *session, int64_t seq_id)
{
    for (int32_t i = 0; i < session->call_count; i++) {
        if (session->calls[i].seq_id == seq_id) {
            return &session->calls[i];
        }
    }
    return NULL;
}

static void reply_with(struct mf_rpc_call *call, const struct mf_session_answer *answer)
{
    if (answer->bytes != NULL) {
        mf_rpc_call_reply(call, answer->bytes, answer->count);
    } else {
        mf_rpc_call_fail(call, &answer->error);
    }
}

/* A seq_id that was carried out already: the kept answer, or why there is none. */
static enum mf_status answer_again(struct mf_session *session, int64_t seq_id,
                                   struct mf_rpc_call *call)
{
    const struct mf_session_answer *answer = &session->answers[seq_id % MF_SESSION_ANSWERS_MAX];
    if (answer->seq_id != seq_id) {
        (void)mf_status_set_reason(MF_STATUS_INVALID, "SEQ_ID_TOO_OLD",
                                   "seq_id %lld was carried out long ago; the next is %lld",
                                   (long long)seq_id, (long long)session->next_seq);
        mf_status_number("next_seq_id", session->next_seq);
        return MF_STATUS_INVALID;
    }
    reply_with(call, answer);
    return MF_STATUS_OK;
}

/* Whether a new call may be queued. Drops waiting calls whose clients are gone first. */
static enum mf_status admit(struct mf_session *session, int64_t seq_id)
{
    if (session->stop || session->state != MF_SESSION_READY) {
        return mf_status_set_reason(MF_STATUS_CANCELLED, "SESSION_ENDING", "the session is %s",
                                    session->stop ? "closing"
                                                  : mf_session_state_name(session->state));
    }
    if (seq_id < 1) {
        return mf_status_set(MF_STATUS_INVALID, "seq_id must be at least 1; the next is %lld",
                             (long long)session->next_seq);
    }
    if (session->call_count == MF_SESSION_CALLS_MAX ||
        seq_id >= session->next_seq + MF_SESSION_CALLS_MAX) {
        (void)mf_status_set_reason(MF_STATUS_BUSY, "CALLS_FULL",
                                   "at most %d calls of a session may be in flight; the next "
                                   "seq_id is %lld",
                                   MF_SESSION_CALLS_MAX, (long long)session->next_seq);
        mf_status_number("calls_max", MF_SESSION_CALLS_MAX);
        mf_status_number("next_seq_id", session->next_seq);
        return MF_STATUS_BUSY;
    }
    return MF_STATUS_OK;
}

static void drop(struct mf_session *session, struct mf_session_call *call)
{
    mf_wire_free(call->message);
    mf_rpc_call_release(call->call);
    *call = session->calls[--session->call_count];
}

/* A waiting call whose client is gone is not carried out: its seq_id is still to come. */
static void drop_cancelled(struct mf_session *session)
{
    for (int32_t i = session->call_count - 1; i >= 0; i--) {
        if (!session->calls[i].running && mf_rpc_call_cancelled(session->calls[i].call)) {
            drop(session, &session->calls[i]);
        }
    }
}

static enum mf_status post(struct mf_session *session, enum mf_session_verb verb, int64_t seq_id,
                           void **message, struct mf_rpc_call *call)
{
    if (seq_id >= 1 && seq_id < session->next_seq) {
        return answer_again(session, seq_id, call);
    }
    drop_cancelled(session);
    struct mf_session_call *same = find_call(session, seq_id);
    if (same != NULL) { /* sent again while it waits or runs: the newer stream gets the answer */
        mf_rpc_call_hold(call);
        mf_rpc_call_release(same->call);
        same->call = call;
        return MF_STATUS_OK;
    }
    MF_TRY(admit(session, seq_id));
    mf_rpc_call_hold(call);
    session->calls[session->call_count++] =
        (struct mf_session_call){.verb = verb, .seq_id = seq_id, .message = *message, .call = call};
    *message = NULL;
    pthread_cond_broadcast(&session->wake);
    return MF_STATUS_OK;
}

enum mf_status mf_session_post(struct mf_session *session, enum mf_session_verb verb,
                               int64_t seq_id, void *message, struct mf_rpc_call *call)
{
    if (session->spec.run != NULL) {
        mf_wire_free(message);
        return mf_status_set_reason(MF_STATUS_INVALID, "SESSION_IS_RUN",
                                    "session %.8s is a whole job: it takes no calls", session->id);
    }
    pthread_mutex_lock(&session->lock);
    enum mf_status status = post(session, verb, seq_id, &message, call);
    pthread_mutex_unlock(&session->lock);
    mf_wire_free(message);
    return status;
}

bool mf_session_call_next(struct mf_session *session, struct mf_session_call *out,
                          struct mf_session_call *optim)
{
    bool found = false;
    pthread_mutex_lock(&session->lock);
    while (!found && !session->stop) {
        drop_cancelled(session);
        struct mf_session_call *next = find_call(session, session->next_seq);
        if (next == NULL) {
            pthread_cond_wait(&session->wake, &session->lock);
            continue;
        }
        struct mf_session_call *follower = find_call(session, session->next_seq + 1);
        next->running = true;
        *out = *next;
        *optim = (struct mf_session_call){0};
        if (follower != NULL && next->verb == MF_SESSION_FORWARD_BACKWARD &&
            follower->verb == MF_SESSION_OPTIM_STEP) {
            follower->running = true;
            *optim = *follower;
        }
        found = true;
    }
    pthread_mutex_unlock(&session->lock);
    return found;
}

static void finish(struct mf_session *session, int64_t seq_id, uint8_t *bytes, size_t count)
{
    struct mf_error error = *mf_status_error();
    pthread_mutex_lock(&session->lock);
    struct mf_session_answer *answer = &session->answers[seq_id % MF_SESSION_ANSWERS_MAX];
    free(answer->bytes);
    *answer = (struct mf_session_answer){
        .seq_id = seq_id, .bytes = bytes, .count = count, .error = error};
    session->next_seq = seq_id + 1;
    struct mf_session_call *call = find_call(session, seq_id);
    MF_ASSERT(call != NULL);
    reply_with(call->call, answer);
    drop(session, call);
    pthread_mutex_unlock(&session->lock);
}

void mf_session_call_answer(struct mf_session *session, const struct mf_session_call *call,
                            const ProtobufCMessage *reply)
{
    size_t count = 0;
    uint8_t *bytes = mf_wire_pack(reply, &count);
    finish(session, call->seq_id, bytes, count);
}

void mf_session_call_fail(struct mf_session *session, const struct mf_session_call *call)
{
    finish(session, call->seq_id, NULL, 0);
}

void mf_session_call_cancel_all(struct mf_session *session)
{
    struct mf_error error = {
        .status = MF_STATUS_CANCELLED,
        .reason = "SESSION_ENDED",
        .text = "the session was closed before this call was carried out",
    };
    pthread_mutex_lock(&session->lock);
    session->stop = true;
    while (session->call_count > 0) {
        mf_rpc_call_fail(session->calls[0].call, &error);
        drop(session, &session->calls[0]);
    }
    pthread_mutex_unlock(&session->lock);
}
