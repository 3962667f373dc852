/* Sessions and runs, past and present: see store.h. */
#include "db/store.h"
#include "db/store_sql.h"

#define SESSION_COLUMNS                                                                            \
    "id, state, model_name, plan_id, run_dir, started_at, ended_at, last_step, last_loss, error"

static const char *or_empty(const char *text)
{
    return text == NULL ? "" : text;
}

enum mf_status mf_store_session_put(struct mf_store *store,
                                    const struct mf_store_session_record *record)
{
    mf_store_sql_lock(store);
    enum mf_status status = mf_store_sql_run(
        store, NULL,
        "INSERT OR REPLACE INTO sessions(" SESSION_COLUMNS ") VALUES(?,?,?,?,?,?,?,?,?,?)",
        "sssssiiids", record->id, or_empty(record->state), or_empty(record->model_name),
        or_empty(record->plan_id), or_empty(record->run_dir), record->started_unix_s,
        record->ended_unix_s, record->last_step, record->last_loss, or_empty(record->error));
    mf_store_sql_unlock(store);
    return status;
}

static void read_session(struct sqlite3_stmt *row, struct mf_arena *arena, void *item)
{
    struct mf_store_session_record *record = item;
    record->id = mf_store_sql_column_text(row, 0, arena);
    record->state = mf_store_sql_column_text(row, 1, arena);
    record->model_name = mf_store_sql_column_text(row, 2, arena);
    record->plan_id = mf_store_sql_column_text(row, 3, arena);
    record->run_dir = mf_store_sql_column_text(row, 4, arena);
    record->started_unix_s = mf_store_sql_column_integer(row, 5);
    record->ended_unix_s = mf_store_sql_column_integer(row, 6);
    record->last_step = mf_store_sql_column_integer(row, 7);
    record->last_loss = mf_store_sql_column_double(row, 8);
    record->error = mf_store_sql_column_text(row, 9, arena);
}

enum mf_status mf_store_session_get(struct mf_store *store, const char *id, struct mf_arena *arena,
                                    struct mf_store_session_record *out)
{
    struct sqlite3_stmt *row = NULL;
    void *items = NULL;
    int32_t count = 0;
    mf_store_sql_lock(store);
    enum mf_status status = mf_store_sql_begin(
        store, &row, "SELECT " SESSION_COLUMNS " FROM sessions WHERE id = ?", "s", id);
    if (status == MF_STATUS_OK) {
        status =
            mf_store_sql_collect(store, row, read_session, sizeof(*out), arena, &items, &count);
    }
    mf_store_sql_unlock(store);
    MF_TRY(status);
    if (count == 0) {
        return mf_status_set(MF_STATUS_NOT_FOUND, "no session %.64s in the store", id);
    }
    *out = *(struct mf_store_session_record *)items;
    return MF_STATUS_OK;
}

enum mf_status mf_store_session_list(struct mf_store *store, bool open_only, struct mf_arena *arena,
                                     struct mf_store_session_record **out, int32_t *count)
{
    struct sqlite3_stmt *rows = NULL;
    void *items = NULL;
    *count = 0;
    mf_store_sql_lock(store);
    enum mf_status status =
        mf_store_sql_begin(store, &rows,
                           "SELECT " SESSION_COLUMNS " FROM sessions WHERE ? = 0 OR ended_at = 0 "
                           "ORDER BY started_at DESC, id DESC",
                           "i", (int64_t)open_only);
    if (status == MF_STATUS_OK) {
        status = mf_store_sql_collect(store, rows, read_session,
                                      sizeof(struct mf_store_session_record), arena, &items, count);
    }
    mf_store_sql_unlock(store);
    *out = items;
    return status;
}

enum mf_status mf_store_session_delete(struct mf_store *store, const char *id)
{
    int64_t deleted = 0;
    mf_store_sql_lock(store);
    enum mf_status status =
        mf_store_sql_run(store, &deleted, "DELETE FROM sessions WHERE id = ?", "s", id);
    mf_store_sql_unlock(store);
    MF_TRY(status);
    return deleted > 0 ? MF_STATUS_OK
                       : mf_status_set(MF_STATUS_NOT_FOUND, "no session %.64s in the store", id);
}
