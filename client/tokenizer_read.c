/* A tokenizer from its tokenizer.json: see tokenizer_internal.h. The layout is that of the library
 * `tokenizers`, version "1.0". */
#include <string.h>

#include "client/tokenizer_internal.h"
#include "client/tokenizer_unicode.h"
#include "core/json.h"
#include "core/limits.h"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

enum mf_status mf_tokenizer_read_refuse(const char *name, const char *part, const char *kind)
{
    return mf_status_set(MF_STATUS_UNSUPPORTED,
                         "%s: %s \"%.80s\" is not done here: byte-level BPE with the patterns of "
                         "GPT-2, Llama 3 or Qwen is; make the tokens with the library that made "
                         "this tokenizer and give them as data.tokens",
                         name, part, kind);
}

const char *mf_tokenizer_read_type(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type != NULL ? type : "(no type)";
}

static bool is_null(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

size_t mf_tokenizer_read_count(const json_t *object, const char *key)
{
    if (is_null(object)) {
        return 0;
    }
    return strcmp(mf_tokenizer_read_type(object), "Sequence") == 0
               ? json_array_size(json_object_get(object, key))
               : 1;
}

const json_t *mf_tokenizer_read_part(const json_t *object, const char *key, size_t index)
{
    return strcmp(mf_tokenizer_read_type(object), "Sequence") == 0
               ? json_array_get(json_object_get(object, key), index)
               : object;
}

static enum mf_status read_normalizer(struct mf_tokenizer *tokenizer, const json_t *root,
                                      const char *name)
{
    const json_t *normalizer = json_object_get(root, "normalizer");
    for (size_t i = 0; i < mf_tokenizer_read_count(normalizer, "normalizers"); i++) {
        const char *type =
            mf_tokenizer_read_type(mf_tokenizer_read_part(normalizer, "normalizers", i));
        if (strcmp(type, "NFC") != 0) {
            return mf_tokenizer_read_refuse(name, "the normalizer", type);
        }
        tokenizer->compose = true;
    }
    return MF_STATUS_OK;
}

static enum mf_status read_byte_level(const json_t *part, const char *name, bool *use_regex)
{
    bool add_space = true; /* the library's defaults */
    *use_regex = true;
    MF_TRY(mf_json_bool(part, "ByteLevel", "add_prefix_space", &add_space));
    MF_TRY(mf_json_bool(part, "ByteLevel", "use_regex", use_regex));
    return add_space ? mf_tokenizer_read_refuse(name, "the pre-tokenizer",
                                                "ByteLevel with add_prefix_space")
                     : MF_STATUS_OK;
}

/* ByteLevel alone has GPT-2's pattern; a Split before it has its own. */
static enum mf_status read_pre_tokenizer(struct mf_tokenizer *tokenizer, const json_t *root,
                                         const char *name)
{
    static const char *const key = "pretokenizers";
    const json_t *whole = json_object_get(root, "pre_tokenizer");
    size_t count = mf_tokenizer_read_count(whole, key);
    bool use_regex = false;
    if (count < 1 || count > 2) {
        return mf_tokenizer_read_refuse(name, "the pre-tokenizer",
                                        is_null(whole) ? "null" : mf_tokenizer_read_type(whole));
    }
    const json_t *last = mf_tokenizer_read_part(whole, key, count - 1);
    if (strcmp(mf_tokenizer_read_type(last), "ByteLevel") != 0) {
        return mf_tokenizer_read_refuse(name, "the pre-tokenizer", mf_tokenizer_read_type(last));
    }
    MF_TRY(read_byte_level(last, name, &use_regex));
    if (count == 1) {
        tokenizer->info.split = MF_TOKENIZER_SPLIT_GPT2;
        return use_regex ? MF_STATUS_OK
                         : mf_tokenizer_read_refuse(name, "the pre-tokenizer",
                                                    "ByteLevel without its pattern");
    }
    const json_t *split = mf_tokenizer_read_part(whole, key, 0);
    const char *pattern =
        json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    if (strcmp(mf_tokenizer_read_type(split), "Split") != 0 || pattern == NULL || use_regex) {
        return mf_tokenizer_read_refuse(name, "the pre-tokenizer before ByteLevel",
                                        mf_tokenizer_read_type(split));
    }
    int style = mf_tokenizer_split_parse(pattern);
    if (style < 0) {
        return mf_tokenizer_read_refuse(name, "the pattern", pattern);
    }
    if (behavior == NULL || strcmp(behavior, "Isolated") != 0 ||
        json_is_true(json_object_get(split, "invert"))) {
        return mf_tokenizer_read_refuse(name, "a Split that is not Isolated, but",
                                        behavior != NULL ? behavior : "null");
    }
    tokenizer->info.split = (enum mf_tokenizer_split)style;
    return MF_STATUS_OK;
}

/* What each visible character of the vocabulary stands for; GPT-2's bytes_to_unicode(). */
static void fill_alphabet(int16_t bytes[static 512])
{
    int16_t hidden = 256;
    memset(bytes, 0xff, 512 * sizeof(*bytes));
    for (int16_t byte = 0; byte < 256; byte++) {
        bool visible = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
        bytes[visible ? byte : hidden++] = byte;
    }
}

/* The bytes that a text of the vocabulary stands for; false when it is none of bytes. */
static bool decode_text(struct mf_arena *arena, const int16_t *alphabet, const char *text,
                        struct mf_tokenizer_bpe_text *out)
{
    size_t count = strlen(text);
    char *bytes = mf_arena_alloc(arena, count + 1, 1);
    out->bytes = bytes;
    out->count = 0;
    for (size_t at = 0, length = 0; at < count; at += length) {
        uint32_t point = mf_tokenizer_unicode_decode(text + at, &length);
        if (point >= 512 || alphabet[point] < 0) {
            return false;
        }
        bytes[out->count++] = (char)alphabet[point];
    }
    return count > 0;
}

enum mf_status mf_tokenizer_read_id(struct mf_tokenizer *tokenizer, const json_t *value,
                                    const char *name, const char *what, int32_t *out)
{
    json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
    if (id < 0 || id >= MF_TOKENIZER_VOCAB_MAX) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s: the token \"%.80s\" must have an id from 0 to %d, found %lld",
                             name, what, MF_TOKENIZER_VOCAB_MAX - 1, (long long)id);
    }
    *out = (int32_t)id;
    if (id >= tokenizer->info.vocab) {
        tokenizer->info.vocab = (int32_t)id + 1;
    }
    return MF_STATUS_OK;
}

static enum mf_status read_vocab(struct mf_tokenizer *tokenizer, json_t *vocab, const char *name)
{
    int16_t alphabet[512];
    const char *text = NULL;
    json_t *value = NULL;
    int32_t *byte_ids = tokenizer->bpe.byte_ids;
    fill_alphabet(alphabet);
    memset(byte_ids, 0xff, sizeof(tokenizer->bpe.byte_ids));
    tokenizer->texts =
        mf_arena_alloc(&tokenizer->arena, json_object_size(vocab) + 1, sizeof(*tokenizer->texts));
    json_object_foreach(vocab, text, value)
    {
        struct mf_tokenizer_bpe_text *out = &tokenizer->texts[tokenizer->text_count];
        MF_TRY(mf_tokenizer_read_id(tokenizer, value, name, text, &out->id));
        if (!decode_text(&tokenizer->arena, alphabet, text, out)) {
            continue; /* an added token; it is found by its text */
        }
        tokenizer->text_count++;
        if (out->count == 1) {
            byte_ids[(unsigned char)out->bytes[0]] = out->id;
        }
    }
    for (int byte = 0; byte < 256; byte++) {
        if (byte_ids[byte] < 0) {
            return mf_status_set(MF_STATUS_UNSUPPORTED,
                                 "%s: the vocabulary has no token for byte %d: not every text "
                                 "could be written with it",
                                 name, byte);
        }
    }
    return MF_STATUS_OK;
}

/* Both texts of a merge, as "a b" or ["a", "b"]; `buffer` keeps the first form's. */
static bool merge_texts(const json_t *merge, char *buffer, size_t size, const char *out[2])
{
    if (json_is_array(merge) && json_array_size(merge) == 2) {
        out[0] = json_string_value(json_array_get(merge, 0));
        out[1] = json_string_value(json_array_get(merge, 1));
        return out[0] != NULL && out[1] != NULL;
    }
    const char *text = json_string_value(merge);
    if (text == NULL || json_string_length(merge) >= size) {
        return false;
    }
    snprintf(buffer, size, "%s", text);
    char *space = strchr(buffer, ' ');
    if (space == NULL || strchr(space + 1, ' ') != NULL) {
        return false;
    }
    *space = '\0';
    out[0] = buffer;
    out[1] = space + 1;
    return true;
}

static enum mf_status read_merges(struct mf_tokenizer *tokenizer, const json_t *merges,
                                  json_t *vocab, const char *name)
{
    char buffer[MF_TOKENIZER_TOKEN_BYTES_MAX];
    char whole[2 * MF_TOKENIZER_TOKEN_BYTES_MAX];
    size_t index = 0;
    json_t *merge = NULL;
    json_array_foreach(merges, index, merge)
    {
        const char *texts[2] = {NULL, NULL};
        int32_t ids[3] = {-1, -1, -1};
        if (!merge_texts(merge, buffer, sizeof(buffer), texts) ||
            strlen(texts[0]) >= sizeof(buffer) || strlen(texts[1]) >= sizeof(buffer)) {
            return mf_status_set(MF_STATUS_INVALID,
                                 "%s: merge %zu must be \"a b\" or [\"a\", \"b\"] of less than %d "
                                 "bytes",
                                 name, index, MF_TOKENIZER_TOKEN_BYTES_MAX);
        }
        snprintf(whole, sizeof(whole), "%s%s", texts[0], texts[1]);
        const char *const parts[3] = {texts[0], texts[1], whole};
        for (int i = 0; i < 3; i++) {
            json_t *value = json_object_get(vocab, parts[i]);
            if (value == NULL) {
                return mf_status_set(MF_STATUS_INVALID,
                                     "%s: merge %zu needs the token \"%.80s\", which the "
                                     "vocabulary does not have",
                                     name, index, parts[i]);
            }
            ids[i] = (int32_t)json_integer_value(value);
        }
        mf_tokenizer_bpe_add(&tokenizer->bpe, ids[0], ids[1], ids[2], (uint32_t)index);
    }
    return MF_STATUS_OK;
}

static enum mf_status check_model(const json_t *model, const char *name)
{
    static const char *const texts[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    double dropout = 0;
    bool byte_fallback = false;
    const char *type = json_string_value(json_object_get(model, "type"));
    if (type != NULL && strcmp(type, "BPE") != 0) {
        return mf_tokenizer_read_refuse(name, "the model", type);
    }
    MF_TRY(mf_json_require(model, "model", "vocab"));
    MF_TRY(mf_json_require(model, "model", "merges"));
    MF_TRY(mf_json_number(model, "model", "dropout", 0, 1, &dropout));
    MF_TRY(mf_json_bool(model, "model", "byte_fallback", &byte_fallback));
    if (dropout > 0 || byte_fallback) {
        return mf_tokenizer_read_refuse(name, "the model's",
                                        dropout > 0 ? "dropout" : "byte_fallback");
    }
    for (size_t i = 0; i < COUNT(texts); i++) {
        const char *text = "";
        MF_TRY(mf_json_string(model, "model", texts[i], &text));
        if (text[0] != '\0') {
            return mf_tokenizer_read_refuse(name, "the model's", texts[i]);
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status read_model(struct mf_tokenizer *tokenizer, const json_t *root,
                                 const char *name)
{
    const json_t *model = json_object_get(root, "model");
    bool ignore_merges = false;
    MF_TRY(check_model(model, name));
    MF_TRY(mf_json_bool(model, "model", "ignore_merges", &ignore_merges));
    json_t *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges");
    if (!json_is_object(vocab) || !json_is_array(merges)) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s: model.vocab must be an object and model.merges a list", name);
    }
    mf_tokenizer_bpe_init(&tokenizer->bpe, json_array_size(merges));
    MF_TRY(read_vocab(tokenizer, vocab, name));
    MF_TRY(read_merges(tokenizer, merges, vocab, name));
    if (ignore_merges) {
        mf_tokenizer_bpe_prefer(&tokenizer->bpe, tokenizer->texts, tokenizer->text_count);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_tokenizer_read_json(struct mf_tokenizer *tokenizer, const json_t *root,
                                      const char *name)
{
    MF_TRY(mf_json_require(root, name, "model"));
    MF_TRY(read_normalizer(tokenizer, root, name));
    MF_TRY(read_pre_tokenizer(tokenizer, root, name));
    MF_TRY(read_model(tokenizer, root, name));
    MF_TRY(mf_tokenizer_added_read(tokenizer, root, name));
    return mf_tokenizer_affix_read(tokenizer, json_object_get(root, "post_processor"), name);
}
