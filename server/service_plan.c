/* PlanService: plans made, shown, listed, explained and removed. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "memferry/v1/plan.pb-c.h"
#include "proto/wire.h"
#include "server/convert.h"
#include "server/plan_cache.h"
#include "server/service_explain.h"
#include "server/service_plan_file.h"
#include "server/service_table.h"
#include "server/timeline.h"
#include "server/tune.h"
#include "server/tune_batch.h"
#include "server/tune_machine.h"

#define AGE_BYTES_MAX 16 /* of a message that has only an age */

static bool call_cancelled(void *context)
{
    return mf_rpc_call_cancelled(context);
}

/* ---- GetPlan ---- */

/* `batch` and `tune_micro_batch` say what the workload then must not. */
static enum mf_status read_batch(const Memferry__V1__GetPlanRequest *message,
                                 struct mf_workload *workload)
{
    static const Memferry__V1__Workload none = MEMFERRY__V1__WORKLOAD__INIT;
    const Memferry__V1__Workload *said = message->workload != NULL ? message->workload : &none;
    if (message->batch < 0 || message->batch > MF_MICRO_BATCH_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "batch: 1 to %d, or 0, found %d",
                             MF_MICRO_BATCH_MAX, message->batch);
    }
    if (message->tune_micro_batch && said->micro_batch != 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "tune_micro_batch: workload.micro_batch is %d, so there is nothing to "
                             "tune: leave one away",
                             said->micro_batch);
    }
    if ((message->tune_micro_batch || message->batch > 0) && said->accumulation != 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "workload.accumulation follows from batch and micro-batch: leave it "
                             "away, found %d",
                             said->accumulation);
    }
    if (message->batch == 0 || message->tune_micro_batch) {
        return MF_STATUS_OK;
    }
    if (message->batch % workload->micro_batch != 0) {
        return mf_status_set(MF_STATUS_INVALID, "batch: %d is no multiple of the micro-batch, %d",
                             message->batch, workload->micro_batch);
    }
    workload->accumulation = message->batch / workload->micro_batch;
    return mf_workload_validate(workload);
}

static enum mf_status make_plan(struct mf_service *service, struct mf_rpc_call *call,
                                const Memferry__V1__GetPlanRequest *message,
                                const struct mf_model *model, struct mf_arena *arena,
                                Memferry__V1__GetPlanResponse *out)
{
    struct mf_tune_request request = {.model = model, .cancelled = call_cancelled, .context = call};
    struct mf_tune_result result;
    struct mf_hardware hardware;
    struct mf_pin *pins = NULL;
    MF_TRY(mf_convert_workload(message->workload, model, &request.workload));
    MF_TRY(read_batch(message, &request.workload));
    MF_TRY(mf_convert_constraints(message->constraints, arena, &request.constraints,
                                  &request.strategy, &pins, &request.pin_count));
    MF_TRY(mf_convert_effort(message->effort, &request.effort));
    MF_TRY(mf_tune_machine_find(service, message->hardware, &hardware));
    request.hardware = &hardware;
    if (message->effort == MEMFERRY__V1__EFFORT__EFFORT_UNSPECIFIED &&
        !mf_tune_machine_here(service, &hardware)) {
        request.effort = MF_EFFORT_ESTIMATE;
    }
    request.pins = pins;
    MF_TRY(message->tune_micro_batch ? mf_tune_batch_plan(service, &request, message->batch, arena,
                                                          &result, &out->trials, &out->n_trials)
                                     : mf_tune_plan(service, &request, &result));
    enum mf_status status = mf_convert_plan(service, &result.plan, model, arena, &out->plan);
    out->how = mf_arena_string(arena, result.how);
    out->age_seconds = result.age_s;
    out->miss = mf_arena_string(arena, result.miss);
    out->measure_seconds = result.measure_s;
    out->solve_seconds = result.solve_s;
    mf_plan_reset(&result.plan);
    return status;
}

/* Changes when the file of a Hugging Face folder does; "" for other models. */
static const char *make_stamp(const Memferry__V1__Model *model, struct mf_arena *arena)
{
    struct stat info;
    if (model == NULL || model->source_case != MEMFERRY__V1__MODEL__SOURCE_FOLDER ||
        stat(mf_arena_format(arena, "%s/config.json", model->folder), &info) != 0) {
        return "";
    }
    return mf_arena_format(arena, "%llu %llu %lld %lld.%09ld", (unsigned long long)info.st_dev,
                           (unsigned long long)info.st_ino, (long long)info.st_size,
                           (long long)info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
}

static double age_of(int64_t created_unix_s)
{
    return (double)((int64_t)time(NULL) - created_unix_s);
}

/* An answer that is kept has no age; the message's bytes grow by that one field. */
static bool answer_from_cache(struct mf_service *service, struct mf_rpc_call *call,
                              const struct mf_plan_cache_key *key)
{
    Memferry__V1__GetPlanResponse age = MEMFERRY__V1__GET_PLAN_RESPONSE__INIT;
    uint8_t *answer = NULL;
    size_t bytes = 0;
    int64_t created_unix_s = 0;
    if (!mf_plan_cache_get(service->plan_cache, key, AGE_BYTES_MAX, &answer, &bytes,
                           &created_unix_s)) {
        return false;
    }
    age.age_seconds = age_of(created_unix_s);
    MF_ASSERT(protobuf_c_message_get_packed_size(&age.base) <= AGE_BYTES_MAX);
    bytes += protobuf_c_message_pack(&age.base, answer + bytes);
    mf_rpc_call_reply(call, answer, bytes);
    free(answer);
    return true;
}

static enum mf_status answer_anew(struct mf_service *service, struct mf_rpc_call *call,
                                  const Memferry__V1__GetPlanRequest *message,
                                  const struct mf_plan_cache_key *key, struct mf_arena *arena)
{
    struct mf_model model;
    size_t bytes = 0;
    Memferry__V1__GetPlanResponse out = MEMFERRY__V1__GET_PLAN_RESPONSE__INIT;
    MF_TRY(mf_convert_model(service, message->model, arena, &model, NULL));
    enum mf_status status = make_plan(service, call, message, &model, arena, &out);
    mf_model_reset(&model);
    MF_TRY(status);
    uint8_t *packed = mf_wire_pack(&out.base, &bytes);
    mf_rpc_call_reply(call, packed, bytes);
    free(packed);
    if (strcmp(out.how, "cached") == 0) {
        out.age_seconds = 0;
        packed = mf_wire_pack(&out.base, &bytes);
        mf_plan_cache_put(service->plan_cache, key, out.plan->id, out.plan->created_unix_seconds,
                          packed, bytes);
        free(packed);
    }
    return MF_STATUS_OK;
}

/* Requests over this are unpacked by a worker: the completion-queue thread must stay free. */
#define AT_ONCE_BYTES_MAX 4096

static enum mf_status read_get_plan(struct mf_service *service, const uint8_t *bytes, size_t count,
                                    struct mf_arena *arena, struct mf_plan_cache_key *key,
                                    Memferry__V1__GetPlanRequest **out)
{
    MF_TRY(mf_wire_unpack(&memferry__v1__get_plan_request__descriptor, bytes, count, 0,
                          (ProtobufCMessage **)out));
    *key = (struct mf_plan_cache_key){
        .request = bytes,
        .bytes = count,
        .generation = mf_tune_generation(service),
        .stamp = make_stamp((*out)->model, arena),
    };
    return MF_STATUS_OK;
}

static bool get_plan_at_once(struct mf_rpc_call *call, const uint8_t *bytes, size_t count,
                             void *context)
{
    struct mf_service *service = context;
    Memferry__V1__GetPlanRequest *request = NULL;
    struct mf_plan_cache_key key;
    struct mf_arena arena;
    if (count > AT_ONCE_BYTES_MAX) {
        return false;
    }
    mf_arena_init(&arena);
    bool done = read_get_plan(service, bytes, count, &arena, &key, &request) == MF_STATUS_OK &&
                answer_from_cache(service, call, &key);
    mf_wire_free(request);
    mf_arena_reset(&arena);
    return done;
}

static void get_plan(struct mf_rpc_call *call, const uint8_t *bytes, size_t count, void *context)
{
    struct mf_service *service = context;
    Memferry__V1__GetPlanRequest *request = NULL;
    struct mf_plan_cache_key key;
    struct mf_arena arena;
    mf_arena_init(&arena);
    enum mf_status status = read_get_plan(service, bytes, count, &arena, &key, &request);
    if (status == MF_STATUS_OK && !answer_from_cache(service, call, &key)) {
        status = answer_anew(service, call, request, &key, &arena);
    }
    if (status != MF_STATUS_OK) {
        mf_rpc_call_fail(call, mf_status_error());
    }
    mf_wire_free(request);
    mf_arena_reset(&arena);
}

/* ---- ShowPlan ---- */

static enum mf_status show_plan(struct mf_service *service, struct mf_rpc_call *call,
                                const void *request, struct mf_arena *arena,
                                ProtobufCMessage **reply)
{
    const Memferry__V1__ShowPlanRequest *message = request;
    struct mf_plan plan;
    struct mf_model model;
    (void)call;
    MF_TRY(mf_tune_find_whole(service, message->id, &plan, &model));
    Memferry__V1__ShowPlanResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__ShowPlanResponse, MEMFERRY__V1__SHOW_PLAN_RESPONSE__INIT);
    enum mf_status status = mf_convert_plan(service, &plan, &model, arena, &out->plan);
    mf_plan_reset(&plan);
    mf_model_reset(&model);
    *reply = &out->base;
    return status;
}

/* ---- ListPlans, DeletePlan, ListModels ---- */

/* The workload is in the plan's own JSON only. */
static Memferry__V1__Workload *read_workload(struct mf_service *service, const char *id,
                                             struct mf_arena *arena)
{
    struct mf_plan plan;
    if (mf_tune_find(service, id, &plan) != MF_STATUS_OK) {
        return NULL;
    }
    Memferry__V1__Workload *workload = mf_convert_workload_reply(&plan.workload, arena);
    mf_plan_reset(&plan);
    return workload;
}

/* The device of another machine than this one, or of this one in another state. */
static char *hardware_name(struct mf_service *service, const char *fingerprint,
                           struct mf_arena *arena)
{
    struct mf_hardware hardware;
    bool known = mf_tune_machine_find(service, fingerprint, &hardware) == MF_STATUS_OK;
    return mf_arena_string(arena, known ? hardware.devices[0].name : "other hardware");
}

static enum mf_status list_plans(struct mf_service *service, struct mf_rpc_call *call,
                                 const void *request, struct mf_arena *arena,
                                 ProtobufCMessage **reply)
{
    struct mf_store_plan_record *records = NULL;
    struct mf_hardware hardware;
    char fingerprint[MF_HASH_TEXT_MAX];
    int32_t count = 0;
    (void)call;
    (void)request;
    mf_tune_hardware(service, &hardware);
    mf_hardware_fingerprint(&hardware, fingerprint);
    MF_TRY(mf_store_plan_list(service->store, arena, &records, &count));
    Memferry__V1__ListPlansResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__ListPlansResponse, MEMFERRY__V1__LIST_PLANS_RESPONSE__INIT);
    out->plans = mf_arena_alloc(arena, (size_t)count + 1, sizeof(*out->plans));
    for (int32_t i = 0; i < count; i++) {
        const struct mf_store_plan_record *record = &records[i];
        if (record->error != NULL) { /* remembered as not feasible: no plan */
            continue;
        }
        Memferry__V1__PlanSummary *plan = MF_SERVICE_TABLE_NEW(arena, Memferry__V1__PlanSummary,
                                                               MEMFERRY__V1__PLAN_SUMMARY__INIT);
        int strategy = mf_plan_parse_strategy(record->strategy);
        plan->id = (char *)record->id;
        plan->model_name = (char *)record->model_name;
        plan->strategy = (Memferry__V1__Strategy)(strategy + 1);
        plan->workload = read_workload(service, record->id, arena);
        plan->measured = strcmp(record->source, "measured") == 0;
        plan->step_ns = record->step_ns;
        plan->device_peak_bytes = record->device_peak_bytes;
        plan->host_peak_bytes = record->host_peak_bytes;
        plan->created_unix_seconds = record->created_unix_s;
        plan->use_count = record->use_count + mf_plan_cache_uses(service->plan_cache, record->id);
        bool here = strcmp(record->hardware_fingerprint, fingerprint) == 0;
        plan->hardware_name = here ? mf_arena_string(arena, "")
                                   : hardware_name(service, record->hardware_fingerprint, arena);
        plan->current = here && record->planner_version == MF_PLANNER_VERSION;
        out->plans[out->n_plans++] = plan;
    }
    *reply = &out->base;
    return MF_STATUS_OK;
}

static enum mf_status delete_plan(struct mf_service *service, struct mf_rpc_call *call,
                                  const void *request, struct mf_arena *arena,
                                  ProtobufCMessage **reply)
{
    const Memferry__V1__DeletePlanRequest *message = request;
    struct mf_plan plan;
    char id[MF_HASH_TEXT_MAX];
    (void)call;
    MF_TRY(mf_tune_find(service, message->id, &plan));
    memcpy(id, plan.id, sizeof(id));
    mf_plan_reset(&plan);
    MF_TRY(mf_store_plan_delete(service->store, id));
    mf_tune_changed(service);
    Memferry__V1__DeletePlanResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__DeletePlanResponse, MEMFERRY__V1__DELETE_PLAN_RESPONSE__INIT);
    *reply = &out->base;
    return MF_STATUS_OK;
}

static enum mf_status list_models(struct mf_service *service, struct mf_rpc_call *call,
                                  const void *request, struct mf_arena *arena,
                                  ProtobufCMessage **reply)
{
    struct mf_store_model_record *records = NULL;
    int32_t count = 0;
    (void)call;
    (void)request;
    MF_TRY(mf_store_model_list(service->store, arena, &records, &count));
    Memferry__V1__ListModelsResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__ListModelsResponse, MEMFERRY__V1__LIST_MODELS_RESPONSE__INIT);
    out->n_models = (size_t)count;
    out->models = mf_arena_alloc(arena, out->n_models + 1, sizeof(*out->models));
    for (int32_t i = 0; i < count; i++) {
        Memferry__V1__ModelSummary *model = MF_SERVICE_TABLE_NEW(arena, Memferry__V1__ModelSummary,
                                                                 MEMFERRY__V1__MODEL_SUMMARY__INIT);
        model->name = (char *)records[i].name;
        model->family = (char *)records[i].family;
        model->params = records[i].params;
        model->fingerprint = (char *)records[i].fingerprint;
        model->first_seen_unix_seconds = records[i].first_seen_unix_s;
        out->models[i] = model;
    }
    const char *const *presets = mf_model_presets();
    while (presets[out->n_presets] != NULL) {
        out->n_presets++;
    }
    out->presets = mf_arena_alloc(arena, out->n_presets + 1, sizeof(*out->presets));
    for (size_t i = 0; i < out->n_presets; i++) {
        out->presets[i] = mf_arena_string(arena, presets[i]);
    }
    *reply = &out->base;
    return MF_STATUS_OK;
}

void mf_service_plan_add(struct mf_service *service, struct mf_rpc_server *server)
{
    static struct mf_service_table_unary rows[] = {
        {.path = "/memferry.v1.PlanService/ShowPlan",
         .request = &memferry__v1__show_plan_request__descriptor,
         .answer = show_plan},
        {.path = "/memferry.v1.PlanService/ListPlans",
         .request = &memferry__v1__list_plans_request__descriptor,
         .answer = list_plans},
        {.path = "/memferry.v1.PlanService/DeletePlan",
         .request = &memferry__v1__delete_plan_request__descriptor,
         .answer = delete_plan},
        {.path = "/memferry.v1.PlanService/ExplainPlan",
         .request = &memferry__v1__explain_plan_request__descriptor,
         .answer = mf_service_explain_plan},
        {.path = "/memferry.v1.PlanService/GetTimeline",
         .request = &memferry__v1__get_timeline_request__descriptor,
         .answer = mf_timeline_answer},
        {.path = "/memferry.v1.PlanService/ExportPlan",
         .request = &memferry__v1__export_plan_request__descriptor,
         .answer = mf_service_plan_file_export},
        {.path = "/memferry.v1.PlanService/ImportPlan",
         .request = &memferry__v1__import_plan_request__descriptor,
         .answer = mf_service_plan_file_import},
        {.path = "/memferry.v1.PlanService/ListModels",
         .request = &memferry__v1__list_models_request__descriptor,
         .answer = list_models},
    };
    static struct mf_rpc_method methods[sizeof(rows) / sizeof(rows[0])];
    static struct mf_rpc_method get = {.path = "/memferry.v1.PlanService/GetPlan",
                                       .kind = MF_RPC_UNARY,
                                       .at_once = get_plan_at_once,
                                       .handler = get_plan};
    get.context = service;
    mf_rpc_server_add(server, &get, 1);
    mf_service_table_unary(service, server, rows, methods, sizeof(rows) / sizeof(rows[0]));
}
