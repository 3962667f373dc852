/* TrainingService: requests in, sessions called, replies out. See server/session.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/limits.h"
#include "db/store.h"
#include "memferry/v1/training.pb-c.h"
#include "proto/wire.h"
#include "server/convert.h"
#include "server/service_table.h"
#include "server/session.h"

#define LEASE_SECONDS_MIN 10.0
#define LEASE_SECONDS_MAX 86400.0

static void reply(struct mf_rpc_call *call, const ProtobufCMessage *message)
{
    size_t count = 0;
    uint8_t *bytes = mf_wire_pack(message, &count);
    mf_rpc_call_reply(call, bytes, count);
    free(bytes);
}

static void fail(struct mf_rpc_call *call)
{
    mf_rpc_call_fail(call, mf_status_error());
}

/* ---- creating ---- */

static enum mf_status read_lease(const struct mf_service *service, double asked, double *out)
{
    *out = asked == 0 ? (double)service->config.lease : asked;
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
    enum mf_status status =
        mf_wire_unpack(&memferry__v1__create_session_request__descriptor, bytes, count, 0,
                       (ProtobufCMessage **)&request);
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

static void get_session(struct mf_rpc_call *call, const uint8_t *bytes, size_t count,
                        void *context)
{
    struct mf_service *service = context;
    Memferry__V1__GetSessionRequest *request = NULL;
    struct mf_session *session = NULL;
    if (mf_wire_unpack(&memferry__v1__get_session_request__descriptor, bytes, count, 0,
                       (ProtobufCMessage **)&request) != MF_STATUS_OK ||
        mf_session_get(service->sessions, mf_rpc_call_peer(call), request->session_id, &session) !=
            MF_STATUS_OK) {
        mf_wire_free(request);
        fail(call);
        return;
    }
    struct mf_arena arena;
    mf_arena_init(&arena);
    Memferry__V1__Session description;
    Memferry__V1__GetSessionResponse response = MEMFERRY__V1__GET_SESSION_RESPONSE__INIT;
    mf_session_describe(session, &arena, &description);
    response.session = &description;
    reply(call, &response.base);
    mf_arena_reset(&arena);
    mf_session_put(session);
    mf_wire_free(request);
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

static void list_sessions(struct mf_rpc_call *call, const uint8_t *bytes, size_t count,
                          void *context)
{
    struct mf_service *service = context;
    Memferry__V1__ListSessionsRequest *request = NULL;
    if (mf_wire_unpack(&memferry__v1__list_sessions_request__descriptor, bytes, count, 0,
                       (ProtobufCMessage **)&request) != MF_STATUS_OK) {
        fail(call);
        return;
    }
    struct mf_session *sessions[MF_SESSIONS_MAX];
    struct mf_arena arena;
    mf_arena_init(&arena);
    const struct mf_peer *peer = mf_rpc_call_peer(call);
    int32_t live = mf_session_list(service->sessions, peer, sessions);
    Memferry__V1__Session **list =
        mf_arena_alloc(&arena, (size_t)live + 1, sizeof(Memferry__V1__Session *));
    for (int32_t i = 0; i < live; i++) {
        list[i] = mf_arena_alloc(&arena, 1, sizeof(*list[i]));
        mf_session_describe(sessions[i], &arena, list[i]);
        mf_session_put(sessions[i]);
    }
    Memferry__V1__ListSessionsResponse response = MEMFERRY__V1__LIST_SESSIONS_RESPONSE__INIT;
    response.n_sessions = (size_t)live;
    if (request->past && mf_service_is_owner(peer)) {
        response.n_sessions = list_past(service, &arena, &list, (size_t)live);
    }
    response.sessions = list;
    reply(call, &response.base);
    mf_arena_reset(&arena);
    mf_wire_free(request);
}

/* ---- ending ---- */

static void close_session(struct mf_rpc_call *call, const uint8_t *bytes, size_t count,
                          void *context)
{
    struct mf_service *service = context;
    Memferry__V1__CloseSessionRequest *request = NULL;
    struct mf_session *session = NULL;
    if (mf_wire_unpack(&memferry__v1__close_session_request__descriptor, bytes, count, 0,
                       (ProtobufCMessage **)&request) != MF_STATUS_OK ||
        mf_session_get(service->sessions, mf_rpc_call_peer(call), request->session_id, &session) !=
            MF_STATUS_OK) {
        mf_wire_free(request);
        fail(call);
        return;
    }
    mf_session_stop(session, false);
    mf_session_wait_closed(session);
    mf_session_put(session);
    mf_wire_free(request);
    Memferry__V1__CloseSessionResponse response = MEMFERRY__V1__CLOSE_SESSION_RESPONSE__INIT;
    reply(call, &response.base);
}

static void stop_run(struct mf_rpc_call *call, const uint8_t *bytes, size_t count, void *context)
{
    struct mf_service *service = context;
    Memferry__V1__StopRunRequest *request = NULL;
    struct mf_session *session = NULL;
    if (mf_wire_unpack(&memferry__v1__stop_run_request__descriptor, bytes, count, 0,
                       (ProtobufCMessage **)&request) != MF_STATUS_OK ||
        mf_session_get(service->sessions, mf_rpc_call_peer(call), request->session_id, &session) !=
            MF_STATUS_OK) {
        mf_wire_free(request);
        fail(call);
        return;
    }
    mf_session_stop(session, !request->discard);
    mf_session_put(session);
    mf_wire_free(request);
    Memferry__V1__StopRunResponse response = MEMFERRY__V1__STOP_RUN_RESPONSE__INIT;
    reply(call, &response.base);
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

/* A job may only name what its client may name. */
static enum mf_status check_run_paths(struct mf_service *service, struct mf_session_spec *spec)
{
    const struct mf_run_config *config = spec->run;
    const char *resolved = NULL;
    MF_TRY(mf_convert_path(service, config->output, &spec->arena, &resolved));
    for (int32_t i = 0; i < config->data_path_count; i++) {
        MF_TRY(mf_convert_path(service, config->data_paths[i], &spec->arena, &resolved));
    }
    for (int32_t i = 0; i < config->validation_path_count; i++) {
        MF_TRY(mf_convert_path(service, config->validation_paths[i], &spec->arena, &resolved));
    }
    if (spec->resume[0] != '\0' && strcmp(spec->resume, "latest") != 0) {
        MF_TRY(mf_convert_path(service, spec->resume, &spec->arena, &spec->resume));
    }
    return MF_STATUS_OK;
}

static enum mf_status read_run(struct mf_service *service, const Memferry__V1__RunRequest *request,
                               struct mf_session_spec *spec)
{
    spec->resume = mf_arena_string(&spec->arena, request->resume);
    MF_TRY(mf_run_config_read(request->config_json, request->base_folder,
                              service->config.home, spec->run));
    MF_TRY(check_run_paths(service, spec));
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

void mf_service_training_add(struct mf_service *service, struct mf_rpc_server *server)
{
#define METHOD(name, the_kind, function)                                                           \
    {.path = "/memferry.v1.TrainingService/" name, .kind = (the_kind), .handler = (function)}
    static struct mf_rpc_method methods[] = {
        METHOD("CreateSession", MF_RPC_SERVER_STREAM, create_session),
        METHOD("ForwardBackward", MF_RPC_UNARY, forward_backward),
        METHOD("OptimStep", MF_RPC_UNARY, optim_step),
        METHOD("Forward", MF_RPC_UNARY, forward),
        METHOD("Sample", MF_RPC_UNARY, sample),
        METHOD("SaveState", MF_RPC_UNARY, save_state),
        METHOD("LoadState", MF_RPC_UNARY, load_state),
        METHOD("GetSession", MF_RPC_UNARY, get_session),
        METHOD("ListSessions", MF_RPC_UNARY, list_sessions),
        METHOD("CloseSession", MF_RPC_UNARY, close_session),
        METHOD("Run", MF_RPC_SERVER_STREAM, run),
        METHOD("Watch", MF_RPC_SERVER_STREAM, watch),
        METHOD("StopRun", MF_RPC_UNARY, stop_run),
    };
#undef METHOD
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        methods[i].context = service;
    }
    mf_rpc_server_add(server, methods, sizeof(methods) / sizeof(methods[0]));
}
