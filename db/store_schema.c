/* Tables and migrations: see store_schema.h. */
#include "db/store_schema.h"

#include <stdio.h>

#include "core/log.h"

/* The first version. STRICT: a value of the wrong type is refused, not stored. Times are Unix
 * seconds. No foreign keys from plans and sessions: they outlive what they name. */
static const char tables_1[] =
    "CREATE TABLE hardware("
    "  fingerprint TEXT PRIMARY KEY, json TEXT NOT NULL,"
    "  first_seen INTEGER NOT NULL, last_seen INTEGER NOT NULL) STRICT;"
    "CREATE TABLE profiles("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT,"
    "  hardware_fingerprint TEXT NOT NULL REFERENCES hardware(fingerprint) ON DELETE CASCADE,"
    "  measured_at INTEGER NOT NULL, method TEXT NOT NULL, complete INTEGER NOT NULL,"
    "  entries INTEGER NOT NULL) STRICT;"
    "CREATE INDEX profiles_hardware ON profiles(hardware_fingerprint);"
    "CREATE TABLE measurements("
    "  hardware_fingerprint TEXT NOT NULL REFERENCES hardware(fingerprint) ON DELETE CASCADE,"
    "  signature TEXT NOT NULL, lane TEXT NOT NULL, kernel TEXT NOT NULL, shape TEXT NOT NULL,"
    "  median_ns REAL NOT NULL, spread_ns REAL NOT NULL, samples INTEGER NOT NULL,"
    "  measured_at INTEGER NOT NULL,"
    "  PRIMARY KEY(hardware_fingerprint, signature)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE plans("
    "  key TEXT PRIMARY KEY, id TEXT NOT NULL, model_fingerprint TEXT NOT NULL,"
    "  model_name TEXT NOT NULL, hardware_fingerprint TEXT NOT NULL, strategy TEXT NOT NULL,"
    "  source TEXT NOT NULL, planner_version INTEGER NOT NULL, step_ns REAL NOT NULL,"
    "  bound_ns REAL NOT NULL, device_peak_bytes INTEGER NOT NULL,"
    "  host_peak_bytes INTEGER NOT NULL, error TEXT, created_at INTEGER NOT NULL,"
    "  used_at INTEGER NOT NULL, use_count INTEGER NOT NULL) STRICT;"
    /* Apart, so that counting a use does not write the whole plan again. */
    "CREATE TABLE plan_documents("
    "  key TEXT PRIMARY KEY REFERENCES plans(key) ON DELETE CASCADE, json TEXT NOT NULL) STRICT;"
    "CREATE INDEX plans_id ON plans(id);"
    "CREATE TABLE models("
    "  fingerprint TEXT PRIMARY KEY, name TEXT NOT NULL, family TEXT NOT NULL,"
    "  params INTEGER NOT NULL, config TEXT, first_seen INTEGER NOT NULL) STRICT;"
    "CREATE TABLE sessions("
    "  id TEXT PRIMARY KEY, state TEXT NOT NULL, model_name TEXT NOT NULL, plan_id TEXT NOT NULL,"
    "  run_dir TEXT NOT NULL, started_at INTEGER NOT NULL, ended_at INTEGER NOT NULL,"
    "  last_step INTEGER NOT NULL, last_loss REAL, error TEXT NOT NULL) STRICT;"
    "CREATE INDEX sessions_started ON sessions(started_at);"
    "CREATE TABLE migrations("
    "  version INTEGER PRIMARY KEY, program TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT;";

/* Index + 1 = the version a step leads to. Never change a step that was released: add one. */
static const char *const steps[] = {tables_1};

int64_t mf_store_schema_version(void)
{
    return (int64_t)(sizeof(steps) / sizeof(steps[0]));
}

enum mf_status mf_store_schema_check(struct mf_store *store)
{
    int64_t application = 0;
    int64_t version = 0;
    int64_t objects = 0;
    MF_TRY(mf_store_sql_integer(store, "PRAGMA application_id", &application));
    MF_TRY(mf_store_sql_integer(store, "PRAGMA user_version", &version));
    MF_TRY(mf_store_sql_integer(store, "SELECT count(*) FROM sqlite_master", &objects));
    if (application != MF_STORE_SCHEMA_APPLICATION_ID && (application != 0 || objects != 0)) {
        store->damaged = true;
        return mf_status_set(MF_STATUS_CORRUPT,
                             "%s is a database of another program (application id 0x%08llx)",
                             store->path, (unsigned long long)application);
    }
    if (version > mf_store_schema_version()) {
        return mf_status_set_reason(
            MF_STATUS_UNSUPPORTED, "STORE_TOO_NEW",
            "store %s has version %lld, this memferry (%s) knows up to %lld: run the newer "
            "memferry, or move the file away to begin a new store",
            store->path, (long long)version, MF_VERSION, (long long)mf_store_schema_version());
    }
    if (version < 0 || (application != 0 && version == 0 && objects != 0)) {
        store->damaged = true;
        return mf_status_set(MF_STATUS_CORRUPT, "store %s has the impossible version %lld",
                             store->path, (long long)version);
    }
    return MF_STATUS_OK;
}

static enum mf_status apply(struct mf_store *store, int64_t version)
{
    char set_version[64];
    MF_TRY(mf_store_sql_execute(store, steps[version]));
    snprintf(set_version, sizeof(set_version), "PRAGMA user_version = %lld",
             (long long)version + 1);
    MF_TRY(mf_store_sql_execute(store, set_version));
    return mf_store_sql_run(store, NULL,
                            "INSERT INTO migrations(version, program, applied_at) "
                            "VALUES(?, ?, unixepoch())",
                            "is", version + 1, MF_VERSION);
}

/* Inside the transaction: another process may have migrated while we waited for it. */
static enum mf_status migrate(struct mf_store *store)
{
    char set_application[64];
    int64_t version = 0;
    MF_TRY(mf_store_schema_check(store));
    MF_TRY(mf_store_sql_integer(store, "PRAGMA user_version", &version));
    if (version == mf_store_schema_version()) {
        return MF_STATUS_OK;
    }
    snprintf(set_application, sizeof(set_application), "PRAGMA application_id = %d",
             MF_STORE_SCHEMA_APPLICATION_ID);
    MF_TRY(mf_store_sql_execute(store, set_application));
    for (; version < mf_store_schema_version(); version++) {
        MF_TRY(apply(store, version));
    }
    mf_log_info("store %s is now at version %lld", store->path, (long long)version);
    return MF_STATUS_OK;
}

enum mf_status mf_store_schema_migrate(struct mf_store *store)
{
    int64_t version = 0;
    MF_TRY(mf_store_sql_integer(store, "PRAGMA user_version", &version));
    if (version == mf_store_schema_version()) {
        return MF_STATUS_OK;
    }
    MF_TRY(mf_store_sql_enter(store));
    return mf_store_sql_leave(store, migrate(store));
}
