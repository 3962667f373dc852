/*
 * The files behind the tokens: found, recognised, checked against their size.
 *
 * Who calls it: tokens.c only. Owner: names lie in the caller's arena. Thread: one. Fails: as
 * tokens.h.
 */
#ifndef MF_RUNTIME_TOKENS_FILES_H
#define MF_RUNTIME_TOKENS_FILES_H

#include "core/arena.h"
#include "runtime/tokens.h"

#define MF_TOKENS_PATH_MAX 4096

struct mf_tokens_file {
    const char *path;
    int64_t bytes;       /* size of the file at open */
    int64_t data_offset; /* where tokens begin */
    int64_t token_count;
    int64_t mask_offset;              /* one bit a token: is it learned? 0 = all are */
    int64_t first;                    /* index of its first token in the stream */
    int32_t width;                    /* bytes of a token: 1, 2 or 4 */
    char tokenizer[MF_HASH_TEXT_MAX]; /* "" = not known */
};

struct mf_tokens_files {
    enum mf_tokens_format format;
    struct mf_tokens_file *files;
    int32_t count;
    int64_t token_count;
};

enum mf_status mf_tokens_files_list(const struct mf_tokens_spec *spec, struct mf_arena *arena,
                                    struct mf_tokens_files *out) MF_MUST_USE;

#endif
