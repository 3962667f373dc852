/* Checkpoints: bit for bit there and back, whole or absent, and nothing taken from a damaged one.
 */
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/json.h"
#include "core/limits.h"
#include "core/model.h"
#include "harness.h"
#include "runtime/checkpoint.h"
#include "runtime/files.h"
#include "runtime/host/bf16.h"
#include "runtime/safetensors.h"
#include "runtime/weights_layout.h"

/* Small, so that the fixtures' matrices have several panels. */
#define PANEL_BYTES 8192
#define KINDS 3

static const char *const families[] = {"gpt2", "llama", "llama3-rope", "mistral", "qwen2", "qwen3"};
#define FAMILY_COUNT (sizeof(families) / sizeof(families[0]))

/* A model with all its state, as a session has it on the device. */
struct store {
    struct mf_model model;
    float **arrays[KINDS]; /* by unit; NULL for units that are another's */
    int32_t calls;
    int32_t fail_at; /* the call that fails, counted from 1; 0 = none */
    bool moments;    /* the last load gave moments */
};

static const char *fixture(const char *family)
{
    char relative[256];
    snprintf(relative, sizeof(relative), "tests/oracle/fixtures/%s", family);
    return harness_source(relative);
}

static float *array_of(const struct mf_checkpoint_unit *unit, int kind)
{
    float *const list[KINDS] = {unit->master, unit->first, unit->second};
    return list[kind];
}

/* Any bits but those of numbers that are not finite: bf16 keeps no payload of them. */
static float random_float(void)
{
    uint32_t bits = (uint32_t)harness_random() & 0xbf7fffffu;
    float value = 0;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static void fill(const struct mf_unit *unit, float *elements)
{
    for (int64_t row = 0; row < unit->rows; row++) {
        for (int64_t column = 0; column < unit->columns; column++) {
            elements[mf_weights_layout_offset(unit, row, column)] = random_float();
        }
        if (unit->bias.name != NULL) {
            elements[mf_weights_layout_bias_offset(unit, row)] = random_float();
        }
    }
}

static void open_store(const char *family, bool filled, struct store *out)
{
    json_t *config = NULL;
    const char *folder = fixture(family);
    *out = (struct store){0};
    assert_ok(mf_json_load(harness_path(folder, "config.json"), MF_CONFIG_FILE_MAX, &config));
    assert_ok(mf_model_from_config(config, folder, PANEL_BYTES, &out->model));
    json_decref(config);
    for (int kind = 0; kind < KINDS; kind++) {
        out->arrays[kind] = calloc((size_t)out->model.unit_count, sizeof(float *));
        assert_non_null(out->arrays[kind]);
        for (int32_t i = 0; i < out->model.unit_count; i++) {
            const struct mf_unit *unit = &out->model.units[i];
            if (unit->owner == i) {
                out->arrays[kind][i] = calloc((size_t)unit->elements, sizeof(float));
                assert_non_null(out->arrays[kind][i]);
                if (filled) {
                    fill(unit, out->arrays[kind][i]);
                }
            }
        }
    }
}

static void close_store(struct store *store)
{
    for (int kind = 0; kind < KINDS; kind++) {
        for (int32_t i = 0; i < store->model.unit_count; i++) {
            free(store->arrays[kind][i]);
        }
        free(store->arrays[kind]);
    }
    mf_model_reset(&store->model);
}

static enum mf_status give(void *context, int32_t unit, const struct mf_checkpoint_unit *arrays)
{
    struct store *store = context;
    assert_int_equal(store->model.units[unit].owner, unit);
    if (++store->calls == store->fail_at) {
        return mf_status_set(MF_STATUS_DEVICE, "the device went away");
    }
    for (int kind = 0; kind < KINDS; kind++) {
        if (array_of(arrays, kind) != NULL) {
            memcpy(array_of(arrays, kind), store->arrays[kind][unit],
                   (size_t)store->model.units[unit].elements * sizeof(float));
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status take(void *context, int32_t unit, const struct mf_checkpoint_unit *arrays)
{
    struct store *store = context;
    store->calls++;
    store->moments = arrays->first != NULL;
    assert_true((arrays->first != NULL) == (arrays->second != NULL));
    for (int kind = 0; kind < KINDS; kind++) {
        if (array_of(arrays, kind) != NULL) {
            memcpy(store->arrays[kind][unit], array_of(arrays, kind),
                   (size_t)store->model.units[unit].elements * sizeof(float));
        }
    }
    return MF_STATUS_OK;
}

static bool is_there(const char *folder, const char *name)
{
    return access(harness_path(folder, name), F_OK) == 0;
}

/* Neither the folder nor what it was made in. */
static void assert_nothing(const char *parent, const char *name)
{
    char partial[64];
    snprintf(partial, sizeof(partial), "%s.partial", name);
    assert_false(is_there(parent, name));
    assert_false(is_there(parent, partial));
}

static enum mf_status save(struct store *store, const char *folder, bool weights_only)
{
    json_t *state = json_pack("{s:I, s:f}", "step", (json_int_t)7, "third", 1.0 / 3);
    const struct mf_checkpoint_options options = {.weights_only = weights_only, .state = state};
    enum mf_status status = mf_checkpoint_save(&store->model, folder, &options, give, store);
    json_decref(state);
    return status;
}

/* Same bits everywhere; `rounded`: the masters went through bf16, moments are not compared. */
static void assert_same(const struct store *expected, const struct store *actual, bool rounded)
{
    for (int32_t i = 0; i < expected->model.unit_count; i++) {
        size_t count = (size_t)expected->model.units[i].elements;
        for (int kind = 0; kind < (rounded ? 1 : KINDS); kind++) {
            float *wanted = expected->arrays[kind][i];
            if (wanted == NULL) {
                continue;
            }
            for (size_t k = 0; rounded && k < count; k++) {
                wanted[k] = mf_bf16_to_float(mf_bf16_from_float(wanted[k]));
            }
            assert_memory_equal(actual->arrays[kind][i], wanted, count * sizeof(float));
        }
    }
}

static void round_trip(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILY_COUNT; f++) {
        const char *parent = harness_folder();
        const char *folder = harness_path(parent, "checkpoint-7");
        struct store before;
        struct store after;
        json_t *read = NULL;
        bool optimizer = false;
        open_store(families[f], true, &before);
        open_store(families[f], false, &after);
        assert_ok(save(&before, folder, false));
        assert_true(is_there(folder, "DONE"));
        assert_false(is_there(parent, "checkpoint-7.partial"));
        assert_ok(mf_checkpoint_load(&after.model, folder, take, &after, &optimizer, &read));
        assert_true(optimizer && after.moments);
        assert_same(&before, &after, false);
        assert_int_equal(json_integer_value(json_object_get(read, "step")), 7);
        assert_int_equal(json_integer_value(json_object_get(read, "checkpoint_version")), 1);
        assert_near(json_real_value(json_object_get(read, "third")), 1.0 / 3, 0, 0);
        json_decref(read);

        /* The same state gives the same bytes, whatever the clock says. */
        const char *again = harness_path(parent, "again");
        size_t count = 0;
        size_t other_count = 0;
        assert_ok(save(&after, again, false));
        char *bytes = harness_read(harness_path(folder, "optimizer.safetensors"), &count);
        char *others = harness_read(harness_path(again, "optimizer.safetensors"), &other_count);
        assert_int_equal(count, other_count);
        assert_memory_equal(bytes, others, count);

        /* It is a Hugging Face folder too. */
        assert_ok(mf_checkpoint_load_weights(&after.model, folder, take, &after));
        assert_false(after.moments);
        assert_same(&before, &after, true);
        close_store(&before);
        close_store(&after);
    }
}

/* What is in optimizer.safetensors, as the header says it: fp32, the output feature first even
 * where Hugging Face has it last, a tied head once. */
static void layout(void **state)
{
    (void)state;
    const char *folder = harness_path(harness_folder(), "c");
    struct store store;
    struct mf_safetensors *optimizer = NULL;
    struct mf_safetensors *weights = NULL;
    int32_t transposed = 0;
    int32_t tensors = 0;
    int32_t tied = 0;
    static const char *const kinds[KINDS] = {"master", "exp_avg", "exp_avg_sq"};
    open_store("gpt2", true, &store);
    assert_ok(save(&store, folder, false));
    assert_ok(mf_safetensors_open(harness_path(folder, "optimizer.safetensors"), &optimizer));
    assert_ok(mf_safetensors_open(folder, &weights));
    for (int32_t i = 0; i < store.model.unit_count; i++) {
        const struct mf_unit *unit = &store.model.units[i];
        tied += unit->owner != i;
        for (int kind = 0; kind < KINDS && unit->owner == i; kind++) {
            char name[256];
            float *values = malloc((size_t)(unit->rows * unit->columns) * sizeof(float));
            assert_non_null(values);
            snprintf(name, sizeof(name), "%s.%s", kinds[kind], unit->weight.name);
            const struct mf_safetensors_tensor *tensor = mf_safetensors_find(optimizer, name);
            assert_non_null(tensor);
            assert_int_equal(tensor->type, MF_SAFETENSORS_TYPE_F32);
            assert_int_equal(tensor->shape[0], unit->rows);
            assert_true(tensor->dimension_count == 1 || tensor->shape[1] == unit->columns);
            assert_ok(mf_safetensors_read(optimizer, tensor, 0, tensor->bytes, values));
            for (int64_t at = 0; at < unit->rows * unit->columns; at++) {
                int64_t place =
                    mf_weights_layout_offset(unit, at / unit->columns, at % unit->columns);
                assert_memory_equal(&values[at], &store.arrays[kind][i][place], sizeof(float));
            }
            tensors += unit->bias.name != NULL ? 2 : 1;
            free(values);
        }
        const struct mf_safetensors_tensor *stored =
            mf_safetensors_find(weights, unit->weight.name);
        if (unit->weight.transposed && stored->shape[0] != unit->rows) {
            assert_int_equal(stored->shape[1], unit->rows);
            transposed++;
        }
    }
    assert_int_equal(mf_safetensors_count(optimizer), tensors);
    assert_int_equal(tied, 1);
    assert_true(transposed > 2);
    assert_string_equal(mf_safetensors_metadata(optimizer, "format"), "memferry-optimizer-1");
    mf_safetensors_close(optimizer);
    mf_safetensors_close(weights);
    close_store(&store);
}

static int64_t folder_bytes(const char *folder)
{
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "config.json",
                                        "state.json", "DONE"};
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct stat info;
        if (stat(harness_path(folder, names[i]), &info) == 0) {
            bytes += info.st_size;
        }
    }
    return bytes;
}

static void weights_only(void **state)
{
    (void)state;
    const char *parent = harness_folder();
    const char *folder = harness_path(parent, "final");
    struct store before;
    struct store after;
    json_t *read = NULL;
    bool optimizer = true;
    open_store("gpt2", true, &before);
    open_store("gpt2", false, &after);
    assert_ok(save(&before, folder, true));
    assert_true(is_there(folder, "DONE"));
    assert_false(is_there(folder, "optimizer.safetensors"));
    assert_ok(mf_checkpoint_load(&after.model, folder, take, &after, &optimizer, &read));
    assert_false(optimizer || after.moments);
    assert_int_equal(json_integer_value(json_object_get(read, "step")), 7);
    json_decref(read);
    assert_same(&before, &after, true);
    assert_ok(mf_checkpoint_load(&after.model, folder, take, &after, &optimizer, NULL));

    /* The space asked for covers what is written, and is not far above it. */
    assert_ok(save(&before, harness_path(parent, "whole"), false));
    for (int i = 0; i < 2; i++) {
        int64_t asked = mf_checkpoint_bytes(&before.model, i == 0);
        int64_t written = folder_bytes(i == 0 ? folder : harness_path(parent, "whole"));
        assert_true(asked >= written && asked < written + (2 << 20));
    }
    close_store(&before);
    close_store(&after);
}

/* Somebody else's folder has weights alone, and its files mean nothing to us. */
static void foreign(void **state)
{
    (void)state;
    const char *folder = harness_folder();
    struct store store;
    json_t *read = NULL;
    bool optimizer = true;
    open_store("qwen3", false, &store);
    assert_ok(mf_files_copy(harness_path(fixture("qwen3"), "model.safetensors"),
                            harness_path(folder, "model.safetensors")));
    harness_write(harness_path(folder, "state.json"), "not JSON", 8);
    assert_ok(mf_checkpoint_load(&store.model, folder, take, &store, &optimizer, &read));
    assert_false(optimizer);
    assert_null(read);
    assert_true(store.calls > 5);
    close_store(&store);
}

/* What is there is never touched; what an earlier save left behind is. */
static void names_taken(void **state)
{
    (void)state;
    const char *parent = harness_folder();
    const char *folder = harness_path(parent, "c");
    const char *partial = harness_path(parent, "c.partial");
    struct store store;
    open_store("llama", true, &store);
    assert_int_equal(mkdir(folder, 0777), 0);
    assert_fails(save(&store, folder, false), MF_STATUS_EXISTS, "choose another name");
    assert_false(is_there(parent, "c.partial"));
    assert_int_equal(rmdir(folder), 0); /* still empty */
    harness_write(folder, "mine", 4);
    assert_fails(save(&store, folder, false), MF_STATUS_EXISTS, "there already");
    assert_string_equal(harness_read(folder, NULL), "mine");
    assert_int_equal(unlink(folder), 0);

    assert_int_equal(mkdir(partial, 0777), 0);
    harness_write(harness_path(partial, "left-over"), "x", 1);
    assert_ok(save(&store, folder, false));
    assert_false(is_there(folder, "left-over"));
    assert_false(is_there(parent, "c.partial"));
    close_store(&store);
}

/* Whichever unit the device fails at, for either file, nothing is left and its text comes back. */
static void device_fails(void **state)
{
    (void)state;
    const char *parent = harness_folder();
    struct store store;
    open_store("gpt2", true, &store);
    assert_ok(save(&store, harness_path(parent, "good"), false));
    int32_t calls = store.calls;
    for (int32_t at = 1; at <= calls; at += 5) {
        store.calls = 0;
        store.fail_at = at;
        assert_fails(save(&store, harness_path(parent, "c"), false), MF_STATUS_DEVICE, "went away");
        assert_nothing(parent, "c");
    }
    close_store(&store);
}

static enum mf_status save_limited(struct store *store, const char *folder, rlim_t bytes)
{
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit small = {.rlim_cur = bytes, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum mf_status status = save(store, folder, false);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    return status;
}

/* A disk that is full at the header, within the weights, within the optimizer's state. */
static void disk_full(void **state)
{
    (void)state;
    const char *parent = harness_folder();
    const char *good = harness_path(parent, "good");
    struct store store;
    struct stat weights;
    struct stat optimizer;
    open_store("gpt2", true, &store);
    signal(SIGXFSZ, SIG_IGN);
    assert_ok(save(&store, good, false));
    assert_int_equal(stat(harness_path(good, "model.safetensors"), &weights), 0);
    assert_int_equal(stat(harness_path(good, "optimizer.safetensors"), &optimizer), 0);
    const rlim_t limits[] = {0, 100, (rlim_t)weights.st_size / 2, (rlim_t)weights.st_size,
                             (rlim_t)optimizer.st_size - 1};
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        assert_status(save_limited(&store, harness_path(parent, "c"), limits[i]), MF_STATUS_IO);
        assert_nothing(parent, "c");
    }
    assert_ok(save_limited(&store, harness_path(parent, "c"), (rlim_t)optimizer.st_size));
    close_store(&store);
}

static void no_parent(void **state)
{
    (void)state;
    struct store store;
    open_store("llama", true, &store);
    const char *parent = harness_folder();
    assert_ok(save(&store, harness_path(parent, "a/b/c"), true)); /* made on the way */
    harness_write(harness_path(parent, "file"), "", 0);
    assert_true(save(&store, harness_path(parent, "file/c"), true) != MF_STATUS_OK);
    assert_string_equal(harness_read(harness_path(parent, "file"), NULL), "");
    close_store(&store);
}

/* ---- damage ---- */

static void refuse(struct store *store, const char *folder, enum mf_status status,
                   const char *fragment)
{
    json_t *read = NULL;
    bool optimizer = false;
    store->calls = 0;
    assert_fails(mf_checkpoint_load(&store->model, folder, take, store, &optimizer, &read), status,
                 fragment);
    assert_null(read);
    assert_int_equal(store->calls, 0); /* nothing reached the device */
}

/* The first `from` in the file becomes `to`, of the same length. */
static void replace(const char *path, const char *from, const char *to)
{
    size_t count = 0;
    char *bytes = harness_read(path, &count);
    char *at = memmem(bytes, count, from, strlen(from));
    assert_non_null(at);
    assert_int_equal(strlen(from), strlen(to));
    memcpy(at, to, strlen(to));
    harness_write(path, bytes, count);
}

static void damaged(void **state)
{
    (void)state;
    const char *folder = harness_path(harness_folder(), "c");
    const char *optimizer = harness_path(folder, "optimizer.safetensors");
    const char *done = harness_path(folder, "DONE");
    const char *json = harness_path(folder, "state.json");
    struct store store;
    size_t count = 0;
    open_store("gpt2", true, &store);
    assert_ok(save(&store, folder, false));
    char *whole = harness_read(optimizer, &count);

    harness_write(optimizer, whole, count - 1);
    refuse(&store, folder, MF_STATUS_CORRUPT, "optimizer.safetensors");
    harness_write(optimizer, whole, count / 2);
    refuse(&store, folder, MF_STATUS_CORRUPT, "optimizer.safetensors");
    harness_write(optimizer, whole, 0);
    refuse(&store, folder, MF_STATUS_CORRUPT, "optimizer.safetensors");
    harness_write(optimizer, whole, count);
    replace(optimizer, "\"exp_avg_sq.", "\"exp_avg_xy.");
    refuse(&store, folder, MF_STATUS_CORRUPT, "is missing for this model");
    harness_write(optimizer, whole, count);
    replace(optimizer, "\"F32\"", "\"I32\"");
    refuse(&store, folder, MF_STATUS_CORRUPT, "is I32");
    for (int32_t i = 0; i < store.model.unit_count; i++) { /* as many bytes, the other way round */
        const struct mf_unit *unit = &store.model.units[i];
        if (unit->columns > 1 && unit->rows != unit->columns) {
            char from[64];
            char to[64];
            snprintf(from, sizeof(from), "[%lld,%lld]", (long long)unit->rows,
                     (long long)unit->columns);
            snprintf(to, sizeof(to), "[%lld,%lld]", (long long)unit->columns,
                     (long long)unit->rows);
            harness_write(optimizer, whole, count);
            replace(optimizer, from, to);
            refuse(&store, folder, MF_STATUS_CORRUPT, "this model needs F32 [");
            break;
        }
    }
    harness_write(optimizer, whole, count);

    assert_int_equal(unlink(done), 0);
    refuse(&store, folder, MF_STATUS_CORRUPT, "no file DONE");
    harness_write(done, "", 0);
    harness_write(json, "{\"checkpoint_version\": 2, \"step\": 7}", 36);
    refuse(&store, folder, MF_STATUS_INVALID, "from 1 to 1");
    harness_write(json, "{\"step\": 7}", 11);
    refuse(&store, folder, MF_STATUS_INVALID, "\"checkpoint_version\" is missing");
    harness_write(json, "{\"step\": 7", 10);
    refuse(&store, folder, MF_STATUS_INVALID, "not valid JSON");
    harness_write(json, "[]", 2);
    refuse(&store, folder, MF_STATUS_INVALID, "missing");
    assert_int_equal(unlink(json), 0);
    refuse(&store, folder, MF_STATUS_CORRUPT, "lost its state.json");
    close_store(&store);
}

static void another_model(void **state)
{
    (void)state;
    const char *folder = harness_path(harness_folder(), "c");
    struct store gpt2;
    struct store llama;
    open_store("gpt2", true, &gpt2);
    open_store("llama", false, &llama);
    assert_ok(save(&gpt2, folder, false));
    refuse(&llama, folder, MF_STATUS_CORRUPT, "missing for this model");
    refuse(&llama, harness_path(folder, "nowhere"), MF_STATUS_NOT_FOUND, "nowhere");
    close_store(&gpt2);
    close_store(&llama);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),   cmocka_unit_test(layout),
        cmocka_unit_test(weights_only), cmocka_unit_test(foreign),
        cmocka_unit_test(names_taken),  cmocka_unit_test(device_fails),
        cmocka_unit_test(disk_full),    cmocka_unit_test(no_parent),
        cmocka_unit_test(damaged),      cmocka_unit_test(another_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
