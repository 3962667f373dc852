/*
 * Cutting text into the pieces that byte-level BPE never merges across: the patterns of GPT-2,
 * Llama 3 and Qwen, matched by hand as a regular expression engine would.
 *
 * Who calls it: tokenizer*.c. Owner: nothing is kept. Thread: any. Fails: never.
 */
#ifndef MF_CLIENT_TOKENIZER_SPLIT_H
#define MF_CLIENT_TOKENIZER_SPLIT_H

#include <stddef.h>
#include <stdint.h>

/* `letters` are the class bits of a word (tokenizer_unicode.h), `digits` how many numbers one
 * piece has at most; 0 means GPT-2's pattern, whose pieces of numbers have no end. */
#define MF_TOKENIZER_SPLIT_MAP(X)                                                                  \
    X(GPT2, "gpt2", 1, 0,                                                                          \
      "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+")        \
    X(LLAMA3, "llama3", 1, 3,                                                                      \
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"                     \
      "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")                            \
    X(QWEN2, "qwen2", 1, 1,                                                                        \
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"                          \
      "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")                            \
    X(QWEN35, "qwen3.5", 5, 1,                                                                     \
      "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"                  \
      "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+")

enum mf_tokenizer_split {
#define X(name, text, letters, digits, pattern) MF_TOKENIZER_SPLIT_##name,
    MF_TOKENIZER_SPLIT_MAP(X)
#undef X
        MF_TOKENIZER_SPLIT_COUNT
};

const char *mf_tokenizer_split_name(enum mf_tokenizer_split style);
/* -1 when it is none of ours. */
int mf_tokenizer_split_parse(const char *pattern);

/* Bytes of the first piece of `text`: valid UTF-8 of `count` > 0 bytes. */
size_t mf_tokenizer_split_next(enum mf_tokenizer_split style, const uint8_t *classes,
                               const char *text, size_t count);

#endif
