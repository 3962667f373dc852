/* Statements, values and failures of SQLite: see store_sql.h. */
#include "db/store_sql.h"

#include <math.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/limits.h"

void mf_store_sql_lock(struct mf_store *store)
{
    MF_ASSERT(pthread_mutex_lock(&store->mutex) == 0);
}

void mf_store_sql_unlock(struct mf_store *store)
{
    MF_ASSERT(pthread_mutex_unlock(&store->mutex) == 0);
}

/* Primary result codes that are not plain I/O failures. */
static const struct {
    int code;
    enum mf_status status;
    const char *hint;
} failures[] = {
    {SQLITE_FULL, MF_STATUS_IO, ": the disk is full; free space there, the rest goes on without"},
    {SQLITE_BUSY, MF_STATUS_BUSY, ": another process has held it for ten seconds"},
    {SQLITE_LOCKED, MF_STATUS_BUSY, ""},
    {SQLITE_READONLY, MF_STATUS_DENIED, ": the file or its folder is not writable"},
    {SQLITE_PERM, MF_STATUS_DENIED, ": the file or its folder is not writable"},
    {SQLITE_AUTH, MF_STATUS_DENIED, ""},
    {SQLITE_CANTOPEN, MF_STATUS_DENIED, ": the folder must exist and be writable"},
    {SQLITE_CORRUPT, MF_STATUS_CORRUPT, ""},
    {SQLITE_NOTADB, MF_STATUS_CORRUPT, ""},
    {SQLITE_NOMEM, MF_STATUS_NO_MEMORY, ""},
    {SQLITE_TOOBIG, MF_STATUS_INVALID, ""},
    {SQLITE_MISUSE, MF_STATUS_INTERNAL, ""},
    {SQLITE_ERROR, MF_STATUS_INTERNAL, ""},
    {SQLITE_CONSTRAINT, MF_STATUS_INTERNAL, ""},
};

enum mf_status mf_store_sql_failed(struct mf_store *store, int code, const char *doing)
{
    enum mf_status status = MF_STATUS_IO;
    const char *hint = "";
    for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++) {
        if ((code & 0xff) == failures[i].code) {
            status = failures[i].status;
            hint = failures[i].hint;
        }
    }
    store->damaged = store->damaged || status == MF_STATUS_CORRUPT;
    const char *text =
        store->connection != NULL ? sqlite3_errmsg(store->connection) : sqlite3_errstr(code);
    return mf_status_set(status, "store %s: %.200s failed: %s (SQLite code %d)%s", store->path,
                         doing, text, code, hint);
}

enum mf_status mf_store_sql_execute(struct mf_store *store, const char *sql)
{
    int code = sqlite3_exec(store->connection, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? MF_STATUS_OK : mf_store_sql_failed(store, code, sql);
}

static enum mf_status find_statement(struct mf_store *store, const char *sql,
                                     struct sqlite3_stmt **out)
{
    for (int32_t i = 0; i < store->statement_count; i++) {
        if (store->statements[i].sql == sql) {
            *out = store->statements[i].statement;
            return MF_STATUS_OK;
        }
    }
    MF_ASSERT(store->statement_count < MF_STORE_SQL_STATEMENTS_MAX);
    int code = sqlite3_prepare_v3(store->connection, sql, -1, SQLITE_PREPARE_PERSISTENT, out, NULL);
    if (code != SQLITE_OK) {
        return mf_store_sql_failed(store, code, sql);
    }
    store->statements[store->statement_count].sql = sql;
    store->statements[store->statement_count].statement = *out;
    store->statement_count++;
    return MF_STATUS_OK;
}

static enum mf_status bind_text(struct mf_store *store, struct sqlite3_stmt *statement, int index,
                                const char *text)
{
    if (text != NULL && strlen(text) > MF_STORE_BLOB_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "store %s: a text of %zu bytes, at most %lld",
                             store->path, strlen(text), MF_STORE_BLOB_MAX);
    }
    int code = text == NULL ? sqlite3_bind_null(statement, index)
                            : sqlite3_bind_text(statement, index, text, -1, SQLITE_TRANSIENT);
    return code == SQLITE_OK ? MF_STATUS_OK : mf_store_sql_failed(store, code, "binding text");
}

static enum mf_status bind_values(struct mf_store *store, struct sqlite3_stmt *statement,
                                  const char *types, va_list values)
{
    for (int index = 1; types[index - 1] != '\0'; index++) {
        char type = types[index - 1];
        int code = SQLITE_OK;
        if (type == 's') {
            MF_TRY(bind_text(store, statement, index, va_arg(values, const char *)));
        } else if (type == 'i') {
            code = sqlite3_bind_int64(statement, index, va_arg(values, int64_t));
        } else {
            MF_ASSERT(type == 'd');
            double number = va_arg(values, double);
            code = isnan(number) ? sqlite3_bind_null(statement, index)
                                 : sqlite3_bind_double(statement, index, number);
        }
        if (code != SQLITE_OK) {
            return mf_store_sql_failed(store, code, "binding a value");
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status begin_values(struct mf_store *store, struct sqlite3_stmt **out,
                                   const char *sql, const char *types, va_list values)
{
    *out = NULL;
    struct sqlite3_stmt *statement = NULL;
    MF_TRY(find_statement(store, sql, &statement));
    MF_ASSERT(sqlite3_bind_parameter_count(statement) == (int)strlen(types));
    enum mf_status status = bind_values(store, statement, types, values);
    if (status != MF_STATUS_OK) {
        mf_store_sql_finish(statement);
        return status;
    }
    *out = statement;
    return MF_STATUS_OK;
}

enum mf_status mf_store_sql_begin(struct mf_store *store, struct sqlite3_stmt **out,
                                  const char *sql, const char *types, ...)
{
    va_list values;
    va_start(values, types);
    enum mf_status status = begin_values(store, out, sql, types, values);
    va_end(values);
    return status;
}

enum mf_status mf_store_sql_step(struct mf_store *store, struct sqlite3_stmt *statement, bool *row)
{
    int code = sqlite3_step(statement);
    *row = code == SQLITE_ROW;
    if (code != SQLITE_ROW && code != SQLITE_DONE) {
        return mf_store_sql_failed(store, code, sqlite3_sql(statement));
    }
    return MF_STATUS_OK;
}

void mf_store_sql_finish(struct sqlite3_stmt *statement)
{
    if (statement != NULL) {
        /* Both repeat the failure of the last step, which was reported there. */
        (void)sqlite3_reset(statement);
        (void)sqlite3_clear_bindings(statement);
    }
}

enum mf_status mf_store_sql_run(struct mf_store *store, int64_t *changes, const char *sql,
                                const char *types, ...)
{
    struct sqlite3_stmt *statement = NULL;
    va_list values;
    va_start(values, types);
    enum mf_status status = begin_values(store, &statement, sql, types, values);
    va_end(values);
    bool row = false;
    if (status == MF_STATUS_OK) {
        status = mf_store_sql_step(store, statement, &row);
    }
    mf_store_sql_finish(statement);
    if (changes != NULL) {
        *changes = status == MF_STATUS_OK ? sqlite3_changes64(store->connection) : 0;
    }
    return status;
}

enum mf_status mf_store_sql_integer(struct mf_store *store, const char *sql, int64_t *out)
{
    struct sqlite3_stmt *statement = NULL;
    *out = 0;
    int code = sqlite3_prepare_v2(store->connection, sql, -1, &statement, NULL);
    if (code != SQLITE_OK) {
        return mf_store_sql_failed(store, code, sql);
    }
    bool row = false;
    enum mf_status status = mf_store_sql_step(store, statement, &row);
    if (row) {
        *out = sqlite3_column_int64(statement, 0);
    }
    (void)sqlite3_finalize(statement); /* repeats the step's failure */
    return status;
}

enum mf_status mf_store_sql_enter(struct mf_store *store)
{
    return mf_store_sql_execute(store, "BEGIN IMMEDIATE");
}

enum mf_status mf_store_sql_leave(struct mf_store *store, enum mf_status status)
{
    if (status == MF_STATUS_OK) {
        status = mf_store_sql_execute(store, "COMMIT");
    }
    /* A full disk may have rolled back by itself already. */
    if (status != MF_STATUS_OK && sqlite3_get_autocommit(store->connection) == 0) {
        (void)sqlite3_exec(store->connection, "ROLLBACK", NULL, NULL, NULL);
    }
    return status;
}

int64_t mf_store_sql_column_integer(struct sqlite3_stmt *statement, int column)
{
    return sqlite3_column_int64(statement, column);
}

double mf_store_sql_column_double(struct sqlite3_stmt *statement, int column)
{
    if (sqlite3_column_type(statement, column) == SQLITE_NULL) {
        return (double)NAN;
    }
    return sqlite3_column_double(statement, column);
}

const char *mf_store_sql_column_text(struct sqlite3_stmt *statement, int column,
                                     struct mf_arena *arena)
{
    const char *text = (const char *)sqlite3_column_text(statement, column);
    return text == NULL ? NULL : mf_arena_string(arena, text);
}

const char *mf_store_sql_column_borrow(struct sqlite3_stmt *statement, int column)
{
    const char *text = (const char *)sqlite3_column_text(statement, column);
    return text == NULL ? "" : text;
}

enum mf_status mf_store_sql_collect(struct mf_store *store, struct sqlite3_stmt *statement,
                                    mf_store_sql_reader read, size_t size, struct mf_arena *arena,
                                    void **out, int32_t *count)
{
    char *items = NULL;
    size_t used = 0;
    size_t room = 0;
    bool row = false;
    enum mf_status status = mf_store_sql_step(store, statement, &row);
    for (; status == MF_STATUS_OK && row && used < INT32_MAX;
         status = mf_store_sql_step(store, statement, &row)) {
        if (used == room) {
            room = room == 0 ? 16 : room * 2;
            char *larger = mf_arena_alloc(arena, room, size);
            if (used > 0) {
                memcpy(larger, items, used * size);
            }
            items = larger;
        }
        read(statement, arena, items + used * size);
        used++;
    }
    mf_store_sql_finish(statement);
    *out = items;
    *count = (int32_t)used;
    return status;
}
