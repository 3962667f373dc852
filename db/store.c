/* Opening, checking, repairing and closing the store: see store.h. */
#include "db/store.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/log.h"
#include "db/store_file.h"
#include "db/store_schema.h"
#include "db/store_sql.h"

#define BUSY_TIMEOUT_MS 10000
#define LOCK_TIMEOUT_S 30

/* Closes the connection. A damaged one leaves its log as it is: it is evidence. */
static void disconnect(struct mf_store *store)
{
    for (int32_t i = 0; i < store->statement_count; i++) {
        (void)sqlite3_finalize(store->statements[i].statement); /* repeats old failures */
    }
    store->statement_count = 0;
    if (store->connection != NULL && store->damaged) {
        (void)sqlite3_db_config(store->connection, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    }
    int code = sqlite3_close(store->connection);
    if (code != SQLITE_OK) {
        mf_log_warn("store %s: closing failed: %s", store->path, sqlite3_errstr(code));
    }
    store->connection = NULL;
}

/* SQLite's own look at every page; its first complaint becomes the text. */
static enum mf_status check_pages(struct mf_store *store)
{
    struct sqlite3_stmt *statement = NULL;
    bool row = false;
    MF_TRY(mf_store_sql_begin(store, &statement, "PRAGMA quick_check(1)", ""));
    enum mf_status status = mf_store_sql_step(store, statement, &row);
    if (status == MF_STATUS_OK) {
        const char *answer = row ? mf_store_sql_column_borrow(statement, 0) : "no answer";
        if (strcmp(answer, "ok") != 0) {
            const char *line = strrchr(answer, '\n'); /* a heading comes before it */
            store->damaged = true;
            status = mf_status_set(MF_STATUS_CORRUPT, "store %s is damaged: %.300s", store->path,
                                   line != NULL ? line + 1 : answer);
        }
    }
    mf_store_sql_finish(statement);
    return status;
}

/* Journal and durability. WAL with NORMAL can lose the last writes at a power cut, never more:
 * plans can be made again. */
static enum mf_status configure(struct mf_store *store)
{
    const char *shared = mf_store_file_shared_system(store->path);
    if (shared == NULL) {
        MF_TRY(mf_store_sql_execute(store, "PRAGMA journal_mode = WAL"));
    } else {
        mf_log_warn("store %s is on %s, where several machines cannot share a write-ahead log: "
                    "using a rollback journal; a local disk is faster and safer",
                    store->path, shared);
        MF_TRY(mf_store_sql_execute(store, "PRAGMA journal_mode = TRUNCATE"));
    }
    MF_TRY(mf_store_sql_execute(store, "PRAGMA synchronous = NORMAL"));
    return mf_store_sql_execute(store, "PRAGMA foreign_keys = ON");
}

static enum mf_status connect_once(struct mf_store *store)
{
    enum mf_status status = mf_store_file_check(store->path);
    if (status != MF_STATUS_OK) {
        store->damaged = status == MF_STATUS_CORRUPT;
        return status;
    }
    int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
    int code = sqlite3_open_v2(store->path, &store->connection, flags, NULL);
    if (code != SQLITE_OK) {
        return mf_store_sql_failed(store, code, "opening");
    }
    (void)sqlite3_extended_result_codes(store->connection, 1); /* cannot fail on an open one */
    (void)sqlite3_busy_timeout(store->connection, BUSY_TIMEOUT_MS);
    MF_TRY(mf_store_schema_check(store));
    MF_TRY(check_pages(store));
    MF_TRY(configure(store));
    return mf_store_schema_migrate(store);
}

/* Once more with a new file when the first is damaged. */
static enum mf_status connect_or_rebuild(struct mf_store *store)
{
    enum mf_status status = connect_once(store);
    if (status == MF_STATUS_OK || !store->damaged) {
        return status;
    }
    struct mf_error why = *mf_status_error();
    disconnect(store);
    char *moved = NULL;
    MF_TRY(mf_store_file_set_aside(store->path, &moved));
    free(store->set_aside);
    store->set_aside = moved;
    mf_log_error("%s: set aside as %s and made anew; profiles and plans will be measured again",
                 why.text, moved);
    store->damaged = false;
    return connect_once(store);
}

enum mf_status mf_store_open(const char *path, struct mf_store **out)
{
    *out = NULL;
    struct mf_store *store = calloc(1, sizeof(*store));
    MF_ASSERT(store != NULL);
    MF_ASSERT(pthread_mutex_init(&store->mutex, NULL) == 0);
    store->path = strdup(path);
    store->set_aside = strdup("");
    MF_ASSERT(store->path != NULL && store->set_aside != NULL);

    int lock = -1;
    enum mf_status status = mf_store_file_check(path);
    if (status == MF_STATUS_OK || status == MF_STATUS_CORRUPT) {
        status = mf_store_file_lock(path, LOCK_TIMEOUT_S, &lock);
    }
    if (status == MF_STATUS_OK) {
        status = connect_or_rebuild(store);
    }
    if (lock >= 0) {
        close(lock);
    }
    if (status != MF_STATUS_OK) {
        mf_store_close(store);
        return status;
    }
    *out = store;
    return MF_STATUS_OK;
}

void mf_store_close(struct mf_store *store)
{
    if (store == NULL) {
        return;
    }
    disconnect(store);
    MF_ASSERT(pthread_mutex_destroy(&store->mutex) == 0);
    free(store->path);
    free(store->set_aside);
    free(store);
}

const char *mf_store_set_aside(const struct mf_store *store)
{
    return store->set_aside;
}
