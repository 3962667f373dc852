/* The same tokens as the library `tokenizers`: three tokenizers, a few thousand texts. The texts
 * and hashes of their tokens are made by make_tokenizers.py. */
#include "harness.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "client/tokenizer.h"

static const char *const names[] = {"gpt2", "llama3", "qwen2"};

static enum mf_status put(void *context, const int32_t *ids, size_t count, size_t bytes)
{
    MF_ASSERT(bytes > 0);
    uint32_t *hash = context;
    for (size_t i = 0; i < count; i++) {
        for (int byte = 0; byte < 4; byte++) {
            *hash = (*hash ^ (uint32_t)(ids[i] >> (8 * byte) & 0xff)) * 0x01000193u;
        }
    }
    return MF_STATUS_OK;
}

static uint32_t digest(struct mf_tokenizer *tokenizer, const json_t *text, bool special)
{
    uint32_t hash = 0x811c9dc5u;
    const struct mf_tokenizer_sink sink = {put, &hash};
    assert_ok(mf_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text),
                                  special, &sink));
    return hash;
}

/* The expected hash with special tokens, and (a pair) with their texts as text. */
static bool matches(const json_t *expected, struct mf_tokenizer *tokenizer, const json_t *text)
{
    for (size_t plain = 0; plain < 2; plain++) {
        const json_t *hash = json_is_array(expected) ? json_array_get(expected, plain) : expected;
        if (json_integer_value(hash) != (json_int_t)digest(tokenizer, text, plain == 0)) {
            return false;
        }
    }
    return true;
}

static void test_library(void **state)
{
    (void)state;
    struct mf_tokenizer *tokenizers[3];
    size_t count = 0;
    size_t wrong = 0;
    const char *folder = harness_source("tests/oracle/fixtures/tokenizers");
    char *line = harness_read(harness_path(folder, "cases.jsonl"), NULL);
    for (size_t i = 0; i < 3; i++) {
        assert_ok(mf_tokenizer_open(harness_path(folder, names[i]), &tokenizers[i]));
    }
    for (char *end = strchr(line, '\n'); end != NULL; line = end + 1, end = strchr(line, '\n')) {
        json_error_t error;
        json_t *root = json_loadb(line, (size_t)(end - line), JSON_ALLOW_NUL, &error);
        assert_non_null(root);
        for (size_t i = 0; i < 3; i++) {
            if (!matches(json_object_get(root, names[i]), tokenizers[i],
                         json_object_get(root, "text"))) {
                fprintf(stderr, "%s, line %zu: %.*s\n", names[i], count + 1,
                        (int)(end - line < 200 ? end - line : 200), line);
                wrong++;
            }
        }
        json_decref(root);
        count++;
    }
    assert_int_equal(wrong, 0);
    assert_true(count >= 2000);
    for (size_t i = 0; i < 3; i++) {
        mf_tokenizer_close(tokenizers[i]);
    }
}

/* What a folder says beside the merges. */
static void test_folder(void **state)
{
    (void)state;
    static const char *const ends[] = {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>"};
    const char *folder = harness_source("tests/oracle/fixtures/tokenizers");
    for (size_t i = 0; i < 3; i++) {
        struct mf_tokenizer *tokenizer = NULL;
        assert_ok(mf_tokenizer_open(harness_path(folder, names[i]), &tokenizer));
        const struct mf_tokenizer_info *info = mf_tokenizer_describe(tokenizer);
        assert_int_equal(info->split, i);
        assert_int_equal(info->end_token, mf_tokenizer_find(tokenizer, ends[i]));
        assert_true(info->end_token >= 0 && info->end_token < info->vocab);
        assert_int_equal(info->prefix_count, i == 1);
        if (i == 1) {
            assert_int_equal(info->prefix[0], mf_tokenizer_find(tokenizer, "<|begin_of_text|>"));
        }
        mf_tokenizer_close(tokenizer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_library),
        cmocka_unit_test(test_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
