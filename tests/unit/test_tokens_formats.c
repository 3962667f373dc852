/* Token files that come with more than tokens: memferry's own with what is learned, Megatron's. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/token_writer.h"
#include "runtime/tokens.h"

#define FINGERPRINT "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static enum mf_status open_file(const char *path, int32_t seq_len, struct mf_tokens **out)
{
    const struct mf_tokens_spec spec = {.paths = &path, .path_count = 1, .seq_len = seq_len};
    return mf_tokens_open(&spec, 70000, out);
}

static enum mf_status try_open(const char *path)
{
    struct mf_tokens *tokens = NULL;
    enum mf_status status = open_file(path, 4, &tokens);
    mf_tokens_close(tokens);
    return status;
}

/* Token i is i; it is learned when i % `period` is 0. */
static void write_masked(const char *path, int32_t count, int32_t period, int64_t vocab,
                         const char *fingerprint)
{
    const struct mf_token_writer_spec spec = {
        .path = path, .tokenizer = fingerprint, .vocab = vocab};
    struct mf_token_writer *writer = NULL;
    struct mf_token_file file;
    assert_ok(mf_token_writer_open(&spec, &writer));
    for (int32_t i = 0; i < count; i++) {
        assert_ok(mf_token_writer_put(writer, &i, 1, i % period == 0));
    }
    assert_ok(mf_token_writer_finish(writer, &file));
    assert_int_equal(file.token_count, count);
    assert_int_equal(file.masked, period > 1);
}

/* Labels are the next tokens, but for those that are only read; across two files, in both widths,
 * and over more than one chunk of bits. */
static void test_labels(void **state)
{
    (void)state;
    static const struct {
        int32_t count, period;
        int64_t vocab;
        int32_t seq_len;
    } cases[] = {{103, 3, 65536, 8}, {103, 1, 65536, 8}, {103, 3, 65537, 50}, {999, 7, 70000, 100}};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        int32_t count = cases[c].count;
        int32_t seq_len = cases[c].seq_len;
        const char *paths[2] = {harness_path(harness_folder(), "a"),
                                harness_path(harness_folder(), "b")};
        for (int i = 0; i < 2; i++) {
            write_masked(paths[i], count, cases[c].period, cases[c].vocab, FINGERPRINT);
        }
        const struct mf_tokens_spec spec = {.paths = paths, .path_count = 2, .seq_len = seq_len};
        struct mf_tokens *tokens = NULL;
        assert_ok(mf_tokens_open(&spec, 70000, &tokens));
        assert_int_equal(mf_tokens_describe(tokens)->format, MF_TOKENS_FORMAT_MEMFERRY);
        assert_int_equal(mf_tokens_describe(tokens)->token_count, 2 * count);
        int64_t sequences = mf_tokens_describe(tokens)->sequence_count;
        assert_int_equal(sequences, (2 * count - 1) / seq_len);
        int32_t *inputs = calloc((size_t)seq_len, sizeof(*inputs));
        int32_t *labels = calloc((size_t)seq_len, sizeof(*labels));
        for (int64_t i = 0; i < sequences; i++) {
            assert_ok(mf_tokens_batch(tokens, i, 1, inputs, labels));
            for (int32_t k = 0; k < seq_len; k++) {
                int64_t at = i * seq_len + k;
                int64_t next = (at + 1) % count;
                assert_int_equal(inputs[k], at % count);
                assert_int_equal(labels[k], next % cases[c].period == 0 ? next : -100);
            }
        }
        free(inputs);
        free(labels);
        mf_tokens_close(tokens);
    }
}

/* With an alignment no document is cut, and what fills a sequence is not learned. */
static void test_align(void **state)
{
    (void)state;
    static const int32_t lengths[] = {3, 4, 8, 2, 11, 1};
    /* Where each begins: 4 after 3 would cross 8 only as 3 + 4 <= 8 does not; 8 fills a sequence;
     * 11 is longer than one and begins its own; 1 follows it. */
    static const int64_t begins[] = {0, 3, 8, 16, 24, 35};
    const char *path = harness_path(harness_folder(), "aligned");
    const struct mf_token_writer_spec spec = {
        .path = path, .tokenizer = FINGERPRINT, .vocab = 1000, .align = 8, .padding = 999};
    struct mf_token_writer *writer = NULL;
    struct mf_token_file file;
    struct mf_tokens *tokens = NULL;
    assert_ok(mf_token_writer_open(&spec, &writer));
    for (int32_t i = 0; i < 6; i++) {
        for (int32_t k = 0; k < lengths[i]; k++) {
            int32_t id = 100 * i + k;
            assert_ok(mf_token_writer_put(writer, &id, 1, true));
        }
        assert_ok(mf_token_writer_end_document(writer));
        assert_ok(mf_token_writer_end_document(writer)); /* an empty one does not count */
    }
    assert_int_equal(mf_token_writer_learned(writer), 29);
    assert_ok(mf_token_writer_finish(writer, &file));
    assert_int_equal(file.document_count, 6);
    assert_int_equal(file.token_count, 36);
    assert_true(file.masked);
    assert_ok(open_file(path, 35, &tokens));
    int32_t inputs[35];
    int32_t labels[35];
    assert_ok(mf_tokens_batch(tokens, 0, 1, inputs, labels));
    int64_t at = 0;
    for (int32_t i = 0; i < 6; i++) {
        for (; at < begins[i]; at++) {
            assert_int_equal(inputs[at], 999);
            assert_int_equal(labels[at - 1], -100);
        }
        for (int32_t k = 0; k < lengths[i]; k++, at++) {
            assert_true(at == 0 || labels[at - 1] == 100 * i + k);
        }
    }
    mf_tokens_close(tokens);
}

/* One byte of the header changed, or the end cut off. */
static void test_bad_file(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        unsigned char byte;
        enum mf_status status;
        const char *fragment;
    } cases[] = {
        {8, 2, MF_STATUS_UNSUPPORTED, "version 2"},
        {12, 3, MF_STATUS_CORRUPT, "of 3 bytes"},
        {16, 2, MF_STATUS_UNSUPPORTED, "flags 2"},
        {16, 0, MF_STATUS_CORRUPT, "should have 328 bytes; it has 341"},
        {24, 90, MF_STATUS_CORRUPT, "counts 90 tokens"},
        {31, 1, MF_STATUS_CORRUPT, "tokens of 2 bytes by its header"},
        {127, 1, MF_STATUS_CORRUPT, "byte 127"},
    };
    const char *path = harness_path(harness_folder(), "bad");
    write_masked(path, 100, 2, 1000, FINGERPRINT);
    size_t count = 0;
    char *whole = harness_read(path, &count);
    assert_ok(try_open(path));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char kept = whole[cases[i].at];
        whole[cases[i].at] = (char)cases[i].byte;
        harness_write(path, whole, count);
        assert_fails(try_open(path), cases[i].status, cases[i].fragment);
        whole[cases[i].at] = kept;
    }
    for (size_t length = 8; length < count; length += 17) {
        harness_write(path, whole, length);
        assert_status(try_open(path), MF_STATUS_CORRUPT);
    }
    const char *paths[2] = {path, harness_path(harness_folder(), "other")};
    const struct mf_tokens_spec spec = {.paths = paths, .path_count = 2, .seq_len = 4};
    struct mf_tokens *tokens = NULL;
    harness_write(path, whole, count);
    write_masked(paths[1], 100, 2, 1000,
                 "f123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    assert_fails(mf_tokens_open(&spec, 1000, &tokens), MF_STATUS_INVALID, "tokenizer f12345678");
}

struct megatron {
    unsigned char index[512];
    size_t count;
};

static void append(struct megatron *set, int64_t value, size_t bytes)
{
    assert_true(set->count + bytes <= sizeof(set->index));
    memcpy(set->index + set->count, &value, bytes);
    set->count += bytes;
}

/* What Megatron's IndexedDatasetBuilder writes for these lengths, one document every two. */
static void build(struct megatron *set, unsigned code, int64_t width, const int32_t *lengths,
                  int64_t count)
{
    memset(set, 0, sizeof(*set));
    memcpy(set->index, "MMIDIDX\0\0", 9);
    set->count = 9;
    append(set, 1, 8);
    append(set, code, 1);
    append(set, count, 8);
    append(set, count / 2 + 1, 8);
    for (int64_t i = 0; i < count; i++) {
        append(set, lengths[i], 4);
    }
    for (int64_t i = 0, at = 0; i < count; at += width * lengths[i++]) {
        append(set, at, 8);
    }
    for (int64_t i = 0; i <= count / 2; i++) {
        append(set, 2 * i, 8);
    }
}

static void test_megatron(void **state)
{
    (void)state;
    static const int32_t lengths[] = {5, 1, 0, 7};
    const char *folder = harness_folder();
    const char *index = harness_path(folder, "set.idx");
    const char *data = harness_path(folder, "set.bin");
    const uint16_t narrow[13] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    const int32_t wide[13] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    for (int is_wide = 0; is_wide < 2; is_wide++) {
        struct megatron set;
        build(&set, is_wide ? 4 : 8, is_wide ? 4 : 2, lengths, 4);
        harness_write(index, set.index, set.count);
        harness_write(data, is_wide ? (const void *)wide : narrow,
                      is_wide ? sizeof(wide) : sizeof(narrow));
        const char *const named[] = {data, index, folder};
        for (size_t i = 0; i < 3; i++) {
            struct mf_tokens *tokens = NULL;
            int32_t inputs[12];
            int32_t labels[12];
            assert_ok(open_file(named[i], 12, &tokens));
            assert_int_equal(mf_tokens_describe(tokens)->format, MF_TOKENS_FORMAT_MEGATRON);
            assert_int_equal(mf_tokens_describe(tokens)->file_count, 1);
            assert_ok(mf_tokens_batch(tokens, 0, 1, inputs, labels));
            for (int32_t k = 0; k < 12; k++) {
                assert_int_equal(inputs[k], k);
                assert_int_equal(labels[k], k + 1);
            }
            mf_tokens_close(tokens);
        }
    }
}

/* One value of the index changed. */
static void test_bad_megatron(void **state)
{
    (void)state;
    static const int32_t lengths[] = {5, 1, 0, 7};
    static const struct {
        size_t at;
        unsigned char byte;
        enum mf_status status;
        const char *fragment;
    } cases[] = {
        {0, 'T', MF_STATUS_CORRUPT, "does not begin with MMIDIDX"},
        {9, 2, MF_STATUS_UNSUPPORTED, "version 2 at byte 9"},
        {17, 3, MF_STATUS_UNSUPPORTED, "dtype 3 (int16)"},
        {17, 7, MF_STATUS_UNSUPPORTED, "float32"},
        {17, 9, MF_STATUS_UNSUPPORTED, "unknown"},
        {17, 4, MF_STATUS_CORRUPT, "sequence 1 has 1 tokens (byte 38) and begins at byte 10"},
        {18, 5, MF_STATUS_CORRUPT, "should have 118 bytes; it has 106"},
        {25, 0x80, MF_STATUS_CORRUPT, "sequences at byte 18"},
        {25, 0x7f, MF_STATUS_CORRUPT, "sequences at byte 18"},
        {26, 0, MF_STATUS_CORRUPT, "0 document boundaries"},
        {34, 4, MF_STATUS_CORRUPT, "the one before ends at 8"},
        {37, 0xff, MF_STATUS_CORRUPT, "sequence 0 has -"},
        {58, 11, MF_STATUS_CORRUPT, "begins at byte 11"},
        {46, 6, MF_STATUS_CORRUPT, "have 24 bytes together"},
        {82, 1, MF_STATUS_CORRUPT, "document boundary 0 (byte 82) is sequence 1"},
        {90, 9, MF_STATUS_CORRUPT, "document boundary 1"},
        {98, 3, MF_STATUS_CORRUPT, "document boundary 2 (byte 98) is sequence 3, after 2, of 4"},
    };
    static const char tokens[26];
    struct megatron set;
    const char *folder = harness_folder();
    const char *index = harness_path(folder, "set.idx");
    const char *data = harness_path(folder, "set.bin");
    build(&set, 8, 2, lengths, 4);
    harness_write(data, tokens, sizeof(tokens));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        unsigned char kept = set.index[cases[i].at];
        set.index[cases[i].at] = cases[i].byte;
        harness_write(index, set.index, set.count);
        assert_fails(try_open(data), cases[i].status, cases[i].fragment);
        set.index[cases[i].at] = kept;
    }
    for (size_t length = 0; length < set.count; length += 7) {
        harness_write(index, set.index, length);
        assert_status(try_open(data), MF_STATUS_CORRUPT);
    }
    append(&set, 0, 4); /* modes */
    harness_write(index, set.index, set.count);
    assert_fails(try_open(data), MF_STATUS_UNSUPPORTED, "multimodal");
    assert_int_equal(unlink(data), 0);
    assert_status(try_open(index), MF_STATUS_NOT_FOUND);
    /* Said to be Megatron's, without an index. */
    const char *alone = harness_path(folder, "alone");
    const struct mf_tokens_spec spec = {
        .paths = &alone, .path_count = 1, .seq_len = 4, .format = MF_TOKENS_FORMAT_MEGATRON};
    struct mf_tokens *opened = NULL;
    harness_write(alone, tokens, sizeof(tokens));
    assert_fails(mf_tokens_open(&spec, 1000, &opened), MF_STATUS_INVALID, "NAME.idx beside it");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_labels),       cmocka_unit_test(test_align),
        cmocka_unit_test(test_bad_file),     cmocka_unit_test(test_megatron),
        cmocka_unit_test(test_bad_megatron),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
