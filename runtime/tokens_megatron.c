/* The index of a Megatron data set: see tokens_megatron.h. The layout is that of Megatron-LM,
 * megatron/core/datasets/indexed_dataset.py, _IndexWriter:
 *
 *   9 bytes "MMIDIDX\0\0", u64 version 1, u8 dtype, u64 sequences, u64 document boundaries,
 *   i32 length of each sequence, i64 byte where each begins, i64 document boundaries (sequence
 *   indices from 0 to the number of sequences), and i8 modes in multimodal data. */
#include "runtime/tokens_megatron.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/files.h"

#define HEADER_BYTES 34
#define CHUNK 4096 /* sequences looked at together */
#define COUNT_MAX (1ll << 40)

/* By code; width 0 = no tokens. */
static const struct {
    const char *name;
    int32_t width;
} dtypes[] = {{"none", 0},  {"uint8", 1},   {"int8", 0},    {"int16", 0}, {"int32", 4},
              {"int64", 0}, {"float64", 0}, {"float32", 0}, {"uint16", 2}};

struct index {
    const char *path;
    int file;
    int64_t bytes;
    int64_t sequence_count, document_count;
    int32_t width;
};

bool mf_tokens_megatron_index(const char *path, char out[static MF_TOKENS_PATH_MAX])
{
    size_t length = strlen(path);
    if (length < 4 || length >= MF_TOKENS_PATH_MAX || strcmp(path + length - 4, ".bin") != 0) {
        return false;
    }
    snprintf(out, MF_TOKENS_PATH_MAX, "%.*s.idx", (int)length - 4, path);
    return true;
}

static int64_t decode(const unsigned char *bytes, int count)
{
    uint64_t value = 0;
    for (int i = 0; i < count; i++) {
        value |= (uint64_t)bytes[i] << (8 * i);
    }
    return (int64_t)value;
}

static enum mf_status read_header(struct index *index)
{
    unsigned char bytes[HEADER_BYTES] = {0};
    if (index->bytes < HEADER_BYTES) {
        return mf_status_set(MF_STATUS_CORRUPT, "%s has %lld bytes, its header alone %d",
                             index->path, (long long)index->bytes, HEADER_BYTES);
    }
    MF_TRY(mf_files_read_at(index->file, 0, bytes, sizeof(bytes), index->path));
    if (memcmp(bytes, "MMIDIDX\0\0", 9) != 0) {
        return mf_status_set(MF_STATUS_CORRUPT,
                             "%s does not begin with MMIDIDX: it is no index of Megatron's (the "
                             "older TNTIDX is not read: make it again)",
                             index->path);
    }
    int64_t version = decode(bytes + 9, 8);
    unsigned code = bytes[17];
    bool known = code > 0 && code < sizeof(dtypes) / sizeof(dtypes[0]);
    index->width = known ? dtypes[code].width : 0;
    index->sequence_count = decode(bytes + 18, 8);
    index->document_count = decode(bytes + 26, 8);
    if (version != 1 || index->width == 0) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "%s: version %lld at byte 9, dtype %u (%s) at byte 17; read are "
                             "version 1 with uint8 (1), int32 (4) or uint16 (8)",
                             index->path, (long long)version, code,
                             known ? dtypes[code].name : "unknown");
    }
    if (index->sequence_count < 0 || index->sequence_count > COUNT_MAX ||
        index->document_count < 1 || index->document_count > COUNT_MAX) {
        return mf_status_set(MF_STATUS_CORRUPT,
                             "%s: %lld sequences at byte 18 and %lld document boundaries at byte "
                             "26",
                             index->path, (long long)index->sequence_count,
                             (long long)index->document_count);
    }
    int64_t expected = HEADER_BYTES + 12 * index->sequence_count + 8 * index->document_count;
    if (index->bytes == expected + index->sequence_count && index->sequence_count > 0) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "%s has a mode for each sequence: multimodal data are not read",
                             index->path);
    }
    return index->bytes == expected
               ? MF_STATUS_OK
               : mf_status_set(MF_STATUS_CORRUPT,
                               "%s: with %lld sequences and %lld document boundaries it should "
                               "have %lld bytes; it has %lld",
                               index->path, (long long)index->sequence_count,
                               (long long)index->document_count, (long long)expected,
                               (long long)index->bytes);
}

/* Every sequence begins where the one before ended; `end` gets the bytes of all. */
static enum mf_status check_sequences(const struct index *index, int64_t *end)
{
    unsigned char lengths[4 * CHUNK];
    unsigned char places[8 * CHUNK];
    int64_t place_offset = HEADER_BYTES + 4 * index->sequence_count;
    *end = 0;
    for (int64_t first = 0; first < index->sequence_count; first += CHUNK) {
        int64_t left = index->sequence_count - first;
        size_t count = left < CHUNK ? (size_t)left : CHUNK;
        MF_TRY(mf_files_read_at(index->file, HEADER_BYTES + 4 * first, lengths, 4 * count,
                                index->path));
        MF_TRY(mf_files_read_at(index->file, place_offset + 8 * first, places, 8 * count,
                                index->path));
        for (size_t i = 0; i < count; i++) {
            int64_t length = (int32_t)decode(lengths + 4 * i, 4);
            int64_t place = decode(places + 8 * i, 8);
            if (length < 0 || place != *end) {
                return mf_status_set(
                    MF_STATUS_CORRUPT,
                    "%s: sequence %lld has %lld tokens (byte %lld) and begins at byte %lld of the "
                    ".bin (byte %lld), the one before ends at %lld: only data sets whose "
                    "sequences follow each other are read",
                    index->path, (long long)first + (long long)i, (long long)length,
                    (long long)(HEADER_BYTES + 4 * (first + (int64_t)i)), (long long)place,
                    (long long)(place_offset + 8 * (first + (int64_t)i)), (long long)*end);
            }
            *end += length * index->width;
        }
    }
    return MF_STATUS_OK;
}

/* Boundaries rise from 0 to the number of sequences. */
static enum mf_status check_documents(const struct index *index)
{
    unsigned char bytes[8 * CHUNK];
    int64_t offset = HEADER_BYTES + 12 * index->sequence_count;
    int64_t before = 0;
    for (int64_t first = 0; first < index->document_count; first += CHUNK) {
        int64_t left = index->document_count - first;
        size_t count = left < CHUNK ? (size_t)left : CHUNK;
        MF_TRY(mf_files_read_at(index->file, offset + 8 * first, bytes, 8 * count, index->path));
        for (size_t i = 0; i < count; i++) {
            int64_t at = first + (int64_t)i;
            int64_t boundary = decode(bytes + 8 * i, 8);
            bool last = at == index->document_count - 1;
            if (boundary < before || boundary > index->sequence_count ||
                (at == 0 && boundary != 0) || (last && boundary != index->sequence_count)) {
                return mf_status_set(MF_STATUS_CORRUPT,
                                     "%s: document boundary %lld (byte %lld) is sequence %lld, "
                                     "after %lld, of %lld",
                                     index->path, (long long)at, (long long)(offset + 8 * at),
                                     (long long)boundary, (long long)before,
                                     (long long)index->sequence_count);
            }
            before = boundary;
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status measure(struct index *index, struct mf_tokens_file *file)
{
    struct stat info;
    int64_t end = 0;
    if (fstat(index->file, &info) != 0) {
        return mf_files_failed(errno, "look at", index->path);
    }
    index->bytes = info.st_size;
    MF_TRY(read_header(index));
    MF_TRY(check_sequences(index, &end));
    MF_TRY(check_documents(index));
    if (end != file->bytes) {
        return mf_status_set(MF_STATUS_CORRUPT,
                             "%s: its sequences have %lld bytes together, %s has %lld", index->path,
                             (long long)end, file->path, (long long)file->bytes);
    }
    file->width = index->width;
    file->data_offset = 0;
    file->token_count = end / index->width;
    return MF_STATUS_OK;
}

enum mf_status mf_tokens_megatron_measure(struct mf_tokens_file *file)
{
    char path[MF_TOKENS_PATH_MAX];
    if (!mf_tokens_megatron_index(file->path, path)) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s: a Megatron data set is NAME.bin with NAME.idx beside it",
                             file->path);
    }
    struct index index = {.path = path, .file = open(path, O_RDONLY | O_CLOEXEC)};
    if (index.file < 0) {
        return mf_files_failed(errno, "open", path);
    }
    enum mf_status status = measure(&index, file);
    close(index.file);
    return status;
}
