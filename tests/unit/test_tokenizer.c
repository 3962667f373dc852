/* Tokenizer files that are refused, conversations, documents of JSONL, Unicode. What a good
 * tokenizer gives is in tests/oracle/test_tokenizer.c. */
#include "harness.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "client/documents.h"
#include "client/inputs.h"
#include "client/token_data.h"
#include "client/tokenizer_unicode.h"

static const char *fixture(const char *name)
{
    return harness_path(harness_source("tests/oracle/fixtures/tokenizers"), name);
}

static enum mf_status parse(const char *json)
{
    struct mf_tokenizer *tokenizer = NULL;
    enum mf_status status = mf_tokenizer_parse(json, strlen(json), "t.json", &tokenizer);
    assert_true((status == MF_STATUS_OK) == (tokenizer != NULL));
    mf_tokenizer_close(tokenizer);
    return status;
}

/* A good file with one piece of its text replaced. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *file, *from, *to;
        enum mf_status status;
        const char *fragment;
    } cases[] = {
        {"gpt2", "\"type\":\"BPE\"", "\"type\":\"Unigram\"", MF_STATUS_UNSUPPORTED, "Unigram"},
        {"gpt2", "\"byte_fallback\":false", "\"byte_fallback\":true", MF_STATUS_UNSUPPORTED,
         "byte_fallback"},
        {"gpt2", "\"dropout\":null", "\"dropout\":0.1", MF_STATUS_UNSUPPORTED, "dropout"},
        {"gpt2", "\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"",
         MF_STATUS_UNSUPPORTED, "end_of_word_suffix"},
        {"gpt2", "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false",
         "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true",
         MF_STATUS_UNSUPPORTED, "add_prefix_space"},
        {"gpt2", "\"pre_tokenizer\":{\"type\":\"ByteLevel\"",
         "\"pre_tokenizer\":{\"type\":\"Metaspace\"", MF_STATUS_UNSUPPORTED, "Metaspace"},
        {"gpt2", "\"lstrip\":false", "\"lstrip\":true", MF_STATUS_UNSUPPORTED, "lstrip"},
        {"gpt2", "\"content\":\"<|endoftext|>\"", "\"content\":\"\"", MF_STATUS_INVALID, "no text"},
        {"gpt2", "\"content\":\"<|endoftext|>\"", "\"content\":\"the\"", MF_STATUS_INVALID,
         "in the vocabulary"},
        {"gpt2", "{\"id\":0,", "{\"id\":-1,", MF_STATUS_INVALID, "id from 0"},
        {"gpt2", "{\"id\":0,", "{\"id\":99999999,", MF_STATUS_INVALID, "id from 0"},
        {"gpt2", "\"A\":", "\"A\\u4e2d\":", MF_STATUS_UNSUPPORTED, "no token for byte 65"},
        {"gpt2", "\"merges\":[", "\"merges\":[\"a b c\",", MF_STATUS_INVALID, "merge 0 must be"},
        {"gpt2", "\"merges\":[", "\"merges\":[\"z qq\",", MF_STATUS_INVALID,
         "needs the token \"qq\""},
        {"gpt2", "\"merges\":[", "\"merges\":[[\"a\"],", MF_STATUS_INVALID, "merge 0 must be"},
        {"gpt2", "\"normalizer\":null", "\"normalizer\":{\"type\":\"NFKC\"}", MF_STATUS_UNSUPPORTED,
         "NFKC"},
        {"gpt2", "\"post_processor\":null", "\"post_processor\":{\"type\":\"BertProcessing\"}",
         MF_STATUS_UNSUPPORTED, "BertProcessing"},
        {"llama3", "p{N}{1,3}", "p{N}{1,4}", MF_STATUS_UNSUPPORTED, "the pattern"},
        {"llama3", "\"behavior\":\"Isolated\"", "\"behavior\":\"Removed\"", MF_STATUS_UNSUPPORTED,
         "Removed"},
        {"llama3", "\"SpecialToken\":{\"id\":\"<|begin_of_text|>\"",
         "\"SpecialToken\":{\"id\":\"<bos>\"", MF_STATUS_INVALID, "\"<bos>\" before a text"},
        {"qwen2", "\"vocab\":{", "\"vocab\":[],\"x\":{", MF_STATUS_INVALID, "must be an object"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *path = harness_path(fixture(cases[i].file), "tokenizer.json");
        const char *text = harness_read(path, NULL);
        const char *found = strstr(text, cases[i].from);
        char *changed = NULL;
        if (found == NULL) {
            fail_msg("%s has no %s", path, cases[i].from);
        }
        assert_true(asprintf(&changed, "%.*s%s%s", (int)(found - text), text, cases[i].to,
                             found + strlen(cases[i].from)) > 0);
        assert_fails(parse(changed), cases[i].status, cases[i].fragment);
        free(changed);
    }
    assert_status(parse(""), MF_STATUS_INVALID);
    assert_fails(parse("[]"), MF_STATUS_INVALID, "model");
    struct mf_tokenizer *tokenizer = NULL;
    assert_status(mf_tokenizer_open(harness_folder(), &tokenizer), MF_STATUS_NOT_FOUND);
}

struct rendering {
    char text[1024];
    size_t count;
};

static enum mf_status render_part(void *context, const struct mf_chat_part *part)
{
    struct rendering *out = context;
    int wrote = snprintf(out->text + out->count, sizeof(out->text) - out->count, "%s%.*s%s",
                         part->learned ? "[" : "", part->text != NULL ? (int)part->count : 5,
                         part->text != NULL ? part->text : "<end>", part->learned ? "]" : "");
    out->count += (size_t)wrote;
    assert_true(out->count < sizeof(out->text));
    return MF_STATUS_OK;
}

static enum mf_status render(enum mf_chat_template template, const char *json,
                             struct rendering *out)
{
    json_error_t error;
    json_t *messages = json_loads(json, 0, &error);
    const struct mf_chat_sink sink = {render_part, out};
    assert_non_null(messages);
    *out = (struct rendering){0};
    enum mf_status status = mf_chat_begin(template, &sink);
    if (status == MF_STATUS_OK) {
        status = mf_chat_messages(template, messages, true, &sink);
    }
    json_decref(messages);
    return status;
}

/* The first two are what the models' own templates give for these messages. */
static void test_templates(void **state)
{
    (void)state;
    static const char messages[] = "[{\"role\": \"system\", \"content\": \"S\"},"
                                   " {\"role\": \"user\", \"content\": \" U\\n\"},"
                                   " {\"role\": \"assistant\", \"content\": \"A\"},"
                                   " {\"role\": \"assistant\", \"content\": \"B\", \"weight\": 0}]";
    static const char *const expected[] = {
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\n U\n<|im_end|>\n"
        "<|im_start|>assistant\n[A][<|im_end|>]\n<|im_start|>assistant\nB<|im_end|>\n",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n[A][<|eot_id|>]"
        "<|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|>",
        "system:\nS\nuser:\n U\n\nassistant:\n[A][<end>]assistant:\nB<end>"};
    static const struct {
        const char *json, *fragment;
    } bad[] = {
        {"[]", "at least one"},
        {"{}", "at least one"},
        {"[{\"role\": \"user\"}]", "no text"},
        {"[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]", "a list of parts"},
        {"[{\"role\": \"bot\", \"content\": \"a\"}]", "the role \"bot\""},
        {"[{\"role\": \"user\", \"content\": \"a\", \"weight\": 0.5}]", "weight 0.5"},
        {"[{\"role\": \"user\", \"content\": \"a\", \"tool_calls\": []}]", "tool_calls"},
        {"[{\"role\": \"user\", \"content\": \"a\"}, 7]", "message 1"},
    };
    struct rendering out;
    for (int i = 0; i < MF_CHAT_TEMPLATE_COUNT; i++) {
        assert_ok(render((enum mf_chat_template)i, messages, &out));
        assert_string_equal(out.text, expected[i]);
        assert_int_equal(mf_chat_parse(mf_chat_name((enum mf_chat_template)i)), i);
    }
    assert_int_equal(mf_chat_parse("jinja"), -1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        enum mf_status status = render(MF_CHAT_TEMPLATE_PLAIN, bad[i].json, &out);
        assert_true(status == MF_STATUS_INVALID || status == MF_STATUS_UNSUPPORTED);
        assert_non_null(strstr(mf_status_text(), bad[i].fragment));
    }
}

static enum mf_status make(const char *name, const char *text, int template,
                           struct mf_token_data_result *out)
{
    const char *path = harness_path(harness_folder(), name);
    const struct mf_token_data_spec spec = {.tokenizer = fixture("qwen2"),
                                            .paths = &path,
                                            .path_count = 1,
                                            .template = template,
                                            .quiet = true};
    const char *output = harness_path(harness_folder(), "out");
    harness_write(path, text, strlen(text));
    enum mf_status status = mf_token_data_make(&spec, output, out);
    struct mf_inputs left;
    struct mf_arena arena;
    mf_arena_init(&arena);
    /* Nothing is left of a file that could not be made. */
    char *slash = strrchr(output, '/');
    const char *folder = mf_arena_format(&arena, "%.*s", (int)(slash - output), output);
    assert_true((mf_inputs_list(&folder, 1, &arena, &left) == MF_STATUS_OK) ==
                (status == MF_STATUS_OK));
    mf_arena_reset(&arena);
    if (status != MF_STATUS_OK) { /* the list set another text */
        return mf_token_data_make(&spec, output, out);
    }
    return status;
}

static void test_documents(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *fragment;
    } bad[] = {
        {"a.txt", "good \xc3\xa4 bad \xc3(", "byte 12 (0xc3) is no UTF-8"},
        {"a.txt", "\xed\xa0\x80", "byte 0"},
        {"a.jsonl", "{\"text\": \"a\"}\n\n{\"text\": }\n", "line 3 (byte 15)"},
        {"a.jsonl", "{\"text\": \"\xff\"}", "line 1 (byte 0)"},
        {"a.jsonl", "{\"text\": 7}", "\"text\" is no text"},
        {"a.jsonl", "{\"content\": \"a\"}", "one of \"text\""},
        {"a.jsonl", "{\"text\": \"a\", \"prompt\": \"b\"}", "one of \"text\""},
        {"a.jsonl", "{\"prompt\": \"b\"}", "must both be texts"},
        {"a.jsonl", "{\"prompt\": \"b\", \"completion\": []}", "must both be texts"},
        {"a.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
         "need a template"},
        {"a.jsonl", "{\"conversations\": []}", "\"conversations\" is not done"},
        {"a.json", "[{\"text\": \"a\"}]", "jq -c '.[]'"},
        {"a.json", "7", "line 1"},
    };
    struct mf_token_data_result result;
    assert_ok(make("a.txt", "some text", -1, &result));
    assert_int_equal(result.file.document_count, 1);
    assert_int_equal(result.learned, result.file.token_count);
    assert_false(result.file.masked);
    /* The same text and its end, twice; the words of a prompt are not learned. */
    int64_t alone = result.file.token_count;
    assert_ok(make("a.jsonl",
                   "{\"text\": \"some text\", \"id\": 7}\r\n  \n{\"prompt\": \"some text\","
                   " \"completion\": \"some text\"}",
                   -1, &result));
    assert_int_equal(result.file.document_count, 2);
    assert_int_equal(result.file.token_count, 3 * alone - 1);
    assert_int_equal(result.learned, 2 * alone);
    assert_true(result.file.masked);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_true(make(bad[i].name, bad[i].text, -1, &result) != MF_STATUS_OK);
        if (strstr(mf_status_text(), bad[i].fragment) == NULL) {
            fail_msg("no \"%s\" in: %s", bad[i].fragment, mf_status_text());
        }
    }
}

/* What decides the tokens decides the key. */
static void test_key(void **state)
{
    (void)state;
    const char *paths[2] = {harness_path(harness_folder(), "a.txt"),
                            harness_path(harness_folder(), "b.txt")};
    struct mf_token_data_spec spec = {
        .tokenizer = fixture("qwen2"), .paths = paths, .path_count = 2, .template = -1};
    char keys[6][MF_HASH_TEXT_MAX];
    harness_write(paths[0], "one", 3);
    harness_write(paths[1], "two", 3);
    assert_ok(mf_token_data_key(&spec, keys[0]));
    harness_write(paths[1], "tow", 3);
    assert_ok(mf_token_data_key(&spec, keys[1]));
    harness_write(paths[1], "two", 3);
    spec.tokenizer = fixture("gpt2");
    assert_ok(mf_token_data_key(&spec, keys[2]));
    spec.tokenizer = fixture("qwen2");
    spec.align = 8;
    assert_ok(mf_token_data_key(&spec, keys[3]));
    spec.align = 0;
    spec.end_token = "<|endoftext|>";
    assert_ok(mf_token_data_key(&spec, keys[4]));
    spec.end_token = NULL;
    spec.template = MF_CHAT_TEMPLATE_PLAIN;
    assert_ok(mf_token_data_key(&spec, keys[5]));
    for (int i = 0; i < 6; i++) {
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(keys[i], keys[k]);
        }
    }
    spec.template = -1;
    assert_ok(mf_token_data_key(&spec, keys[1]));
    assert_string_equal(keys[0], keys[1]);
}

/* Composition, from NormalizationTest.txt of the Unicode database and its hard cases. */
static void test_compose(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"abc", NULL},
        {"\u00e4\u4e2d\U0001f600", NULL},
        {"e\u0301", "\u00e9"},
        {"xe\u0301y", "x\u00e9y"},
        {"\u212b", "\u00c5"},
        {"D\u0323\u0307", "\u1e0c\u0307"},
        {"D\u0307\u0323", "\u1e0c\u0307"},
        {"\u1e0a\u0323", "\u1e0c\u0307"},
        {"\u0344", "\u0308\u0301"},
        {"\u1100\u1161\u11a8", "\uac01"},
        {"\uac00\u11a8", "\uac01"},
        {"\uac01\u11a8", "\uac01\u11a8"},
        {"\u0958", "\u0915\u093c"},
        {"\u0301a", "\u0301a"},
        {"\u1f00\u0301\u0345 \u1f00\u0345\u0301", "\u1f84 \u1f84"},
    };
    uint8_t *classes = malloc(MF_TOKENIZER_UNICODE_POINTS);
    assert_non_null(classes);
    mf_tokenizer_unicode_fill(classes);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t count = strlen(cases[i][0]);
        assert_int_equal(mf_tokenizer_unicode_valid(cases[i][0], count), count);
        char *out = mf_tokenizer_unicode_compose(classes, cases[i][0], count, &count);
        assert_true((out == NULL) == (cases[i][1] == NULL));
        if (out != NULL) {
            assert_int_equal(count, strlen(cases[i][1]));
            assert_memory_equal(out, cases[i][1], count);
        }
        free(out);
    }
    free(classes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_templates),
        cmocka_unit_test(test_documents), cmocka_unit_test(test_key),
        cmocka_unit_test(test_compose),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
