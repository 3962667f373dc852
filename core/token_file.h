/*
 * The layout of memferry's own token files (docs/DATA.md): tokens, and which of them are learned.
 *
 * What: a header of 128 bytes, all numbers little-endian; token_count tokens of `width` bytes;
 *   zeros to a multiple of 8; when masked, one bit a token, the lowest bit of a byte first: 1 = the
 *   token is learned as a label, 0 = it is only read. Who calls it: the client, which writes such
 * files, and runtime/tokens_files.c, which reads them. Owner: the caller. Thread: any. Fails:
 * MF_STATUS_CORRUPT, _UNSUPPORTED naming the file, what was found and what was expected.
 */
#ifndef MF_CORE_TOKEN_FILE_H
#define MF_CORE_TOKEN_FILE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/hash.h"
#include "core/status.h"

#define MF_TOKEN_FILE_MAGIC "MFTOKENS"
#define MF_TOKEN_FILE_VERSION 1
#define MF_TOKEN_FILE_HEADER_BYTES 128
#define MF_TOKEN_FILE_TOKENS_MAX (1ll << 48)

struct mf_token_file {
    int32_t width; /* 2 or 4 */
    bool masked;
    int64_t vocab; /* every token is below it */
    int64_t token_count;
    int64_t document_count;
    char tokenizer[MF_HASH_TEXT_MAX]; /* SHA-256 of its tokenizer.json */
};

/* Where the mask begins (or would), and the size of the whole file. */
int64_t mf_token_file_mask_offset(const struct mf_token_file *file);
int64_t mf_token_file_bytes(const struct mf_token_file *file);

void mf_token_file_encode(const struct mf_token_file *file,
                          unsigned char out[static MF_TOKEN_FILE_HEADER_BYTES]);
/* Checks the header against `file_bytes` too. `name` is for the message. */
enum mf_status mf_token_file_decode(const unsigned char bytes[static MF_TOKEN_FILE_HEADER_BYTES],
                                    int64_t file_bytes, const char *name,
                                    struct mf_token_file *out) MF_MUST_USE;

#endif
