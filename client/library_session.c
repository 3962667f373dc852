/* libmemferry: sessions. See memferry.h.
 *
 * Numbers: the daemon carries out the calls of a session in the order of their seq_id. A call that
 * failed may or may not have used its number up, so after a failure the next call waits until no
 * other is in flight and asks the daemon for the number to go on with. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/library.h"
#include "core/limits.h"
#include "proto/wire.h"

#define TRAINING (&memferry__v1__training_service__descriptor)
#define ATTEMPTS 5
#define FIRST_PAUSE_MS 100 /* doubled with every attempt */

struct memferry_session {
    struct memferry_connection *connection;
    char id[64];
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    int64_t next_seq_id;
    int in_flight; /* calls with automatic numbers */
    bool stale;    /* next_seq_id must be asked for */
};

static struct memferry_session *new_session(struct memferry_connection *connection,
                                            const Memferry__V1__Session *from)
{
    struct memferry_session *session = calloc(1, sizeof(*session));
    MF_ASSERT(session != NULL);
    session->connection = connection;
    snprintf(session->id, sizeof(session->id), "%s", from->id);
    session->next_seq_id = from->next_seq_id > 0 ? from->next_seq_id : 1;
    pthread_mutex_init(&session->lock, NULL);
    pthread_cond_init(&session->changed, NULL);
    return session;
}

void memferry_session_free(struct memferry_session *session)
{
    if (session != NULL) {
        pthread_cond_destroy(&session->changed);
        pthread_mutex_destroy(&session->lock);
        free(session);
    }
}

const char *memferry_session_id(const struct memferry_session *session)
{
    return session->id;
}

static enum mf_status get_session(struct memferry_connection *connection, const char *id,
                                  Memferry__V1__GetSessionResponse **out)
{
    Memferry__V1__GetSessionRequest request = MEMFERRY__V1__GET_SESSION_REQUEST__INIT;
    request.session_id = (char *)id;
    MF_TRY(mf_library_call_unary(connection->channel, TRAINING, "GetSession", &request.base,
                                 MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)out));
    if ((*out)->session == NULL) {
        mf_wire_free(*out);
        *out = NULL;
        return mf_status_set(MF_STATUS_CORRUPT, "the daemon answered without a session");
    }
    return MF_STATUS_OK;
}

/* Takes the next number; waits while the most calls are in flight that a session may have. */
static enum mf_status take_number(struct memferry_session *session, int64_t *seq_id)
{
    enum mf_status status = MF_STATUS_OK;
    pthread_mutex_lock(&session->lock);
    while (session->in_flight >= MF_SESSION_CALLS_MAX ||
           (session->stale && session->in_flight > 0)) {
        pthread_cond_wait(&session->changed, &session->lock);
    }
    if (session->stale) {
        Memferry__V1__GetSessionResponse *answer = NULL;
        status = get_session(session->connection, session->id, &answer);
        if (status == MF_STATUS_OK) {
            session->next_seq_id = answer->session->next_seq_id;
            session->stale = false;
        }
        mf_wire_free(answer);
    }
    if (status == MF_STATUS_OK) {
        *seq_id = session->next_seq_id++;
        session->in_flight++;
    }
    pthread_mutex_unlock(&session->lock);
    return status;
}

static void give_number(struct memferry_session *session, bool failed)
{
    pthread_mutex_lock(&session->lock);
    session->in_flight--;
    session->stale |= failed;
    pthread_cond_broadcast(&session->changed);
    pthread_mutex_unlock(&session->lock);
}

static void pause_ms(long ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

enum mf_status mf_library_session_call(struct memferry_session *session, const char *method,
                                       int64_t seq_id, ProtobufCMessage *request, int64_t *number,
                                       ProtobufCMessage **answer)
{
    *number = seq_id;
    if (seq_id != 0) {
        return mf_library_call_unary(session->connection->channel, TRAINING, method, request,
                                     MF_LIBRARY_CALL_NO_LIMIT_MS, answer);
    }
    MF_TRY(take_number(session, number));
    enum mf_status status = MF_STATUS_UNAVAILABLE;
    for (int i = 0; i < ATTEMPTS && status == MF_STATUS_UNAVAILABLE; i++) {
        if (i > 0) {
            pause_ms(FIRST_PAUSE_MS << (i - 1));
        }
        status = mf_library_call_unary(session->connection->channel, TRAINING, method, request,
                                       MF_LIBRARY_CALL_NO_LIMIT_MS, answer);
    }
    give_number(session, status != MF_STATUS_OK);
    return status;
}

static enum mf_status create_next(struct memferry_connection *connection,
                                  struct mf_library_call_stream *stream,
                                  memferry_progress *progress, void *context, bool *ended,
                                  struct memferry_session **out)
{
    Memferry__V1__CreateSessionResponse *news = NULL;
    enum mf_status status = MF_STATUS_OK;
    MF_TRY(mf_library_call_next(stream, (ProtobufCMessage **)&news));
    *ended = news == NULL;
    if (news == NULL) {
        return MF_STATUS_OK;
    }
    if (news->event_case == MEMFERRY__V1__CREATE_SESSION_RESPONSE__EVENT_PROGRESS &&
        progress != NULL) {
        if (!progress(context, news->progress->what, news->progress->done)) {
            status = mf_status_set(MF_STATUS_CANCELLED, "cancelled by the caller");
        }
    } else if (news->event_case == MEMFERRY__V1__CREATE_SESSION_RESPONSE__EVENT_SESSION &&
               *out == NULL) {
        *out = new_session(connection, news->session);
        *ended = true; /* It is the last, whenever the stream ends. */
    }
    mf_wire_free(news);
    return status;
}

static void create_request(struct mf_arena *arena, const struct memferry_session_options *options,
                           Memferry__V1__CreateSessionRequest *request)
{
    request->model = mf_library_model(arena, &options->model);
    request->workload = mf_library_workload(arena, &options->workload);
    request->constraints = mf_library_constraints(arena, &options->constraints);
    request->effort = (Memferry__V1__Effort)options->effort;
    request->plan_id = (char *)(options->plan_id != NULL ? options->plan_id : "");
    request->seed = options->seed;
    request->random_init = options->random_init;
    request->lease_seconds = options->lease_seconds;
}

enum memferry_status memferry_session_create(struct memferry_connection *connection,
                                             const struct memferry_session_options *options,
                                             memferry_progress *progress, void *context,
                                             struct memferry_session **out,
                                             struct memferry_error *error)
{
    struct mf_arena arena;
    struct mf_library_call_stream stream = {0};
    Memferry__V1__CreateSessionRequest request = MEMFERRY__V1__CREATE_SESSION_REQUEST__INIT;
    bool ended = false;
    *out = NULL;
    mf_arena_init(&arena);
    create_request(&arena, options, &request);
    enum mf_status status = mf_library_call_open(connection->channel, TRAINING, "CreateSession",
                                                 &request.base, &stream);
    while (status == MF_STATUS_OK && !ended) {
        status = create_next(connection, &stream, progress, context, &ended, out);
    }
    if (status == MF_STATUS_OK && *out == NULL) {
        status = mf_status_set(MF_STATUS_CORRUPT, "the daemon answered without a session");
    }
    enum memferry_status result = mf_library_end(status, error);
    if (status != MF_STATUS_OK) {
        memferry_session_free(*out);
        *out = NULL;
    }
    mf_library_call_close(&stream);
    mf_arena_reset(&arena);
    return result;
}

enum memferry_status memferry_session_attach(struct memferry_connection *connection, const char *id,
                                             struct memferry_session **out,
                                             struct memferry_error *error)
{
    Memferry__V1__GetSessionResponse *answer = NULL;
    *out = NULL;
    enum mf_status status = get_session(connection, id, &answer);
    if (status == MF_STATUS_OK) {
        *out = new_session(connection, answer->session);
    }
    mf_wire_free(answer);
    return mf_library_end(status, error);
}

enum memferry_status memferry_session_close(struct memferry_session *session,
                                            struct memferry_error *error)
{
    Memferry__V1__CloseSessionRequest request = MEMFERRY__V1__CLOSE_SESSION_REQUEST__INIT;
    ProtobufCMessage *answer = NULL;
    request.session_id = session->id;
    enum mf_status status =
        mf_library_call_unary(session->connection->channel, TRAINING, "CloseSession", &request.base,
                              MF_LIBRARY_CALL_SHORT_MS, &answer);
    mf_wire_free(answer);
    return mf_library_end(status, error);
}

void mf_library_session_info(const Memferry__V1__Session *from, struct memferry_session_info *out)
{
    memset(out, 0, sizeof(*out));
    snprintf(out->id, sizeof(out->id), "%s", from->id);
    snprintf(out->model_name, sizeof(out->model_name), "%s", from->model_name);
    snprintf(out->plan_id, sizeof(out->plan_id), "%s", from->plan_id);
    snprintf(out->state, sizeof(out->state), "%s", from->state);
    snprintf(out->error, sizeof(out->error), "%s", from->error);
    snprintf(out->run_folder, sizeof(out->run_folder), "%s", from->run_folder);
    out->step = from->step;
    out->steps_total = from->steps_total;
    out->next_seq_id = from->next_seq_id;
    out->params = from->params;
    out->vocab = from->vocab;
    mf_library_read_workload(from->workload, &out->workload);
    out->device_bytes = from->device_bytes;
    out->host_bytes = from->host_bytes;
    out->loss = from->loss;
    out->tokens_per_second = from->tokens_per_second;
    out->step_ms = from->step_ms;
    out->predicted_step_ms = from->predicted_step_ms;
    out->lease_left_seconds = from->lease_left_seconds;
}

enum memferry_status memferry_session_get(struct memferry_session *session,
                                          struct memferry_session_info *out,
                                          struct memferry_error *error)
{
    Memferry__V1__GetSessionResponse *answer = NULL;
    enum mf_status status = get_session(session->connection, session->id, &answer);
    if (status == MF_STATUS_OK) {
        mf_library_session_info(answer->session, out);
    }
    mf_wire_free(answer);
    return mf_library_end(status, error);
}

enum memferry_status memferry_session_list(struct memferry_connection *connection, bool past,
                                           struct memferry_session_info **out, size_t *count,
                                           struct memferry_error *error)
{
    Memferry__V1__ListSessionsRequest request = MEMFERRY__V1__LIST_SESSIONS_REQUEST__INIT;
    Memferry__V1__ListSessionsResponse *answer = NULL;
    *out = NULL;
    *count = 0;
    request.past = past;
    enum mf_status status =
        mf_library_call_unary(connection->channel, TRAINING, "ListSessions", &request.base,
                              MF_LIBRARY_CALL_SHORT_MS, (ProtobufCMessage **)&answer);
    if (status == MF_STATUS_OK) {
        *out = calloc(answer->n_sessions + 1, sizeof(**out));
        MF_ASSERT(*out != NULL);
        *count = answer->n_sessions;
        for (size_t i = 0; i < answer->n_sessions; i++) {
            mf_library_session_info(answer->sessions[i], &(*out)[i]);
        }
    }
    mf_wire_free(answer);
    return mf_library_end(status, error);
}

void memferry_session_list_free(struct memferry_session_info *list)
{
    free(list);
}
