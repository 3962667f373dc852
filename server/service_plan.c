/* PlanService: plans made, shown, listed, explained and removed. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/format.h"
#include "memferry/v1/plan.pb-c.h"
#include "planner/solve.h"
#include "planner/work.h"
#include "server/convert.h"
#include "server/service_table.h"
#include "server/tune.h"
#include "server/unit_times.h"

#define RING_SLOTS 4 /* of an alternative that streams in a plan that has no ring */

static bool call_cancelled(void *context)
{
    return mf_rpc_call_cancelled(context);
}

/* ---- GetPlan ---- */

static enum mf_status make_plan(struct mf_service *service, struct mf_rpc_call *call,
                                const Memferry__V1__GetPlanRequest *message,
                                const struct mf_model *model, struct mf_arena *arena,
                                Memferry__V1__GetPlanResponse *out)
{
    struct mf_tune_request request = {.model = model, .cancelled = call_cancelled, .context = call};
    struct mf_tune_result result;
    struct mf_pin *pins = NULL;
    MF_TRY(mf_convert_workload(message->workload, model, &request.workload));
    MF_TRY(mf_convert_constraints(message->constraints, arena, &request.constraints,
                                  &request.strategy, &pins, &request.pin_count));
    MF_TRY(mf_convert_effort(message->effort, &request.effort));
    request.pins = pins;
    MF_TRY(mf_tune_plan(service, &request, &result));
    enum mf_status status = mf_convert_plan(service, &result.plan, model, arena, &out->plan);
    out->how = mf_arena_string(arena, result.how);
    out->age_seconds = result.age_s;
    out->miss = mf_arena_string(arena, result.miss);
    out->measure_seconds = result.measure_s;
    out->solve_seconds = result.solve_s;
    mf_plan_reset(&result.plan);
    return status;
}

static enum mf_status get_plan(struct mf_service *service, struct mf_rpc_call *call,
                               const void *request, struct mf_arena *arena,
                               ProtobufCMessage **reply)
{
    const Memferry__V1__GetPlanRequest *message = request;
    struct mf_model model;
    Memferry__V1__GetPlanResponse *out = MF_SERVICE_TABLE_NEW(
        arena, Memferry__V1__GetPlanResponse, MEMFERRY__V1__GET_PLAN_RESPONSE__INIT);
    enum mf_status status = mf_convert_model(service, message->model, arena, &model, NULL);
    if (status == MF_STATUS_OK) {
        status = make_plan(service, call, message, &model, arena, out);
        mf_model_reset(&model);
    }
    *reply = &out->base;
    return status;
}

/* ---- ShowPlan ---- */

static enum mf_status find(struct mf_service *service, const char *id, struct mf_plan *plan,
                           struct mf_model *model)
{
    MF_TRY(mf_tune_find(service, id, plan));
    enum mf_status status = mf_tune_model(service, plan, model);
    if (status == MF_STATUS_OK) {
        status = mf_plan_validate(plan, model);
        if (status != MF_STATUS_OK) {
            mf_model_reset(model);
        }
    }
    if (status != MF_STATUS_OK) {
        mf_plan_reset(plan);
    }
    return status;
}

static enum mf_status show_plan(struct mf_service *service, struct mf_rpc_call *call,
                                const void *request, struct mf_arena *arena,
                                ProtobufCMessage **reply)
{
    const Memferry__V1__ShowPlanRequest *message = request;
    struct mf_plan plan;
    struct mf_model model;
    (void)call;
    MF_TRY(find(service, message->id, &plan, &model));
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
        plan->use_count = record->use_count;
        plan->current = record->planner_version == MF_PLANNER_VERSION &&
                        strcmp(record->hardware_fingerprint, fingerprint) == 0;
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

/* ---- ExplainPlan ---- */

struct explaining {
    struct mf_service *service;
    struct mf_rpc_call *call;
    const struct mf_plan *plan;
    const struct mf_model *model;
    int32_t unit;
    struct mf_hardware hardware;
    struct mf_profile profile;
    struct mf_arena *arena;
    Memferry__V1__ExplainPlanResponse *out;
};

/* Gives the unit another choice; units that share its parameters follow where they must. */
static void change(const struct explaining *explaining, int weights, int updates,
                   struct mf_plan *plan)
{
    const struct mf_model *model = explaining->model;
    int32_t owner = model->units[explaining->unit].owner;
    bool resident = mf_work_weights[weights].forward == MF_WEIGHT_FORWARD_RESIDENT;
    for (int32_t i = 0; i < plan->unit_count; i++) {
        struct mf_unit_decision *unit = &plan->units[i];
        if (model->units[i].owner != owner) {
            continue;
        }
        unit->gradient = mf_work_updates[updates].gradient;
        unit->optimizer = mf_work_updates[updates].optimizer;
        if (i == explaining->unit || (unit->forward == MF_WEIGHT_FORWARD_RESIDENT) != resident) {
            unit->forward = mf_work_weights[weights].forward;
            unit->backward = mf_work_weights[weights].backward;
        }
    }
    if (plan->ring_slots == 0 && !resident) {
        plan->ring_slots = RING_SLOTS;
    }
}

static int64_t budget(int64_t asked, int64_t there)
{
    return asked > 0 ? asked : there;
}

static enum mf_status add_alternative(struct explaining *explaining, int weights, int updates)
{
    struct mf_plan plan;
    const struct mf_unit_decision *chosen = &explaining->plan->units[explaining->unit];
    const struct mf_constraints *constraints = &explaining->plan->constraints;
    MF_TRY(mf_rpc_call_check(explaining->call));
    mf_plan_copy(explaining->plan, &plan);
    change(explaining, weights, updates, &plan);
    enum mf_status status = mf_plan_validate(&plan, explaining->model);
    if (status != MF_STATUS_OK) { /* no such combination here */
        mf_plan_reset(&plan);
        return MF_STATUS_OK;
    }
    status = mf_solve_predict(explaining->model, &explaining->hardware,
                              explaining->profile.count > 0 ? &explaining->profile : NULL, &plan);
    if (status == MF_STATUS_OK) {
        const struct mf_unit_decision *unit = &plan.units[explaining->unit];
        Memferry__V1__Alternative *out = MF_SERVICE_TABLE_NEW(
            explaining->arena, Memferry__V1__Alternative, MEMFERRY__V1__ALTERNATIVE__INIT);
        out->forward = (Memferry__V1__WeightForward)(unit->forward + 1);
        out->backward = (Memferry__V1__WeightBackward)(unit->backward + 1);
        out->gradient = (Memferry__V1__Gradient)(unit->gradient + 1);
        out->optimizer = (Memferry__V1__Optimizer)(unit->optimizer + 1);
        out->step_ns = plan.prediction.step_ns;
        out->device_peak_bytes = plan.prediction.device_peak_bytes;
        out->host_peak_bytes = plan.prediction.host_peak_bytes;
        out->fits =
            out->device_peak_bytes <=
                budget(constraints->device_bytes, explaining->hardware.devices[0].memory_bytes) &&
            out->host_peak_bytes <=
                budget(constraints->host_bytes, explaining->hardware.host_bytes);
        out->chosen = unit->forward == chosen->forward && unit->backward == chosen->backward &&
                      unit->gradient == chosen->gradient && unit->optimizer == chosen->optimizer;
        explaining->out->alternatives[explaining->out->n_alternatives++] = out;
    }
    mf_plan_reset(&plan);
    return status;
}

static int faster(const void *a, const void *b)
{
    const Memferry__V1__Alternative *left = *(Memferry__V1__Alternative *const *)a;
    const Memferry__V1__Alternative *right = *(Memferry__V1__Alternative *const *)b;
    if (left->step_ns != right->step_ns) {
        return left->step_ns < right->step_ns ? -1 : 1;
    }
    return (int)right->chosen - (int)left->chosen; /* of equals, the chosen one first */
}

static enum mf_status explain(struct explaining *explaining)
{
    size_t most = (size_t)MF_WORK_WEIGHTS * MF_WORK_UPDATES;
    Memferry__V1__ExplainPlanResponse *out = explaining->out;
    double(*times)[MF_LANE_COUNT] =
        mf_arena_alloc(explaining->arena, (size_t)explaining->plan->unit_count, sizeof(*times));
    MF_TRY(mf_unit_times_get(explaining->service, explaining->plan, explaining->model, times));
    out->unit = mf_convert_unit(explaining->plan, explaining->model, explaining->unit,
                                times[explaining->unit], explaining->arena);
    out->alternatives = mf_arena_alloc(explaining->arena, most, sizeof(*out->alternatives));
    for (int weights = 0; weights < MF_WORK_WEIGHTS; weights++) {
        for (int updates = 0; updates < MF_WORK_UPDATES; updates++) {
            MF_TRY(add_alternative(explaining, weights, updates));
        }
    }
    qsort(out->alternatives, out->n_alternatives, sizeof(Memferry__V1__Alternative *), faster);
    return MF_STATUS_OK;
}

static enum mf_status no_such_unit(const struct mf_model *model, const char *name)
{
    const char **names = calloc((size_t)model->unit_count, sizeof(*names));
    MF_ASSERT(names != NULL);
    for (int32_t i = 0; i < model->unit_count; i++) {
        names[i] = model->units[i].name;
    }
    const char *nearest = mf_format_nearest(name, names, (size_t)model->unit_count);
    enum mf_status status =
        mf_status_set(MF_STATUS_NOT_FOUND, "%s has no unit \"%.100s\"%s%s%s", model->name, name,
                      nearest != NULL ? "; the nearest is \"" : "", nearest != NULL ? nearest : "",
                      nearest != NULL ? "\"" : "");
    free(names);
    return status;
}

static enum mf_status explain_plan(struct mf_service *service, struct mf_rpc_call *call,
                                   const void *request, struct mf_arena *arena,
                                   ProtobufCMessage **reply)
{
    const Memferry__V1__ExplainPlanRequest *message = request;
    struct mf_plan plan;
    struct mf_model model;
    MF_TRY(find(service, message->id, &plan, &model));
    struct explaining explaining = {
        .service = service,
        .call = call,
        .plan = &plan,
        .model = &model,
        .unit = mf_model_find_unit(&model, message->unit),
        .arena = arena,
        .out = MF_SERVICE_TABLE_NEW(arena, Memferry__V1__ExplainPlanResponse,
                                    MEMFERRY__V1__EXPLAIN_PLAN_RESPONSE__INIT),
    };
    mf_tune_hardware(service, &explaining.hardware);
    mf_tune_profile(service, &explaining.profile);
    enum mf_status status =
        explaining.unit < 0 ? no_such_unit(&model, message->unit) : explain(&explaining);
    mf_profile_reset(&explaining.profile);
    mf_plan_reset(&plan);
    mf_model_reset(&model);
    *reply = &explaining.out->base;
    return status;
}

void mf_service_plan_add(struct mf_service *service, struct mf_rpc_server *server)
{
    static struct mf_service_table_unary rows[] = {
        {.path = "/memferry.v1.PlanService/GetPlan",
         .request = &memferry__v1__get_plan_request__descriptor,
         .answer = get_plan},
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
         .answer = explain_plan},
        {.path = "/memferry.v1.PlanService/ListModels",
         .request = &memferry__v1__list_models_request__descriptor,
         .answer = list_models},
    };
    static struct mf_rpc_method methods[sizeof(rows) / sizeof(rows[0])];
    mf_service_table_unary(service, server, rows, methods, sizeof(rows) / sizeof(rows[0]));
}
