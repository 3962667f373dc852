/* Headers, checked to the last byte: see safetensors_header.h. */
#include "runtime/safetensors_header.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/json.h"
#include "core/limits.h"
#include "runtime/files.h"

#define LENGTH_BYTES 8

/* One file's parsing: where we are, for messages. */
struct reading {
    const char *path;
    const char *tensor;
    int64_t data_offset;
    int64_t data_bytes;
};

static enum mf_status refuse(const struct reading *reading, const char *what)
{
    return mf_status_set(MF_STATUS_CORRUPT, "%s: tensor \"%.120s\": %s", reading->path,
                         reading->tensor, what);
}

static enum mf_status parse_type(const struct reading *reading, const json_t *entry,
                                 struct mf_safetensors_tensor *out)
{
    const char *text = json_string_value(json_object_get(entry, "dtype"));
    for (int type = 0; text != NULL && type < MF_SAFETENSORS_TYPE_COUNT; type++) {
        if (strcmp(mf_safetensors_type_name((enum mf_safetensors_type)type), text) == 0) {
            out->type = (enum mf_safetensors_type)type;
            return MF_STATUS_OK;
        }
    }
    char what[96];
    snprintf(what, sizeof(what), "dtype \"%.30s\" is not a known type", text ? text : "(none)");
    return refuse(reading, what);
}

static enum mf_status parse_shape(const struct reading *reading, const json_t *entry,
                                  struct mf_safetensors_tensor *out)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > MF_SAFETENSORS_DIMENSIONS_MAX) {
        return refuse(reading, "shape must be an array of at most 8 whole numbers");
    }
    out->dimension_count = (int32_t)json_array_size(shape);
    out->bytes = mf_safetensors_type_bytes(out->type);
    bool empty = false;
    bool overflow = false;
    for (int32_t i = 0; i < out->dimension_count; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return refuse(reading, "shape must hold whole numbers from 0 on");
        }
        out->shape[i] = json_integer_value(size);
        empty = empty || out->shape[i] == 0;
        if (out->shape[i] > 0) {
            overflow = __builtin_mul_overflow(out->bytes, out->shape[i], &out->bytes) || overflow;
        }
    }
    if (empty) {
        out->bytes = 0;
    } else if (overflow) {
        return refuse(reading, "the product of its shape does not fit into 64 bits");
    }
    return MF_STATUS_OK;
}

static enum mf_status parse_range(const struct reading *reading, const json_t *entry,
                                  struct mf_safetensors_tensor *out)
{
    char what[240];
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0);
    const json_t *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last)) {
        return refuse(reading, "data_offsets must be two whole numbers");
    }
    int64_t begin = json_integer_value(first);
    int64_t end = json_integer_value(last);
    if (begin < 0 || end < begin) {
        snprintf(what, sizeof(what), "data_offsets [%lld, %lld] are no range", (long long)begin,
                 (long long)end);
        return refuse(reading, what);
    }
    if (end > reading->data_bytes) {
        snprintf(what, sizeof(what),
                 "its data ends at %lld, the file has %lld bytes and should have at least %lld: "
                 "it is cut short",
                 (long long)end, (long long)(reading->data_offset + reading->data_bytes),
                 (long long)reading->data_offset + (long long)end);
        return refuse(reading, what);
    }
    if (end - begin != out->bytes) {
        char shape[128];
        snprintf(what, sizeof(what), "%s %s needs %lld bytes, data_offsets give %lld",
                 mf_safetensors_type_name(out->type),
                 mf_safetensors_shape_text(out, shape, sizeof(shape)), (long long)out->bytes,
                 (long long)(end - begin));
        return refuse(reading, what);
    }
    out->offset = reading->data_offset + begin;
    return MF_STATUS_OK;
}

static enum mf_status parse_tensor(const struct reading *reading, const json_t *entry,
                                   struct mf_safetensors_tensor *out)
{
    static const char *const known[] = {"dtype", "shape", "data_offsets"};
    if (!json_is_object(entry)) {
        return refuse(reading, "must be an object");
    }
    if (mf_json_only(entry, reading->tensor, known, 3) != MF_STATUS_OK) {
        return mf_status_context(MF_STATUS_CORRUPT, "%s", reading->path);
    }
    MF_TRY(parse_type(reading, entry, out));
    MF_TRY(parse_shape(reading, entry, out));
    return parse_range(reading, entry, out);
}

static enum mf_status check_metadata(const struct reading *reading, const json_t *metadata)
{
    const char *key = NULL;
    json_t *value = NULL;
    if (!json_is_object(metadata)) {
        return refuse(reading, "must be an object of strings");
    }
    json_object_foreach((json_t *)metadata, key, value)
    {
        if (!json_is_string(value)) {
            return refuse(reading, "must hold only strings");
        }
    }
    return MF_STATUS_OK;
}

struct place {
    const struct mf_safetensors_tensor *tensor;
};

/* By place; an empty tensor before one that begins where it lies. */
static int compare_places(const void *left, const void *right)
{
    const struct mf_safetensors_tensor *a = ((const struct place *)left)->tensor;
    const struct mf_safetensors_tensor *b = ((const struct place *)right)->tensor;
    if (a->offset != b->offset) {
        return a->offset < b->offset ? -1 : 1;
    }
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* The tensors must tile the data: no hole, no overlap, nothing after the last. */
static enum mf_status check_tiling(const struct reading *reading, struct mf_arena *arena,
                                   const struct mf_safetensors_header *header)
{
    struct place *order = mf_arena_alloc(arena, (size_t)header->count + 1, sizeof(*order));
    for (int32_t i = 0; i < header->count; i++) {
        order[i].tensor = &header->tensors[i];
    }
    qsort(order, (size_t)header->count, sizeof(*order), compare_places);
    int64_t end = reading->data_offset;
    for (int32_t i = 0; i < header->count; i++) {
        if (order[i].tensor->offset != end) {
            bool hole = order[i].tensor->offset > end;
            return mf_status_set(
                MF_STATUS_CORRUPT,
                "%s: tensor \"%.120s\" begins at data byte %lld, %s %lld (\"%.120s\")",
                reading->path, order[i].tensor->name,
                (long long)(order[i].tensor->offset - reading->data_offset),
                hole ? "leaving a hole after" : "inside another tensor, which ends at",
                (long long)(end - reading->data_offset),
                i > 0 ? order[i - 1].tensor->name : "the beginning");
        }
        end += order[i].tensor->bytes;
    }
    int64_t rest = reading->data_offset + reading->data_bytes - end;
    if (rest != 0) {
        return mf_status_set(
            MF_STATUS_CORRUPT,
            "%s: %lld bytes follow the last tensor: expected %lld bytes, found %lld", reading->path,
            (long long)rest, (long long)end, (long long)end + (long long)rest);
    }
    return MF_STATUS_OK;
}

static enum mf_status parse_all(struct reading *reading, const json_t *json, struct mf_arena *arena,
                                struct mf_safetensors_header *out)
{
    const char *key = NULL;
    json_t *value = NULL;
    out->tensors = mf_arena_alloc(arena, json_object_size(json) + 1, sizeof(*out->tensors));
    json_object_foreach((json_t *)json, key, value)
    {
        reading->tensor = key;
        if (strcmp(key, "__metadata__") == 0) {
            MF_TRY(check_metadata(reading, value));
            out->metadata = json_incref(value);
            continue;
        }
        struct mf_safetensors_tensor *tensor = &out->tensors[out->count];
        tensor->name = mf_arena_string(arena, key);
        MF_TRY(parse_tensor(reading, value, tensor));
        out->count++;
    }
    return check_tiling(reading, arena, out);
}

enum mf_status mf_safetensors_header_parse(const char *bytes, size_t count, int64_t data_offset,
                                           int64_t data_bytes, const char *path,
                                           struct mf_arena *arena,
                                           struct mf_safetensors_header *out)
{
    struct reading reading = {path, "", data_offset, data_bytes};
    json_t *json = NULL;
    *out = (struct mf_safetensors_header){0};
    if (count == 0 || bytes[0] != '{') {
        return mf_status_set(MF_STATUS_CORRUPT,
                             "%s: the header is no JSON object: this is no safetensors file", path);
    }
    if (mf_json_parse(bytes, count, "the header", &json) != MF_STATUS_OK) {
        return mf_status_context(MF_STATUS_CORRUPT, "%s", path);
    }
    enum mf_status status = parse_all(&reading, json, arena, out);
    json_decref(json);
    if (status != MF_STATUS_OK) {
        json_decref(out->metadata);
        *out = (struct mf_safetensors_header){0};
    }
    return status;
}

/* What people find instead of the weights they asked for. */
static enum mf_status recognise(const char head[static LENGTH_BYTES], const char *path,
                                int64_t size)
{
    if (memcmp(head, "version ", LENGTH_BYTES) == 0) {
        return mf_status_set(MF_STATUS_CORRUPT,
                             "%s (%lld bytes) looks like a Git LFS pointer, not the weights: fetch "
                             "them (git lfs pull, or download the file again)",
                             path, (long long)size);
    }
    if (memcmp(head, "PK\003\004", 4) == 0) {
        return mf_status_set(MF_STATUS_CORRUPT,
                             "%s looks like a zip or PyTorch file, not safetensors", path);
    }
    if (memcmp(head, "<!DOCTYP", LENGTH_BYTES) == 0 || memcmp(head, "<html", 5) == 0) {
        return mf_status_set(MF_STATUS_CORRUPT, "%s is a web page, not the weights", path);
    }
    return MF_STATUS_OK;
}

static enum mf_status read_length(int file, const char *path, int64_t size, int64_t *out)
{
    unsigned char head[LENGTH_BYTES];
    if (size < LENGTH_BYTES) {
        return mf_status_set(
            MF_STATUS_CORRUPT,
            "%s has %lld bytes, a safetensors file has at least 8: it is cut short", path,
            (long long)size);
    }
    MF_TRY(mf_files_read_at(file, 0, head, sizeof(head), path));
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) {
        length = length << 8 | head[i];
    }
    if (length > (uint64_t)MF_SAFETENSORS_HEADER_MAX) {
        MF_TRY(recognise((const char *)head, path, size));
        return mf_status_set(MF_STATUS_CORRUPT,
                             "%s says that its header has %llu bytes, at most %lld are allowed: it "
                             "is damaged, or no safetensors file",
                             path, (unsigned long long)length, MF_SAFETENSORS_HEADER_MAX);
    }
    if ((int64_t)length > size - LENGTH_BYTES) {
        return mf_status_set(MF_STATUS_CORRUPT,
                             "%s has %lld bytes, its header alone needs %lld: it is cut short",
                             path, (long long)size, (long long)length + LENGTH_BYTES);
    }
    *out = (int64_t)length;
    return MF_STATUS_OK;
}

enum mf_status mf_safetensors_header_read(int file, const char *path, struct mf_arena *arena,
                                          struct mf_safetensors_header *out)
{
    struct stat info;
    int64_t length = 0;
    *out = (struct mf_safetensors_header){0};
    if (fstat(file, &info) != 0) {
        return mf_files_failed(errno, "look at", path);
    }
    if (!S_ISREG(info.st_mode)) {
        return mf_status_set(MF_STATUS_INVALID, "%s is not a regular file", path);
    }
    MF_TRY(read_length(file, path, info.st_size, &length));
    char *bytes = malloc((size_t)length + 1);
    MF_ASSERT(bytes != NULL);
    enum mf_status status = mf_files_read_at(file, LENGTH_BYTES, bytes, (size_t)length, path);
    if (status == MF_STATUS_OK) {
        int64_t data_offset = LENGTH_BYTES + length;
        status = mf_safetensors_header_parse(bytes, (size_t)length, data_offset,
                                             info.st_size - data_offset, path, arena, out);
    }
    free(bytes);
    return status;
}
