/*
 * Byte-level BPE: the bytes of one piece of text, merged by rank, lowest rank and leftmost first.
 *
 * Who calls it: tokenizer*.c. Owner: init gives what reset frees; ids are the caller's copy.
 * Thread: one at a time. Fails: never; tables are checked by tokenizer_read.c.
 */
#ifndef MF_CLIENT_TOKENIZER_BPE_H
#define MF_CLIENT_TOKENIZER_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct mf_tokenizer_bpe_rule;
struct mf_tokenizer_bpe_word;
struct mf_tokenizer_bpe_symbol;
struct mf_tokenizer_bpe_entry;

struct mf_tokenizer_bpe_text {
    const char *bytes;
    uint32_t count;
    int32_t id;
};

struct mf_tokenizer_bpe {
    int32_t byte_ids[256];
    struct mf_tokenizer_bpe_rule *rules; /* hash table of pairs, a power of two */
    size_t rule_mask;
    const struct mf_tokenizer_bpe_text **whole; /* the same of tokens by text; NULL = not used */
    size_t whole_mask;
    struct mf_tokenizer_bpe_word *cache;
    /* Of the piece at hand; they grow. */
    struct mf_tokenizer_bpe_symbol *symbols;
    struct mf_tokenizer_bpe_entry *heap;
    size_t heap_count;
    int32_t *ids;
    size_t room;
};

void mf_tokenizer_bpe_init(struct mf_tokenizer_bpe *bpe, size_t rule_count);
void mf_tokenizer_bpe_reset(struct mf_tokenizer_bpe *bpe);
/* A pair that is there already gets the new rank and token. At most `rule_count` pairs. */
void mf_tokenizer_bpe_add(struct mf_tokenizer_bpe *bpe, int32_t left, int32_t right, int32_t merged,
                          uint32_t rank);
/* A piece that is one of these texts becomes its token without merging ("ignore_merges").
 * `texts` must outlive the tables. */
void mf_tokenizer_bpe_prefer(struct mf_tokenizer_bpe *bpe,
                             const struct mf_tokenizer_bpe_text *texts, size_t count);
/* Tokens of one piece of 1 to INT32_MAX / 4 bytes; good until the next call. */
const int32_t *mf_tokenizer_bpe_encode(struct mf_tokenizer_bpe *bpe, const char *text, size_t count,
                                       size_t *out_count);

#endif
