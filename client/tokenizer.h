/*
 * Text to tokens as a Hugging Face folder's tokenizer.json says: byte-level BPE.
 *
 * What: the tokenizers of GPT-2, Llama 3 and Qwen and all built like them: vocabulary and merges,
 *   added tokens, NFC or no normaliser, and one of the patterns of tokenizer_split.h. Everything
 *   else is refused by its name. The same tokens as the library `tokenizers` gives.
 * Who calls it: documents.c, command_tokenize.c. Owner: open gives what close frees. Thread: one
 *   at a time, encoding uses a cache inside. Fails: MF_STATUS_NOT_FOUND, _IO; _UNSUPPORTED naming
 *   what is not done; _INVALID, _CORRUPT naming file, key and value.
 */
#ifndef MF_CLIENT_TOKENIZER_H
#define MF_CLIENT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/tokenizer_split.h"
#include "core/hash.h"
#include "core/status.h"

#define MF_TOKENIZER_AFFIX_MAX 8

struct mf_tokenizer;

struct mf_tokenizer_info {
    enum mf_tokenizer_split split;
    int32_t vocab;                          /* one more than the highest id */
    int32_t end_token;                      /* ends a document; -1 = the folder names none */
    int32_t prefix[MF_TOKENIZER_AFFIX_MAX]; /* what the post-processor puts before a text */
    int32_t prefix_count;
    char fingerprint[MF_HASH_TEXT_MAX]; /* SHA-256 of tokenizer.json */
};

/* Where tokens go, piece by piece; they are the callee's until it returns. `bytes` of the
 * (normalized) text they stand for. */
struct mf_tokenizer_sink {
    enum mf_status (*put)(void *context, const int32_t *ids, size_t count, size_t bytes);
    void *context;
};

/* Reads tokenizer.json, and the end token from tokenizer_config.json or config.json. */
enum mf_status mf_tokenizer_open(const char *folder, struct mf_tokenizer **out) MF_MUST_USE;
/* From the text of a tokenizer.json alone; `name` is for messages. */
enum mf_status mf_tokenizer_parse(const char *json, size_t count, const char *name,
                                  struct mf_tokenizer **out) MF_MUST_USE;
void mf_tokenizer_close(struct mf_tokenizer *tokenizer); /* NULL is fine */
/* Borrowed until close. */
const struct mf_tokenizer_info *mf_tokenizer_describe(const struct mf_tokenizer *tokenizer);
/* The id of a token by its text as in tokenizer.json ("<|endoftext|>"); -1 = there is none. */
int32_t mf_tokenizer_find(const struct mf_tokenizer *tokenizer, const char *content);
/* `text` is valid UTF-8. With `special` the texts of special tokens become these tokens; without
 * they are text like any other. Nothing is put before or after. */
enum mf_status mf_tokenizer_encode(struct mf_tokenizer *tokenizer, const char *text, size_t count,
                                   bool special, const struct mf_tokenizer_sink *sink) MF_MUST_USE;

#endif
