/* Training data: formats, sizes, ids, the stream across files, and the shuffled order. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/tokens.h"

static struct mf_tokens_spec spec_of(const char *const *paths, int32_t count, int32_t seq_len)
{
    return (struct mf_tokens_spec){.paths = paths, .path_count = count, .seq_len = seq_len};
}

static enum mf_status try_open(const struct mf_tokens_spec *spec, int64_t vocab)
{
    struct mf_tokens *tokens = NULL;
    enum mf_status status = mf_tokens_open(spec, vocab, &tokens);
    mf_tokens_close(tokens);
    return status;
}

static const char *write_text(const char *folder, const char *name, const char *text)
{
    const char *path = harness_path(folder, name);
    harness_write(path, text, strlen(text));
    return path;
}

/* llm.c's header, then `count` tokens of `width` bytes that count up from 0. */
static const char *write_llmc(const char *name, int32_t magic, int32_t version, int32_t count,
                              int width)
{
    const char *path = harness_path(harness_folder(), name);
    size_t bytes = 1024 + (size_t)count * (size_t)width;
    unsigned char *file = calloc(1, bytes);
    assert_non_null(file);
    const int32_t header[] = {magic, version, count};
    memcpy(file, header, sizeof(header));
    for (int32_t i = 0; i < count; i++) {
        memcpy(file + 1024 + (size_t)i * (size_t)width, &i, (size_t)width);
    }
    harness_write(path, file, bytes);
    free(file);
    return path;
}

/* Several files are one stream; the last short piece is left out. */
static void test_stream(void **state)
{
    (void)state;
    const char *folder = harness_folder();
    write_text(folder, "b", "defg");
    write_text(folder, "a", "abc");
    write_text(folder, "c", "h");
    write_text(folder, "empty", "");
    write_text(folder, ".hidden", "zzzz");
    assert_int_equal(symlink("a", harness_path(folder, "link")), 0);
    assert_int_equal(mkdir(harness_path(folder, "d"), 0755), 0);
    write_text(harness_path(folder, "d"), "x", "ijkl");
    const struct mf_tokens_spec spec = spec_of(&folder, 1, 3);
    struct mf_tokens *tokens = NULL;
    int32_t inputs[9];
    int32_t labels[9];
    assert_ok(mf_tokens_open(&spec, 256, &tokens));
    const struct mf_tokens_info *info = mf_tokens_describe(tokens);
    assert_int_equal(info->format, MF_TOKENS_FORMAT_BYTES);
    assert_int_equal(info->file_count, 4);
    assert_int_equal(info->token_count, 12);
    assert_int_equal(info->sequence_count, 3);
    assert_ok(mf_tokens_batch(tokens, 0, 3, inputs, labels));
    for (int i = 0; i < 9; i++) {
        assert_int_equal(inputs[i], 'a' + i);
        assert_int_equal(labels[i], 'b' + i);
    }
    /* The next epoch begins again. */
    assert_ok(mf_tokens_batch(tokens, 3, 1, inputs, labels));
    assert_int_equal(inputs[0], 'a');
    mf_tokens_close(tokens);
}

static void check_formats(const char *path, enum mf_tokens_format format,
                          enum mf_tokens_format found, int64_t vocab)
{
    struct mf_tokens_spec spec = spec_of(&path, 1, 10);
    struct mf_tokens *tokens = NULL;
    int32_t inputs[10];
    int32_t labels[10];
    spec.format = format;
    assert_ok(mf_tokens_open(&spec, vocab, &tokens));
    assert_int_equal(mf_tokens_describe(tokens)->format, found);
    assert_int_equal(mf_tokens_describe(tokens)->token_count, 1000);
    assert_int_equal(mf_tokens_describe(tokens)->sequence_count, 99);
    assert_ok(mf_tokens_batch(tokens, 98, 1, inputs, labels));
    assert_int_equal(inputs[9], 989);
    assert_int_equal(labels[9], 990);
    mf_tokens_close(tokens);
}

static void test_formats(void **state)
{
    (void)state;
    check_formats(write_llmc("a.bin", 20240520, 1, 1000, 2), MF_TOKENS_FORMAT_AUTO,
                  MF_TOKENS_FORMAT_LLMC, 1000);
    check_formats(write_llmc("a.bin", 20240801, 7, 1000, 4), MF_TOKENS_FORMAT_LLMC,
                  MF_TOKENS_FORMAT_LLMC, 1000);
    const char *path = harness_path(harness_folder(), "raw.bin");
    uint16_t narrow[1000];
    uint32_t wide[1000];
    for (uint32_t i = 0; i < 1000; i++) {
        narrow[i] = (uint16_t)i;
        wide[i] = i;
    }
    harness_write(path, narrow, sizeof(narrow));
    check_formats(path, MF_TOKENS_FORMAT_RAW_U16, MF_TOKENS_FORMAT_RAW_U16, 70000);
    harness_write(path, wide, sizeof(wide));
    check_formats(path, MF_TOKENS_FORMAT_RAW_U32, MF_TOKENS_FORMAT_RAW_U32, 1000);
    for (int format = 0; format < MF_TOKENS_FORMAT_COUNT; format++) {
        const char *name = mf_tokens_format_name((enum mf_tokens_format)format);
        assert_int_equal(mf_tokens_parse_format(name), format);
    }
    assert_int_equal(mf_tokens_parse_format("arrow"), -1);
}

static void test_refused(void **state)
{
    (void)state;
    const char *folder = harness_folder();
    const char *path = write_text(folder, "empty", "");
    struct mf_tokens_spec spec = spec_of(&path, 1, 10);
    assert_fails(try_open(&spec, 256), MF_STATUS_INVALID, "is empty (0 bytes)");
    path = write_text(folder, "short", "0123456789");
    assert_fails(try_open(&spec, 256), MF_STATUS_INVALID, "10 tokens, one sequence of 10 needs 11");
    assert_fails(try_open(&spec, 255), MF_STATUS_INVALID, "vocabulary of at least 256");
    path = harness_path(folder, "absent");
    assert_status(try_open(&spec, 256), MF_STATUS_NOT_FOUND);
    path = harness_folder();
    assert_fails(try_open(&spec, 256), MF_STATUS_INVALID, "holds no file");
    path = write_text(folder, "bare.bin", "0123456789abcdef");
    assert_fails(try_open(&spec, 256), MF_STATUS_INVALID, "raw_u16, raw_u32");
    spec.format = MF_TOKENS_FORMAT_RAW_U32;
    path = write_text(folder, "odd", "0123456789abcde");
    assert_fails(try_open(&spec, 256), MF_STATUS_CORRUPT, "15 bytes, not a multiple of 4");
    spec.format = MF_TOKENS_FORMAT_AUTO;
    spec.seq_len = 0;
    assert_status(try_open(&spec, 256), MF_STATUS_INVALID);
    spec.path_count = 0;
    spec.seq_len = 1;
    assert_fails(try_open(&spec, 256), MF_STATUS_INVALID, "no data");

    const char *mixed[] = {write_llmc("a.bin", 20240520, 1, 100, 2),
                           write_text(folder, "t", "text that is long enough")};
    spec = spec_of(mixed, 2, 10);
    assert_fails(try_open(&spec, 256), MF_STATUS_INVALID, "holds bytes, the files before it llmc");
}

/* A20: an id that is not below the vocabulary is found before training, with its place. */
static void test_ids(void **state)
{
    (void)state;
    const char *path = write_llmc("a.bin", 20240520, 1, 40000, 2);
    struct mf_tokens_spec spec = spec_of(&path, 1, 10);
    assert_ok(try_open(&spec, 40000));
    assert_fails(try_open(&spec, 39999), MF_STATUS_INVALID,
                 "token 39999 is 39999, the model's vocabulary has 39999");
    spec.format = MF_TOKENS_FORMAT_RAW_U32;
    path = harness_path(harness_folder(), "raw");
    uint32_t words[100] = {0};
    words[77] = UINT32_MAX; /* -1 as an int32 */
    harness_write(path, words, sizeof(words));
    assert_fails(try_open(&spec, 1ll << 31), MF_STATUS_INVALID, "token 77 is 4294967295");
}

static void test_bad_llmc(void **state)
{
    (void)state;
    const char *path = write_llmc("a.bin", 20240520, 2, 100, 2);
    struct mf_tokens_spec spec = spec_of(&path, 1, 10);
    assert_fails(try_open(&spec, 256), MF_STATUS_INVALID, "version 2");
    path = write_llmc("a.bin", 20240520, 1, 100, 4);
    assert_fails(try_open(&spec, 256), MF_STATUS_CORRUPT, "should have 1224 bytes; it has 1424");
    path = write_llmc("a.bin", 20240520, 1, 100, 2);
    assert_int_equal(truncate(path, 500), 0);
    assert_fails(try_open(&spec, 256), MF_STATUS_CORRUPT, "it has 500");

    /* Shrinking after open is an error of the batch. */
    struct mf_tokens *tokens = NULL;
    int32_t inputs[10];
    int32_t labels[10];
    path = write_llmc("a.bin", 20240520, 1, 100, 2);
    assert_ok(mf_tokens_open(&spec, 256, &tokens));
    assert_int_equal(truncate(path, 1024 + 150), 0);
    assert_ok(mf_tokens_batch(tokens, 0, 1, inputs, labels));
    assert_fails(mf_tokens_batch(tokens, 8, 1, inputs, labels), MF_STATUS_CORRUPT, "shorter");
    mf_tokens_close(tokens);
}

/* Every epoch is a permutation, epochs and seeds differ, and any place can be entered. */
static void test_order(void **state)
{
    (void)state;
    const int32_t counts[] = {1, 2, 3, 4, 5, 17, 1000};
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        int32_t count = counts[c];
        const char *path = write_llmc("a.bin", 20240520, 1, count * 4 + 1, 2);
        struct mf_tokens_spec spec = spec_of(&path, 1, 4);
        struct mf_tokens *tokens = NULL;
        struct mf_tokens *other = NULL;
        spec.shuffle = true;
        spec.seed = 7;
        assert_ok(mf_tokens_open(&spec, 65536, &tokens));
        spec.seed = 8;
        assert_ok(mf_tokens_open(&spec, 65536, &other));
        int32_t same_epoch = 0;
        int32_t same_seed = 0;
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            char seen[1000] = {0};
            for (int64_t i = 0; i < count; i++) {
                int64_t at = mf_tokens_sequence_at(tokens, epoch * count + i);
                assert_true(at >= 0 && at < count);
                assert_int_equal(seen[at]++, 0);
                same_epoch += at == mf_tokens_sequence_at(tokens, (epoch + 1) * count + i);
                same_seed += at == mf_tokens_sequence_at(other, epoch * count + i);
            }
        }
        assert_true(count < 1000 || (same_epoch < 20 && same_seed < 20));
        int32_t inputs[4];
        int32_t labels[4];
        int64_t place = 2 * count + count / 2;
        assert_ok(mf_tokens_batch(tokens, place, 1, inputs, labels));
        assert_int_equal(inputs[0], mf_tokens_sequence_at(tokens, place) * 4);
        assert_int_equal(labels[3], inputs[0] + 4);
        assert_string_equal(mf_tokens_describe(tokens)->fingerprint,
                            mf_tokens_describe(other)->fingerprint);
        mf_tokens_close(tokens);
        mf_tokens_close(other);
    }
}

/* More files than are kept open. */
static void test_many_files(void **state)
{
    (void)state;
    const char *folder = harness_folder();
    char name[16];
    for (int i = 0; i < 300; i++) {
        char text[2] = {(char)('!' + i % 90), '\0'};
        snprintf(name, sizeof(name), "f%03d", i);
        write_text(folder, name, text);
    }
    const struct mf_tokens_spec spec = spec_of(&folder, 1, 299);
    struct mf_tokens *tokens = NULL;
    int32_t inputs[299];
    int32_t labels[299];
    assert_ok(mf_tokens_open(&spec, 256, &tokens));
    assert_ok(mf_tokens_batch(tokens, 0, 1, inputs, labels));
    for (int i = 0; i < 299; i++) {
        assert_int_equal(inputs[i], '!' + i % 90);
        assert_int_equal(labels[i], '!' + (i + 1) % 90);
    }
    mf_tokens_close(tokens);
}

static void test_fingerprint(void **state)
{
    (void)state;
    const char *folder = harness_folder();
    const char *path = write_text(folder, "t", "some text");
    const struct mf_tokens_spec spec = spec_of(&path, 1, 4);
    struct mf_tokens *before = NULL;
    struct mf_tokens *after = NULL;
    assert_ok(mf_tokens_open(&spec, 256, &before));
    write_text(folder, "t", "same size");
    assert_ok(mf_tokens_open(&spec, 256, &after));
    assert_string_not_equal(mf_tokens_describe(before)->fingerprint,
                            mf_tokens_describe(after)->fingerprint);
    mf_tokens_close(before);
    mf_tokens_close(after);
}

/* Parts held out and parts kept are disjoint, whole, and known by their fingerprints. */
static void test_held_out(void **state)
{
    (void)state;
    const char *path = write_llmc("held.bin", 20240520, 1, 101, 2); /* 10 sequences of 10 */
    const struct {
        double share;
        int64_t held;
    } cases[] = {{0.001, 1}, {0.25, 3}, {0.5, 5}, {0.999, 9}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mf_tokens *parts[2] = {NULL, NULL};
        int seen[10] = {0};
        for (int held = 0; held < 2; held++) {
            struct mf_tokens_spec spec = spec_of(&path, 1, 10);
            spec.shuffle = true;
            spec.held_out = cases[i].share;
            spec.take_held_out = held == 1;
            assert_ok(mf_tokens_open(&spec, 65536, &parts[held]));
            int64_t count = mf_tokens_describe(parts[held])->sequence_count;
            assert_int_equal(count, held == 1 ? cases[i].held : 10 - cases[i].held);
            for (int64_t k = 0; k < count; k++) {
                int32_t inputs[10];
                int32_t labels[10];
                assert_ok(mf_tokens_batch(parts[held], k, 1, inputs, labels));
                assert_int_equal(inputs[0] % 10, 0);
                assert_int_equal(labels[9], inputs[0] + 10);
                assert_true((inputs[0] / 10 >= 10 - cases[i].held) == (held == 1));
                seen[inputs[0] / 10]++;
            }
        }
        for (int k = 0; k < 10; k++) {
            assert_int_equal(seen[k], 1);
        }
        assert_string_not_equal(mf_tokens_describe(parts[0])->fingerprint,
                                mf_tokens_describe(parts[1])->fingerprint);
        mf_tokens_close(parts[0]);
        mf_tokens_close(parts[1]);
    }
    struct mf_tokens_spec spec = spec_of(&path, 1, 100);
    spec.held_out = 0.1;
    assert_fails(try_open(&spec, 65536), MF_STATUS_INVALID, "held out of 1 sequences");
    spec.held_out = 1;
    assert_fails(try_open(&spec, 65536), MF_STATUS_INVALID, "held out");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stream),     cmocka_unit_test(test_formats),
        cmocka_unit_test(test_refused),    cmocka_unit_test(test_ids),
        cmocka_unit_test(test_bad_llmc),   cmocka_unit_test(test_order),
        cmocka_unit_test(test_many_files), cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_held_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
