/* A profile: see profile.h. */
#include "core/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/limits.h"

#define WHERE "profile"
#define TABLE_SIZE_FIRST 64
#define NS_MAX 1e18 /* some thirty years */

/* What a measurement is in JSON: an array in this order. */
enum {
    FIELD_LANE,
    FIELD_KERNEL,
    FIELD_ROWS,
    FIELD_N,
    FIELD_K,
    FIELD_SEQ_LEN,
    FIELD_HEADS,
    FIELD_KV_HEADS,
    FIELD_HEAD_DIM,
    FIELD_FLAGS,
    FIELD_MEDIAN,
    FIELD_SPREAD,
    FIELD_SAMPLES,
    FIELD_COUNT
};

/* The first and the last panel, or adding to an output, cost what the ones between cost. */
static const uint32_t costly_flags = MF_SHAPE_BIAS | MF_SHAPE_GRADIENT_FP32 | MF_SHAPE_WEIGHT_HOST |
                                     MF_SHAPE_OUTPUT_HOST | MF_SHAPE_TOUCHED | MF_SHAPE_APART;

struct mf_signature mf_profile_signature(enum mf_lane lane, enum mf_kernel kernel,
                                         const struct mf_shape *shape)
{
    struct mf_signature signature;
    memset(&signature, 0, sizeof(signature));
    signature.lane = lane;
    signature.kernel = kernel;
    if (kernel == MF_KERNEL_COPY) {
        signature.shape.n = shape->n;
        return signature;
    }
    signature.shape = *shape;
    signature.shape.flags &= costly_flags;
    return signature;
}

static bool equal(const struct mf_signature *a, const struct mf_signature *b)
{
    const struct mf_shape *x = &a->shape;
    const struct mf_shape *y = &b->shape;
    return a->lane == b->lane && a->kernel == b->kernel && x->rows == y->rows && x->n == y->n &&
           x->k == y->k && x->seq_len == y->seq_len && x->heads == y->heads &&
           x->kv_heads == y->kv_heads && x->head_dim == y->head_dim && x->flags == y->flags;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

static uint64_t hash_signature(const struct mf_signature *signature)
{
    const struct mf_shape *shape = &signature->shape;
    uint64_t hash = mix((uint64_t)signature->lane, (uint64_t)signature->kernel);
    hash = mix(hash, (uint64_t)shape->rows);
    hash = mix(hash, (uint64_t)shape->n);
    hash = mix(hash, (uint64_t)shape->k);
    hash = mix(hash, (uint64_t)shape->seq_len);
    hash = mix(hash, (uint64_t)shape->heads);
    hash = mix(hash, (uint64_t)shape->kv_heads);
    hash = mix(hash, (uint64_t)shape->head_dim);
    return mix(hash, shape->flags);
}

/* The slot that holds the signature, or the free one where it would go. The table is never full. */
static int32_t *find_slot(const struct mf_profile *profile, const struct mf_signature *signature)
{
    uint64_t mask = (uint64_t)profile->table_size - 1;
    uint64_t at = hash_signature(signature) & mask;
    while (profile->table[at] >= 0 &&
           !equal(&profile->entries[profile->table[at]].signature, signature)) {
        at = (at + 1) & mask;
    }
    return &profile->table[at];
}

static void grow(struct mf_profile *profile)
{
    int32_t size = profile->table_size > 0 ? profile->table_size * 2 : TABLE_SIZE_FIRST;
    MF_ASSERT(size <= 2 * MF_PROFILE_ENTRIES_MAX);
    profile->capacity = size / 2;
    profile->entries =
        realloc(profile->entries, (size_t)profile->capacity * sizeof(*profile->entries));
    free(profile->table);
    profile->table = malloc((size_t)size * sizeof(*profile->table));
    MF_ASSERT(profile->entries != NULL && profile->table != NULL);
    profile->table_size = size;
    for (int32_t i = 0; i < size; i++) {
        profile->table[i] = -1;
    }
    for (int32_t i = 0; i < profile->count; i++) {
        *find_slot(profile, &profile->entries[i].signature) = i;
    }
}

void mf_profile_init(struct mf_profile *profile)
{
    memset(profile, 0, sizeof(*profile));
}

void mf_profile_reset(struct mf_profile *profile)
{
    free(profile->entries);
    free(profile->table);
    memset(profile, 0, sizeof(*profile));
}

void mf_profile_put(struct mf_profile *profile, const struct mf_measurement *measurement)
{
    struct mf_measurement entry = *measurement;
    MF_ASSERT(isfinite(entry.median_ns) && isfinite(entry.spread_ns)); /* a clock went wrong */
    entry.signature = mf_profile_signature(entry.signature.lane, entry.signature.kernel,
                                           &measurement->signature.shape);
    if (profile->count == profile->capacity) {
        grow(profile);
    }
    int32_t *slot = find_slot(profile, &entry.signature);
    if (*slot < 0) {
        *slot = profile->count++;
    }
    profile->entries[*slot] = entry;
}

const struct mf_measurement *mf_profile_find(const struct mf_profile *profile,
                                             const struct mf_signature *signature)
{
    if (profile->count == 0) {
        return NULL;
    }
    struct mf_signature key =
        mf_profile_signature(signature->lane, signature->kernel, &signature->shape);
    int32_t index = *find_slot(profile, &key);
    return index < 0 ? NULL : &profile->entries[index];
}

static json_t *encode_entry(const struct mf_measurement *entry)
{
    const struct mf_shape *shape = &entry->signature.shape;
    json_t *row = json_pack(
        "[s, s, I, I, I, i, i, i, i, I, f, f, i]", mf_kernel_lane_name(entry->signature.lane),
        mf_kernel_name(entry->signature.kernel), (json_int_t)shape->rows, (json_int_t)shape->n,
        (json_int_t)shape->k, shape->seq_len, shape->heads, shape->kv_heads, shape->head_dim,
        (json_int_t)shape->flags, entry->median_ns, entry->spread_ns, entry->samples);
    MF_ASSERT(row != NULL);
    return row;
}

json_t *mf_profile_encode(const struct mf_profile *profile)
{
    json_t *entries = json_array();
    MF_ASSERT(entries != NULL);
    for (int32_t i = 0; i < profile->count; i++) {
        MF_ASSERT(json_array_append_new(entries, encode_entry(&profile->entries[i])) == 0);
    }
    json_t *json =
        json_pack("{s: s, s: I, s: b, s: s, s: o}", "hardware", profile->hardware_fingerprint,
                  "measured_at_unix_s", (json_int_t)profile->measured_at_unix_s, "complete",
                  profile->complete, "method", profile->method, "entries", entries);
    MF_ASSERT(json != NULL);
    return json;
}

static int parse_lane(const char *text)
{
    for (int lane = 0; text != NULL && lane < MF_LANE_COUNT; lane++) {
        if (strcmp(text, mf_kernel_lane_name((enum mf_lane)lane)) == 0) {
            return lane;
        }
    }
    return -1;
}

/* False when the member is not a whole number from 0 to high. */
static bool whole(const json_t *row, size_t field, int64_t high, int64_t *out)
{
    const json_t *value = json_array_get(row, field);
    *out = json_integer_value(value);
    return json_is_integer(value) && *out >= 0 && *out <= high;
}

static bool duration(const json_t *row, size_t field, double *out)
{
    const json_t *value = json_array_get(row, field);
    *out = json_number_value(value);
    return json_is_number(value) && *out >= 0 && *out <= NS_MAX;
}

static bool decode_entry(const json_t *row, struct mf_measurement *out)
{
    memset(out, 0, sizeof(*out));
    if (!json_is_array(row) || json_array_size(row) != FIELD_COUNT) {
        return false;
    }
    const char *kernel_name = json_string_value(json_array_get(row, FIELD_KERNEL));
    int lane = parse_lane(json_string_value(json_array_get(row, FIELD_LANE)));
    int kernel = kernel_name != NULL ? mf_kernel_parse(kernel_name) : -1;
    int64_t whole_values[FIELD_COUNT] = {0};
    for (size_t field = FIELD_ROWS; field <= FIELD_FLAGS; field++) {
        int64_t high = field >= FIELD_SEQ_LEN ? INT32_MAX : INT64_MAX;
        if (!whole(row, field, high, &whole_values[field])) {
            return false;
        }
    }
    if (lane < 0 || kernel < 0 || !duration(row, FIELD_MEDIAN, &out->median_ns) ||
        !duration(row, FIELD_SPREAD, &out->spread_ns) ||
        !whole(row, FIELD_SAMPLES, INT32_MAX, &whole_values[FIELD_SAMPLES])) {
        return false;
    }
    struct mf_shape shape = {.rows = whole_values[FIELD_ROWS],
                             .n = whole_values[FIELD_N],
                             .k = whole_values[FIELD_K],
                             .seq_len = (int32_t)whole_values[FIELD_SEQ_LEN],
                             .heads = (int32_t)whole_values[FIELD_HEADS],
                             .kv_heads = (int32_t)whole_values[FIELD_KV_HEADS],
                             .head_dim = (int32_t)whole_values[FIELD_HEAD_DIM],
                             .flags = (uint32_t)whole_values[FIELD_FLAGS]};
    out->samples = (int32_t)whole_values[FIELD_SAMPLES];
    out->signature = mf_profile_signature((enum mf_lane)lane, (enum mf_kernel)kernel, &shape);
    struct mf_signature as_stored = {(enum mf_lane)lane, (enum mf_kernel)kernel, shape};
    return equal(&out->signature, &as_stored);
}

static enum mf_status decode_entries(const json_t *entries, struct mf_profile *out)
{
    size_t count = json_array_size(entries);
    if (!json_is_array(entries) || count > MF_PROFILE_ENTRIES_MAX) {
        return mf_status_set(MF_STATUS_INVALID,
                             WHERE ": \"entries\" must be a list of at most %d measurements",
                             MF_PROFILE_ENTRIES_MAX);
    }
    for (size_t i = 0; i < count; i++) {
        struct mf_measurement entry;
        if (!decode_entry(json_array_get(entries, i), &entry)) {
            return mf_status_set(MF_STATUS_INVALID, WHERE ": entries[%zu] is not a measurement", i);
        }
        mf_profile_put(out, &entry);
        if (out->count != (int32_t)i + 1) {
            return mf_status_set(MF_STATUS_INVALID,
                                 WHERE ": entries[%zu] measures what an earlier one does", i);
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status decode(const json_t *json, struct mf_profile *out)
{
    static const char *const known[] = {"hardware", "measured_at_unix_s", "complete", "method",
                                        "entries"};
    MF_TRY(mf_json_only(json, WHERE, known, sizeof(known) / sizeof(known[0])));
    MF_TRY(mf_json_text(json, WHERE, "hardware", out->hardware_fingerprint,
                        sizeof(out->hardware_fingerprint)));
    MF_TRY(mf_json_int(json, WHERE, "measured_at_unix_s", 0, INT64_MAX, &out->measured_at_unix_s));
    MF_TRY(mf_json_bool(json, WHERE, "complete", &out->complete));
    MF_TRY(mf_json_text(json, WHERE, "method", out->method, sizeof(out->method)));
    return decode_entries(json_object_get(json, "entries"), out);
}

enum mf_status mf_profile_decode(const json_t *json, struct mf_profile *out)
{
    mf_profile_init(out);
    enum mf_status status = decode(json, out);
    if (status != MF_STATUS_OK) {
        mf_profile_reset(out);
    }
    return status;
}
