/* Files and shards as one set of tensors: see safetensors.h. */
#include "runtime/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/json.h"
#include "core/limits.h"
#include "runtime/files.h"
#include "runtime/safetensors_header.h"

/* An index lists what the headers list, so it is no larger than a header may be. */
#define INDEX_FILE_MAX MF_SAFETENSORS_HEADER_MAX
#define MISSING_LISTED_MAX 8

struct file {
    const char *path;
    const char *name; /* as the index has it */
    int descriptor;
    struct mf_safetensors_header header;
};

struct mf_safetensors {
    struct mf_arena arena;
    const char *path;
    struct file *files;
    int32_t file_count;
    struct mf_safetensors_tensor *tensors; /* sorted by name */
    int32_t count;
};

static const struct {
    const char *name;
    int64_t bytes;
} types[] = {
#define X(name, text, bytes) {text, bytes},
    MF_SAFETENSORS_TYPE_MAP(X)
#undef X
};

const char *mf_safetensors_type_name(enum mf_safetensors_type type)
{
    MF_ASSERT(type < MF_SAFETENSORS_TYPE_COUNT);
    return types[type].name;
}

int64_t mf_safetensors_type_bytes(enum mf_safetensors_type type)
{
    MF_ASSERT(type < MF_SAFETENSORS_TYPE_COUNT);
    return types[type].bytes;
}

const char *mf_safetensors_shape_text(const struct mf_safetensors_tensor *tensor, char *out,
                                      size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int32_t i = 0; i < tensor->dimension_count && used < size; i++) {
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i > 0 ? ", " : "",
                                 (long long)tensor->shape[i]);
    }
    if (used < size) {
        snprintf(out + used, size - used, "]");
    }
    return out;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const struct mf_safetensors_tensor *)left)->name,
                  ((const struct mf_safetensors_tensor *)right)->name);
}

static struct mf_safetensors_tensor *find_sorted(struct mf_safetensors_tensor *tensors,
                                                 int32_t count, const char *name)
{
    struct mf_safetensors_tensor wanted = {.name = name};
    return count == 0 ? NULL
                      : bsearch(&wanted, tensors, (size_t)count, sizeof(wanted), compare_names);
}

static enum mf_status open_file(struct mf_safetensors *set, struct file *file)
{
    file->descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->descriptor < 0) {
        return mf_files_failed(errno, "open", file->path);
    }
    MF_TRY(mf_safetensors_header_read(file->descriptor, file->path, &set->arena, &file->header));
    for (int32_t i = 0; i < file->header.count; i++) {
        file->header.tensors[i].file = (int32_t)(file - set->files);
    }
    if (file->header.count > 0) {
        qsort(file->header.tensors, (size_t)file->header.count, sizeof(*file->header.tensors),
              compare_names);
    }
    return MF_STATUS_OK;
}

static struct file *add_file(struct mf_safetensors *set, const char *path, const char *name)
{
    struct file *file = &set->files[set->file_count++];
    file->path = mf_arena_string(&set->arena, path);
    file->name = mf_arena_string(&set->arena, name);
    file->descriptor = -1;
    return file;
}

static enum mf_status open_single(struct mf_safetensors *set, const char *path)
{
    set->path = mf_arena_string(&set->arena, path);
    set->files = mf_arena_alloc(&set->arena, 1, sizeof(*set->files));
    struct file *file = add_file(set, path, path);
    MF_TRY(open_file(set, file));
    set->tensors = file->header.tensors;
    set->count = file->header.count;
    return MF_STATUS_OK;
}

static struct file *find_file(struct mf_safetensors *set, const char *name)
{
    for (int32_t i = 0; i < set->file_count; i++) {
        if (strcmp(set->files[i].name, name) == 0) {
            return &set->files[i];
        }
    }
    return NULL;
}

/* The distinct files that the weight map names, with paths next to the index. */
static enum mf_status list_shards(struct mf_safetensors *set, const json_t *map)
{
    const char *tensor = NULL;
    json_t *value = NULL;
    const char *slash = strrchr(set->path, '/');
    int folder_length = slash != NULL ? (int)(slash - set->path) + 1 : 0;
    set->files = mf_arena_alloc(&set->arena, MF_SAFETENSORS_SHARDS_MAX, sizeof(*set->files));
    json_object_foreach((json_t *)map, tensor, value)
    {
        const char *name = json_string_value(value);
        if (name == NULL || name[0] == '\0' || strchr(name, '/') != NULL || name[0] == '.') {
            return mf_status_set(MF_STATUS_CORRUPT,
                                 "%s: weight_map of \"%.120s\" must be a file name in this folder",
                                 set->path, tensor);
        }
        if (find_file(set, name) != NULL) {
            continue;
        }
        if (set->file_count == MF_SAFETENSORS_SHARDS_MAX) {
            return mf_status_set(MF_STATUS_INVALID, "%s names more than %d files", set->path,
                                 MF_SAFETENSORS_SHARDS_MAX);
        }
        const char *path = mf_arena_format(&set->arena, "%.*s%s", folder_length, set->path, name);
        add_file(set, path, name);
    }
    return MF_STATUS_OK;
}

/* All missing shards in one message, before any is read. */
static enum mf_status check_present(const struct mf_safetensors *set)
{
    char list[MF_ERROR_TEXT_MAX] = "";
    size_t used = 0;
    int32_t missing = 0;
    for (int32_t i = 0; i < set->file_count; i++) {
        if (access(set->files[i].path, F_OK) == 0) {
            continue;
        }
        missing++;
        if (missing <= MISSING_LISTED_MAX && used < sizeof(list)) {
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%.80s",
                                     missing > 1 ? ", " : "", set->files[i].name);
        }
    }
    if (missing == 0) {
        return MF_STATUS_OK;
    }
    return mf_status_set(MF_STATUS_NOT_FOUND, "%s: %d of %d shard files are absent: %s%s",
                         set->path, (int)missing, (int)set->file_count, list,
                         missing > MISSING_LISTED_MAX ? " and more" : "");
}

/* Who has a tensor that its shard lacks; NULL when nobody has. */
static const char *find_elsewhere(struct mf_safetensors *set, const char *tensor)
{
    for (int32_t i = 0; i < set->file_count; i++) {
        struct mf_safetensors_header *header = &set->files[i].header;
        if (find_sorted(header->tensors, header->count, tensor) != NULL) {
            return set->files[i].name;
        }
    }
    return NULL;
}

static enum mf_status collect_mapped(struct mf_safetensors *set, const json_t *map)
{
    const char *tensor = NULL;
    json_t *value = NULL;
    set->tensors = mf_arena_alloc(&set->arena, json_object_size(map) + 1, sizeof(*set->tensors));
    json_object_foreach((json_t *)map, tensor, value)
    {
        const struct file *file = find_file(set, json_string_value(value));
        const struct mf_safetensors_tensor *found =
            find_sorted(file->header.tensors, file->header.count, tensor);
        if (found == NULL) {
            const char *other = find_elsewhere(set, tensor);
            return mf_status_set(MF_STATUS_CORRUPT,
                                 "%s: tensor \"%.120s\" should be in shard %.80s, which does not "
                                 "hold it%s%.80s",
                                 set->path, tensor, file->name,
                                 other != NULL ? "; it is in " : ", nor does any other",
                                 other != NULL ? other : "");
        }
        set->tensors[set->count++] = *found;
    }
    if (set->count > 0) {
        qsort(set->tensors, (size_t)set->count, sizeof(*set->tensors), compare_names);
    }
    return MF_STATUS_OK;
}

static enum mf_status open_index(struct mf_safetensors *set, const char *path)
{
    json_t *json = NULL;
    set->path = mf_arena_string(&set->arena, path);
    MF_TRY(mf_json_load(path, INDEX_FILE_MAX, &json));
    enum mf_status status = MF_STATUS_OK;
    const json_t *map = json_object_get(json, "weight_map");
    if (!json_is_object(map)) {
        status = mf_status_set(MF_STATUS_CORRUPT, "%s has no \"weight_map\" object", path);
        goto end;
    }
    MF_TRY_GOTO(list_shards(set, map), end);
    MF_TRY_GOTO(check_present(set), end);
    for (int32_t i = 0; i < set->file_count; i++) {
        MF_TRY_GOTO(open_file(set, &set->files[i]), end);
    }
    status = collect_mapped(set, map);
end:
    json_decref(json);
    return status;
}

static enum mf_status open_folder(struct mf_safetensors *set, const char *folder)
{
    const char *single = mf_arena_format(&set->arena, "%s/model.safetensors", folder);
    const char *index = mf_arena_format(&set->arena, "%s/model.safetensors.index.json", folder);
    if (access(single, F_OK) == 0) {
        return open_single(set, single);
    }
    if (access(index, F_OK) == 0) {
        return open_index(set, index);
    }
    const char *pickle = mf_arena_format(&set->arena, "%s/pytorch_model.bin", folder);
    return mf_status_set(
        MF_STATUS_NOT_FOUND, "%s has neither model.safetensors nor model.safetensors.index.json%s",
        folder,
        access(pickle, F_OK) == 0 ? "; pytorch_model.bin is not read: convert it to safetensors"
                                  : "");
}

enum mf_status mf_safetensors_open(const char *path, struct mf_safetensors **out)
{
    struct stat info;
    *out = NULL;
    if (stat(path, &info) != 0) {
        return mf_files_failed(errno, "open", path);
    }
    struct mf_safetensors *set = calloc(1, sizeof(*set));
    MF_ASSERT(set != NULL);
    mf_arena_init(&set->arena);
    size_t length = strlen(path);
    enum mf_status status = MF_STATUS_OK;
    if (S_ISDIR(info.st_mode)) {
        status = open_folder(set, path);
    } else if (length > 5 && strcmp(path + length - 5, ".json") == 0) {
        status = open_index(set, path);
    } else {
        status = open_single(set, path);
    }
    if (status != MF_STATUS_OK) {
        mf_safetensors_close(set);
        return status;
    }
    *out = set;
    return MF_STATUS_OK;
}

void mf_safetensors_close(struct mf_safetensors *set)
{
    if (set == NULL) {
        return;
    }
    for (int32_t i = 0; i < set->file_count; i++) {
        if (set->files[i].descriptor >= 0) {
            close(set->files[i].descriptor);
        }
        json_decref(set->files[i].header.metadata);
    }
    mf_arena_reset(&set->arena);
    free(set);
}

int32_t mf_safetensors_count(const struct mf_safetensors *set)
{
    return set->count;
}

const struct mf_safetensors_tensor *mf_safetensors_at(const struct mf_safetensors *set,
                                                      int32_t index)
{
    MF_ASSERT(index >= 0 && index < set->count);
    return &set->tensors[index];
}

const struct mf_safetensors_tensor *mf_safetensors_find(const struct mf_safetensors *set,
                                                        const char *name)
{
    return find_sorted(set->tensors, set->count, name);
}

const char *mf_safetensors_path(const struct mf_safetensors *set)
{
    return set->path;
}

const char *mf_safetensors_metadata(const struct mf_safetensors *set, const char *key)
{
    return set->file_count == 0
               ? NULL
               : json_string_value(json_object_get(set->files[0].header.metadata, key));
}

enum mf_status mf_safetensors_read(const struct mf_safetensors *set,
                                   const struct mf_safetensors_tensor *tensor, int64_t first,
                                   int64_t count, void *out)
{
    MF_ASSERT(first >= 0 && count >= 0 && count <= tensor->bytes && first <= tensor->bytes - count);
    const struct file *file = &set->files[tensor->file];
    return mf_files_read_at(file->descriptor, tensor->offset + first, out, (size_t)count,
                            file->path);
}

enum mf_status mf_safetensors_check_header(const char *bytes, size_t count, int64_t data_bytes)
{
    struct mf_arena arena;
    struct mf_safetensors_header header;
    mf_arena_init(&arena);
    enum mf_status status = mf_safetensors_header_parse(bytes, count, (int64_t)count + 8,
                                                        data_bytes, "header", &arena, &header);
    json_decref(header.metadata);
    mf_arena_reset(&arena);
    return status;
}
