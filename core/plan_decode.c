/* A plan from JSON: mf_plan_decode of plan.h. What was stored or sent is not trusted: every key,
 * type and range is checked, and the id must be that of the decisions. */
#include "core/plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/limits.h"
#include "core/plan_fields.h"

#define WHERE "plan"

#define KEY(kind, key, low, high) #key,
#define DECODE_text(key, low, high, out) mf_json_text(json, where, key, out, sizeof(out))
#define DECODE_int64(key, low, high, out) mf_json_int(json, where, key, low, high, &(out))
#define DECODE_int32(key, low, high, out) decode_int32(json, where, key, low, high, &(out))
#define DECODE_number(key, low, high, out) mf_json_number(json, where, key, low, high, &(out))
#define DECODE_flag(key, low, high, out) mf_json_bool(json, where, key, &(out))

static enum mf_status only(const json_t *json, const char *where, const char *const *known,
                           size_t bytes)
{
    return mf_json_only(json, where, known, bytes / sizeof(*known));
}

static enum mf_status decode_int32(const json_t *json, const char *where, const char *key,
                                   int64_t low, int64_t high, int32_t *out)
{
    int64_t value = *out;
    MF_TRY(mf_json_int(json, where, key, low, high, &value));
    *out = (int32_t)value;
    return MF_STATUS_OK;
}

static enum mf_status decode_workload(const json_t *json, struct mf_workload *out)
{
    static const char *const where = "workload";
    static const char *const known[] = {MF_PLAN_FIELDS_WORKLOAD(KEY)};
    MF_TRY(only(json, where, known, sizeof(known)));
#define X(kind, key, low, high)                                                                    \
    MF_TRY(mf_json_require(json, where, #key));                                                    \
    MF_TRY(DECODE_##kind(#key, low, high, out->key));
    MF_PLAN_FIELDS_WORKLOAD(X)
#undef X
    return MF_STATUS_OK;
}

static enum mf_status decode_constraints(const json_t *json, struct mf_constraints *out)
{
    static const char *const where = "constraints";
    static const char *const known[] = {MF_PLAN_FIELDS_CONSTRAINTS(KEY)};
    MF_TRY(only(json, where, known, sizeof(known)));
#define X(kind, key, low, high) MF_TRY(DECODE_##kind(#key, low, high, out->key));
    MF_PLAN_FIELDS_CONSTRAINTS(X)
#undef X
    return MF_STATUS_OK;
}

static enum mf_status decode_purposes(const json_t *json, const char *where, int64_t *out)
{
    static const char *const known[] = {
#define X(name, text) text,
        MF_PURPOSE_MAP(X)
#undef X
    };
    MF_TRY(only(json, where, known, sizeof(known)));
    for (int i = 0; i < MF_PURPOSE_COUNT; i++) {
        MF_TRY(mf_json_int(json, where, known[i], 0, INT64_MAX, &out[i]));
    }
    return MF_STATUS_OK;
}

static enum mf_status decode_lanes(const json_t *json, double *out)
{
    static const char *const where = "lane_busy_ns";
    static const char *const known[] = {
#define X(name, text) text,
        MF_LANE_MAP(X)
#undef X
    };
    MF_TRY(only(json, where, known, sizeof(known)));
    for (int i = 0; i < MF_LANE_COUNT; i++) {
        MF_TRY(mf_json_number(json, where, known[i], 0, 1e300, &out[i]));
    }
    return MF_STATUS_OK;
}

static enum mf_status decode_prediction(const json_t *json, struct mf_plan_prediction *out)
{
    static const char *const where = "prediction";
    static const char *const known[] = {MF_PLAN_FIELDS_PREDICTION(KEY) "lane_busy_ns",
                                        "device_purpose_bytes", "host_purpose_bytes"};
    MF_TRY(only(json, where, known, sizeof(known)));
#define X(kind, key, low, high) MF_TRY(DECODE_##kind(#key, low, high, out->key));
    MF_PLAN_FIELDS_PREDICTION(X)
#undef X
    MF_TRY(decode_lanes(json_object_get(json, "lane_busy_ns"), out->lane_busy_ns));
    MF_TRY(decode_purposes(json_object_get(json, "device_purpose_bytes"), "device_purpose_bytes",
                           out->device_purpose_bytes));
    return decode_purposes(json_object_get(json, "host_purpose_bytes"), "host_purpose_bytes",
                           out->host_purpose_bytes);
}

/* -1 when the member is no string, or names no choice. */
static int choice(const json_t *value, int (*parse)(const char *))
{
    const char *text = json_string_value(value);
    return text != NULL ? parse(text) : -1;
}

static bool decode_unit(const json_t *row, struct mf_unit_decision *out)
{
    int forward = choice(json_array_get(row, MF_PLAN_FIELD_FORWARD), mf_plan_parse_forward);
    int backward = choice(json_array_get(row, MF_PLAN_FIELD_BACKWARD), mf_plan_parse_backward);
    int gradient = choice(json_array_get(row, MF_PLAN_FIELD_GRADIENT), mf_plan_parse_gradient);
    int optimizer = choice(json_array_get(row, MF_PLAN_FIELD_OPTIMIZER), mf_plan_parse_optimizer);
    const json_t *pinned = json_array_get(row, MF_PLAN_FIELD_PINNED);
    const char *why = json_string_value(json_array_get(row, MF_PLAN_FIELD_WHY));
    if (json_array_size(row) != MF_PLAN_FIELD_COUNT || forward < 0 || backward < 0 ||
        gradient < 0 || optimizer < 0 || !json_is_boolean(pinned) || why == NULL ||
        strlen(why) >= sizeof(out->why)) {
        return false;
    }
    out->forward = (enum mf_weight_forward)forward;
    out->backward = (enum mf_weight_backward)backward;
    out->gradient = (enum mf_gradient)gradient;
    out->optimizer = (enum mf_optimizer)optimizer;
    out->pinned = json_is_true(pinned);
    memcpy(out->why, why, strlen(why) + 1);
    return true;
}

/* Allocates for a list of 1 to `high` members and says how many there are. */
static enum mf_status open_list(const json_t *list, const char *key, size_t high, size_t size,
                                void **memory, int32_t *count)
{
    size_t members = json_array_size(list);
    if (!json_is_array(list) || members < 1 || members > high) {
        return mf_status_set(MF_STATUS_INVALID, WHERE ": \"%s\" must be a list of 1 to %zu", key,
                             high);
    }
    *memory = calloc(members, size);
    MF_ASSERT(*memory != NULL);
    *count = (int32_t)members;
    return MF_STATUS_OK;
}

static enum mf_status decode_lists(const json_t *json, struct mf_plan *out)
{
    const json_t *units = json_object_get(json, "units");
    const json_t *activations = json_object_get(json, "activations");
    void *memory = NULL;
    MF_TRY(open_list(units, "units", MF_UNITS_MAX, sizeof(*out->units), &memory, &out->unit_count));
    out->units = memory;
    for (int32_t i = 0; i < out->unit_count; i++) {
        if (!decode_unit(json_array_get(units, (size_t)i), &out->units[i])) {
            return mf_status_set(MF_STATUS_INVALID, WHERE ": units[%d] is not a decision", (int)i);
        }
    }
    MF_TRY(open_list(activations, "activations", MF_BLOCKS_MAX, sizeof(*out->activations), &memory,
                     &out->block_count));
    out->activations = memory;
    for (int32_t i = 0; i < out->block_count; i++) {
        int index = choice(json_array_get(activations, (size_t)i), mf_plan_parse_activation);
        if (index < 0) {
            return mf_status_set(MF_STATUS_INVALID, WHERE ": activations[%d] is not a choice",
                                 (int)i);
        }
        out->activations[i] = (enum mf_activation)index;
    }
    return MF_STATUS_OK;
}

static enum mf_status decode_choices(const json_t *json, struct mf_plan *out)
{
    int strategy = choice(json_object_get(json, "strategy"), mf_plan_parse_strategy);
    const char *source = json_string_value(json_object_get(json, "source"));
    bool measured = source != NULL && strcmp(source, MF_PLAN_FIELDS_SOURCE_MEASURED) == 0;
    if (strategy < 0) {
        return mf_status_set(MF_STATUS_INVALID, WHERE ": \"strategy\" names none");
    }
    if (!measured && (source == NULL || strcmp(source, MF_PLAN_FIELDS_SOURCE_ESTIMATE) != 0)) {
        return mf_status_set(MF_STATUS_INVALID, WHERE ": \"source\" must be \"%s\" or \"%s\"",
                             MF_PLAN_FIELDS_SOURCE_ESTIMATE, MF_PLAN_FIELDS_SOURCE_MEASURED);
    }
    out->strategy = (enum mf_strategy)strategy;
    out->source = measured ? MF_PLAN_MEASURED : MF_PLAN_ESTIMATE;
    return MF_STATUS_OK;
}

static enum mf_status check_id(struct mf_plan *plan)
{
    char stored[MF_HASH_TEXT_MAX];
    memcpy(stored, plan->id, sizeof(stored));
    if (stored[0] != '\0') {
        mf_plan_seal(plan);
        if (strcmp(stored, plan->id) != 0) {
            return mf_status_set(MF_STATUS_INVALID, WHERE ": its id is %.12s, its decisions' %.12s",
                                 stored, plan->id);
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status decode(const json_t *json, struct mf_plan *out)
{
    static const char *const where = WHERE;
    static const char *const known[] = {
#define X(key) #key,
        MF_PLAN_FIELDS_PLAN(KEY) MF_PLAN_FIELDS_REST(X)
#undef X
    };
    MF_TRY(only(json, where, known, sizeof(known)));
    MF_TRY(mf_json_require(json, where, "model_fingerprint"));
#define X(kind, key, low, high) MF_TRY(DECODE_##kind(#key, low, high, out->key));
    MF_PLAN_FIELDS_PLAN(X)
#undef X
    MF_TRY(decode_workload(json_object_get(json, "workload"), &out->workload));
    MF_TRY(decode_constraints(json_object_get(json, "constraints"), &out->constraints));
    MF_TRY(decode_choices(json, out));
    MF_TRY(decode_lists(json, out));
    MF_TRY(decode_prediction(json_object_get(json, "prediction"), &out->prediction));
    return check_id(out);
}

enum mf_status mf_plan_decode(const json_t *json, struct mf_plan *out)
{
    memset(out, 0, sizeof(*out));
    enum mf_status status = decode(json, out);
    if (status != MF_STATUS_OK) {
        mf_plan_reset(out);
    }
    return status;
}
