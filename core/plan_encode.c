/* A plan as JSON: mf_plan_encode of plan.h. Compact, but with choices by their names, so that a
 * stored plan can be read and compared by people. */
#include "core/plan.h"

#include "core/limits.h"
#include "core/plan_fields.h"

/* A key whose value has no JSON form (not finite, not UTF-8) stays out; decoding then finds the
 * default. */
#define SET(json, key, value) (void)json_object_set_new(json, key, value)
#define ENCODE_text(value) json_string(value)
#define ENCODE_int64(value) json_integer(value)
#define ENCODE_int32(value) json_integer(value)
#define ENCODE_number(value) json_real(value)
#define ENCODE_flag(value) json_boolean(value)

static json_t *new_object(void)
{
    json_t *json = json_object();
    MF_ASSERT(json != NULL);
    return json;
}

static json_t *new_array(void)
{
    json_t *json = json_array();
    MF_ASSERT(json != NULL);
    return json;
}

static json_t *encode_workload(const struct mf_workload *workload)
{
    json_t *json = new_object();
#define X(kind, key, low, high) SET(json, #key, ENCODE_##kind(workload->key));
    MF_PLAN_FIELDS_WORKLOAD(X)
#undef X
    return json;
}

static json_t *encode_constraints(const struct mf_constraints *constraints)
{
    json_t *json = new_object();
#define X(kind, key, low, high) SET(json, #key, ENCODE_##kind(constraints->key));
    MF_PLAN_FIELDS_CONSTRAINTS(X)
#undef X
    return json;
}

static json_t *encode_purposes(const int64_t *bytes)
{
    json_t *json = new_object();
    for (int i = 0; i < MF_PURPOSE_COUNT; i++) {
        SET(json, mf_plan_purpose_name((enum mf_purpose)i), json_integer(bytes[i]));
    }
    return json;
}

static json_t *encode_prediction(const struct mf_plan_prediction *prediction)
{
    json_t *json = new_object();
#define X(kind, key, low, high) SET(json, #key, ENCODE_##kind(prediction->key));
    MF_PLAN_FIELDS_PREDICTION(X)
#undef X
    json_t *lanes = new_object();
    for (int i = 0; i < MF_LANE_COUNT; i++) {
        SET(lanes, mf_kernel_lane_name((enum mf_lane)i), json_real(prediction->lane_busy_ns[i]));
    }
    SET(json, "lane_busy_ns", lanes);
    SET(json, "device_purpose_bytes", encode_purposes(prediction->device_purpose_bytes));
    SET(json, "host_purpose_bytes", encode_purposes(prediction->host_purpose_bytes));
    return json;
}

static json_t *encode_unit(const struct mf_unit_decision *unit)
{
    json_t *why = json_string(unit->why);
    json_t *row = json_pack(
        "[s, s, s, s, b, o]", mf_plan_forward_name(unit->forward),
        mf_plan_backward_name(unit->backward), mf_plan_gradient_name(unit->gradient),
        mf_plan_optimizer_name(unit->optimizer), unit->pinned, why != NULL ? why : json_string(""));
    MF_ASSERT(row != NULL);
    return row;
}

json_t *mf_plan_encode(const struct mf_plan *plan)
{
    json_t *json = new_object();
#define X(kind, key, low, high) SET(json, #key, ENCODE_##kind(plan->key));
    MF_PLAN_FIELDS_PLAN(X)
#undef X
    SET(json, "workload", encode_workload(&plan->workload));
    SET(json, "constraints", encode_constraints(&plan->constraints));
    SET(json, "strategy", json_string(mf_plan_strategy_name(plan->strategy)));
    SET(json, "source",
        json_string(plan->source == MF_PLAN_MEASURED ? MF_PLAN_FIELDS_SOURCE_MEASURED
                                                     : MF_PLAN_FIELDS_SOURCE_ESTIMATE));
    json_t *units = new_array();
    for (int32_t i = 0; i < plan->unit_count; i++) {
        MF_ASSERT(json_array_append_new(units, encode_unit(&plan->units[i])) == 0);
    }
    SET(json, "units", units);
    json_t *activations = new_array();
    for (int32_t i = 0; i < plan->block_count; i++) {
        json_t *name = json_string(mf_plan_activation_name(plan->activations[i]));
        MF_ASSERT(json_array_append_new(activations, name) == 0);
    }
    SET(json, "activations", activations);
    SET(json, "prediction", encode_prediction(&plan->prediction));
    return json;
}
