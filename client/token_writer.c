/* Token files, written: see token_writer.h. With an alignment a document is held in memory until
 * it ends, because its length says where it begins. */
#include "client/token_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct buffer {
    int32_t *ids;
    bool *learned;
    size_t count, room;
};

struct mf_token_writer {
    struct mf_token_writer_spec spec;
    struct mf_token_file file;
    char *path, *temporary;
    FILE *stream;
    struct buffer document; /* what waits for its end; only with an alignment */
    bool begun;
    unsigned char *mask; /* one bit a token; kept until the tokens are complete */
    size_t mask_room;
    int64_t learned;
};

static enum mf_status failed(const struct mf_token_writer *writer, const char *doing)
{
    int code = errno;
    return mf_status_set(code == EACCES || code == EROFS ? MF_STATUS_DENIED : MF_STATUS_IO,
                         "cannot %s %s: %s", doing, writer->path, strerror(code));
}

enum mf_status mf_token_writer_open(const struct mf_token_writer_spec *spec,
                                    struct mf_token_writer **out)
{
    static const unsigned char empty[MF_TOKEN_FILE_HEADER_BYTES];
    struct mf_token_writer *writer = calloc(1, sizeof(*writer));
    MF_ASSERT(writer != NULL);
    *out = NULL;
    writer->spec = *spec;
    writer->file.vocab = spec->vocab;
    writer->file.width = spec->vocab <= 65536 ? 2 : 4;
    snprintf(writer->file.tokenizer, sizeof(writer->file.tokenizer), "%s", spec->tokenizer);
    writer->path = strdup(spec->path);
    MF_ASSERT(writer->path != NULL &&
              asprintf(&writer->temporary, "%s.tmp-%ld", spec->path, (long)getpid()) > 0);
    writer->stream = fopen(writer->temporary, "wbe");
    if (writer->stream == NULL ||
        fwrite(empty, 1, sizeof(empty), writer->stream) != sizeof(empty)) {
        enum mf_status status = failed(writer, "write");
        mf_token_writer_abandon(writer);
        return status;
    }
    *out = writer;
    return MF_STATUS_OK;
}

/* Doubles an array until it has `needed` places; new ones are zero. */
static void *grow(void *array, size_t *room, size_t needed, size_t size)
{
    if (needed <= *room) {
        return array;
    }
    size_t larger = *room == 0 ? 4096 : *room;
    while (larger < needed) {
        larger *= 2;
    }
    char *memory = realloc(array, larger * size);
    MF_ASSERT(memory != NULL);
    memset(memory + *room * size, 0, (larger - *room) * size);
    *room = larger;
    return memory;
}

static enum mf_status write_token(struct mf_token_writer *writer, int32_t id, bool learned)
{
    struct mf_token_file *file = &writer->file;
    const unsigned char bytes[4] = {(unsigned char)id, (unsigned char)(id >> 8),
                                    (unsigned char)(id >> 16), (unsigned char)(id >> 24)};
    size_t place = (size_t)file->token_count / 8;
    MF_ASSERT(id >= 0 && id < file->vocab);
    if (fwrite_unlocked(bytes, 1, (size_t)file->width, writer->stream) != (size_t)file->width) {
        return failed(writer, "write");
    }
    writer->mask = grow(writer->mask, &writer->mask_room, place + 1, 1);
    writer->mask[place] |= (unsigned char)(learned << (file->token_count % 8));
    file->token_count++;
    writer->learned += learned;
    file->masked |= !learned;
    return MF_STATUS_OK;
}

enum mf_status mf_token_writer_put(struct mf_token_writer *writer, const int32_t *ids, size_t count,
                                   bool learned)
{
    struct buffer *document = &writer->document;
    writer->begun |= count > 0;
    for (size_t i = 0; i < count && writer->spec.align == 0; i++) {
        MF_TRY(write_token(writer, ids[i], learned));
    }
    if (writer->spec.align == 0 || count == 0) {
        return MF_STATUS_OK;
    }
    size_t room = document->room;
    document->ids =
        grow(document->ids, &document->room, document->count + count, sizeof(*document->ids));
    document->learned =
        grow(document->learned, &room, document->count + count, sizeof(*document->learned));
    memcpy(document->ids + document->count, ids, count * sizeof(*ids));
    memset(document->learned + document->count, learned, count);
    document->count += count;
    return MF_STATUS_OK;
}

enum mf_status mf_token_writer_end_document(struct mf_token_writer *writer)
{
    struct buffer *document = &writer->document;
    int64_t align = writer->spec.align;
    int64_t used = align > 0 ? writer->file.token_count % align : 0;
    if (used > 0 && used + (int64_t)document->count > align) {
        for (; used < align; used++) {
            MF_TRY(write_token(writer, writer->spec.padding, false));
        }
    }
    for (size_t i = 0; i < document->count; i++) {
        MF_TRY(write_token(writer, document->ids[i], document->learned[i]));
    }
    writer->file.document_count += writer->begun;
    writer->begun = false;
    document->count = 0;
    return MF_STATUS_OK;
}

const struct mf_token_file *mf_token_writer_describe(const struct mf_token_writer *writer)
{
    return &writer->file;
}

int64_t mf_token_writer_learned(const struct mf_token_writer *writer)
{
    return writer->learned;
}

static enum mf_status write_rest(struct mf_token_writer *writer)
{
    static const char zeros[8];
    unsigned char header[MF_TOKEN_FILE_HEADER_BYTES];
    const struct mf_token_file *file = &writer->file;
    FILE *stream = writer->stream;
    size_t gap = (size_t)(mf_token_file_mask_offset(file) - MF_TOKEN_FILE_HEADER_BYTES -
                          file->token_count * file->width);
    size_t mask = file->masked ? (size_t)(file->token_count + 7) / 8 : 0;
    mf_token_file_encode(file, header);
    bool whole = fwrite(zeros, 1, gap, stream) == gap &&
                 (mask == 0 || fwrite(writer->mask, 1, mask, stream) == mask) &&
                 fseeko(stream, 0, SEEK_SET) == 0 &&
                 fwrite(header, 1, sizeof(header), stream) == sizeof(header) &&
                 fflush(stream) == 0 && fsync(fileno(stream)) == 0 &&
                 rename(writer->temporary, writer->path) == 0;
    return whole ? MF_STATUS_OK : failed(writer, "write");
}

enum mf_status mf_token_writer_finish(struct mf_token_writer *writer, struct mf_token_file *file)
{
    enum mf_status status = mf_token_writer_end_document(writer);
    if (status == MF_STATUS_OK) {
        status = write_rest(writer);
    }
    *file = writer->file;
    mf_token_writer_abandon(writer);
    return status;
}

void mf_token_writer_abandon(struct mf_token_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    if (writer->stream != NULL) {
        fclose(writer->stream);
        unlink(writer->temporary); /* not there any more when it was renamed */
    }
    free(writer->document.ids);
    free(writer->document.learned);
    free(writer->mask);
    free(writer->temporary);
    free(writer->path);
    free(writer);
}
