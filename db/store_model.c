/* Models by fingerprint: see store.h. */
#include <stdlib.h>

#include "db/store.h"
#include "db/store_sql.h"

#define MODEL_COLUMNS "fingerprint, name, family, params, config, first_seen"

enum mf_status mf_store_model_put(struct mf_store *store, const struct mf_model *model)
{
    char *config = NULL;
    if (model->config != NULL) {
        config = json_dumps(model->config, JSON_COMPACT | JSON_SORT_KEYS);
        MF_ASSERT(config != NULL);
    }
    mf_store_sql_lock(store);
    enum mf_status status = mf_store_sql_run(
        store, NULL,
        "INSERT INTO models(" MODEL_COLUMNS ") VALUES(?, ?, ?, ?, ?, unixepoch()) "
        "ON CONFLICT(fingerprint) DO UPDATE SET name=excluded.name, config=excluded.config",
        "sssis", model->fingerprint, model->name, model->family, model->params, config);
    mf_store_sql_unlock(store);
    free(config);
    return status;
}

static void read_model(struct sqlite3_stmt *row, struct mf_arena *arena, void *item)
{
    struct mf_store_model_record *record = item;
    record->fingerprint = mf_store_sql_column_text(row, 0, arena);
    record->name = mf_store_sql_column_text(row, 1, arena);
    record->family = mf_store_sql_column_text(row, 2, arena);
    record->params = mf_store_sql_column_integer(row, 3);
    record->config = mf_store_sql_column_text(row, 4, arena);
    record->first_seen_unix_s = mf_store_sql_column_integer(row, 5);
}

enum mf_status mf_store_model_get(struct mf_store *store, const char *fingerprint,
                                  struct mf_arena *arena, struct mf_store_model_record *out)
{
    struct sqlite3_stmt *row = NULL;
    void *items = NULL;
    int32_t count = 0;
    mf_store_sql_lock(store);
    enum mf_status status = mf_store_sql_begin(
        store, &row, "SELECT " MODEL_COLUMNS " FROM models WHERE fingerprint = ?", "s",
        fingerprint);
    if (status == MF_STATUS_OK) {
        status = mf_store_sql_collect(store, row, read_model, sizeof(*out), arena, &items, &count);
    }
    mf_store_sql_unlock(store);
    MF_TRY(status);
    if (count == 0) {
        return mf_status_set(MF_STATUS_NOT_FOUND, "no model %.64s in the store", fingerprint);
    }
    *out = *(struct mf_store_model_record *)items;
    return MF_STATUS_OK;
}

enum mf_status mf_store_model_list(struct mf_store *store, struct mf_arena *arena,
                                   struct mf_store_model_record **out, int32_t *count)
{
    struct sqlite3_stmt *rows = NULL;
    void *items = NULL;
    *count = 0;
    mf_store_sql_lock(store);
    enum mf_status status = mf_store_sql_begin(
        store, &rows, "SELECT " MODEL_COLUMNS " FROM models ORDER BY name, fingerprint", "");
    if (status == MF_STATUS_OK) {
        status = mf_store_sql_collect(store, rows, read_model, sizeof(struct mf_store_model_record),
                                      arena, &items, count);
    }
    mf_store_sql_unlock(store);
    *out = items;
    return status;
}

enum mf_status mf_store_model_delete(struct mf_store *store, const char *fingerprint)
{
    int64_t deleted = 0;
    mf_store_sql_lock(store);
    enum mf_status status = mf_store_sql_run(
        store, &deleted, "DELETE FROM models WHERE fingerprint = ?", "s", fingerprint);
    mf_store_sql_unlock(store);
    MF_TRY(status);
    return deleted > 0
               ? MF_STATUS_OK
               : mf_status_set(MF_STATUS_NOT_FOUND, "no model %.64s in the store", fingerprint);
}
