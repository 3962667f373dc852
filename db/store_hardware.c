/* Hardware by fingerprint: see store.h. */
#include <stdlib.h>

#include "db/store.h"
#include "db/store_sql.h"

enum mf_status mf_store_hardware_put(struct mf_store *store, const struct mf_hardware *hardware)
{
    char fingerprint[MF_HASH_TEXT_MAX];
    mf_hardware_fingerprint(hardware, fingerprint);
    json_t *json = mf_hardware_encode(hardware);
    char *text = json_dumps(json, JSON_COMPACT);
    json_decref(json);
    MF_ASSERT(text != NULL);
    mf_store_sql_lock(store);
    enum mf_status status = mf_store_sql_run(
        store, NULL,
        "INSERT INTO hardware(fingerprint, json, first_seen, last_seen) "
        "VALUES(?, ?, unixepoch(), unixepoch()) "
        "ON CONFLICT(fingerprint) DO UPDATE SET json=excluded.json, last_seen=excluded.last_seen",
        "ss", fingerprint, text);
    mf_store_sql_unlock(store);
    free(text);
    return status;
}

static void read_hardware(struct sqlite3_stmt *row, struct mf_arena *arena, void *item)
{
    struct mf_store_hardware_record *record = item;
    record->fingerprint = mf_store_sql_column_text(row, 0, arena);
    record->json = mf_store_sql_column_text(row, 1, arena);
    record->first_seen_unix_s = mf_store_sql_column_integer(row, 2);
    record->last_seen_unix_s = mf_store_sql_column_integer(row, 3);
}

enum mf_status mf_store_hardware_get(struct mf_store *store, const char *fingerprint,
                                     struct mf_arena *arena, struct mf_store_hardware_record *out)
{
    struct sqlite3_stmt *row = NULL;
    void *items = NULL;
    int32_t count = 0;
    mf_store_sql_lock(store);
    enum mf_status status =
        mf_store_sql_begin(store, &row,
                           "SELECT fingerprint, json, first_seen, last_seen FROM hardware "
                           "WHERE fingerprint = ?",
                           "s", fingerprint);
    if (status == MF_STATUS_OK) {
        status =
            mf_store_sql_collect(store, row, read_hardware, sizeof(*out), arena, &items, &count);
    }
    mf_store_sql_unlock(store);
    MF_TRY(status);
    if (count == 0) {
        return mf_status_set(MF_STATUS_NOT_FOUND, "no hardware %.64s in the store", fingerprint);
    }
    *out = *(struct mf_store_hardware_record *)items;
    return MF_STATUS_OK;
}

enum mf_status mf_store_hardware_list(struct mf_store *store, struct mf_arena *arena,
                                      struct mf_store_hardware_record **out, int32_t *count)
{
    struct sqlite3_stmt *rows = NULL;
    void *items = NULL;
    *count = 0;
    mf_store_sql_lock(store);
    enum mf_status status =
        mf_store_sql_begin(store, &rows,
                           "SELECT fingerprint, json, first_seen, last_seen FROM hardware "
                           "ORDER BY last_seen DESC, fingerprint",
                           "");
    if (status == MF_STATUS_OK) {
        status =
            mf_store_sql_collect(store, rows, read_hardware,
                                 sizeof(struct mf_store_hardware_record), arena, &items, count);
    }
    mf_store_sql_unlock(store);
    *out = items;
    return status;
}
