/* The table of sessions, their life and their leases: see session.h. */
#include "server/session.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "core/clock.h"
#include "core/limits.h"
#include "core/log.h"
#include "db/store.h"
#include "proto/wire.h"
#include "server/session_internal.h"

static const char *const state_names[] = {
#define X(name, text) text,
    MF_SESSION_STATE_MAP(X)
#undef X
};

const char *mf_session_state_name(enum mf_session_state state)
{
    return state_names[state];
}

static void new_id(char out[static MF_SESSION_ID_MAX])
{
    unsigned char bytes[16];
    MF_ASSERT(getrandom(bytes, sizeof(bytes), 0) == (ssize_t)sizeof(bytes));
    for (size_t i = 0; i < sizeof(bytes); i++) {
        out[2 * i] = "0123456789abcdef"[bytes[i] >> 4];
        out[2 * i + 1] = "0123456789abcdef"[bytes[i] & 15];
    }
    out[2 * sizeof(bytes)] = '\0';
}

/* What the store remembers of a session. */
static void remember(struct mf_session *session)
{
    pthread_mutex_lock(&session->lock);
    char plan_id[MF_HASH_TEXT_MAX];
    memcpy(plan_id, session->plan_id, sizeof(plan_id));
    struct mf_store_session_record record = {
        .id = session->id,
        .state = mf_session_state_name(session->state),
        .model_name = session->spec.model.name,
        .plan_id = plan_id,
        .run_dir = session->spec.run != NULL ? session->spec.run->output : "",
        .started_unix_s = session->started_unix_s,
        .ended_unix_s = session->ended_unix_s,
        .last_step = session->step,
        .last_loss = session->loss,
        .error = session->error.text,
    };
    pthread_mutex_unlock(&session->lock);
    if (mf_store_session_put(session->table->service->store, &record) != MF_STATUS_OK) {
        mf_log_warn("session %.8s is not in the store: %s", session->id, mf_status_text());
    }
}

static void free_spec(struct mf_session_spec *spec)
{
    if (spec->run != NULL) {
        mf_run_config_reset(spec->run);
        free(spec->run);
    }
    mf_model_reset(&spec->model);
    mf_arena_reset(&spec->arena);
}

static void free_session(struct mf_session *session)
{
    for (int i = 0; i < MF_SESSION_ANSWERS_MAX; i++) {
        free(session->answers[i].bytes);
    }
    mf_plan_reset(&session->plan);
    free_spec(&session->spec);
    pthread_mutex_destroy(&session->lock);
    pthread_cond_destroy(&session->wake);
    free(session);
}

void mf_session_put(struct mf_session *session)
{
    pthread_mutex_lock(&session->lock);
    bool last = --session->references == 0;
    pthread_mutex_unlock(&session->lock);
    if (last) {
        free_session(session);
    }
}

static void take_out(struct mf_session *session)
{
    struct mf_session_table *table = session->table;
    pthread_mutex_lock(&table->lock);
    for (int32_t i = 0; i < table->count; i++) {
        if (table->sessions[i] == session) {
            table->sessions[i] = table->sessions[--table->count];
            break;
        }
    }
    pthread_cond_broadcast(&table->ended);
    pthread_mutex_unlock(&table->lock);
}

static void set_state(struct mf_session *session, enum mf_session_state state)
{
    pthread_mutex_lock(&session->lock);
    session->state = state;
    pthread_mutex_unlock(&session->lock);
}

/* Ends a session whose work is done; `status` says how it went. */
static void end_session(struct mf_session *session, enum mf_status status)
{
    struct mf_error error = *mf_status_error();
    set_state(session, MF_SESSION_CLOSING);
    mf_session_call_cancel_all(session);
    mf_session_work_close(session);
    pthread_mutex_lock(&session->lock);
    bool run = session->spec.run != NULL;
    session->ended_unix_s = time(NULL);
    session->device_bytes = session->host_bytes = 0;
    if (status == MF_STATUS_CANCELLED) {
        session->state = run ? MF_SESSION_STOPPED : MF_SESSION_CLOSED;
    } else if (status != MF_STATUS_OK) {
        session->state = MF_SESSION_FAILED;
        session->error = error;
    } else {
        session->state = run ? MF_SESSION_FINISHED : MF_SESSION_CLOSED;
    }
    pthread_mutex_unlock(&session->lock);
    remember(session);
    mf_log_info("session %.8s %s after %lld steps%s%s", session->id,
                mf_session_state_name(session->state), (long long)session->step,
                session->state == MF_SESSION_FAILED ? ": " : "",
                session->state == MF_SESSION_FAILED ? session->error.text : "");
}

/* Who hears of the end finds the session in no list any more. Nobody can begin to watch once
 * `ended` is set, so no stream is left open. */
static void tell_ended(struct mf_session *session)
{
    pthread_mutex_lock(&session->lock);
    session->ended = true;
    pthread_cond_broadcast(&session->wake);
    pthread_mutex_unlock(&session->lock);
    mf_session_event_end(session);
}

static void *session_main(void *argument)
{
    struct mf_session *session = argument;
    remember(session);
    enum mf_status status = mf_session_open(session);
    if (status == MF_STATUS_OK) {
        set_state(session, session->spec.run != NULL ? MF_SESSION_RUNNING : MF_SESSION_READY);
        remember(session);
        mf_session_event_ready(session);
        if (session->spec.run != NULL) {
            status = mf_run_main(session);
        } else {
            mf_session_work_calls(session);
        }
    }
    end_session(session, status);
    take_out(session);
    tell_ended(session);
    mf_session_put(session);
    return NULL;
}

static enum mf_status add(struct mf_session_table *table, struct mf_session *session)
{
    enum mf_status status = MF_STATUS_OK;
    int32_t limit = (int32_t)table->service->config.sessions_max;
    pthread_mutex_lock(&table->lock);
    if (table->closing) {
        status = mf_status_set_reason(MF_STATUS_UNAVAILABLE, "SHUTTING_DOWN",
                                      "the daemon is shutting down");
    } else if (table->count >= limit) {
        status = mf_status_set_reason(MF_STATUS_BUSY, "SESSIONS_FULL",
                                      "all %d sessions are in use: close one (memferry ps), or "
                                      "raise sessions in the configuration",
                                      limit);
        mf_status_number("sessions_max", limit);
    } else {
        table->sessions[table->count++] = session;
    }
    pthread_mutex_unlock(&table->lock);
    return status;
}

enum mf_status mf_session_start(struct mf_session_table *table, struct mf_rpc_call *call,
                                struct mf_session_spec *spec)
{
    struct mf_session *session = calloc(1, sizeof(*session));
    MF_ASSERT(session != NULL);
    session->table = table;
    session->owner = *mf_rpc_call_peer(call);
    session->spec = *spec;
    memset(spec, 0, sizeof(*spec));
    session->references = 2; /* the thread's and ours */
    session->next_seq = 1;
    session->started_unix_s = time(NULL);
    session->plan_how = "";
    session->lease_end_ns = mf_clock_ns() + (int64_t)(session->spec.lease_s * 1e9);
    pthread_mutex_init(&session->lock, NULL);
    pthread_cond_init(&session->wake, NULL);
    new_id(session->id);
    enum mf_status status = add(table, session);
    if (status != MF_STATUS_OK) {
        free_session(session);
        return status;
    }
    if (mf_session_watch(session, call) != MF_STATUS_OK) {
        mf_log_warn("session %.8s has no watcher", session->id);
    }
    pthread_t thread;
    if (pthread_create(&thread, NULL, session_main, session) != 0) {
        take_out(session);
        mf_session_event_end(session);
        free_session(session);
        return mf_status_set(MF_STATUS_BUSY, "no thread could be started for the session");
    }
    pthread_detach(thread);
    mf_session_put(session);
    return MF_STATUS_OK;
}

/* Sessions belong to the user that made them; root sees all. Peers without a user share theirs. */
static bool may_see(const struct mf_session *session, const struct mf_peer *peer)
{
    return peer->uid == session->owner.uid || peer->uid == 0;
}

enum mf_status mf_session_get(struct mf_session_table *table, const struct mf_peer *peer,
                              const char *id, struct mf_session **out)
{
    size_t length = strlen(id);
    int32_t matches = 0;
    *out = NULL;
    pthread_mutex_lock(&table->lock);
    for (int32_t i = 0; i < table->count && length >= 4; i++) {
        struct mf_session *session = table->sessions[i];
        if (may_see(session, peer) && strncmp(session->id, id, length) == 0) {
            *out = session;
            matches++;
        }
    }
    if (matches == 1) {
        pthread_mutex_lock(&(*out)->lock);
        (*out)->references++;
        (*out)->lease_end_ns = mf_clock_ns() + (int64_t)((*out)->spec.lease_s * 1e9);
        pthread_mutex_unlock(&(*out)->lock);
    }
    pthread_mutex_unlock(&table->lock);
    if (matches == 1) {
        return MF_STATUS_OK;
    }
    *out = NULL;
    if (matches > 1) {
        return mf_status_set(MF_STATUS_INVALID, "%d sessions begin with \"%s\": give more digits",
                             matches, id);
    }
    return mf_status_set_reason(MF_STATUS_NOT_FOUND, "SESSION_NOT_FOUND",
                                "there is no session \"%.40s\": it has ended, its lease ran out, "
                                "or the daemon was restarted (memferry ls sessions)",
                                id);
}

int32_t mf_session_list(struct mf_session_table *table, const struct mf_peer *peer,
                        struct mf_session *out[static MF_SESSIONS_MAX])
{
    int32_t count = 0;
    pthread_mutex_lock(&table->lock);
    for (int32_t i = 0; i < table->count; i++) {
        if (may_see(table->sessions[i], peer)) {
            out[count] = table->sessions[i];
            pthread_mutex_lock(&out[count]->lock);
            out[count]->references++;
            pthread_mutex_unlock(&out[count]->lock);
            count++;
        }
    }
    pthread_mutex_unlock(&table->lock);
    return count;
}

void mf_session_stop(struct mf_session *session, bool save)
{
    pthread_mutex_lock(&session->lock);
    session->save_on_stop = session->stop ? session->save_on_stop && save : save;
    session->stop = true;
    pthread_cond_broadcast(&session->wake);
    pthread_mutex_unlock(&session->lock);
}

void mf_session_wait_closed(struct mf_session *session)
{
    pthread_mutex_lock(&session->lock);
    while (!session->ended) {
        pthread_cond_wait(&session->wake, &session->lock);
    }
    pthread_mutex_unlock(&session->lock);
}

/* ---- the table ---- */

static void end_expired(struct mf_session_table *table)
{
    for (int32_t i = 0; i < table->count; i++) {
        struct mf_session *session = table->sessions[i];
        pthread_mutex_lock(&session->lock);
        bool expired = session->spec.run == NULL && !session->stop && session->call_count == 0 &&
                       session->state == MF_SESSION_READY && mf_clock_ns() > session->lease_end_ns;
        if (expired) {
            mf_log_warn("session %.8s: its lease of %.0f s ran out", session->id,
                        session->spec.lease_s);
            session->stop = true;
            pthread_cond_broadcast(&session->wake);
        }
        pthread_mutex_unlock(&session->lock);
    }
}

static void *lease_main(void *argument)
{
    struct mf_session_table *table = argument;
    pthread_mutex_lock(&table->lock);
    while (!table->closing) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 1;
        pthread_cond_timedwait(&table->tick, &table->lock, &until);
        end_expired(table);
    }
    pthread_mutex_unlock(&table->lock);
    return NULL;
}

/* Sessions that a daemon left open when it died cannot be continued: say so where they are listed.
 */
static enum mf_status mark_lost(struct mf_store *store)
{
    struct mf_arena arena;
    struct mf_store_session_record *records = NULL;
    int32_t count = 0;
    mf_arena_init(&arena);
    enum mf_status status = mf_store_session_list(store, true, &arena, &records, &count);
    for (int32_t i = 0; i < count && status == MF_STATUS_OK; i++) {
        records[i].state = "lost";
        records[i].ended_unix_s = time(NULL);
        records[i].error = records[i].run_dir[0] != '\0'
                               ? "the daemon ended while it ran: continue with "
                                 "memferry train -c FILE --resume latest"
                               : "the daemon ended while it was open";
        mf_log_warn("session %.8s (%s) was open when the last daemon ended: %s", records[i].id,
                    records[i].model_name, records[i].error);
        status = mf_store_session_put(store, &records[i]);
    }
    mf_arena_reset(&arena);
    return status;
}

enum mf_status mf_session_table_open(struct mf_service *service, struct mf_session_table **out)
{
    struct mf_session_table *table = calloc(1, sizeof(*table));
    MF_ASSERT(table != NULL);
    table->service = service;
    pthread_mutex_init(&table->lock, NULL);
    pthread_cond_init(&table->ended, NULL);
    pthread_cond_init(&table->tick, NULL);
    if (mark_lost(service->store) != MF_STATUS_OK) {
        mf_log_warn("the list of past sessions cannot be kept: %s", mf_status_text());
    }
    if (pthread_create(&table->lease_thread, NULL, lease_main, table) != 0) {
        free(table);
        return mf_status_set(MF_STATUS_BUSY, "no thread could be started for leases");
    }
    *out = table;
    return MF_STATUS_OK;
}

void mf_session_table_stop(struct mf_session_table *table, bool force)
{
    pthread_mutex_lock(&table->lock);
    table->closing = true;
    pthread_cond_broadcast(&table->tick);
    for (int32_t i = 0; i < table->count; i++) {
        mf_session_stop(table->sessions[i], !force);
    }
    pthread_mutex_unlock(&table->lock);
}

void mf_session_table_close(struct mf_session_table *table, bool force)
{
    mf_session_table_stop(table, force);
    pthread_mutex_lock(&table->lock);
    while (table->count > 0) {
        pthread_cond_wait(&table->ended, &table->lock);
    }
    pthread_mutex_unlock(&table->lock);
    pthread_join(table->lease_thread, NULL);
    pthread_mutex_destroy(&table->lock);
    pthread_cond_destroy(&table->ended);
    pthread_cond_destroy(&table->tick);
    free(table);
}

int32_t mf_session_table_count(struct mf_session_table *table)
{
    pthread_mutex_lock(&table->lock);
    int32_t count = table->count;
    pthread_mutex_unlock(&table->lock);
    return count;
}

void mf_session_table_reserved(struct mf_session_table *table, int64_t *device, int64_t *host)
{
    *device = *host = 0;
    pthread_mutex_lock(&table->lock);
    for (int32_t i = 0; i < table->count; i++) {
        pthread_mutex_lock(&table->sessions[i]->lock);
        *device += table->sessions[i]->device_bytes;
        *host += table->sessions[i]->host_bytes;
        pthread_mutex_unlock(&table->sessions[i]->lock);
    }
    pthread_mutex_unlock(&table->lock);
}

void mf_session_describe(struct mf_session *session, struct mf_arena *arena,
                         Memferry__V1__Session *out)
{
    memferry__v1__session__init(out);
    Memferry__V1__Workload *workload = mf_arena_alloc(arena, 1, sizeof(*workload));
    memferry__v1__workload__init(workload);
    pthread_mutex_lock(&session->lock);
    const struct mf_model *model = &session->spec.model;
    out->id = mf_arena_string(arena, session->id);
    out->model_name = mf_arena_string(arena, model->name);
    out->plan_id = mf_arena_string(arena, session->plan_id);
    out->plan_how = mf_arena_string(arena, session->plan_how);
    out->state = mf_arena_string(arena, mf_session_state_name(session->state));
    out->run_folder =
        mf_arena_string(arena, session->spec.run != NULL ? session->spec.run->output : "");
    out->error = mf_arena_string(arena, session->error.text);
    out->note = mf_arena_string(arena, session->note);
    out->step = session->step;
    out->next_seq_id = session->next_seq;
    out->loss = session->loss;
    out->tokens_per_second = session->tokens_per_second;
    out->device_bytes = session->device_bytes;
    out->host_bytes = session->host_bytes;
    double lease_left_s = (double)(session->lease_end_ns - mf_clock_ns()) * 1e-9;
    out->lease_left_seconds = session->spec.run != NULL ? -1 : lease_left_s > 0 ? lease_left_s : 0;
    out->steps_total = session->steps_total;
    out->started_unix_seconds = session->started_unix_s;
    out->ended_unix_seconds = session->ended_unix_s;
    out->step_ms = session->step_ms;
    out->predicted_step_ms = session->plan.prediction.step_ns * 1e-6;
    out->uid = session->owner.uid;
    out->params = model->params;
    out->vocab = model->vocab;
    workload->micro_batch = session->spec.workload.micro_batch;
    workload->seq_len = session->spec.workload.seq_len;
    workload->accumulation = session->spec.workload.accumulation;
    workload->no_clip = !session->spec.workload.clip;
    pthread_mutex_unlock(&session->lock);
    out->workload = workload;
}
