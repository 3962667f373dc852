/* Encoding text, and the life of a tokenizer: see tokenizer.h. */
#include "client/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/inputs.h"
#include "client/tokenizer_internal.h"
#include "client/tokenizer_unicode.h"
#include "core/json.h"
#include "core/limits.h"

enum mf_status mf_tokenizer_parse(const char *json, size_t count, const char *name,
                                  struct mf_tokenizer **out)
{
    json_t *root = NULL;
    *out = NULL;
    MF_TRY(mf_json_parse(json, count, name, &root));
    struct mf_tokenizer *tokenizer = calloc(1, sizeof(*tokenizer));
    MF_ASSERT(tokenizer != NULL);
    mf_arena_init(&tokenizer->arena);
    tokenizer->info.end_token = -1;
    mf_hash(json, count, tokenizer->info.fingerprint);
    enum mf_status status = mf_tokenizer_read_json(tokenizer, root, name);
    json_decref(root);
    if (status != MF_STATUS_OK) {
        mf_tokenizer_close(tokenizer);
        return status;
    }
    tokenizer->classes = malloc(MF_TOKENIZER_UNICODE_POINTS);
    MF_ASSERT(tokenizer->classes != NULL);
    mf_tokenizer_unicode_fill(tokenizer->classes);
    *out = tokenizer;
    return MF_STATUS_OK;
}

enum mf_status mf_tokenizer_open(const char *folder, struct mf_tokenizer **out)
{
    char path[4096];
    const char *bytes = NULL;
    size_t count = 0;
    *out = NULL;
    int length = snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
    if (length < 0 || (size_t)length >= sizeof(path)) {
        return mf_status_set(MF_STATUS_INVALID, "the tokenizer's folder has %zu bytes in its name",
                             strlen(folder));
    }
    MF_TRY(mf_inputs_map(path, MF_TOKENIZER_FILE_MAX, &bytes, &count));
    enum mf_status status = mf_tokenizer_parse(bytes, count, path, out);
    mf_inputs_unmap(bytes, count);
    MF_TRY(status);
    status = mf_tokenizer_affix_end(*out, folder);
    if (status != MF_STATUS_OK) {
        mf_tokenizer_close(*out);
        *out = NULL;
    }
    return status;
}

void mf_tokenizer_close(struct mf_tokenizer *tokenizer)
{
    if (tokenizer == NULL) {
        return;
    }
    mf_tokenizer_bpe_reset(&tokenizer->bpe);
    mf_arena_reset(&tokenizer->arena);
    free(tokenizer->classes);
    free(tokenizer);
}

const struct mf_tokenizer_info *mf_tokenizer_describe(const struct mf_tokenizer *tokenizer)
{
    return &tokenizer->info;
}

int32_t mf_tokenizer_find(const struct mf_tokenizer *tokenizer, const char *content)
{
    const struct mf_tokenizer_added_set *const sets[] = {&tokenizer->raw, &tokenizer->normalized};
    for (size_t k = 0; k < 2; k++) {
        for (size_t i = 0; i < sets[k]->count; i++) {
            if (strcmp(sets[k]->tokens[i].content, content) == 0) {
                return sets[k]->tokens[i].id;
            }
        }
    }
    return -1;
}

static enum mf_status put_pieces(struct mf_tokenizer *tokenizer, const char *text, size_t count,
                                 const struct mf_tokenizer_sink *sink)
{
    for (size_t at = 0; at < count;) {
        size_t id_count = 0;
        size_t piece = mf_tokenizer_split_next(tokenizer->info.split, tokenizer->classes, text + at,
                                               count - at);
        if (piece > MF_TOKENIZER_PIECE_MAX) {
            return mf_status_set(MF_STATUS_UNSUPPORTED,
                                 "a word of %zu bytes, at most %d are merged: \"%.20s...\" is no "
                                 "text",
                                 piece, MF_TOKENIZER_PIECE_MAX, text + at);
        }
        const int32_t *ids = mf_tokenizer_bpe_encode(&tokenizer->bpe, text + at, piece, &id_count);
        MF_TRY(sink->put(sink->context, ids, id_count, piece));
        at += piece;
    }
    return MF_STATUS_OK;
}

/* The added tokens of `set`, and what is between them by `between`. */
static enum mf_status
put_around(struct mf_tokenizer *tokenizer, const struct mf_tokenizer_added_set *set,
           const char *text, size_t count, bool special, const struct mf_tokenizer_sink *sink,
           enum mf_status (*between)(struct mf_tokenizer *, const char *, size_t, bool,
                                     const struct mf_tokenizer_sink *))
{
    size_t done = 0;
    size_t at = 0;
    for (size_t from = 0; from < count;) {
        const struct mf_tokenizer_added *found =
            mf_tokenizer_added_find(set, text, count, from, &at);
        from = at + (found != NULL ? found->count : 0);
        if (found != NULL && found->special && !special) {
            continue;
        }
        if (at > done) {
            MF_TRY(between(tokenizer, text + done, at - done, special, sink));
        }
        if (found != NULL) {
            MF_TRY(sink->put(sink->context, &found->id, 1, found->count));
        }
        done = from;
    }
    return done < count ? between(tokenizer, text + done, count - done, special, sink)
                        : MF_STATUS_OK;
}

static enum mf_status put_plain(struct mf_tokenizer *tokenizer, const char *text, size_t count,
                                bool special, const struct mf_tokenizer_sink *sink)
{
    (void)special;
    return put_pieces(tokenizer, text, count, sink);
}

static enum mf_status put_normalized(struct mf_tokenizer *tokenizer, const char *text, size_t count,
                                     bool special, const struct mf_tokenizer_sink *sink)
{
    size_t made_count = count;
    char *made = tokenizer->compose
                     ? mf_tokenizer_unicode_compose(tokenizer->classes, text, count, &made_count)
                     : NULL;
    enum mf_status status =
        put_around(tokenizer, &tokenizer->normalized, made != NULL ? made : text, made_count,
                   special, sink, put_plain);
    free(made);
    return status;
}

enum mf_status mf_tokenizer_encode(struct mf_tokenizer *tokenizer, const char *text, size_t count,
                                   bool special, const struct mf_tokenizer_sink *sink)
{
    return put_around(tokenizer, &tokenizer->raw, text, count, special, sink, put_normalized);
}
