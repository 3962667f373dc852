/* The ground everything stands on: status, sizes and durations as text, arena, hash, strict JSON.
 */
#define HARNESS_THREADS
#include "harness.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "core/arena.h"
#include "core/format.h"
#include "core/hash.h"
#include "core/json.h"

static enum mf_status pass_up(enum mf_status status)
{
    MF_TRY(status);
    return mf_status_set(MF_STATUS_INTERNAL, "went on");
}

static enum mf_status leave_by_label(enum mf_status first, int *cleaned)
{
    enum mf_status status = MF_STATUS_OK;
    MF_TRY_GOTO(first, out);
    status = MF_STATUS_BUSY;
out:
    *cleaned = 1;
    return status;
}

static void test_status(void **context)
{
    (void)context;
    assert_string_equal(mf_status_name(MF_STATUS_NO_DEVICE_MEMORY), "NO_DEVICE_MEMORY");
    assert_string_equal(mf_status_name((enum mf_status)99), "UNKNOWN");
    assert_string_equal(mf_status_sentence(MF_STATUS_CORRUPT), "the data is damaged");
    assert_int_equal(mf_status_set(MF_STATUS_IO, "cannot read %s", "x"), MF_STATUS_IO);
    assert_int_equal(mf_status_context(MF_STATUS_IO, "plan %d", 7), MF_STATUS_IO);
    assert_string_equal(mf_status_text(), "plan 7: cannot read x");
    assert_string_equal(mf_status_error()->reason, "");

    assert_status(mf_status_set_reason(MF_STATUS_NO_DEVICE_MEMORY, "DEVICE_MEMORY_TOO_SMALL",
                                       "%d missing", 5),
                  MF_STATUS_NO_DEVICE_MEMORY);
    for (int i = 0; i < MF_ERROR_NUMBERS_MAX + 2; i++) {
        mf_status_number("needed_bytes", i);
    }
    struct mf_error error = *mf_status_error();
    assert_int_equal(error.number_count, MF_ERROR_NUMBERS_MAX);
    assert_int_equal(error.numbers[3].value, 3);
    assert_status(mf_status_set(MF_STATUS_INVALID, "another"), MF_STATUS_INVALID);
    assert_int_equal(mf_status_error()->number_count, 0);
    assert_int_equal(mf_status_restore(&error), MF_STATUS_NO_DEVICE_MEMORY);
    assert_string_equal(mf_status_text(), "5 missing");
    assert_string_equal(mf_status_error()->reason, "DEVICE_MEMORY_TOO_SMALL");
    assert_int_equal(mf_status_restore(mf_status_error()), MF_STATUS_NO_DEVICE_MEMORY);

    assert_int_equal(pass_up(MF_STATUS_DENIED), MF_STATUS_DENIED);
    assert_int_equal(pass_up(MF_STATUS_OK), MF_STATUS_INTERNAL);
    int cleaned = 0;
    assert_int_equal(leave_by_label(MF_STATUS_DENIED, &cleaned), MF_STATUS_DENIED);
    assert_int_equal(cleaned, 1);
    assert_int_equal(leave_by_label(MF_STATUS_OK, &cleaned), MF_STATUS_BUSY);
}

static void test_status_text_is_bounded(void **context)
{
    (void)context;
    char word[MF_ERROR_TEXT_MAX * 2];
    memset(word, 'w', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    assert_status(mf_status_set(MF_STATUS_INVALID, "%s", word), MF_STATUS_INVALID);
    assert_int_equal(strlen(mf_status_text()), MF_ERROR_TEXT_MAX - 1);
    assert_status(mf_status_context(MF_STATUS_INVALID, "%s", "front"), MF_STATUS_INVALID);
    assert_int_equal(strlen(mf_status_text()), MF_ERROR_TEXT_MAX - 1);
    assert_int_equal(strncmp(mf_status_text(), "front: www", 10), 0);
    assert_status(mf_status_set_reason(MF_STATUS_INVALID, word, "x"), MF_STATUS_INVALID);
    assert_int_equal(strlen(mf_status_error()->reason), MF_ERROR_REASON_MAX - 1);
    mf_status_number(word, 1);
    assert_int_equal(strlen(mf_status_error()->numbers[0].name), MF_ERROR_NUMBER_NAME_MAX - 1);
}

static void *other_thread(void *argument)
{
    bool *clean = argument;
    *clean = mf_status_text()[0] == '\0';
    (void)!mf_status_set(MF_STATUS_BUSY, "of the other thread");
    return NULL;
}

static void test_status_is_per_thread(void **context)
{
    (void)context;
    bool clean = false;
    pthread_t thread;
    assert_status(mf_status_set(MF_STATUS_IO, "mine"), MF_STATUS_IO);
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &clean), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(clean);
    assert_string_equal(mf_status_text(), "mine");
}

static void test_parse_bytes(void **context)
{
    (void)context;
    static const struct {
        const char *text;
        int64_t bytes;
    } good[] = {
        {"0", 0},
        {"4096", 4096},
        {"8GiB", 8ll << 30},
        {"512 MiB", 512 << 20},
        {"1.5KiB", 1536},
        {"24GB", 24000000000},
        {"1.5e9", 1500000000},
        {"2g", 2ll << 30},
        {"3 kb", 3000},
        {"1TiB", 1ll << 40},
        {"7B", 7},
    };
    static const char *const bad[] = {"",     "GiB",     "-1",     "8GiBs", "8 G i B",      "nan",
                                      "1e30", "inf GiB", "4096 5", "0x",    "9999999999GiB"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        int64_t bytes = -1;
        assert_ok(mf_format_parse_bytes(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        int64_t bytes = -1;
        assert_fails(mf_format_parse_bytes(bad[i], &bytes), MF_STATUS_INVALID, "is not a size");
        assert_int_equal(bytes, -1);
    }
}

static void test_format(void **context)
{
    (void)context;
    char text[MF_FORMAT_MAX];
    assert_string_equal(mf_format_bytes(512, text), "512 B");
    assert_string_equal(mf_format_bytes(-3, text), "-3 B");
    assert_string_equal(mf_format_bytes(3ll << 29, text), "1.50 GiB");
    assert_string_equal(mf_format_bytes(812ll << 20, text), "812.0 MiB");
    assert_string_equal(mf_format_ns(812.4e6, text), "812.4 ms");
    assert_string_equal(mf_format_ns(3.2e9, text), "3.20 s");
    assert_string_equal(mf_format_ns(45000, text), "45.00 us");
    assert_string_equal(mf_format_count(124439808, text), "124.4 M");
    assert_string_equal(mf_format_count(8.03e9, text), "8.03 B");
    assert_string_equal(mf_format_count(12, text), "12.00");
    mf_format_bytes(INT64_MAX, text);
    mf_format_bytes(INT64_MIN, text);
    mf_format_ns((double)INFINITY, text);
    mf_format_ns(-1e300, text); /* cut, never past the end */
    assert_true(strlen(text) < MF_FORMAT_MAX);

    static const char *const words[] = {"learning_rate", "batch_size", "seq_len"};
    assert_string_equal(mf_format_nearest("learning-rate", words, 3), "learning_rate");
    assert_string_equal(mf_format_nearest("seqlen", words, 3), "seq_len");
    assert_null(mf_format_nearest("zzzzzzzzzzz", words, 3));
    assert_null(mf_format_nearest("", words, 0));
    char word[200];
    memset(word, 'w', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    assert_null(mf_format_nearest(word, words, 3));
}

static void test_arena(void **context)
{
    (void)context;
    struct mf_arena arena;
    mf_arena_init(&arena);
    harness_random_restart(31);
    unsigned char *blocks[200];
    size_t sizes[200];
    for (size_t i = 0; i < 200; i++) {
        sizes[i] = (size_t)harness_random_below(1ull << harness_random_below(18));
        blocks[i] = mf_arena_alloc(&arena, sizes[i], 1);
        assert_int_equal((uintptr_t)blocks[i] % 16, 0);
        for (size_t j = 0; j < sizes[i]; j++) {
            assert_int_equal(blocks[i][j], 0);
        }
        memset(blocks[i], (int)i, sizes[i]);
    }
    for (size_t i = 0; i < 200; i++) { /* nobody wrote into another's bytes */
        for (size_t j = 0; j < sizes[i]; j++) {
            assert_int_equal(blocks[i][j], (unsigned char)i);
        }
    }
    assert_string_equal(mf_arena_string(&arena, "text"), "text");
    assert_string_equal(mf_arena_format(&arena, "%s %d", "layer", 3), "layer 3");
    mf_arena_reset(&arena);
    assert_null(arena.chunks);
    mf_arena_reset(&arena);
}

static void test_hash(void **context)
{
    (void)context;
    char text[MF_HASH_TEXT_MAX];
    mf_hash("abc", 3, text);
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    mf_hash("", 0, text);
    assert_string_equal(text, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static json_t *parse(const char *text)
{
    json_t *json = NULL;
    assert_ok(mf_json_parse(text, strlen(text), "test", &json));
    return json;
}

static void test_json_parse(void **context)
{
    (void)context;
    static const char *const bad[] = {"",
                                      "{",
                                      "{} x",
                                      "{\"a\": 1, \"a\": 2}",
                                      "{\"a\": nan}",
                                      "{\"a\": \"\\ud800\"}",
                                      "\xff",
                                      "{\"a\": \"\\u0000\"}"};
    json_t *json = NULL;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_fails(mf_json_parse(bad[i], strlen(bad[i]), "run.json", &json), MF_STATUS_INVALID,
                     "run.json is not valid JSON: line");
        assert_null(json);
    }
    const char *path = harness_path(harness_folder(), "a.json");
    assert_fails(mf_json_load(path, 100, &json), MF_STATUS_NOT_FOUND, "a.json");
    harness_write(path, "{\"a\": 12345}", 12);
    assert_fails(mf_json_load(path, 11, &json), MF_STATUS_INVALID, "larger than 11 bytes");
    assert_ok(mf_json_load(path, 12, &json));
    json_decref(json);
    assert_status(mf_json_load("/", 12, &json), MF_STATUS_IO);
}

static void test_json_only(void **context)
{
    (void)context;
    static const char *const known[] = {"micro_batch", "seq_len"};
    json_t *json = parse("{\"micro_bach\": 1}");
    assert_fails(mf_json_only(json, "run", known, 2), MF_STATUS_INVALID,
                 "unknown key \"micro_bach\", did you mean \"micro_batch\"?");
    json_decref(json);
    json = parse("{\"micro_batch\": 1, \"seq_len\": 2}");
    assert_ok(mf_json_only(json, "run", known, 2));
    json_decref(json);
    json = parse("[]");
    assert_fails(mf_json_only(json, "run", known, 2), MF_STATUS_INVALID, "object");
    assert_fails(mf_json_only(NULL, "run", known, 2), MF_STATUS_INVALID, "object");
    json_decref(json);
}

static void test_json_readers(void **context)
{
    (void)context;
    json_t *json = parse("{\"one\": 1, \"million\": 1e6, \"half\": 0.5, \"yes\": true,"
                         " \"word\": \"abc\", \"nothing\": null, \"huge\": 1e300}");
    int64_t whole = 7;
    double number = 7;
    bool flag = true;
    const char *text = "default";
    char copy[4] = "xy";

    assert_ok(mf_json_int(json, "test", "million", 0, 1000000, &whole));
    assert_int_equal(whole, 1000000);
    assert_ok(mf_json_int(json, "test", "nothing", 0, 5, &whole)); /* null keeps the default */
    assert_ok(mf_json_int(json, "test", "missing", 0, 5, &whole));
    assert_int_equal(whole, 1000000);
    assert_fails(mf_json_int(json, "test", "one", 2, 5, &whole), MF_STATUS_INVALID,
                 "\"one\" must be a whole number from 2 to 5, found 1");
    assert_fails(mf_json_int(json, "test", "half", 0, 5, &whole), MF_STATUS_INVALID, "half");
    assert_fails(mf_json_int(json, "test", "huge", 0, INT64_MAX, &whole), MF_STATUS_INVALID,
                 "huge");
    assert_fails(mf_json_int(json, "test", "yes", 0, 5, &whole), MF_STATUS_INVALID, "yes");

    assert_ok(mf_json_number(json, "test", "one", 0, 1, &number));
    assert_true(number == 1);
    assert_fails(mf_json_number(json, "test", "half", 1, 2, &number), MF_STATUS_INVALID, "half");
    assert_fails(mf_json_number(json, "test", "word", 1, 2, &number), MF_STATUS_INVALID, "word");
    assert_ok(mf_json_bool(json, "test", "yes", &flag));
    assert_fails(mf_json_bool(json, "test", "one", &flag), MF_STATUS_INVALID, "true or false");
    assert_ok(mf_json_string(json, "test", "word", &text));
    assert_string_equal(text, "abc");
    assert_fails(mf_json_string(json, "test", "one", &text), MF_STATUS_INVALID, "a string");

    assert_ok(mf_json_text(json, "test", "missing", copy, sizeof(copy)));
    assert_string_equal(copy, "xy");
    assert_ok(mf_json_text(json, "test", "word", copy, sizeof(copy)));
    assert_string_equal(copy, "abc");
    assert_fails(mf_json_text(json, "test", "word", copy, 3), MF_STATUS_INVALID, "at most 2 bytes");

    assert_ok(mf_json_require(json, "test", "one"));
    assert_fails(mf_json_require(json, "test", "nothing"), MF_STATUS_INVALID, "missing");
    assert_fails(mf_json_require(NULL, "test", "one"), MF_STATUS_INVALID, "missing");
    json_decref(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_status),
        cmocka_unit_test(test_status_text_is_bounded),
        cmocka_unit_test(test_status_is_per_thread),
        cmocka_unit_test(test_parse_bytes),
        cmocka_unit_test(test_format),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_json_parse),
        cmocka_unit_test(test_json_only),
        cmocka_unit_test(test_json_readers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
