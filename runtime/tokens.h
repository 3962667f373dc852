/*
 * Training data: files of tokens, or of text whose bytes are the tokens, as sequences in a
 * shuffled order that can be entered anywhere.
 *
 * What: all files, in order, form one stream; sequence i is the seq_len + 1 tokens from token
 *   i * seq_len on: inputs are the first seq_len of them, labels the last. The order of an epoch is
 * a permutation computed from seed and epoch, so a resumed run finds its place at once. Who calls
 * it: training sessions. Owner: open gives what close frees; batches go to the caller's arrays.
 * Thread: after open any number of readers. Fails: MF_STATUS_INVALID naming file, position and
 * numbers (a token not below the vocabulary, too few tokens); _CORRUPT for a file whose size
 *   contradicts its header or that changed since open; _NOT_FOUND, _IO.
 */
#ifndef MF_RUNTIME_TOKENS_H
#define MF_RUNTIME_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/hash.h"
#include "core/status.h"

#define MF_TOKENS_FILES_MAX 65536

#define MF_TOKENS_FORMAT_MAP(X)                                                                    \
    X(AUTO, "auto", "by first bytes, an .idx beside it, else bytes; a bare .bin must be named")    \
    X(BYTES, "bytes", "every byte of the file is a token")                                         \
    X(LLMC, "llmc", "llm.c: header of 256 int32, then uint16 or uint32 tokens")                    \
    X(RAW_U16, "raw_u16", "nothing but uint16 tokens (nanoGPT)")                                   \
    X(RAW_U32, "raw_u32", "nothing but uint32 tokens")                                             \
    X(MEMFERRY, "memferry", "made by memferry tokenize: tokens, and which are learned")            \
    X(MEGATRON, "megatron", "Megatron's NAME.bin with NAME.idx beside it")

enum mf_tokens_format {
#define X(name, text, sentence) MF_TOKENS_FORMAT_##name,
    MF_TOKENS_FORMAT_MAP(X)
#undef X
        MF_TOKENS_FORMAT_COUNT
};

struct mf_tokens_spec {
    const char *const *paths; /* files, or folders: all regular files below, by name */
    int32_t path_count;
    enum mf_tokens_format format;
    int32_t seq_len; /* 1..MF_SEQ_LEN_MAX */
    bool shuffle;
    uint64_t seed;
    double held_out;    /* share of the sequences, at the stream's end, kept apart; 0 = none, < 1 */
    bool take_held_out; /* those instead of the others */
};

struct mf_tokens_info {
    enum mf_tokens_format format; /* never AUTO */
    int32_t file_count;
    int64_t token_count;
    int64_t sequence_count;             /* in one epoch, at least 1; without those kept apart */
    char fingerprint[MF_HASH_TEXT_MAX]; /* of format, sizes, beginnings and ends: has it changed? */
};

struct mf_tokens;

const char *mf_tokens_format_name(enum mf_tokens_format format);
/* -1 when the text names none. */
int mf_tokens_parse_format(const char *text);

/* Looks at every token once: an id that is not below `vocab` is found here, not while training. */
enum mf_status mf_tokens_open(const struct mf_tokens_spec *spec, int64_t vocab,
                              struct mf_tokens **out) MF_MUST_USE;
void mf_tokens_close(struct mf_tokens *tokens); /* NULL is fine */
/* Borrowed until close. */
const struct mf_tokens_info *mf_tokens_describe(const struct mf_tokens *tokens);

/* Which of its sequences (of the stream when none are kept apart) comes at place `index` >= 0 of
 * the training order (all epochs). */
int64_t mf_tokens_sequence_at(const struct mf_tokens *tokens, int64_t index);
/* `count` sequences from place `index` of the training order: [count, seq_len] each. The label of
 * a token that is not learned is -100. */
enum mf_status mf_tokens_batch(const struct mf_tokens *tokens, int64_t index, int32_t count,
                               int32_t *inputs, int32_t *labels) MF_MUST_USE;

#endif
