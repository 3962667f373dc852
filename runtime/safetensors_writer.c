/* Streaming writer: see safetensors_writer.h. */
#include "runtime/safetensors_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/limits.h"
#include "runtime/files.h"

#define LENGTH_BYTES 8
/* Data begins at a multiple of this, as other writers of the format do it. */
#define ALIGNMENT 8

struct mf_safetensors_writer {
    char *path;
    int file;
    int64_t expected_bytes; /* of data */
    int64_t written_bytes;
    bool finished;
};

enum mf_status mf_safetensors_writer_measure(struct mf_safetensors_tensor *tensors, int32_t count,
                                             int64_t *out)
{
    int64_t total = 0;
    for (int32_t i = 0; i < count; i++) {
        int64_t bytes = mf_safetensors_type_bytes(tensors[i].type);
        bool overflow = tensors[i].dimension_count > MF_SAFETENSORS_DIMENSIONS_MAX;
        for (int32_t d = 0; !overflow && d < tensors[i].dimension_count; d++) {
            overflow = tensors[i].shape[d] < 0 ||
                       __builtin_mul_overflow(bytes, tensors[i].shape[d], &bytes);
        }
        tensors[i].bytes = bytes;
        if (overflow || __builtin_add_overflow(total, bytes, &total)) {
            return mf_status_set(MF_STATUS_INVALID, "tensor \"%.120s\" has an impossible shape",
                                 tensors[i].name);
        }
    }
    *out = total;
    return MF_STATUS_OK;
}

static json_t *encode_tensor(const struct mf_safetensors_tensor *tensor, int64_t begin)
{
    json_t *shape = json_array();
    for (int32_t d = 0; d < tensor->dimension_count; d++) {
        json_array_append_new(shape, json_integer(tensor->shape[d]));
    }
    json_t *entry = json_pack(
        "{s:s, s:o, s:[I, I]}", "dtype", mf_safetensors_type_name(tensor->type), "shape", shape,
        "data_offsets", (json_int_t)begin, (json_int_t)begin + (json_int_t)tensor->bytes);
    MF_ASSERT(entry != NULL);
    return entry;
}

/* The header's text, padded with spaces; jansson keeps the order of insertion. */
static enum mf_status encode_header(const struct mf_safetensors_tensor *tensors, int32_t count,
                                    const char *const *metadata, char **out, size_t *out_count)
{
    json_t *json = json_object();
    if (metadata != NULL) {
        json_t *pairs = json_object();
        for (; metadata[0] != NULL; metadata += 2) {
            json_object_set_new(pairs, metadata[0], json_string(metadata[1]));
        }
        json_object_set_new(json, "__metadata__", pairs);
    }
    int64_t begin = 0;
    enum mf_status status = MF_STATUS_OK;
    for (int32_t i = 0; i < count && status == MF_STATUS_OK; i++) {
        if (json_object_get(json, tensors[i].name) != NULL ||
            json_object_set_new(json, tensors[i].name, encode_tensor(&tensors[i], begin)) != 0) {
            status = mf_status_set(MF_STATUS_INVALID,
                                   "tensor name \"%.120s\" occurs twice or is not UTF-8",
                                   tensors[i].name);
        }
        begin += tensors[i].bytes;
    }
    char *text = status == MF_STATUS_OK ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    MF_TRY(status);
    MF_ASSERT(text != NULL);
    size_t length = strlen(text);
    size_t padded = (length + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *out = malloc(LENGTH_BYTES + padded);
    MF_ASSERT(*out != NULL);
    for (size_t i = 0; i < LENGTH_BYTES; i++) {
        (*out)[i] = (char)(padded >> (8 * i) & 0xff);
    }
    memset(*out + LENGTH_BYTES, ' ', padded);
    memcpy(*out + LENGTH_BYTES, text, length);
    free(text);
    *out_count = LENGTH_BYTES + padded;
    if (padded > (size_t)MF_SAFETENSORS_HEADER_MAX) {
        free(*out);
        *out = NULL;
        return mf_status_set(MF_STATUS_INVALID, "a header of %zu bytes, at most %lld", padded,
                             MF_SAFETENSORS_HEADER_MAX);
    }
    return MF_STATUS_OK;
}

enum mf_status mf_safetensors_writer_open(const char *path,
                                          const struct mf_safetensors_tensor *tensors,
                                          int32_t count, const char *const *metadata,
                                          struct mf_safetensors_writer **out)
{
    char *header = NULL;
    size_t header_bytes = 0;
    struct mf_safetensors_writer *writer = calloc(1, sizeof(*writer));
    struct mf_safetensors_tensor *measured = calloc((size_t)count + 1, sizeof(*measured));
    MF_ASSERT(writer != NULL && measured != NULL);
    *out = NULL;
    writer->path = strdup(path);
    MF_ASSERT(writer->path != NULL);
    writer->file = -1;
    if (count > 0) {
        memcpy(measured, tensors, (size_t)count * sizeof(*measured));
    }
    enum mf_status status = mf_safetensors_writer_measure(measured, count, &writer->expected_bytes);
    if (status == MF_STATUS_OK) {
        status = encode_header(measured, count, metadata, &header, &header_bytes);
    }
    free(measured);
    if (status == MF_STATUS_OK) {
        writer->file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        status = writer->file < 0 ? mf_files_failed(errno, "make", path)
                                  : mf_files_write_all(writer->file, header, header_bytes, path);
    }
    free(header);
    if (status != MF_STATUS_OK) {
        mf_safetensors_writer_close(writer);
        return status;
    }
    *out = writer;
    return MF_STATUS_OK;
}

enum mf_status mf_safetensors_writer_append(struct mf_safetensors_writer *writer, const void *bytes,
                                            size_t count)
{
    MF_ASSERT((int64_t)count <= writer->expected_bytes - writer->written_bytes);
    MF_TRY(mf_files_write_all(writer->file, bytes, count, writer->path));
    writer->written_bytes += (int64_t)count;
    return MF_STATUS_OK;
}

enum mf_status mf_safetensors_writer_finish(struct mf_safetensors_writer *writer)
{
    MF_ASSERT(writer->written_bytes == writer->expected_bytes);
    if (fsync(writer->file) != 0) {
        return mf_files_failed(errno, "sync", writer->path);
    }
    int code = close(writer->file) == 0 ? 0 : errno;
    writer->file = -1;
    if (code != 0) {
        return mf_files_failed(code, "close", writer->path);
    }
    writer->finished = true;
    return MF_STATUS_OK;
}

void mf_safetensors_writer_close(struct mf_safetensors_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    if (writer->file >= 0) {
        close(writer->file);
        if (!writer->finished) {
            unlink(writer->path);
        }
    }
    free(writer->path);
    free(writer);
}
