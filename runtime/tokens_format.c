/* Recognising and measuring token files: see tokens_format.h. */
#include "runtime/tokens_format.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "core/token_file.h"
#include "runtime/files.h"
#include "runtime/tokens_megatron.h"

#define LLMC_HEADER_BYTES 1024
#define LLMC_HEADER_WORDS 3

/* llm.c's two kinds of file; from its dev/data/data_common.py. */
static const struct {
    int32_t magic;
    int32_t version;
    int32_t width;
} llmc_kinds[] = {{20240520, 1, 2}, {20240801, 7, 4}};

/* The first bytes of a file, zeros after its end. */
static enum mf_status read_head(const struct mf_tokens_file *file, void *out, size_t wanted)
{
    memset(out, 0, wanted);
    int descriptor = open(file->path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return mf_files_failed(errno, "open", file->path);
    }
    size_t count = file->bytes < (int64_t)wanted ? (size_t)file->bytes : wanted;
    enum mf_status status = mf_files_read_at(descriptor, 0, out, count, file->path);
    close(descriptor);
    return status;
}

static bool ends_with(const char *text, const char *tail)
{
    size_t length = strlen(text);
    size_t tail_length = strlen(tail);
    return length >= tail_length && strcmp(text + length - tail_length, tail) == 0;
}

static int llmc_kind(int32_t magic)
{
    for (size_t i = 0; i < sizeof(llmc_kinds) / sizeof(llmc_kinds[0]); i++) {
        if (llmc_kinds[i].magic == magic) {
            return (int)i;
        }
    }
    return -1;
}

enum mf_status mf_tokens_format_recognise(const struct mf_tokens_file *file,
                                          enum mf_tokens_format *out)
{
    int32_t words[LLMC_HEADER_WORDS];
    MF_TRY(read_head(file, words, sizeof(words)));
    char index[MF_TOKENS_PATH_MAX];
    if (memcmp(words, MF_TOKEN_FILE_MAGIC, 8) == 0) {
        *out = MF_TOKENS_FORMAT_MEMFERRY;
    } else if (mf_tokens_megatron_index(file->path, index) && access(index, F_OK) == 0) {
        *out = MF_TOKENS_FORMAT_MEGATRON;
    } else if (llmc_kind(words[0]) >= 0) {
        *out = MF_TOKENS_FORMAT_LLMC;
    } else if (ends_with(file->path, ".bin")) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s has no header and no .idx beside it: say whether its format is "
                             "raw_u16, raw_u32 or bytes",
                             file->path);
    } else {
        *out = MF_TOKENS_FORMAT_BYTES;
    }
    return MF_STATUS_OK;
}

static enum mf_status measure_llmc(struct mf_tokens_file *file)
{
    int32_t words[LLMC_HEADER_WORDS];
    MF_TRY(read_head(file, words, sizeof(words)));
    int kind = llmc_kind(words[0]);
    if (kind < 0 || words[1] != llmc_kinds[kind].version) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s is no llm.c token file: magic %d, version %d; known are 20240520 "
                             "version 1 and 20240801 version 7",
                             file->path, (int)words[0], (int)words[1]);
    }
    file->width = llmc_kinds[kind].width;
    file->data_offset = LLMC_HEADER_BYTES;
    file->token_count = words[2];
    int64_t expected = LLMC_HEADER_BYTES + file->token_count * file->width;
    if (file->token_count < 0 || file->bytes != expected) {
        return mf_status_set(MF_STATUS_CORRUPT,
                             "%s: its header counts %lld tokens, so it should have %lld bytes; it "
                             "has %lld",
                             file->path, (long long)file->token_count, (long long)expected,
                             (long long)file->bytes);
    }
    return MF_STATUS_OK;
}

static enum mf_status measure_memferry(struct mf_tokens_file *file)
{
    unsigned char bytes[MF_TOKEN_FILE_HEADER_BYTES] = {0};
    struct mf_token_file header;
    size_t count = file->bytes < (int64_t)sizeof(bytes) ? (size_t)file->bytes : sizeof(bytes);
    MF_TRY(read_head(file, bytes, count));
    MF_TRY(mf_token_file_decode(bytes, file->bytes, file->path, &header));
    file->width = header.width;
    file->data_offset = MF_TOKEN_FILE_HEADER_BYTES;
    file->token_count = header.token_count;
    file->mask_offset = header.masked ? mf_token_file_mask_offset(&header) : 0;
    memcpy(file->tokenizer, header.tokenizer, sizeof(file->tokenizer));
    return MF_STATUS_OK;
}

/* Nothing but tokens of `width` bytes. */
static enum mf_status measure_plain(struct mf_tokens_file *file, int32_t width)
{
    file->width = width;
    file->token_count = file->bytes / file->width;
    if (file->bytes % file->width != 0) {
        return mf_status_set(MF_STATUS_CORRUPT, "%s has %lld bytes, not a multiple of %d: %s",
                             file->path, (long long)file->bytes, (int)file->width,
                             "it is cut short or of another format");
    }
    return MF_STATUS_OK;
}

enum mf_status mf_tokens_format_measure(struct mf_tokens_file *file, enum mf_tokens_format format)
{
    switch (format) {
    case MF_TOKENS_FORMAT_MEMFERRY:
        return measure_memferry(file);
    case MF_TOKENS_FORMAT_MEGATRON:
        return mf_tokens_megatron_measure(file);
    case MF_TOKENS_FORMAT_LLMC:
        return measure_llmc(file);
    case MF_TOKENS_FORMAT_RAW_U16:
        return measure_plain(file, 2);
    case MF_TOKENS_FORMAT_RAW_U32:
        return measure_plain(file, 4);
    default:
        return measure_plain(file, 1);
    }
}

bool mf_tokens_format_is_index(const char *path)
{
    return ends_with(path, ".idx");
}
