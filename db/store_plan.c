/* Plans and infeasible requests by cache key: see store.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/json.h"
#include "core/log.h"
#include "db/store.h"
#include "db/store_sql.h"

/* After the key, which a join must qualify and an insert must not. */
#define PLAN_REST                                                                                  \
    ", id, model_fingerprint, model_name, hardware_fingerprint, strategy, source, "                \
    "planner_version, step_ns, bound_ns, device_peak_bytes, host_peak_bytes, error, created_at, "  \
    "used_at, use_count"
#define PLAN_COLUMNS "plans.key" PLAN_REST

static const char *source_name(enum mf_plan_source source)
{
    return source == MF_PLAN_MEASURED ? "measured" : "estimate";
}

static enum mf_status insert_row(struct mf_store *store, const struct mf_store_plan_record *record)
{
    /* A replaced row takes its document with it. */
    MF_TRY(mf_store_sql_run(store, NULL,
                            "INSERT OR REPLACE INTO plans(key" PLAN_REST ") "
                            "VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                            "sssssssiddiisiii", record->key, record->id, record->model_fingerprint,
                            record->model_name, record->hardware_fingerprint, record->strategy,
                            record->source, (int64_t)record->planner_version, record->step_ns,
                            record->bound_ns, record->device_peak_bytes, record->host_peak_bytes,
                            record->error, record->created_unix_s, record->used_unix_s,
                            record->use_count));
    return record->json == NULL
               ? MF_STATUS_OK
               : mf_store_sql_run(store, NULL, "INSERT INTO plan_documents(key, json) VALUES(?, ?)",
                                  "ss", record->key, record->json);
}

static enum mf_status put_row(struct mf_store *store, const struct mf_store_plan_record *record)
{
    mf_store_sql_lock(store);
    enum mf_status status = mf_store_sql_enter(store);
    if (status == MF_STATUS_OK) {
        status = mf_store_sql_leave(store, insert_row(store, record));
    }
    mf_store_sql_unlock(store);
    return status;
}

enum mf_status mf_store_plan_put(struct mf_store *store, const char *key,
                                 const struct mf_plan *plan)
{
    json_t *json = mf_plan_encode(plan);
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    MF_ASSERT(text != NULL);
    int64_t now = (int64_t)time(NULL);
    const struct mf_store_plan_record record = {
        .id = plan->id,
        .key = key,
        .model_fingerprint = plan->model_fingerprint,
        .model_name = plan->model_name,
        .hardware_fingerprint = plan->hardware_fingerprint,
        .strategy = mf_plan_strategy_name(plan->strategy),
        .source = source_name(plan->source),
        .planner_version = plan->planner_version,
        .step_ns = plan->prediction.step_ns,
        .bound_ns = plan->prediction.bound_ns,
        .device_peak_bytes = plan->prediction.device_peak_bytes,
        .host_peak_bytes = plan->prediction.host_peak_bytes,
        .json = text,
        .created_unix_s = plan->created_unix_s > 0 ? plan->created_unix_s : now,
        .used_unix_s = now,
    };
    enum mf_status status = put_row(store, &record);
    free(text);
    return status;
}

static json_t *encode_error(const struct mf_error *error)
{
    json_t *numbers = json_object();
    for (size_t i = 0; i < error->number_count; i++) {
        json_object_set_new(numbers, error->numbers[i].name, json_integer(error->numbers[i].value));
    }
    json_t *json = json_pack("{s:s, s:s, s:s, s:o}", "status", mf_status_name(error->status),
                             "reason", error->reason, "text", error->text, "numbers", numbers);
    MF_ASSERT(json != NULL);
    return json;
}

static int parse_status(const char *name)
{
    for (int status = 0; status < MF_STATUS_COUNT; status++) {
        if (strcmp(mf_status_name((enum mf_status)status), name) == 0) {
            return status;
        }
    }
    return -1;
}

static enum mf_status decode_error(const char *text, struct mf_error *out)
{
    json_t *json = NULL;
    const char *status_name = "";
    const char *reason = "";
    const char *sentence = "";
    *out = (struct mf_error){0};
    MF_TRY(mf_json_parse(text, strlen(text), "stored error", &json));
    enum mf_status status = MF_STATUS_OK;
    MF_TRY_GOTO(mf_json_string(json, "stored error", "status", &status_name), end);
    MF_TRY_GOTO(mf_json_string(json, "stored error", "reason", &reason), end);
    MF_TRY_GOTO(mf_json_string(json, "stored error", "text", &sentence), end);
    int code = parse_status(status_name);
    if (code <= MF_STATUS_OK) {
        status = mf_status_set(MF_STATUS_INVALID, "stored error: no status \"%.40s\"", status_name);
        goto end;
    }
    out->status = (enum mf_status)code;
    snprintf(out->reason, sizeof(out->reason), "%s", reason);
    snprintf(out->text, sizeof(out->text), "%s", sentence);
    const char *name = NULL;
    json_t *value = NULL;
    json_object_foreach(json_object_get(json, "numbers"), name, value)
    {
        if (out->number_count < MF_ERROR_NUMBERS_MAX && json_is_integer(value)) {
            size_t slot = out->number_count++;
            snprintf(out->numbers[slot].name, sizeof(out->numbers[slot].name), "%s", name);
            out->numbers[slot].value = json_integer_value(value);
        }
    }
end:
    json_decref(json);
    return status;
}

enum mf_status mf_store_plan_put_error(struct mf_store *store, const char *key,
                                       const struct mf_store_plan_request *request,
                                       const struct mf_error *error)
{
    MF_ASSERT(error->status != MF_STATUS_OK);
    json_t *json = encode_error(error);
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    if (text == NULL) { /* only for text that is not UTF-8 */
        return mf_status_set(MF_STATUS_INVALID, "the error to store is not UTF-8");
    }
    int64_t now = (int64_t)time(NULL);
    const struct mf_store_plan_record record = {
        .id = key,
        .key = key,
        .model_fingerprint = request->model_fingerprint,
        .model_name = request->model_name,
        .hardware_fingerprint = request->hardware_fingerprint,
        .strategy = mf_plan_strategy_name(request->strategy),
        .source = "",
        .planner_version = MF_PLANNER_VERSION,
        .error = text,
        .created_unix_s = now,
        .used_unix_s = now,
    };
    enum mf_status status = put_row(store, &record);
    free(text);
    return status;
}

/* What get reads of a row, copied so that the lock need not be held while it is decoded. */
struct stored {
    const char *json;
    const char *error;
    int64_t created_at;
    int64_t use_count;
};

static void read_stored(struct sqlite3_stmt *row, struct mf_arena *arena, void *item)
{
    struct stored *stored = item;
    stored->json = mf_store_sql_column_text(row, 0, arena);
    stored->error = mf_store_sql_column_text(row, 1, arena);
    stored->created_at = mf_store_sql_column_integer(row, 2);
    stored->use_count = mf_store_sql_column_integer(row, 3) + 1;
}

static enum mf_status fetch(struct mf_store *store, const char *key, struct mf_arena *arena,
                            struct stored **out)
{
    struct sqlite3_stmt *row = NULL;
    void *items = NULL;
    int32_t count = 0;
    MF_TRY(mf_store_sql_begin(store, &row,
                              "SELECT json, error, created_at, use_count FROM plans "
                              "LEFT JOIN plan_documents USING(key) WHERE key = ?",
                              "s", key));
    MF_TRY(mf_store_sql_collect(store, row, read_stored, sizeof(struct stored), arena, &items,
                                &count));
    if (count == 0) {
        return mf_status_set(MF_STATUS_NOT_FOUND, "no plan for key %.12s in the store", key);
    }
    *out = items;
    /* Counting is a courtesy: a full disk must not turn a hit into a miss. */
    if (mf_store_sql_run(store, NULL,
                         "UPDATE plans SET used_at = unixepoch(), use_count = use_count + 1 "
                         "WHERE key = ?",
                         "s", key) != MF_STATUS_OK) {
        mf_log_warn("%s", mf_status_text());
    }
    return MF_STATUS_OK;
}

static enum mf_status decode_plan(const char *text, const struct mf_model *model,
                                  struct mf_plan *out)
{
    json_t *json = NULL;
    if (text == NULL) {
        return mf_status_set(MF_STATUS_CORRUPT, "the document is missing");
    }
    MF_TRY(mf_json_parse(text, strlen(text), "stored plan", &json));
    enum mf_status status = mf_plan_decode(json, out);
    json_decref(json);
    MF_TRY(status);
    status = mf_plan_validate(out, model);
    if (status != MF_STATUS_OK) {
        mf_plan_reset(out);
    }
    return status;
}

enum mf_status mf_store_plan_get(struct mf_store *store, const char *key,
                                 const struct mf_model *model, struct mf_store_plan_answer *out)
{
    struct mf_arena arena;
    struct stored *stored = NULL;
    *out = (struct mf_store_plan_answer){0};
    mf_arena_init(&arena);
    mf_store_sql_lock(store);
    enum mf_status status = fetch(store, key, &arena, &stored);
    mf_store_sql_unlock(store);
    if (status != MF_STATUS_OK || stored == NULL) {
        mf_arena_reset(&arena);
        return status;
    }
    out->feasible = stored->error == NULL;
    out->created_unix_s = stored->created_at;
    out->use_count = stored->use_count;
    status = out->feasible ? decode_plan(stored->json, model, &out->plan)
                           : decode_error(stored->error, &out->error);
    mf_arena_reset(&arena);
    if (status != MF_STATUS_OK) {
        mf_log_warn("the stored plan for key %.12s is not usable, planning again: %s", key,
                    mf_status_text());
        return mf_status_set(MF_STATUS_NOT_FOUND, "the stored plan for key %.12s is not usable",
                             key);
    }
    return MF_STATUS_OK;
}

static void read_record(struct sqlite3_stmt *row, struct mf_arena *arena, void *item)
{
    struct mf_store_plan_record *record = item;
    *record = (struct mf_store_plan_record){
        .key = mf_store_sql_column_text(row, 0, arena),
        .id = mf_store_sql_column_text(row, 1, arena),
        .model_fingerprint = mf_store_sql_column_text(row, 2, arena),
        .model_name = mf_store_sql_column_text(row, 3, arena),
        .hardware_fingerprint = mf_store_sql_column_text(row, 4, arena),
        .strategy = mf_store_sql_column_text(row, 5, arena),
        .source = mf_store_sql_column_text(row, 6, arena),
        .planner_version = (int32_t)mf_store_sql_column_integer(row, 7),
        .step_ns = mf_store_sql_column_double(row, 8),
        .bound_ns = mf_store_sql_column_double(row, 9),
        .device_peak_bytes = mf_store_sql_column_integer(row, 10),
        .host_peak_bytes = mf_store_sql_column_integer(row, 11),
        .error = mf_store_sql_column_text(row, 12, arena),
        .created_unix_s = mf_store_sql_column_integer(row, 13),
        .used_unix_s = mf_store_sql_column_integer(row, 14),
        .use_count = mf_store_sql_column_integer(row, 15),
        .json = mf_store_sql_column_text(row, 16, arena),
    };
}

enum mf_status mf_store_plan_find(struct mf_store *store, const char *id, struct mf_arena *arena,
                                  struct mf_store_plan_record *out)
{
    struct sqlite3_stmt *row = NULL;
    void *items = NULL;
    int32_t count = 0;
    mf_store_sql_lock(store);
    /* One plan may answer two keys; the newest row stands for both. */
    enum mf_status status = mf_store_sql_begin(
        store, &row,
        "SELECT " PLAN_COLUMNS
        ", json, max(created_at) FROM plans LEFT JOIN plan_documents USING(key) "
        "WHERE length(?1) > 0 AND substr(id, 1, length(?1)) = ?1 GROUP BY id LIMIT 2",
        "s", id);
    if (status == MF_STATUS_OK) {
        status = mf_store_sql_collect(store, row, read_record, sizeof(*out), arena, &items, &count);
    }
    mf_store_sql_unlock(store);
    MF_TRY(status);
    const struct mf_store_plan_record *records = items;
    if (count == 0) {
        return mf_status_set(MF_STATUS_NOT_FOUND, "no plan %.64s in the store", id);
    }
    if (count > 1) {
        return mf_status_set(MF_STATUS_INVALID,
                             "more than one plan begins with %.64s: %.16s, %.16s", id,
                             records[0].id, records[1].id);
    }
    *out = records[0];
    return MF_STATUS_OK;
}

enum mf_status mf_store_plan_list(struct mf_store *store, struct mf_arena *arena,
                                  struct mf_store_plan_record **out, int32_t *count)
{
    struct sqlite3_stmt *rows = NULL;
    void *items = NULL;
    *count = 0;
    mf_store_sql_lock(store);
    enum mf_status status = mf_store_sql_begin(
        store, &rows, "SELECT " PLAN_COLUMNS ", NULL FROM plans ORDER BY created_at DESC, key", "");
    if (status == MF_STATUS_OK) {
        status = mf_store_sql_collect(store, rows, read_record, sizeof(struct mf_store_plan_record),
                                      arena, &items, count);
    }
    mf_store_sql_unlock(store);
    *out = items;
    return status;
}

enum mf_status mf_store_plan_delete(struct mf_store *store, const char *id)
{
    int64_t deleted = 0;
    mf_store_sql_lock(store);
    enum mf_status status =
        mf_store_sql_run(store, &deleted, "DELETE FROM plans WHERE id = ?", "s", id);
    mf_store_sql_unlock(store);
    MF_TRY(status);
    return deleted > 0 ? MF_STATUS_OK
                       : mf_status_set(MF_STATUS_NOT_FOUND, "no plan %.64s in the store", id);
}
