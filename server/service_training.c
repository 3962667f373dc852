/* TrainingService: requests in, sessions called, replies out. See server/session.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/limits.h"
#include "db/store.h"
#include "memferry/v1/training.pb-c.h"
#include "proto/wire.h"
#include "server/convert.h"
#include "server/service_table.h"
#include "server/session.h"
#include "server/timeline.h"
#include "server/trace.h"

#define LEASE_SECONDS_MIN 10.0
#define LEASE_SECONDS_MAX 86400.0

static void fail(struct mf_rpc_call *call)
{
    mf_rpc_call_fail(call, mf_status_error());
}

/* ---- creating ---- */

static enum mf_status read_lease(const struct mf_service *service, double asked, double *out)
{
    *out = asked == 0 ? (double)service->config.lease_seconds : asked;
    if (asked != 0 && !(asked >= LEASE_SECONDS_MIN && asked <= LEASE_SECONDS_MAX)) {
        return mf_status_set(MF_STATUS_INVALID,
                             "lease_seconds must be from %g to %g (0 = the default), found %g",
                             LEASE_SECONDS_MIN, LEASE_SECONDS_MAX, asked);
    }
    return MF_STATUS_OK;
}

static enum mf_status read_create(struct mf_service *service,
                                  const Memferry__V1__CreateSessionRequest *request,
                                  struct mf_session_spec *spec)
{
    MF_TRY(mf_convert_model(service, request->model, &spec->arena, &spec->model, &spec->folder));
    if (request->random_init) {
        spec->folder = NULL;
    }
    MF_TRY(mf_convert_workload(request->workload, &spec->model, &spec->workload));
    MF_TRY(mf_convert_constraints(request->constraints, &spec->arena, &spec->constraints,
                                  &spec->strategy, &spec->pins, &spec->pin_count));
    MF_TRY(mf_convert_effort(request->effort, &spec->effort));
    spec->plan_id = mf_arena_string(&spec->arena, request->plan_id);
    spec->seed = request->seed;
    return read_lease(service, request->lease_seconds, &spec->lease_s);
}

static void free_spec(struct mf_session_spec *spec)
{
    mf_model_reset(&spec->model);
    mf_arena_reset(&spec->arena);
}

static void create_session(struct mf_rpc_call *call, const uint8_t *bytes, size_t count,
                           void *context)
{
    struct mf_service *service = context;
    Memferry__V1__CreateSessionRequest *request = NULL;
    struct mf_session_spec spec = {0};
    mf_arena_init(&spec.arena);
    enum mf_status status = mf_wire_unpack(&memferry__v1__create_session_request__descriptor, bytes,
                                           count, 0, (ProtobufCMessage **)&request);
    if (status == MF_STATUS_OK) {
        status = read_create(service, request, &spec);
    }
    mf_wire_free(request);
    if (status != MF_STATUS_OK) {
        free_spec(&spec);
        fail(call);
        return;
    }
    if (mf_session_start(service->sessions, call, &spec) != MF_STATUS_OK) {
        fail(call);
    }
}

/* ---- calls in order ---- */

static void post_call(struct mf_service *service, struct mf_rpc_call *call, void *message,
                      enum mf_session_verb verb, const char *session_id, int64_t seq_id)
{
    struct mf_session *session = NULL;
    if (mf_session_get(service->sessions, mf_rpc_call_peer(call), session_id, &session) !=
        MF_STATUS_OK) {
        mf_wire_free(message);
        fail(call);
        return;
    }
    if (mf_session_post(session, verb, seq_id, message, call) != MF_STATUS_OK) {
        fail(call);
    }
    mf_session_put(session);
}

#define POST(function, lower, Camel, verb)                                                         \
    static void function(struct mf_rpc_call *call, const uint8_t *bytes, size_t count,             \
                         void *context)                                                            \
    {                                                                                              \
        Memferry__V1__##Camel##Request *request = NULL;                                            \
        if (mf_wire_unpack(&memferry__v1__##lower##_request__descriptor, bytes, count, 0,          \
                           (ProtobufCMessage **)&request) != MF_STATUS_OK) {                       \
            fail(call);                                                                            \
            return;                                                                                \
        }                                                                                          \
        post_call(context, call, request, verb, request->session_id, request->seq_id);             \
    }

POST(forward_backward, forward_backward, ForwardBackward, MF_SESSION_FORWARD_BACKWARD)
POST(optim_step, optim_step, OptimStep, MF_SESSION_OPTIM_STEP)
POST(forward, forward, Forward, MF_SESSION_FORWARD)
POST(sample, sample, Sample, MF_SESSION_SAMPLE)
POST(save_state, save_state, SaveState, MF_SESSION_SAVE)
POST(load_state, load_state, LoadState, MF_SESSION_LOAD)

/* ---- looking ---- */

static enum mf_status get_session(struct mf_service *service, struct mf_rpc_call *call,
                                  const void *request, struct mf_arena *arena,
                                  ProtobufCMessage **reply)
{
    const Memferry__V1__GetSessionRequest *get = request;
    struct mf_session *session = NULL;
    MF_TRY(mf_session_get(service->sessions, mf_rpc_call_peer(call), get->session_id, &session));
    Memferry__V1__GetSessionResponse *response = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__GetSessionResponse, MEMFERRY__V1__GET_SESSION_RESPONSE__INIT);
    response->session = mf_arena_alloc(arena, 1, sizeof(*response->session));
    mf_session_describe(session, arena, response->session);
    mf_session_put(session);
    *reply = &response->base;
    return MF_STATUS_OK;
}

/* Those that ended, from the store: root and the daemon's own user see them. */
static size_t list_past(struct mf_service *service, struct mf_arena *arena,
                        Memferry__V1__Session ***list, size_t live)
{
    struct mf_store_session_record *records = NULL;
    int32_t count = 0;
    if (mf_store_session_list(service->store, false, arena, &records, &count) != MF_STATUS_OK) {
        return live;
    }
    Memferry__V1__Session **all =
        mf_arena_alloc(arena, live + (size_t)count, sizeof(Memferry__V1__Session *));
    memcpy(all, *list, live * sizeof(*all));
    size_t total = live;
    for (int32_t i = 0; i < count; i++) {
        if (records[i].ended_unix_s == 0) {
            continue;
        }
        Memferry__V1__Session *past = mf_arena_alloc(arena, 1, sizeof(*past));
        memferry__v1__session__init(past);
        past->id = (char *)records[i].id;
        past->state = (char *)records[i].state;
        past->model_name = (char *)records[i].model_name;
        past->plan_id = (char *)records[i].plan_id;
        past->run_folder = (char *)records[i].run_dir;
        past->error = (char *)records[i].error;
        past->step = records[i].last_step;
        past->loss = isfinite(records[i].last_loss) ? records[i].last_loss : 0;
        past->started_unix_seconds = records[i].started_unix_s;
        past->ended_unix_seconds = records[i].ended_unix_s;
        all[total++] = past;
    }
    *list = all;
    return total;
}

static enum mf_status list_sessions(struct mf_service *service, struct mf_rpc_call *call,
                                    const void *request, struct mf_arena *arena,
                                    ProtobufCMessage **reply)
{
    const Memferry__V1__ListSessionsRequest *list = request;
    const struct mf_peer *peer = mf_rpc_call_peer(call);
    struct mf_session *sessions[MF_SESSIONS_MAX];
    Memferry__V1__ListSessionsResponse *response = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__ListSessionsResponse, MEMFERRY__V1__LIST_SESSIONS_RESPONSE__INIT);
    int32_t live = mf_session_list(service->sessions, peer, sessions);
    response->n_sessions = (size_t)live;
    response->sessions = mf_arena_alloc(arena, (size_t)live + 1, sizeof(*response->sessions));
    for (int32_t i = 0; i < live; i++) {
        response->sessions[i] = mf_arena_alloc(arena, 1, sizeof(**response->sessions));
        mf_session_describe(sessions[i], arena, response->sessions[i]);
        mf_session_put(sessions[i]);
    }
    if (list->past && (peer->uid == 0 || peer->uid == geteuid())) {
        response->n_sessions = list_past(service, arena, &response->sessions, (size_t)live);
    }
    *reply = &response->base;
    return MF_STATUS_OK;
}

/* ---- ending ---- */

static enum mf_status close_session(struct mf_service *service, struct mf_rpc_call *call,
                                    const void *request, struct mf_arena *arena,
                                    ProtobufCMessage **reply)
{
    const Memferry__V1__CloseSessionRequest *close = request;
    struct mf_session *session = NULL;
    MF_TRY(mf_session_get(service->sessions, mf_rpc_call_peer(call), close->session_id, &session));
    mf_session_stop(session, false);
    mf_session_wait_closed(session);
    mf_session_put(session);
    *reply = &MF_SERVICE_TABLE_NEW(arena, Memferry__V1__CloseSessionResponse,
                                   MEMFERRY__V1__CLOSE_SESSION_RESPONSE__INIT)
                  ->base;
    return MF_STATUS_OK;
}

static enum mf_status stop_run(struct mf_service *service, struct mf_rpc_call *call,
                               const void *request, struct mf_arena *arena,
                               ProtobufCMessage **reply)
{
    const Memferry__V1__StopRunRequest *stop = request;
    struct mf_session *session = NULL;
    MF_TRY(mf_session_get(service->sessions, mf_rpc_call_peer(call), stop->session_id, &session));
    mf_session_stop(session, !stop->discard);
    mf_session_put(session);
    *reply = &MF_SERVICE_TABLE_NEW(arena, Memferry__V1__StopRunResponse,
                                   MEMFERRY__V1__STOP_RUN_RESPONSE__INIT)
                  ->base;
    return MF_STATUS_OK;
}

/* ---- jobs ---- */

/* The model as the run config names it: a folder, a config file, or a preset. */
static enum mf_status read_run_model(struct mf_service *service, struct mf_session_spec *spec)
{
    Memferry__V1__Model model = MEMFERRY__V1__MODEL__INIT;
    const struct mf_run_config *config = spec->run;
    switch (config->model_kind) {
    case MF_RUN_MODEL_FOLDER:
        model.source_case = MEMFERRY__V1__MODEL__SOURCE_FOLDER;
        model.folder = (char *)config->model;
        break;
    case MF_RUN_MODEL_PRESET:
        model.source_case = MEMFERRY__V1__MODEL__SOURCE_PRESET;
        model.preset = (char *)config->model;
        break;
    }
    MF_TRY(mf_convert_model(service, &model, &spec->arena, &spec->model, &spec->folder));
    if (config->random_init) {
        spec->folder = NULL;
    }
    return MF_STATUS_OK;
}

/* From here on the resolved paths are used: what a link points to may change later. */
static enum mf_status resolve(struct mf_service *service, struct mf_arena *arena,
                              const char *const **paths, int32_t count)
{
    const char **resolved = mf_arena_alloc(arena, (size_t)count + 1, sizeof(*resolved));
    for (int32_t i = 0; i < count; i++) {
        MF_TRY(mf_convert_path(service, (*paths)[i], arena, &resolved[i]));
    }
    *paths = resolved;
    return MF_STATUS_OK;
}

/* A job may only name what its client may name. */
static enum mf_status resolve_run_paths(struct mf_service *service, struct mf_session_spec *spec)
{
    struct mf_run_config *config = spec->run;
    MF_TRY(mf_convert_path(service, config->output, &spec->arena, &config->output));
    MF_TRY(resolve(service, &spec->arena, &config->data_paths, config->data_path_count));
    MF_TRY(
        resolve(service, &spec->arena, &config->validation_paths, config->validation_path_count));
    if (spec->resume[0] != '\0' && strcmp(spec->resume, "latest") != 0) {
        MF_TRY(mf_convert_path(service, spec->resume, &spec->arena, &spec->resume));
    }
    return MF_STATUS_OK;
}

static enum mf_status read_run(struct mf_service *service, const Memferry__V1__RunRequest *request,
                               struct mf_session_spec *spec)
{
    spec->resume = mf_arena_string(&spec->arena, request->resume);
    MF_TRY(mf_run_config_read(request->config_json, request->base_folder, service->config.home,
                              spec->run));
    MF_TRY(resolve_run_paths(service, spec));
    MF_TRY(read_run_model(service, spec));
    const struct mf_run_config *config = spec->run;
    spec->workload = config->workload;
    if (spec->workload.seq_len == 0) {
        spec->workload.seq_len =
            (int32_t)(spec->model.positions_max < 1024 ? spec->model.positions_max : 1024);
    }
    MF_TRY(mf_workload_validate(&spec->workload));
    spec->constraints = config->constraints;
    spec->strategy = config->strategy;
    spec->effort = config->effort;
    spec->plan_id = config->plan_id;
    spec->pins = config->pins;
    spec->pin_count = config->pin_count;
    spec->seed = config->seed;
    return mf_executor_check_adam(&spec->workload, &config->adam);
}

static void run(struct mf_rpc_call *call, const uint8_t *bytes, size_t count, void *context)
{
    struct mf_service *service = context;
    Memferry__V1__RunRequest *request = NULL;
    struct mf_session_spec spec = {.run = calloc(1, sizeof(*spec.run))};
    MF_ASSERT(spec.run != NULL);
    mf_arena_init(&spec.arena);
    mf_run_config_init(spec.run);
    enum mf_status status = mf_wire_unpack(&memferry__v1__run_request__descriptor, bytes, count, 0,
                                           (ProtobufCMessage **)&request);
    if (status == MF_STATUS_OK) {
        status = read_run(service, request, &spec);
    }
    mf_wire_free(request);
    if (status != MF_STATUS_OK) {
        mf_run_config_reset(spec.run);
        free(spec.run);
        free_spec(&spec);
        fail(call);
        return;
    }
    if (mf_session_start(service->sessions, call, &spec) != MF_STATUS_OK) {
        fail(call);
    }
}

static void watch(struct mf_rpc_call *call, const uint8_t *bytes, size_t count, void *context)
{
    struct mf_service *service = context;
    Memferry__V1__WatchRequest *request = NULL;
    struct mf_session *session = NULL;
    enum mf_status status = mf_wire_unpack(&memferry__v1__watch_request__descriptor, bytes, count,
                                           0, (ProtobufCMessage **)&request);
    if (status == MF_STATUS_OK) {
        status = mf_session_get(service->sessions, mf_rpc_call_peer(call), request->session_id,
                                &session);
    }
    if (status == MF_STATUS_OK) {
        status = mf_session_watch(session, call);
        mf_session_put(session);
    }
    mf_wire_free(request);
    if (status != MF_STATUS_OK) {
        fail(call);
    }
}

#define TRACE_PIECE_BYTES ((size_t)1 << 20)

static enum mf_status send_trace(struct mf_service *service, struct mf_rpc_call *call,
                                 const Memferry__V1__GetTraceRequest *request)
{
    struct mf_session *session = NULL;
    char *text = NULL;
    size_t count = 0;
    MF_TRY(
        mf_session_get(service->sessions, mf_rpc_call_peer(call), request->session_id, &session));
    enum mf_status status = mf_trace_session(session, &text, &count);
    mf_session_put(session);
    for (size_t done = 0; done < count && status == MF_STATUS_OK; done += TRACE_PIECE_BYTES) {
        Memferry__V1__GetTraceResponse piece = MEMFERRY__V1__GET_TRACE_RESPONSE__INIT;
        piece.json.data = (uint8_t *)text + done;
        piece.json.len = count - done < TRACE_PIECE_BYTES ? count - done : TRACE_PIECE_BYTES;
        status = mf_service_table_send(call, &piece.base, true);
    }
    free(text);
    return status;
}

static void get_trace(struct mf_rpc_call *call, const uint8_t *bytes, size_t count, void *context)
{
    Memferry__V1__GetTraceRequest *request = NULL;
    enum mf_status status = mf_wire_unpack(&memferry__v1__get_trace_request__descriptor, bytes,
                                           count, 0, (ProtobufCMessage **)&request);
    if (status == MF_STATUS_OK) {
        status = send_trace(context, call, request);
    }
    mf_wire_free(request);
    if (status == MF_STATUS_OK) {
        mf_rpc_call_finish(call);
    } else {
        fail(call);
    }
}

void mf_service_training_add(struct mf_service *service, struct mf_rpc_server *server)
{
#define METHOD(name, the_kind, function)                                                           \
    {                                                                                              \
        .path = "/memferry.v1.TrainingService/" name, .kind = (the_kind), .handler = (function)    \
    }
    static struct mf_rpc_method methods[] = {
        METHOD("CreateSession", MF_RPC_SERVER_STREAM, create_session),
        METHOD("ForwardBackward", MF_RPC_UNARY, forward_backward),
        METHOD("OptimStep", MF_RPC_UNARY, optim_step),
        METHOD("Forward", MF_RPC_UNARY, forward),
        METHOD("Sample", MF_RPC_UNARY, sample),
        METHOD("SaveState", MF_RPC_UNARY, save_state),
        METHOD("LoadState", MF_RPC_UNARY, load_state),
        METHOD("Run", MF_RPC_SERVER_STREAM, run),
        METHOD("Watch", MF_RPC_SERVER_STREAM, watch),
        METHOD("GetTrace", MF_RPC_SERVER_STREAM, get_trace),
    };
#undef METHOD
#define ROW(name, lower, function)                                                                 \
    {                                                                                              \
        .path = "/memferry.v1.TrainingService/" name,                                              \
        .request = &memferry__v1__##lower##_request__descriptor, .answer = (function)              \
    }
    static struct mf_service_table_unary rows[] = {
        ROW("GetSession", get_session, get_session),
        ROW("ListSessions", list_sessions, list_sessions),
        ROW("CloseSession", close_session, close_session),
        ROW("StopRun", stop_run, stop_run),
        ROW("GetSessionTimeline", get_session_timeline, mf_timeline_answer_session),
    };
#undef ROW
    static struct mf_rpc_method unary[sizeof(rows) / sizeof(rows[0])];
    mf_service_table_unary(service, server, rows, unary, sizeof(rows) / sizeof(rows[0]));
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        methods[i].context = service;
    }
    mf_rpc_server_add(server, methods, sizeof(methods) / sizeof(methods[0]));
}
