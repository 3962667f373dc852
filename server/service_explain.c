/* PlanService.ExplainPlan: what each alternative for one unit would cost. */
#include "server/service_explain.h"

#include <stdlib.h>
#include <string.h>

#include "core/format.h"
#include "memferry/v1/plan.pb-c.h"
#include "planner/solve.h"
#include "planner/work.h"
#include "server/convert.h"
#include "server/service_table.h"
#include "server/tune.h"
#include "server/tune_machine.h"
#include "server/unit_times.h"

#define RING_SLOTS 4 /* of an alternative that streams in a plan that has no ring */

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

enum mf_status mf_service_explain_plan(struct mf_service *service, struct mf_rpc_call *call,
                                       const void *request, struct mf_arena *arena,
                                       ProtobufCMessage **reply)
{
    const Memferry__V1__ExplainPlanRequest *message = request;
    struct mf_plan plan;
    struct mf_model model;
    MF_TRY(mf_tune_find_whole(service, message->id, &plan, &model));
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
    (void)mf_tune_machine_of(service, plan.hardware_fingerprint, &explaining.hardware,
                             &explaining.profile);
    enum mf_status status =
        explaining.unit < 0 ? no_such_unit(&model, message->unit) : explain(&explaining);
    mf_profile_reset(&explaining.profile);
    mf_plan_reset(&plan);
    mf_model_reset(&model);
    *reply = &explaining.out->base;
    return status;
}
