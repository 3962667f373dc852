/*
 * A tokenizer's insides, shared by tokenizer.c (encoding) and tokenizer_read.c (tokenizer.json).
 * Owner: the tokenizer's arena and tables. Thread, failures: as tokenizer.h.
 */
#ifndef MF_CLIENT_TOKENIZER_INTERNAL_H
#define MF_CLIENT_TOKENIZER_INTERNAL_H

#include <jansson.h>

#include "client/tokenizer.h"
#include "client/tokenizer_bpe.h"
#include "core/arena.h"

struct mf_tokenizer_added {
    const char *content;
    size_t count;
    int32_t id;
    bool special;
};

/* Added tokens that are looked for together; sorted so that the longest of equal beginnings comes
 * first. `first` says which bytes one begins with, and where those stand. */
struct mf_tokenizer_added_set {
    struct mf_tokenizer_added *tokens;
    size_t count;
    int32_t first[256]; /* -1 = none begins so */
};

struct mf_tokenizer {
    struct mf_arena arena;
    struct mf_tokenizer_info info;
    bool compose; /* NFC */
    /* Found in the text as it is, and in what the normaliser makes of the rest. */
    struct mf_tokenizer_added_set raw, normalized;
    struct mf_tokenizer_bpe bpe;
    struct mf_tokenizer_bpe_text *texts; /* of the vocabulary, when merges can be ignored */
    size_t text_count;
    uint8_t *classes;
};

/* tokenizer_read.c. Fills an empty tokenizer; what it holds after a failure is freed by
 * mf_tokenizer_close(). */
enum mf_status mf_tokenizer_read_json(struct mf_tokenizer *tokenizer, const json_t *root,
                                      const char *name) MF_MUST_USE;
/* MF_STATUS_UNSUPPORTED with the name of what is not done. */
enum mf_status mf_tokenizer_read_refuse(const char *name, const char *part, const char *kind);
/* An id in range; the vocabulary grows to it. */
enum mf_status mf_tokenizer_read_id(struct mf_tokenizer *tokenizer, const json_t *value,
                                    const char *name, const char *what, int32_t *out) MF_MUST_USE;
/* An object's "type"; and an object, or a "Sequence" of them under `key`, part by part. */
const char *mf_tokenizer_read_type(const json_t *object);
size_t mf_tokenizer_read_count(const json_t *object, const char *key);
const json_t *mf_tokenizer_read_part(const json_t *object, const char *key, size_t index);

/* tokenizer_added.c. */
enum mf_status mf_tokenizer_added_read(struct mf_tokenizer *tokenizer, const json_t *root,
                                       const char *name) MF_MUST_USE;
/* The first token of the set in the text from `from` on: the leftmost, and the longest there; its
 * start in `*at`. NULL = none, and `*at` is `count`. */
const struct mf_tokenizer_added *mf_tokenizer_added_find(const struct mf_tokenizer_added_set *set,
                                                         const char *text, size_t count,
                                                         size_t from, size_t *at);

/* tokenizer_affix.c: what the post-processor puts before a text; the end token that the folder's
 * other files name, if they do. */
enum mf_status mf_tokenizer_affix_read(struct mf_tokenizer *tokenizer, const json_t *processor,
                                       const char *name) MF_MUST_USE;
enum mf_status mf_tokenizer_affix_end(struct mf_tokenizer *tokenizer,
                                      const char *folder) MF_MUST_USE;

#endif
