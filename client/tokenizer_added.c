/* Added tokens, which are found in a text before it is cut into pieces: see tokenizer_internal.h.
 * The library `tokenizers` searches the same way: leftmost, then longest. */
#include <stdlib.h>
#include <string.h>

#include "client/tokenizer_internal.h"
#include "core/json.h"

#define COUNT(table) (sizeof(table) / sizeof((table)[0]))

static enum mf_status read_one(struct mf_tokenizer *tokenizer, const json_t *item,
                               const json_t *vocab, const char *name)
{
    static const char *const odd[] = {"lstrip", "rstrip", "single_word"};
    const char *content = NULL;
    struct mf_tokenizer_added added = {0};
    bool normalized = false;
    MF_TRY(mf_json_require(item, "added_tokens", "content"));
    MF_TRY(mf_json_string(item, "added_tokens", "content", &content));
    MF_TRY(mf_json_bool(item, "added_tokens", "special", &added.special));
    MF_TRY(mf_json_bool(item, "added_tokens", "normalized", &normalized));
    MF_TRY(mf_tokenizer_read_id(tokenizer, json_object_get(item, "id"), name, content, &added.id));
    for (size_t i = 0; i < COUNT(odd); i++) {
        bool on = false;
        MF_TRY(mf_json_bool(item, "added_tokens", odd[i], &on));
        if (on) {
            return mf_tokenizer_read_refuse(name, "an added token with", odd[i]);
        }
    }
    const json_t *known = json_object_get(vocab, content);
    if (content[0] == '\0' || (known != NULL && json_integer_value(known) != added.id)) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s: the added token \"%.80s\" has no text, or the id %d here and "
                             "%lld in the vocabulary",
                             name, content, (int)added.id, (long long)json_integer_value(known));
    }
    added.content = mf_arena_string(&tokenizer->arena, content);
    added.count = strlen(content);
    struct mf_tokenizer_added_set *set = normalized ? &tokenizer->normalized : &tokenizer->raw;
    set->tokens[set->count++] = added;
    return MF_STATUS_OK;
}

/* By the first byte, then the longest first. */
static int compare(const void *left, const void *right)
{
    const struct mf_tokenizer_added *a = left;
    const struct mf_tokenizer_added *b = right;
    if (a->content[0] != b->content[0]) {
        return (unsigned char)a->content[0] < (unsigned char)b->content[0] ? -1 : 1;
    }
    return a->count != b->count ? (a->count > b->count ? -1 : 1) : strcmp(a->content, b->content);
}

static void arrange(struct mf_tokenizer_added_set *set)
{
    memset(set->first, 0xff, sizeof(set->first));
    if (set->count > 0) {
        qsort(set->tokens, set->count, sizeof(*set->tokens), compare);
    }
    for (size_t i = set->count; i > 0; i--) {
        set->first[(unsigned char)set->tokens[i - 1].content[0]] = (int32_t)(i - 1);
    }
}

enum mf_status mf_tokenizer_added_read(struct mf_tokenizer *tokenizer, const json_t *root,
                                       const char *name)
{
    const json_t *list = json_object_get(root, "added_tokens");
    const json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    size_t room = json_array_size(list) + 1;
    tokenizer->raw.tokens =
        mf_arena_alloc(&tokenizer->arena, room, sizeof(struct mf_tokenizer_added));
    tokenizer->normalized.tokens =
        mf_arena_alloc(&tokenizer->arena, room, sizeof(struct mf_tokenizer_added));
    for (size_t i = 0; i < json_array_size(list); i++) {
        MF_TRY(read_one(tokenizer, json_array_get(list, i), vocab, name));
    }
    arrange(&tokenizer->raw);
    arrange(&tokenizer->normalized);
    return MF_STATUS_OK;
}

const struct mf_tokenizer_added *mf_tokenizer_added_find(const struct mf_tokenizer_added_set *set,
                                                         const char *text, size_t count,
                                                         size_t from, size_t *at)
{
    for (*at = set->count > 0 ? from : count; *at < count; ++*at) {
        int32_t first = set->first[(unsigned char)text[*at]];
        for (size_t i = (size_t)first; first >= 0 && i < set->count; i++) {
            const struct mf_tokenizer_added *token = &set->tokens[i];
            if (token->content[0] != text[*at]) {
                break;
            }
            if (token->count <= count - *at &&
                memcmp(token->content, text + *at, token->count) == 0) {
                return token;
            }
        }
    }
    return NULL;
}
