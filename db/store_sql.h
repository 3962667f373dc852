/*
 * SQL inside the store: prepared statements kept by their text, values bound by a format string,
 * SQLite's codes turned into ours.
 *
 * Who calls it: the other store*.c files only, between mf_store_sql_lock() and _unlock() (or while
 * the store is being opened). Owner: the store. Thread: whoever holds the lock. Fails: as store.h.
 */
#ifndef MF_DB_STORE_SQL_H
#define MF_DB_STORE_SQL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/status.h"

struct sqlite3;
struct sqlite3_stmt;

#define MF_STORE_SQL_STATEMENTS_MAX 64

struct mf_store {
    struct sqlite3 *connection;
    pthread_mutex_t mutex;
    char *path;
    char *set_aside; /* "" = nothing */
    bool damaged;    /* SQLite said so while opening */
    int32_t statement_count;
    struct {
        const char *sql; /* a string literal: compared by address */
        struct sqlite3_stmt *statement;
    } statements[MF_STORE_SQL_STATEMENTS_MAX];
};

void mf_store_sql_lock(struct mf_store *store);
void mf_store_sql_unlock(struct mf_store *store);

/* The failure of SQLite's last call as ours; `doing` = "writing a plan". Marks damage. */
enum mf_status mf_store_sql_failed(struct mf_store *store, int code, const char *doing);
/* Runs statements without results. */
enum mf_status mf_store_sql_execute(struct mf_store *store, const char *sql) MF_MUST_USE;

/*
 * A statement with its values bound. `sql` is a string literal. `types` has a letter for each
 * value: s text (NULL allowed), i int64_t, d double (not a number binds NULL). The statement
 * stays with the store; end it with mf_store_sql_finish().
 */
enum mf_status mf_store_sql_begin(struct mf_store *store, struct sqlite3_stmt **out,
                                  const char *sql, const char *types, ...) MF_MUST_USE;
/* The next row; *row false at the end. */
enum mf_status mf_store_sql_step(struct mf_store *store, struct sqlite3_stmt *statement,
                                 bool *row) MF_MUST_USE;
void mf_store_sql_finish(struct sqlite3_stmt *statement);
/* A whole statement without results; `changes` (may be NULL) = rows changed. */
enum mf_status mf_store_sql_run(struct mf_store *store, int64_t *changes, const char *sql,
                                const char *types, ...) MF_MUST_USE;
/* One integer, for pragmas. */
enum mf_status mf_store_sql_integer(struct mf_store *store, const char *sql,
                                    int64_t *out) MF_MUST_USE;

/* BEGIN IMMEDIATE; then COMMIT when `status` is OK, else ROLLBACK. Returns the first failure. */
enum mf_status mf_store_sql_enter(struct mf_store *store) MF_MUST_USE;
enum mf_status mf_store_sql_leave(struct mf_store *store, enum mf_status status) MF_MUST_USE;

/* Columns of the present row. */
int64_t mf_store_sql_column_integer(struct sqlite3_stmt *statement, int column);
double mf_store_sql_column_double(struct sqlite3_stmt *statement, int column); /* NULL = NaN */
/* Copied to the arena; NULL stays NULL. */
const char *mf_store_sql_column_text(struct sqlite3_stmt *statement, int column,
                                     struct mf_arena *arena);
/* Borrowed until the next step; "" for NULL. */
const char *mf_store_sql_column_borrow(struct sqlite3_stmt *statement, int column);

/*
 * All rows of a begun statement, each turned into one item of `size` bytes by `read`, in an
 * array of the arena. Takes the lock's statement to its end and finishes it.
 */
typedef void (*mf_store_sql_reader)(struct sqlite3_stmt *statement, struct mf_arena *arena,
                                    void *item);
enum mf_status mf_store_sql_collect(struct mf_store *store, struct sqlite3_stmt *statement,
                                    mf_store_sql_reader read, size_t size, struct mf_arena *arena,
                                    void **out, int32_t *count) MF_MUST_USE;

#endif
