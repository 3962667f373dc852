/* What stands before a text and after a document: see tokenizer_internal.h. */
#include <string.h>
#include <unistd.h>

#include "client/tokenizer_internal.h"
#include "core/json.h"
#include "core/limits.h"

static enum mf_status add_prefix(struct mf_tokenizer *tokenizer, const json_t *item,
                                 const char *name)
{
    const char *id = json_string_value(json_object_get(item, "id"));
    int32_t token = id != NULL ? mf_tokenizer_find(tokenizer, id) : -1;
    if (token < 0 || tokenizer->info.prefix_count == MF_TOKENIZER_AFFIX_MAX) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s: the post-processor puts \"%.80s\" before a text, which is no "
                             "token, or the one after %d",
                             name, id != NULL ? id : "null", MF_TOKENIZER_AFFIX_MAX);
    }
    tokenizer->info.prefix[tokenizer->info.prefix_count++] = token;
    return MF_STATUS_OK;
}

/* What a template puts after a text is left to the end of documents. */
static enum mf_status read_template(struct mf_tokenizer *tokenizer, const json_t *template,
                                    const char *name)
{
    const json_t *single = json_object_get(template, "single");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *special = json_object_get(piece, "SpecialToken");
        if (special == NULL) {
            break;
        }
        MF_TRY(add_prefix(tokenizer, special, name));
    }
    return MF_STATUS_OK;
}

enum mf_status mf_tokenizer_affix_read(struct mf_tokenizer *tokenizer, const json_t *processor,
                                       const char *name)
{
    for (size_t i = 0; i < mf_tokenizer_read_count(processor, "processors"); i++) {
        const json_t *part = mf_tokenizer_read_part(processor, "processors", i);
        const char *type = mf_tokenizer_read_type(part);
        if (strcmp(type, "TemplateProcessing") == 0) {
            MF_TRY(read_template(tokenizer, part, name));
        } else if (strcmp(type, "ByteLevel") != 0) {
            return mf_tokenizer_read_refuse(name, "the post-processor", type);
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status load(const char *folder, const char *file, json_t **out)
{
    char path[4096];
    *out = NULL;
    int length = snprintf(path, sizeof(path), "%s/%s", folder, file);
    if (length < 0 || (size_t)length >= sizeof(path) || access(path, F_OK) != 0) {
        return MF_STATUS_OK;
    }
    return mf_json_load(path, MF_TOKENIZER_FILE_MAX, out);
}

enum mf_status mf_tokenizer_affix_end(struct mf_tokenizer *tokenizer, const char *folder)
{
    json_t *config = NULL;
    MF_TRY(load(folder, "tokenizer_config.json", &config));
    const json_t *token = json_object_get(config, "eos_token");
    const char *text =
        json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    tokenizer->info.end_token = text != NULL ? mf_tokenizer_find(tokenizer, text) : -1;
    json_decref(config);
    if (tokenizer->info.end_token >= 0) {
        return MF_STATUS_OK;
    }
    MF_TRY(load(folder, "config.json", &config));
    token = json_object_get(config, "eos_token_id");
    token = json_is_array(token) ? json_array_get(token, 0) : token;
    json_int_t id = json_is_integer(token) ? json_integer_value(token) : -1;
    json_decref(config);
    tokenizer->info.end_token = id >= 0 && id < tokenizer->info.vocab ? (int32_t)id : -1;
    return MF_STATUS_OK;
}
