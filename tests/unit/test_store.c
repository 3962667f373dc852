/* The store: what it keeps, and what it does with files that are damaged, foreign, newer, locked
 * or on a full disk. */
#define HARNESS_THREADS
#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/log.h"
#include "db/store.h"

static const char *new_path(void)
{
    return harness_path(harness_folder(), "memferry.db");
}

static struct mf_store *open_store(const char *path)
{
    struct mf_store *store = NULL;
    assert_ok(mf_store_open(path, &store));
    assert_non_null(store);
    return store;
}

static struct mf_hardware some_hardware(const char *name)
{
    struct mf_hardware hardware = {.device_count = 1, .cpu_cores = 2, .numa_nodes = 1};
    snprintf(hardware.devices[0].kind, sizeof(hardware.devices[0].kind), "host");
    snprintf(hardware.devices[0].name, sizeof(hardware.devices[0].name), "%s", name);
    snprintf(hardware.cpu_name, sizeof(hardware.cpu_name), "test cpu");
    hardware.devices[0].memory_bytes = 1 << 30;
    hardware.devices[0].matrix_flops = 1e11;
    hardware.devices[0].memory_bytes_per_s = 1e10;
    hardware.devices[0].h2d_bytes_per_s = 1e10;
    hardware.devices[0].d2h_bytes_per_s = 1e10;
    hardware.host_bytes = 1 << 30;
    hardware.host_bytes_per_s = 1e10;
    return hardware;
}

static struct mf_model some_model(void)
{
    struct mf_model model;
    assert_ok(mf_model_from_preset("gpt2", 0, &model));
    return model;
}

/* Files in the folder of `path` whose name holds `part` and ends with `tail`. */
static int count_files(const char *path, const char *part, const char *tail)
{
    char folder[4096];
    snprintf(folder, sizeof(folder), "%s", path);
    *strrchr(folder, '/') = '\0';
    DIR *stream = opendir(folder);
    assert_non_null(stream);
    int count = 0;
    for (struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        size_t length = strlen(entry->d_name);
        size_t tail_length = strlen(tail);
        count += strstr(entry->d_name, part) != NULL && length >= tail_length &&
                 strcmp(entry->d_name + length - tail_length, tail) == 0;
    }
    closedir(stream);
    return count;
}

static void put_session(struct mf_store *store, const char *id, int64_t ended)
{
    struct mf_store_session_record record = {.id = id,
                                             .state = "running",
                                             .model_name = "gpt2",
                                             .run_dir = "/runs/1",
                                             .started_unix_s = 1000,
                                             .ended_unix_s = ended,
                                             .last_step = 7,
                                             .last_loss = (double)NAN};
    assert_ok(mf_store_session_put(store, &record));
}

static void assert_session(const char *path, const char *id)
{
    struct mf_store *store = open_store(path);
    struct mf_arena arena;
    struct mf_store_session_record record;
    mf_arena_init(&arena);
    assert_ok(mf_store_session_get(store, id, &arena, &record));
    assert_string_equal(record.model_name, "gpt2");
    mf_arena_reset(&arena);
    mf_store_close(store);
}

static void test_sessions(void **state)
{
    (void)state;
    const char *path = new_path();
    struct mf_store *store = open_store(path);
    struct mf_arena arena;
    struct mf_store_session_record record;
    struct mf_store_session_record *list = NULL;
    int32_t count = 0;
    mf_arena_init(&arena);
    assert_status(mf_store_session_get(store, "a", &arena, &record), MF_STATUS_NOT_FOUND);
    put_session(store, "a", 0);
    put_session(store, "b", 2000);
    put_session(store, "b", 3000);
    mf_store_close(store);

    store = open_store(path);
    assert_string_equal(mf_store_set_aside(store), "");
    assert_ok(mf_store_session_list(store, false, &arena, &list, &count));
    assert_int_equal(count, 2);
    assert_string_equal(list[0].id, "b");
    assert_int_equal(list[0].ended_unix_s, 3000);
    assert_int_equal(list[0].last_step, 7);
    assert_true(isnan(list[0].last_loss));
    assert_string_equal(list[0].plan_id, "");
    assert_ok(mf_store_session_list(store, true, &arena, &list, &count));
    assert_int_equal(count, 1);
    assert_string_equal(list[0].id, "a");
    assert_ok(mf_store_session_delete(store, "a"));
    assert_status(mf_store_session_delete(store, "a"), MF_STATUS_NOT_FOUND);
    mf_arena_reset(&arena);
    mf_store_close(store);
}

static void test_models(void **state)
{
    (void)state;
    struct mf_store *store = open_store(new_path());
    struct mf_model model = some_model();
    struct mf_arena arena;
    struct mf_store_model_record record;
    struct mf_store_model_record *list = NULL;
    int32_t count = 0;
    mf_arena_init(&arena);
    assert_ok(mf_store_model_put(store, &model));
    assert_ok(mf_store_model_put(store, &model));
    assert_ok(mf_store_model_get(store, model.fingerprint, &arena, &record));
    assert_string_equal(record.family, "gpt2");
    assert_int_equal(record.params, model.params);
    assert_non_null(strstr(record.config, "\"n_embd\""));
    assert_ok(mf_store_model_list(store, &arena, &list, &count));
    assert_int_equal(count, 1);
    assert_ok(mf_store_model_delete(store, model.fingerprint));
    assert_status(mf_store_model_get(store, model.fingerprint, &arena, &record),
                  MF_STATUS_NOT_FOUND);
    mf_arena_reset(&arena);
    mf_model_reset(&model);
    mf_store_close(store);
}

static void put_measurement(struct mf_profile *profile, int64_t n, double median_ns)
{
    struct mf_shape shape = {.rows = 64, .n = n, .k = 32, .seq_len = 16};
    struct mf_measurement entry = {
        .signature = mf_profile_signature(MF_LANE_COMPUTE, MF_KERNEL_LINEAR_FORWARD, &shape),
        .median_ns = median_ns,
        .spread_ns = 0.1,
        .samples = 5};
    mf_profile_put(profile, &entry);
}

static const struct mf_measurement *find_measurement(const struct mf_profile *profile, int64_t n)
{
    struct mf_shape shape = {.rows = 64, .n = n, .k = 32, .seq_len = 16};
    struct mf_signature signature =
        mf_profile_signature(MF_LANE_COMPUTE, MF_KERNEL_LINEAR_FORWARD, &shape);
    return mf_profile_find(profile, &signature);
}

static void test_profiles(void **state)
{
    (void)state;
    struct mf_store *store = open_store(new_path());
    struct mf_hardware hardware = some_hardware("one");
    struct mf_hardware other = some_hardware("two");
    char fingerprint[MF_HASH_TEXT_MAX];
    struct mf_profile profile;
    struct mf_arena arena;
    mf_arena_init(&arena);
    mf_hardware_fingerprint(&hardware, fingerprint);

    mf_profile_init(&profile);
    profile.complete = true;
    profile.measured_at_unix_s = 1234;
    snprintf(profile.method, sizeof(profile.method), "host clock");
    put_measurement(&profile, 8, 1.0 / 3.0);
    put_measurement(&profile, 16, 20);
    assert_ok(mf_store_profile_merge(store, &hardware, &profile));
    assert_ok(mf_store_profile_merge(store, &other, &profile));
    mf_profile_reset(&profile);
    mf_profile_init(&profile);
    profile.measured_at_unix_s = 1300;
    put_measurement(&profile, 16, 21);
    put_measurement(&profile, 24, 30);
    assert_ok(mf_store_profile_merge(store, &hardware, &profile));
    mf_profile_reset(&profile);

    assert_ok(mf_store_profile_load(store, fingerprint, &profile));
    assert_int_equal(profile.count, 3);
    assert_int_equal(profile.measured_at_unix_s, 1300);
    assert_false(profile.complete);
    assert_true(find_measurement(&profile, 8)->median_ns == 1.0 / 3.0);
    assert_true(find_measurement(&profile, 16)->median_ns == 21);
    assert_int_equal(find_measurement(&profile, 24)->samples, 5);
    mf_profile_reset(&profile);

    struct mf_store_profile_record *profiles = NULL;
    struct mf_store_hardware_record *list = NULL;
    int32_t count = 0;
    assert_ok(mf_store_profile_list(store, &arena, &profiles, &count));
    assert_int_equal(count, 3);
    assert_string_equal(profiles[2].method, "host clock");
    assert_true(profiles[2].complete);
    assert_ok(mf_store_hardware_list(store, &arena, &list, &count));
    assert_int_equal(count, 2);
    assert_non_null(strstr(list[0].json, "test cpu"));
    assert_ok(mf_store_profile_delete(store, fingerprint));
    assert_status(mf_store_profile_delete(store, fingerprint), MF_STATUS_NOT_FOUND);
    assert_ok(mf_store_profile_load(store, fingerprint, &profile));
    assert_int_equal(profile.count, 0);
    mf_profile_reset(&profile);
    mf_arena_reset(&arena);
    mf_store_close(store);
}

/* A plan as it may be stored: everything resident. */
static struct mf_plan some_plan(const struct mf_model *model)
{
    struct mf_workload workload = {.micro_batch = 1, .seq_len = 16, .accumulation = 1};
    struct mf_plan plan;
    mf_plan_init(model, &workload, &plan);
    plan.created_unix_s = 5000;
    plan.prediction.step_ns = 1e6;
    plan.prediction.bound_ns = 9e5;
    snprintf(plan.prediction.bound_lane, sizeof(plan.prediction.bound_lane), "compute");
    mf_plan_seal(&plan);
    return plan;
}

static void test_plans(void **state)
{
    (void)state;
    const char *path = new_path();
    struct mf_store *store = open_store(path);
    struct mf_model model = some_model();
    struct mf_plan plan = some_plan(&model);
    struct mf_store_plan_answer answer;
    struct mf_store_plan_record record;
    struct mf_store_plan_record *list = NULL;
    int32_t count = 0;
    struct mf_arena arena;
    mf_arena_init(&arena);
    assert_status(mf_store_plan_get(store, "key1", &model, &answer), MF_STATUS_NOT_FOUND);
    assert_ok(mf_store_plan_put(store, "key1", &plan));
    assert_ok(mf_store_plan_get(store, "key1", &model, &answer));
    assert_true(answer.feasible);
    assert_int_equal(answer.use_count, 1);
    assert_string_equal(answer.plan.id, plan.id);
    assert_int_equal(answer.plan.unit_count, plan.unit_count);
    mf_plan_reset(&answer.plan);
    assert_ok(mf_store_plan_get(store, "key1", &model, &answer));
    assert_int_equal(answer.use_count, 2);
    mf_plan_reset(&answer.plan);

    assert_ok(mf_store_plan_put(store, "key2", &plan));
    assert_ok(mf_store_plan_list(store, &arena, &list, &count));
    assert_int_equal(count, 2);
    assert_null(list[0].json);
    assert_true(list[0].step_ns == 1e6);
    char beginning[9];
    snprintf(beginning, sizeof(beginning), "%.8s", plan.id);
    assert_ok(mf_store_plan_find(store, beginning, &arena, &record));
    assert_string_equal(record.id, plan.id);
    assert_non_null(record.json);
    assert_status(mf_store_plan_find(store, "", &arena, &record), MF_STATUS_NOT_FOUND);
    assert_status(mf_store_plan_find(store, "%", &arena, &record), MF_STATUS_NOT_FOUND);
    assert_ok(mf_store_plan_delete(store, plan.id));
    assert_status(mf_store_plan_find(store, plan.id, &arena, &record), MF_STATUS_NOT_FOUND);
    mf_arena_reset(&arena);
    mf_plan_reset(&plan);
    mf_model_reset(&model);
    mf_store_close(store);
}

static void test_infeasible(void **state)
{
    (void)state;
    struct mf_store *store = open_store(new_path());
    struct mf_model model = some_model();
    struct mf_store_plan_answer answer;
    const struct mf_store_plan_request request = {model.fingerprint, model.name, "hw",
                                                  MF_STRATEGY_AUTO};
    (void)mf_status_set_reason(MF_STATUS_NO_DEVICE_MEMORY, "DEVICE_MEMORY_TOO_SMALL", "too small");
    mf_status_number("needed_bytes", 1ll << 40);
    struct mf_error error = *mf_status_error();
    assert_ok(mf_store_plan_put_error(store, "key", &request, &error));
    assert_ok(mf_store_plan_get(store, "key", &model, &answer));
    assert_false(answer.feasible);
    assert_int_equal(answer.error.status, MF_STATUS_NO_DEVICE_MEMORY);
    assert_string_equal(answer.error.reason, "DEVICE_MEMORY_TOO_SMALL");
    assert_string_equal(answer.error.text, "too small");
    assert_int_equal(answer.error.number_count, 1);
    assert_int_equal(answer.error.numbers[0].value, 1ll << 40);
    mf_model_reset(&model);
    mf_store_close(store);
}

/* Runs SQL on the closed file with a connection of our own. */
static void run_sql(const char *path, const char *sql)
{
    sqlite3 *connection = NULL;
    assert_int_equal(sqlite3_open(path, &connection), SQLITE_OK);
    char *text = NULL;
    if (sqlite3_exec(connection, sql, NULL, NULL, &text) != SQLITE_OK) {
        fail_msg("%s: %s", sql, text);
    }
    sqlite3_close(connection);
}

/* A stored plan that does not decode, or is not this model's, is a miss. */
static void test_bad_plan(void **state)
{
    (void)state;
    const char *path = new_path();
    struct mf_store *store = open_store(path);
    struct mf_model model = some_model();
    struct mf_model other;
    struct mf_plan plan = some_plan(&model);
    struct mf_store_plan_answer answer;
    assert_ok(mf_model_from_preset("gpt2-xl", 0, &other));
    assert_ok(mf_store_plan_put(store, "key", &plan));
    assert_status(mf_store_plan_get(store, "key", &other, &answer), MF_STATUS_NOT_FOUND);
    mf_store_close(store);
    run_sql(path, "UPDATE plan_documents SET json = substr(json, 1, 100)");
    store = open_store(path);
    assert_status(mf_store_plan_get(store, "key", &model, &answer), MF_STATUS_NOT_FOUND);
    mf_store_close(store);
    mf_plan_reset(&plan);
    mf_model_reset(&other);
    mf_model_reset(&model);
}

/* A77: whatever lies there is set aside whole, a new store works, and the next open is quiet. */
static void assert_rebuilt(const char *path)
{
    size_t before = 0;
    size_t after = 0;
    char *old = harness_read(path, &before);
    struct mf_store *store = open_store(path);
    assert_string_not_equal(mf_store_set_aside(store), "");
    assert_int_equal(count_files(path, ".corrupt-", "Z"), 1);
    char *kept = harness_read(mf_store_set_aside(store), &after);
    assert_int_equal(before, after);
    assert_memory_equal(old, kept, before);
    put_session(store, "s", 0);
    mf_store_close(store);
    assert_session(path, "s");
    assert_int_equal(count_files(path, ".corrupt-", "Z"), 1);
}

static void test_garbage(void **state)
{
    (void)state;
    const char *path = new_path();
    char bytes[5000];
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (char)harness_random();
    }
    harness_write(path, bytes, sizeof(bytes));
    assert_rebuilt(path);
    path = new_path();
    harness_write(path, "not a database\n", 15);
    assert_rebuilt(path);
    path = new_path();
    harness_write(path, "x", 1);
    assert_rebuilt(path);
    path = new_path();
    memset(bytes, 0, sizeof(bytes));
    harness_write(path, bytes, sizeof(bytes));
    assert_rebuilt(path);
    path = new_path();
    memcpy(bytes, "SQLite format 3", 16);
    harness_write(path, bytes, sizeof(bytes));
    assert_rebuilt(path);
    path = new_path();
    run_sql(path, "CREATE TABLE bookmarks(url TEXT); PRAGMA application_id = 77");
    assert_rebuilt(path);
}

static void test_empty_file(void **state)
{
    (void)state;
    const char *path = new_path();
    harness_write(path, "", 0);
    struct mf_store *store = open_store(path);
    assert_string_equal(mf_store_set_aside(store), "");
    put_session(store, "s", 0);
    mf_store_close(store);
    assert_session(path, "s");
}

/* A store with some content; its bytes. */
static char *filled_store(const char *path, size_t *count)
{
    struct mf_store *store = open_store(path);
    struct mf_model model = some_model();
    struct mf_plan plan = some_plan(&model);
    char key[16];
    for (int i = 0; i < 8; i++) {
        snprintf(key, sizeof(key), "key%d", i);
        assert_ok(mf_store_plan_put(store, key, &plan));
    }
    mf_plan_reset(&plan);
    mf_model_reset(&model);
    mf_store_close(store);
    return harness_read(path, count);
}

static void test_truncated(void **state)
{
    (void)state;
    size_t count = 0;
    char *bytes = filled_store(new_path(), &count);
    assert_true(count > 20000);
    const size_t cuts[] = {10, 100, 4096, 9000, count - 5000};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        const char *path = new_path();
        harness_write(path, bytes, cuts[i]);
        assert_rebuilt(path);
    }
}

/* Any flipped byte: the store opens, is rebuilt or not, never crashes, and can be written. */
static void test_flipped(void **state)
{
    (void)state;
    size_t count = 0;
    char *bytes = filled_store(new_path(), &count);
    mf_log_configure(MF_LOG_ERROR, false);
    for (int round = 0; round < 40; round++) {
        const char *path = new_path();
        size_t place =
            round < 20 ? (size_t)harness_random_below(400) : (size_t)harness_random_below(count);
        char flipped = (char)(1 << harness_random_below(8));
        bytes[place] = (char)(bytes[place] ^ flipped);
        harness_write(path, bytes, count);
        bytes[place] = (char)(bytes[place] ^ flipped);
        struct mf_store *store = NULL;
        enum mf_status status = mf_store_open(path, &store);
        if (status == MF_STATUS_UNSUPPORTED) { /* the version became a higher one */
            assert_null(store);
        } else {
            assert_int_equal(status, MF_STATUS_OK);
            put_session(store, "s", 0);
            mf_store_close(store);
        }
    }
    mf_log_configure(MF_LOG_INFO, false);
}

static void test_newer(void **state)
{
    (void)state;
    const char *path = new_path();
    size_t before = 0;
    size_t after = 0;
    mf_store_close(open_store(path));
    run_sql(path, "PRAGMA user_version = 99");
    char *old = harness_read(path, &before);
    struct mf_store *store = NULL;
    assert_fails(mf_store_open(path, &store), MF_STATUS_UNSUPPORTED, "has version 99");
    assert_non_null(strstr(mf_status_text(), "up to 1"));
    assert_null(store);
    assert_int_equal(count_files(path, ".corrupt-", "Z"), 0);
    assert_memory_equal(old, harness_read(path, &after), before);
    assert_int_equal(before, after);
}

static void test_bad_places(void **state)
{
    (void)state;
    struct mf_store *store = NULL;
    const char *folder = harness_folder();
    assert_fails(mf_store_open(harness_path(folder, "absent/x.db"), &store), MF_STATUS_IO,
                 "absent");
    assert_status(mf_store_open(folder, &store), MF_STATUS_IO);
    assert_int_equal(mkdir(harness_path(folder, "sub"), 0755), 0);
    assert_status(mf_store_open(harness_path(folder, "sub"), &store), MF_STATUS_IO);
    if (geteuid() != 0) {
        assert_int_equal(chmod(harness_path(folder, "sub"), 0555), 0);
        assert_fails(mf_store_open(harness_path(folder, "sub/x.db"), &store), MF_STATUS_DENIED,
                     "cannot be written");
        assert_int_equal(chmod(harness_path(folder, "sub"), 0755), 0);
    }
    assert_null(store);
}

/* A79: the lock file and the log of a killed process do not stop the next. */
static void test_killed(void **state)
{
    (void)state;
    const char *path = new_path();
    pid_t child = fork();
    if (child == 0) {
        struct mf_store *store = NULL;
        if (mf_store_open(path, &store) != MF_STATUS_OK) {
            _exit(1);
        }
        struct mf_store_session_record record = {.id = "killed", .model_name = "gpt2"};
        if (mf_store_session_put(store, &record) != MF_STATUS_OK) {
            _exit(1);
        }
        (void)raise(SIGKILL);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(count_files(path, ".db-wal", ""), 1);
    assert_session(path, "killed");
}

/* Several processes make and use one store at once. */
static void test_processes(void **state)
{
    (void)state;
    const char *path = new_path();
    harness_write(path, "garbage that all of them find", 29);
    pid_t children[4];
    for (int i = 0; i < 4; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            struct mf_store *store = NULL;
            bool good = mf_store_open(path, &store) == MF_STATUS_OK;
            for (int n = 0; good && n < 20; n++) {
                char id[32];
                snprintf(id, sizeof(id), "s%d-%d", i, n);
                struct mf_store_session_record record = {.id = id, .model_name = "gpt2"};
                good = mf_store_session_put(store, &record) == MF_STATUS_OK;
            }
            mf_store_close(store);
            _exit(good ? 0 : 1);
        }
    }
    for (int i = 0; i < 4; i++) {
        int status = 0;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(count_files(path, ".corrupt-", "Z"), 1);
    struct mf_store *store = open_store(path);
    struct mf_arena arena;
    struct mf_store_session_record *list = NULL;
    int32_t count = 0;
    mf_arena_init(&arena);
    assert_ok(mf_store_session_list(store, false, &arena, &list, &count));
    assert_int_equal(count, 80);
    mf_arena_reset(&arena);
    mf_store_close(store);
}

/* In a child, because the limit on file sizes stays: "disk full" as a write failure. */
static int write_until_full(const char *path)
{
    struct mf_store *store = NULL;
    struct mf_store_session_record record = {.id = "one", .model_name = "gpt2"};
    struct rlimit limit = {200000, 200000};
    char *large = calloc(1, 400001);
    if (large == NULL || mf_store_open(path, &store) != MF_STATUS_OK ||
        mf_store_session_put(store, &record) != MF_STATUS_OK) {
        return 1;
    }
    memset(large, 'x', 400000);
    (void)signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) {
        return 2;
    }
    record.id = "two";
    record.error = large;
    enum mf_status status = mf_store_session_put(store, &record);
    if (status != MF_STATUS_IO || strstr(mf_status_text(), path) == NULL) {
        return 3;
    }
    /* Still of use: reads, and writes that fit. */
    struct mf_arena arena;
    mf_arena_init(&arena);
    if (mf_store_session_get(store, "one", &arena, &record) != MF_STATUS_OK) {
        return 4;
    }
    if (mf_store_session_get(store, "two", &arena, &record) != MF_STATUS_NOT_FOUND) {
        return 5;
    }
    record = (struct mf_store_session_record){.id = "three", .model_name = "gpt2"};
    if (mf_store_session_put(store, &record) != MF_STATUS_OK) {
        return 6;
    }
    mf_arena_reset(&arena);
    mf_store_close(store);
    free(large);
    return 0;
}

static void test_full(void **state)
{
    (void)state;
    const char *path = new_path();
    pid_t child = fork();
    if (child == 0) {
        _exit(write_until_full(path));
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_session(path, "three");
}

static void *write_sessions(void *context)
{
    struct mf_store *store = context;
    for (int n = 0; n < 50; n++) {
        char id[64];
        snprintf(id, sizeof(id), "%lx-%d", (unsigned long)pthread_self(), n);
        struct mf_store_session_record record = {.id = id, .model_name = "gpt2"};
        if (mf_store_session_put(store, &record) != MF_STATUS_OK) {
            return context;
        }
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    struct mf_store *store = open_store(new_path());
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, write_sessions, store), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed = store;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    mf_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sessions),   cmocka_unit_test(test_models),
        cmocka_unit_test(test_profiles),   cmocka_unit_test(test_plans),
        cmocka_unit_test(test_infeasible), cmocka_unit_test(test_bad_plan),
        cmocka_unit_test(test_garbage),    cmocka_unit_test(test_empty_file),
        cmocka_unit_test(test_truncated),  cmocka_unit_test(test_flipped),
        cmocka_unit_test(test_newer),      cmocka_unit_test(test_bad_places),
        cmocka_unit_test(test_killed),     cmocka_unit_test(test_processes),
        cmocka_unit_test(test_full),       cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
