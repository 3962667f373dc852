/* The header of a token file: see token_file.h. */
#include "core/token_file.h"

#include <stdio.h>
#include <string.h>

#define DIGEST_BYTES 32

/* Places of the fields; bytes from RESERVED on are zero. */
enum {
    AT_VERSION = 8,
    AT_WIDTH = 12,
    AT_FLAGS = 16,
    AT_VOCAB = 20,
    AT_TOKENS = 24,
    AT_DOCUMENTS = 32,
    AT_TOKENIZER = 40,
    AT_RESERVED = AT_TOKENIZER + DIGEST_BYTES
};
enum { FLAG_MASKED = 1 };

static void put(unsigned char *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        out[i] = (unsigned char)(value >> (8 * i));
    }
}

static uint64_t get(const unsigned char *in, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) {
        value |= (uint64_t)in[i] << (8 * i);
    }
    return value;
}

int64_t mf_token_file_mask_offset(const struct mf_token_file *file)
{
    int64_t end = MF_TOKEN_FILE_HEADER_BYTES + file->token_count * file->width;
    return (end + 7) / 8 * 8;
}

int64_t mf_token_file_bytes(const struct mf_token_file *file)
{
    return mf_token_file_mask_offset(file) + (file->masked ? (file->token_count + 7) / 8 : 0);
}

static unsigned digit(char text)
{
    return (unsigned)(text <= '9' ? text - '0' : text - 'a' + 10);
}

void mf_token_file_encode(const struct mf_token_file *file,
                          unsigned char out[static MF_TOKEN_FILE_HEADER_BYTES])
{
    memset(out, 0, MF_TOKEN_FILE_HEADER_BYTES);
    memcpy(out, MF_TOKEN_FILE_MAGIC, 8);
    put(out + AT_VERSION, MF_TOKEN_FILE_VERSION, 4);
    put(out + AT_WIDTH, (uint64_t)file->width, 4);
    put(out + AT_FLAGS, file->masked ? FLAG_MASKED : 0, 4);
    put(out + AT_VOCAB, (uint64_t)file->vocab, 4);
    put(out + AT_TOKENS, (uint64_t)file->token_count, 8);
    put(out + AT_DOCUMENTS, (uint64_t)file->document_count, 8);
    MF_ASSERT(strlen(file->tokenizer) == 2 * DIGEST_BYTES);
    for (int i = 0; i < DIGEST_BYTES; i++) {
        out[AT_TOKENIZER + i] =
            (unsigned char)(digit(file->tokenizer[2 * i]) << 4 | digit(file->tokenizer[2 * i + 1]));
    }
}

static enum mf_status check(const unsigned char *bytes, int64_t file_bytes, const char *name)
{
    if (memcmp(bytes, MF_TOKEN_FILE_MAGIC, 8) != 0) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s is no token file of memferry: it does not begin with %s", name,
                             MF_TOKEN_FILE_MAGIC);
    }
    if (file_bytes < MF_TOKEN_FILE_HEADER_BYTES) {
        return mf_status_set(MF_STATUS_CORRUPT, "%s has %lld bytes, its header alone %d", name,
                             (long long)file_bytes, MF_TOKEN_FILE_HEADER_BYTES);
    }
    uint64_t version = get(bytes + AT_VERSION, 4);
    uint64_t flags = get(bytes + AT_FLAGS, 4);
    if (version != MF_TOKEN_FILE_VERSION || flags > FLAG_MASKED) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "%s: version %llu with flags %llu at byte %d, known are version %d "
                             "with flags 0 or %d: it was made by a newer memferry",
                             name, (unsigned long long)version, (unsigned long long)flags,
                             AT_VERSION, MF_TOKEN_FILE_VERSION, FLAG_MASKED);
    }
    uint64_t width = get(bytes + AT_WIDTH, 4);
    uint64_t tokens = get(bytes + AT_TOKENS, 8);
    if ((width != 2 && width != 4) || tokens > MF_TOKEN_FILE_TOKENS_MAX) {
        return mf_status_set(MF_STATUS_CORRUPT,
                             "%s: %llu tokens of %llu bytes by its header at byte %d", name,
                             (unsigned long long)tokens, (unsigned long long)width, AT_WIDTH);
    }
    for (int i = AT_RESERVED; i < MF_TOKEN_FILE_HEADER_BYTES; i++) {
        if (bytes[i] != 0) {
            return mf_status_set(MF_STATUS_CORRUPT, "%s: byte %d of its header is %u, must be 0",
                                 name, i, (unsigned)bytes[i]);
        }
    }
    return MF_STATUS_OK;
}

enum mf_status mf_token_file_decode(const unsigned char bytes[static MF_TOKEN_FILE_HEADER_BYTES],
                                    int64_t file_bytes, const char *name, struct mf_token_file *out)
{
    MF_TRY(check(bytes, file_bytes, name));
    out->width = (int32_t)get(bytes + AT_WIDTH, 4);
    out->masked = get(bytes + AT_FLAGS, 4) == FLAG_MASKED;
    out->vocab = (int64_t)get(bytes + AT_VOCAB, 4);
    out->token_count = (int64_t)get(bytes + AT_TOKENS, 8);
    out->document_count = (int64_t)get(bytes + AT_DOCUMENTS, 8);
    for (int i = 0; i < DIGEST_BYTES; i++) {
        snprintf(out->tokenizer + 2 * i, 3, "%02x", (unsigned)bytes[AT_TOKENIZER + i]);
    }
    int64_t expected = mf_token_file_bytes(out);
    if (file_bytes != expected) {
        return mf_status_set(MF_STATUS_CORRUPT,
                             "%s: its header counts %lld tokens of %d bytes%s, so it should have "
                             "%lld bytes; it has %lld",
                             name, (long long)out->token_count, (int)out->width,
                             out->masked ? " and a mask" : "", (long long)expected,
                             (long long)file_bytes);
    }
    return MF_STATUS_OK;
}
