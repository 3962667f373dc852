/* Measurements by hardware and signature: see store.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/json.h"
#include "core/log.h"
#include "db/store.h"
#include "db/store_sql.h"

#define SHAPE_TEXT_MAX 256
#define SIGNATURE_TEXT_MAX 320

/* Lane and kernel by name and the shape by keys, so that a change of an enum's order cannot give a
 * stored number to another kernel. */
static void shape_text(const struct mf_shape *shape, char out[static SHAPE_TEXT_MAX])
{
    snprintf(out, SHAPE_TEXT_MAX,
             "{\"rows\":%" PRId64 ",\"n\":%" PRId64 ",\"k\":%" PRId64 ",\"seq_len\":%" PRId32
             ",\"heads\":%" PRId32 ",\"kv_heads\":%" PRId32 ",\"head_dim\":%" PRId32
             ",\"flags\":%" PRIu32 "}",
             shape->rows, shape->n, shape->k, shape->seq_len, shape->heads, shape->kv_heads,
             shape->head_dim, shape->flags);
}

static enum mf_status read_int32(const json_t *json, const char *key, int32_t *out)
{
    int64_t value = 0;
    MF_TRY(mf_json_int(json, "stored shape", key, 0, INT32_MAX, &value));
    *out = (int32_t)value;
    return MF_STATUS_OK;
}

static enum mf_status parse_shape(const char *text, struct mf_shape *out)
{
    json_t *json = NULL;
    int64_t flags = 0;
    *out = (struct mf_shape){0};
    MF_TRY(mf_json_parse(text, strlen(text), "stored shape", &json));
    enum mf_status status = MF_STATUS_OK;
    MF_TRY_GOTO(mf_json_int(json, "stored shape", "rows", 0, INT64_MAX, &out->rows), end);
    MF_TRY_GOTO(mf_json_int(json, "stored shape", "n", 0, INT64_MAX, &out->n), end);
    MF_TRY_GOTO(mf_json_int(json, "stored shape", "k", 0, INT64_MAX, &out->k), end);
    MF_TRY_GOTO(read_int32(json, "seq_len", &out->seq_len), end);
    MF_TRY_GOTO(read_int32(json, "heads", &out->heads), end);
    MF_TRY_GOTO(read_int32(json, "kv_heads", &out->kv_heads), end);
    MF_TRY_GOTO(read_int32(json, "head_dim", &out->head_dim), end);
    MF_TRY_GOTO(mf_json_int(json, "stored shape", "flags", 0, UINT32_MAX, &flags), end);
    out->flags = (uint32_t)flags;
end:
    json_decref(json);
    return status;
}

static int parse_lane(const char *text)
{
    for (int lane = 0; lane < MF_LANE_COUNT; lane++) {
        if (strcmp(mf_kernel_lane_name((enum mf_lane)lane), text) == 0) {
            return lane;
        }
    }
    return -1;
}

/* False for a row that this version cannot use. */
static bool read_measurement(struct sqlite3_stmt *row, struct mf_measurement *out)
{
    int lane = parse_lane(mf_store_sql_column_borrow(row, 0));
    int kernel = mf_kernel_parse(mf_store_sql_column_borrow(row, 1));
    struct mf_shape shape;
    if (lane < 0 || kernel < 0 ||
        parse_shape(mf_store_sql_column_borrow(row, 2), &shape) != MF_STATUS_OK) {
        return false;
    }
    out->signature.lane = (enum mf_lane)lane;
    out->signature.kernel = (enum mf_kernel)kernel;
    out->signature.shape = shape;
    out->median_ns = mf_store_sql_column_double(row, 3);
    out->spread_ns = mf_store_sql_column_double(row, 4);
    out->samples = (int32_t)mf_store_sql_column_integer(row, 5);
    return out->median_ns >= 0 && out->spread_ns >= 0 && out->samples > 0;
}

static enum mf_status load_entries(struct mf_store *store, const char *hardware_fingerprint,
                                   struct mf_profile *out)
{
    struct sqlite3_stmt *row = NULL;
    bool more = false;
    int64_t skipped = 0;
    MF_TRY(mf_store_sql_begin(store, &row,
                              "SELECT lane, kernel, shape, median_ns, spread_ns, samples "
                              "FROM measurements WHERE hardware_fingerprint = ? "
                              "ORDER BY signature",
                              "s", hardware_fingerprint));
    enum mf_status status = mf_store_sql_step(store, row, &more);
    for (; status == MF_STATUS_OK && more; status = mf_store_sql_step(store, row, &more)) {
        struct mf_measurement entry;
        if (read_measurement(row, &entry)) {
            mf_profile_put(out, &entry);
        } else {
            skipped++;
        }
    }
    mf_store_sql_finish(row);
    if (skipped > 0) {
        mf_log_warn("store: %lld stored measurements are of no use to this version",
                    (long long)skipped);
    }
    return status;
}

static enum mf_status load_newest(struct mf_store *store, const char *hardware_fingerprint,
                                  struct mf_profile *out)
{
    struct sqlite3_stmt *row = NULL;
    bool found = false;
    MF_TRY(mf_store_sql_begin(store, &row,
                              "SELECT measured_at, method, complete FROM profiles "
                              "WHERE hardware_fingerprint = ? ORDER BY id DESC LIMIT 1",
                              "s", hardware_fingerprint));
    enum mf_status status = mf_store_sql_step(store, row, &found);
    if (status == MF_STATUS_OK && found) {
        out->measured_at_unix_s = mf_store_sql_column_integer(row, 0);
        snprintf(out->method, sizeof(out->method), "%s", mf_store_sql_column_borrow(row, 1));
        out->complete = mf_store_sql_column_integer(row, 2) != 0;
    }
    mf_store_sql_finish(row);
    return status;
}

enum mf_status mf_store_profile_load(struct mf_store *store, const char *hardware_fingerprint,
                                     struct mf_profile *out)
{
    mf_profile_init(out);
    snprintf(out->hardware_fingerprint, sizeof(out->hardware_fingerprint), "%s",
             hardware_fingerprint);
    mf_store_sql_lock(store);
    enum mf_status status = load_newest(store, hardware_fingerprint, out);
    if (status == MF_STATUS_OK) {
        status = load_entries(store, hardware_fingerprint, out);
    }
    mf_store_sql_unlock(store);
    return status;
}

static enum mf_status put_entry(struct mf_store *store, const char *hardware_fingerprint,
                                const struct mf_measurement *entry, int64_t measured_at)
{
    char shape[SHAPE_TEXT_MAX];
    char signature[SIGNATURE_TEXT_MAX];
    const char *lane = mf_kernel_lane_name(entry->signature.lane);
    const char *kernel = mf_kernel_name(entry->signature.kernel);
    shape_text(&entry->signature.shape, shape);
    snprintf(signature, sizeof(signature), "%s %s %s", lane, kernel, shape);
    return mf_store_sql_run(
        store, NULL,
        "INSERT INTO measurements(hardware_fingerprint, signature, lane, kernel, shape, median_ns,"
        " spread_ns, samples, measured_at) VALUES(?,?,?,?,?,?,?,?,?) "
        "ON CONFLICT(hardware_fingerprint, signature) DO UPDATE SET median_ns=excluded.median_ns,"
        " spread_ns=excluded.spread_ns, samples=excluded.samples,"
        " measured_at=excluded.measured_at",
        "sssssddii", hardware_fingerprint, signature, lane, kernel, shape, entry->median_ns,
        entry->spread_ns, (int64_t)entry->samples, measured_at);
}

static enum mf_status merge(struct mf_store *store, const char *hardware_fingerprint,
                            const struct mf_profile *profile)
{
    int64_t measured_at = profile->measured_at_unix_s;
    if (measured_at <= 0) {
        measured_at = (int64_t)time(NULL);
    }
    MF_TRY(mf_store_sql_run(store, NULL,
                            "INSERT INTO profiles(hardware_fingerprint, measured_at, method,"
                            " complete, entries) VALUES(?,?,?,?,?)",
                            "sisii", hardware_fingerprint, measured_at, profile->method,
                            (int64_t)profile->complete, (int64_t)profile->count));
    for (int32_t i = 0; i < profile->count; i++) {
        MF_TRY(put_entry(store, hardware_fingerprint, &profile->entries[i], measured_at));
    }
    return MF_STATUS_OK;
}

enum mf_status mf_store_profile_merge(struct mf_store *store, const struct mf_hardware *hardware,
                                      const struct mf_profile *profile)
{
    char fingerprint[MF_HASH_TEXT_MAX];
    mf_hardware_fingerprint(hardware, fingerprint);
    MF_TRY(mf_store_hardware_put(store, hardware));
    mf_store_sql_lock(store);
    enum mf_status status = mf_store_sql_enter(store);
    if (status == MF_STATUS_OK) {
        status = mf_store_sql_leave(store, merge(store, fingerprint, profile));
    }
    mf_store_sql_unlock(store);
    return status;
}

static void read_profile(struct sqlite3_stmt *row, struct mf_arena *arena, void *item)
{
    struct mf_store_profile_record *record = item;
    record->id = mf_store_sql_column_integer(row, 0);
    record->hardware_fingerprint = mf_store_sql_column_text(row, 1, arena);
    record->method = mf_store_sql_column_text(row, 2, arena);
    record->complete = mf_store_sql_column_integer(row, 3) != 0;
    record->entries = (int32_t)mf_store_sql_column_integer(row, 4);
    record->measured_unix_s = mf_store_sql_column_integer(row, 5);
}

enum mf_status mf_store_profile_list(struct mf_store *store, struct mf_arena *arena,
                                     struct mf_store_profile_record **out, int32_t *count)
{
    struct sqlite3_stmt *rows = NULL;
    void *items = NULL;
    *count = 0;
    mf_store_sql_lock(store);
    enum mf_status status = mf_store_sql_begin(
        store, &rows,
        "SELECT id, hardware_fingerprint, method, complete, entries, measured_at FROM profiles "
        "ORDER BY id DESC",
        "");
    if (status == MF_STATUS_OK) {
        status = mf_store_sql_collect(store, rows, read_profile,
                                      sizeof(struct mf_store_profile_record), arena, &items, count);
    }
    mf_store_sql_unlock(store);
    *out = items;
    return status;
}

static enum mf_status delete_all(struct mf_store *store, const char *hardware_fingerprint,
                                 int64_t *deleted)
{
    int64_t profiles = 0;
    int64_t measurements = 0;
    MF_TRY(mf_store_sql_run(store, &profiles, "DELETE FROM profiles WHERE hardware_fingerprint = ?",
                            "s", hardware_fingerprint));
    MF_TRY(mf_store_sql_run(store, &measurements,
                            "DELETE FROM measurements WHERE hardware_fingerprint = ?", "s",
                            hardware_fingerprint));
    *deleted = profiles + measurements;
    return MF_STATUS_OK;
}

enum mf_status mf_store_profile_delete(struct mf_store *store, const char *hardware_fingerprint)
{
    int64_t deleted = 0;
    mf_store_sql_lock(store);
    enum mf_status status = mf_store_sql_enter(store);
    if (status == MF_STATUS_OK) {
        status = mf_store_sql_leave(store, delete_all(store, hardware_fingerprint, &deleted));
    }
    mf_store_sql_unlock(store);
    if (status == MF_STATUS_OK && deleted == 0) {
        return mf_status_set(MF_STATUS_NOT_FOUND, "no profile of hardware %.12s",
                             hardware_fingerprint);
    }
    return status;
}
