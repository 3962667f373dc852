/* safetensors: files that are cut, lie about themselves or are something else; shards; writing. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/files.h"
#include "runtime/safetensors.h"
#include "runtime/safetensors_writer.h"

/* Length, header and `data_bytes` of data (counting up) as one file. */
static void write_file(const char *path, const char *header, size_t data_bytes)
{
    size_t length = strlen(header);
    unsigned char *bytes = calloc(1, 8 + length + data_bytes + 1);
    assert_non_null(bytes);
    for (size_t i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(length >> (8 * i));
    }
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) {
        bytes[8 + length + i] = (unsigned char)i;
    }
    harness_write(path, bytes, 8 + length + data_bytes);
    free(bytes);
}

static enum mf_status try_open(const char *path)
{
    struct mf_safetensors *set = NULL;
    enum mf_status status = mf_safetensors_open(path, &set);
    mf_safetensors_close(set);
    return status;
}

/* A header over 16 bytes of data; the status of opening it. */
static enum mf_status try_header(const char *header)
{
    const char *path = harness_path(harness_folder(), "t.safetensors");
    write_file(path, header, 16);
    return try_open(path);
}

#define ENTRY(name, type, shape, begin, end)                                                       \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end  \
    "]}"

static void test_legal(void **state)
{
    (void)state;
    assert_ok(try_header("{" ENTRY("a", "F32", "[2,2]", 0, 16) "}"));
    assert_ok(try_header("{" ENTRY("a", "F32", "[2,2]", 0, 16) "}   "));
    /* A05: header order is free; A07: tensors without elements. */
    assert_ok(
        try_header("{" ENTRY("b", "F32", "[2]", 8, 16) "," ENTRY("a", "I64", "[]", 0, 8) "}"));
    assert_ok(try_header("{" ENTRY("z", "F32", "[0]", 16, 16) "," ENTRY(
        "a", "F32", "[4]", 0, 16) "," ENTRY("y", "BF16", "[3,0,9223372036854775807]", 0, 0) "}"));
    assert_ok(
        try_header("{\"__metadata__\":{\"format\":\"pt\"}," ENTRY("a", "BOOL", "[16]", 0, 16) "}"));
}

static void test_ranges(void **state)
{
    (void)state;
    const struct {
        const char *header;
        const char *fragment;
    } cases[] = {
        /* A04 */
        {"{" ENTRY("a", "F32", "[1000,1000]", 0, 16) "}", "needs 4000000 bytes"},
        {"{" ENTRY("a", "F32", "[2,2]", 16, 0) "}", "are no range"},
        {"{" ENTRY("a", "F32", "[2,2]", 0, 17) "}", "cut short"},
        {"{" ENTRY("a", "F32", "[5]", 0, 20) "}", "cut short"},
        {"{" ENTRY("a", "F32", "[2,2]", -16, 0) "}", "are no range"},
        {"{" ENTRY("a", "F32", "[2,2]", 0, 16.0) "}", "two whole numbers"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,8,16]}}", "two whole"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":\"0-16\"}}", "two whole"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}", "two whole"},
        {"{" ENTRY("a", "F32", "[4611686018427387904,4]", 0, 16) "}", "64 bits"},
        {"{" ENTRY("a", "F32", "[-2,-2]", 0, 16) "}", "from 0 on"},
        {"{" ENTRY("a", "F32", "[4.0]", 0, 16) "}", "from 0 on"},
        {"{" ENTRY("a", "F32", "4", 0, 16) "}", "must be an array"},
        {"{" ENTRY("a", "F32", "[1,1,1,1,1,1,1,1,4]", 0, 16) "}", "at most 8"},
        /* A05 */
        {"{" ENTRY("k", "F32", "[4]", 0, 16) "," ENTRY("v", "F32", "[4]", 0, 16) "}", "inside"},
        {"{" ENTRY("k", "F32", "[3]", 0, 12) "," ENTRY("v", "F32", "[2]", 8, 16) "}", "inside"},
        {"{" ENTRY("k", "F32", "[1]", 0, 4) "," ENTRY("v", "F32", "[1]", 12, 16) "}", "hole"},
        {"{" ENTRY("k", "F32", "[3]", 4, 16) "}", "hole"},
        {"{" ENTRY("k", "F32", "[3]", 0, 12) "}", "4 bytes follow the last tensor"},
        {"{}", "16 bytes follow"},
        /* A07 */
        {"{" ENTRY("a", "F32", "[4]", 0, 16) "," ENTRY("b", "F32", "[1]", 0, 0) "}", "needs 4"},
        /* Types, keys, metadata */
        {"{" ENTRY("a", "F99", "[4]", 0, 16) "}", "\"F99\" is not a known type"},
        {"{" ENTRY("a", "F32", "[4]", 0, 16) "," ENTRY("a", "F32", "[4]", 0, 16) "}", "duplicate"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16],\"x\":1}}", "unknown"},
        {"{\"a\":7}", "must be an object"},
        {"{\"__metadata__\":{\"step\":7}," ENTRY("a", "F32", "[4]", 0, 16) "}", "only strings"},
        {"{\"__metadata__\":[]," ENTRY("a", "F32", "[4]", 0, 16) "}", "object of strings"},
        {"{" ENTRY("a", "F32", "[4]", 0, 16) "} x", "not valid JSON"},
        {"[1]", "no JSON object"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_fails(try_header(cases[i].header), MF_STATUS_CORRUPT, cases[i].fragment);
        assert_non_null(strstr(mf_status_text(), "t.safetensors"));
    }
}

/* A01: one file, cut everywhere that matters. */
static void test_cut(void **state)
{
    (void)state;
    const char *whole = harness_source("tests/oracle/fixtures/gpt2/model.safetensors");
    size_t count = 0;
    char *bytes = harness_read(whole, &count);
    assert_ok(try_open(whole));
    const size_t cuts[] = {0, 1, 7, 8, 100, 2640 + 8, count / 2, count - 1};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        char size[32];
        const char *path = harness_path(harness_folder(), "model.safetensors");
        harness_write(path, bytes, cuts[i]);
        assert_fails(try_open(path), MF_STATUS_CORRUPT, "cut short");
        snprintf(size, sizeof(size), "%zu bytes", cuts[i]);
        assert_non_null(strstr(mf_status_text(), path));
        assert_non_null(strstr(mf_status_text(), size));
    }
    const char *path = harness_path(harness_folder(), "model.safetensors");
    harness_write(path, bytes, count + 1); /* with the NUL that harness_read() adds */
    assert_fails(try_open(path), MF_STATUS_CORRUPT, "1 bytes follow");
}

/* A02: things that are no safetensors file. */
static void test_foreign(void **state)
{
    (void)state;
    const char *path = harness_path(harness_folder(), "model.safetensors");
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
        "size 548105171\n";
    harness_write(path, pointer, sizeof(pointer) - 1);
    assert_fails(try_open(path), MF_STATUS_CORRUPT, "looks like a Git LFS pointer");
    harness_write(path, "\xff\xff\xff\xff\xff\xff\xff\xffrubbish", 15);
    assert_fails(try_open(path), MF_STATUS_CORRUPT, "at most 104857600");
    harness_write(path, "<!DOCTYPE html><html></html>", 28);
    assert_fails(try_open(path), MF_STATUS_CORRUPT, "web page");
    assert_status(try_open(harness_path(harness_folder(), "absent")), MF_STATUS_NOT_FOUND);
    assert_fails(try_open(harness_folder()), MF_STATUS_NOT_FOUND, "neither model.safetensors");
    /* The largest length that passes the bound must still fit into the file. */
    harness_write(path, "\x00\x00\x40\x06\x00\x00\x00\x00{}", 10);
    assert_fails(try_open(path), MF_STATUS_CORRUPT, "its header alone needs 104857608");
}

#define SHARD(number) "model-0000" #number "-of-00003.safetensors"

/* Three shards of a tensor each, and their index. */
static const char *write_shards(void)
{
    static const char index[] = "{\"metadata\":{\"total_size\":48},\"weight_map\":{\"a\":\"" SHARD(
        1) "\",\"b\":\"" SHARD(2) "\",\"c\":\"" SHARD(3) "\"}}";
    const char *folder = harness_folder();
    write_file(harness_path(folder, SHARD(1)), "{" ENTRY("a", "F32", "[4]", 0, 16) "}", 16);
    write_file(harness_path(folder, SHARD(2)), "{" ENTRY("b", "F32", "[4]", 0, 16) "}", 16);
    write_file(harness_path(folder, SHARD(3)), "{" ENTRY("c", "F32", "[4]", 0, 16) "}", 16);
    harness_write(harness_path(folder, "model.safetensors.index.json"), index, sizeof(index) - 1);
    return folder;
}

static void test_shards(void **state)
{
    (void)state;
    const char *folder = write_shards();
    struct mf_safetensors *set = NULL;
    unsigned char bytes[8];
    assert_ok(mf_safetensors_open(folder, &set));
    assert_int_equal(mf_safetensors_count(set), 3);
    assert_int_equal(mf_safetensors_find(set, "c")->file,
                     mf_safetensors_find(set, "b")->file == 1 ? 2 : 1);
    assert_ok(mf_safetensors_read(set, mf_safetensors_find(set, "b"), 8, 8, bytes));
    assert_int_equal(bytes[0], 8);
    assert_null(mf_safetensors_find(set, "d"));
    mf_safetensors_close(set);
}

/* A08, A10: each fault with its own message. */
static void test_bad_shards(void **state)
{
    (void)state;
    const char *folder = write_shards();
    unlink(harness_path(folder, SHARD(2)));
    assert_fails(try_open(folder), MF_STATUS_NOT_FOUND, "1 of 3 shard files are absent: " SHARD(2));
    unlink(harness_path(folder, SHARD(3)));
    assert_fails(try_open(folder), MF_STATUS_NOT_FOUND, "2 of 3 shard files are absent");
    assert_non_null(strstr(mf_status_text(), SHARD(2) ", " SHARD(3)));

    folder = write_shards();
    harness_write(harness_path(folder, SHARD(2)), "", 0);
    assert_fails(try_open(folder), MF_STATUS_CORRUPT, SHARD(2) " has 0 bytes");
    write_file(harness_path(folder, SHARD(2)), "{" ENTRY("a", "F32", "[4]", 0, 16) "}", 16);
    assert_fails(try_open(folder), MF_STATUS_CORRUPT,
                 "\"b\" should be in shard " SHARD(2) ", which does not hold it, nor");
    write_file(harness_path(folder, SHARD(2)), "{}", 0);
    write_file(harness_path(folder, SHARD(3)),
               "{" ENTRY("b", "F32", "[2]", 0, 8) "," ENTRY("c", "F32", "[2]", 8, 16) "}", 16);
    assert_fails(try_open(folder), MF_STATUS_CORRUPT, "does not hold it; it is in " SHARD(3));

    const char *index = harness_path(folder, "model.safetensors.index.json");
    static const char outside[] = "{\"weight_map\":{\"a\":\"../../etc/passwd\"}}";
    harness_write(index, outside, sizeof(outside) - 1);
    assert_fails(try_open(folder), MF_STATUS_CORRUPT, "must be a file name in this folder");
    harness_write(index, "{\"weight_map\":[]}", 17);
    assert_fails(try_open(folder), MF_STATUS_CORRUPT, "no \"weight_map\"");
}

static void test_write(void **state)
{
    (void)state;
    const char *path = harness_path(harness_folder(), "w.safetensors");
    static const char *const metadata[] = {"format", "pt", "step", "7", NULL};
    const struct mf_safetensors_tensor tensors[] = {
        {.name = "z.weight",
         .type = MF_SAFETENSORS_TYPE_F32,
         .dimension_count = 2,
         .shape = {2, 3}},
        {.name = "a.bias", .type = MF_SAFETENSORS_TYPE_BF16, .dimension_count = 1, .shape = {5}},
        {.name = "none", .type = MF_SAFETENSORS_TYPE_I64, .dimension_count = 1, .shape = {0}},
    };
    unsigned char data[34];
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (unsigned char)(i * 3);
    }
    struct mf_safetensors_writer *writer = NULL;
    assert_ok(mf_safetensors_writer_open(path, tensors, 3, metadata, &writer));
    assert_ok(mf_safetensors_writer_append(writer, data, 7));
    assert_ok(mf_safetensors_writer_append(writer, data + 7, 27));
    assert_ok(mf_safetensors_writer_finish(writer));
    mf_safetensors_writer_close(writer);

    struct mf_safetensors *set = NULL;
    unsigned char back[34];
    assert_ok(mf_safetensors_open(path, &set));
    assert_int_equal(mf_safetensors_count(set), 3);
    assert_string_equal(mf_safetensors_at(set, 0)->name, "a.bias");
    assert_string_equal(mf_safetensors_metadata(set, "step"), "7");
    assert_null(mf_safetensors_metadata(set, "absent"));
    const struct mf_safetensors_tensor *weight = mf_safetensors_find(set, "z.weight");
    const struct mf_safetensors_tensor *bias = mf_safetensors_find(set, "a.bias");
    assert_int_equal(weight->offset % 8, 0);
    assert_int_equal(weight->shape[1], 3);
    assert_ok(mf_safetensors_read(set, weight, 0, 24, back));
    assert_ok(mf_safetensors_read(set, bias, 0, 10, back + 24));
    assert_memory_equal(back, data, sizeof(data));

    /* A file that shrinks while it is open is an error with numbers. */
    assert_int_equal(truncate(path, weight->offset + 10), 0);
    assert_fails(mf_safetensors_read(set, weight, 0, 24, back), MF_STATUS_CORRUPT, "shorter");
    mf_safetensors_close(set);

    /* Not finished: nothing is left; the same name twice is refused. */
    assert_ok(mf_safetensors_writer_open(path, tensors, 3, NULL, &writer));
    mf_safetensors_writer_close(writer);
    assert_int_not_equal(access(path, F_OK), 0);
    const struct mf_safetensors_tensor twice[] = {tensors[0], tensors[0]};
    assert_fails(mf_safetensors_writer_open(path, twice, 2, NULL, &writer), MF_STATUS_INVALID,
                 "occurs twice");
    assert_null(writer);
}

static void test_files(void **state)
{
    (void)state;
    const char *folder = harness_folder();
    const char *deep = harness_path(folder, "a/b//c");
    int64_t available = 0;
    assert_ok(mf_files_make_folder(deep));
    assert_ok(mf_files_make_folder(deep));
    assert_ok(mf_files_write(harness_path(deep, "x"), "one", 3));
    assert_ok(mf_files_write(harness_path(deep, "x"), "three", 5));
    assert_string_equal(harness_read(harness_path(deep, "x"), NULL), "three");
    assert_status(mf_files_make_folder(harness_path(deep, "x/y")), MF_STATUS_EXISTS);
    assert_ok(mf_files_copy(harness_path(deep, "x"), harness_path(folder, "copy")));
    assert_string_equal(harness_read(harness_path(folder, "copy"), NULL), "three");

    /* Removal does not follow links. */
    assert_int_equal(symlink(folder, harness_path(deep, "link")), 0);
    assert_ok(mf_files_remove_tree(harness_path(folder, "a/")));
    assert_int_not_equal(access(harness_path(folder, "a"), F_OK), 0);
    assert_int_equal(access(harness_path(folder, "copy"), F_OK), 0);
    assert_ok(mf_files_remove_tree(harness_path(folder, "a")));
    assert_status(mf_files_remove_tree("/"), MF_STATUS_INVALID);
    assert_status(mf_files_remove_tree(""), MF_STATUS_INVALID);
    assert_status(mf_files_remove_tree("x/.."), MF_STATUS_INVALID);

    assert_ok(mf_files_free_bytes(harness_path(folder, "not/yet/there"), &available));
    assert_true(available > 0);
    assert_ok(mf_files_require_space(folder, 1, "test"));
    assert_fails(mf_files_require_space(folder, INT64_MAX, "checkpoint"), MF_STATUS_IO,
                 "the checkpoint needs");
    assert_string_equal(mf_status_error()->reason, "DISK_TOO_SMALL");
    assert_int_equal(mf_status_error()->number_count, 2);
}

static void test_checkpoints(void **state)
{
    (void)state;
    const char *folder = harness_folder();
    struct mf_arena arena;
    struct mf_files_checkpoint *list = NULL;
    int32_t count = 0;
    static const char *const names[] = {"checkpoint-100", "checkpoint-20", "checkpoint-3",
                                        "checkpoint-x",   "checkpoint-7x", "other-1"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        assert_ok(mf_files_make_folder(harness_path(folder, names[i])));
        if (i != 2) {
            assert_ok(mf_files_write(harness_path(harness_path(folder, names[i]), "DONE"), "", 0));
        }
    }
    mf_arena_init(&arena);
    assert_ok(mf_files_list_checkpoints(folder, &arena, &list, &count));
    assert_int_equal(count, 2);
    assert_int_equal(list[0].step, 20);
    assert_int_equal(list[1].step, 100);
    assert_string_equal(list[1].path, harness_path(folder, "checkpoint-100"));
    assert_ok(mf_files_publish(harness_path(folder, "checkpoint-3"), harness_path(folder, "new")));
    assert_status(mf_files_publish(harness_path(folder, "new"), list[0].path), MF_STATUS_EXISTS);
    mf_arena_reset(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_legal),       cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_cut),         cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_shards),      cmocka_unit_test(test_bad_shards),
        cmocka_unit_test(test_write),       cmocka_unit_test(test_files),
        cmocka_unit_test(test_checkpoints),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
