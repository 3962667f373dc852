/* Saving a Hugging Face folder: see weights.h. */
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/arena.h"
#include "core/log.h"
#include "runtime/files.h"
#include "runtime/safetensors_writer.h"
#include "runtime/weights.h"
#include "runtime/weights_layout.h"

#define SHARD_BYTES_DEFAULT 5000000000ll
#define CHUNK_ELEMENTS ((int64_t)1 << 18)
/* Room for config, index and headers on top of the tensors. */
#define SMALL_FILES_BYTES (4ll << 20)

/* What a folder may have next to the weights that is worth keeping with them. */
static const char *const companions[] = {
    "generation_config.json", "tokenizer.json",      "tokenizer_config.json",
    "tokenizer.model",        "vocab.json",          "merges.txt",
    "added_tokens.json",      "chat_template.jinja", "special_tokens_map.json",
};

/* One tensor to write. */
struct entry {
    int32_t unit;
    enum mf_weights_part part;
    int32_t shard;
};

/* A save under way. */
struct saving {
    const struct mf_model *model;
    const char *folder;
    mf_weights_source source;
    void *context;
    struct mf_arena arena;
    struct mf_safetensors_tensor *tensors;
    struct entry *entries; /* beside tensors */
    int32_t count;
    int32_t shard_count;
    int64_t total_bytes;
    int32_t held_unit; /* whose elements `held` has; -1 = none */
    struct mf_weights_elements held;
    uint16_t *values;
};

int64_t mf_weights_save_bytes(const struct mf_model *model)
{
    return model->params * 2;
}

static void list_tensors(struct saving *saving)
{
    const struct mf_model *model = saving->model;
    size_t room = (size_t)model->unit_count * MF_WEIGHTS_PART_COUNT;
    saving->tensors = mf_arena_alloc(&saving->arena, room, sizeof(*saving->tensors));
    saving->entries = mf_arena_alloc(&saving->arena, room, sizeof(*saving->entries));
    for (int32_t i = 0; i < model->unit_count; i++) {
        const struct mf_unit *unit = &model->units[i];
        for (int part = 0; unit->owner == i && part < MF_WEIGHTS_PART_COUNT; part++) {
            const char *name = mf_weights_layout_tensor(unit, (enum mf_weights_part)part)->name;
            if (name == NULL) {
                continue;
            }
            struct mf_safetensors_tensor *tensor = &saving->tensors[saving->count];
            tensor->name = name;
            tensor->type = MF_SAFETENSORS_TYPE_BF16;
            tensor->dimension_count =
                mf_weights_layout_shape(unit, (enum mf_weights_part)part, tensor->shape);
            saving->entries[saving->count++] = (struct entry){i, (enum mf_weights_part)part, 0};
        }
    }
}

/* In order, a file is closed when the next tensor would make it too large. */
static void cut_shards(struct saving *saving, int64_t shard_bytes)
{
    int64_t filled = 0;
    saving->shard_count = 1;
    for (int32_t i = 0; i < saving->count; i++) {
        if (filled > 0 && filled + saving->tensors[i].bytes > shard_bytes) {
            saving->shard_count++;
            filled = 0;
        }
        filled += saving->tensors[i].bytes;
        saving->entries[i].shard = saving->shard_count - 1;
    }
}

static const char *shard_name(struct saving *saving, int32_t shard)
{
    return saving->shard_count == 1
               ? "model.safetensors"
               : mf_arena_format(&saving->arena, "model-%05d-of-%05d.safetensors", (int)shard + 1,
                                 (int)saving->shard_count);
}

static enum mf_status write_tensor(struct saving *saving, const struct entry *entry,
                                   struct mf_safetensors_writer *writer)
{
    const struct mf_unit *unit = &saving->model->units[entry->unit];
    struct mf_weights_piece piece = {0};
    if (saving->held_unit != entry->unit) {
        saving->held = (struct mf_weights_elements){0};
        MF_TRY(saving->source(saving->context, entry->unit, &saving->held));
        saving->held_unit = entry->unit;
    }
    while (mf_weights_layout_next(unit, entry->part, CHUNK_ELEMENTS, &piece)) {
        mf_weights_layout_gather(unit, entry->part, &piece, &saving->held, saving->values);
        size_t count = (size_t)(piece.line_count * piece.at_count);
        MF_TRY(
            mf_safetensors_writer_append(writer, saving->values, count * sizeof(*saving->values)));
    }
    return MF_STATUS_OK;
}

/* The tensors [first, end) as one file. */
static enum mf_status write_shard(struct saving *saving, int32_t first, int32_t end)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    struct mf_safetensors_writer *writer = NULL;
    const char *path = mf_arena_format(&saving->arena, "%s/%s", saving->folder,
                                       shard_name(saving, saving->entries[first].shard));
    MF_TRY(
        mf_safetensors_writer_open(path, saving->tensors + first, end - first, metadata, &writer));
    enum mf_status status = MF_STATUS_OK;
    for (int32_t i = first; i < end && status == MF_STATUS_OK; i++) {
        status = write_tensor(saving, &saving->entries[i], writer);
    }
    if (status == MF_STATUS_OK) {
        status = mf_safetensors_writer_finish(writer);
    }
    mf_safetensors_writer_close(writer);
    return status;
}

/* `json` is taken over. Keys sorted, two blanks, a newline at the end: as Transformers writes it.
 */
static enum mf_status write_json(struct saving *saving, const char *name, json_t *json)
{
    const char *path = mf_arena_format(&saving->arena, "%s/%s", saving->folder, name);
    char *text = json_dumps(json, JSON_INDENT(2) | JSON_SORT_KEYS);
    json_decref(json);
    MF_ASSERT(text != NULL);
    size_t length = strlen(text);
    text[length] = '\n'; /* in place of the NUL: written with its length */
    enum mf_status status = mf_files_write(path, text, length + 1);
    free(text);
    return status;
}

static enum mf_status write_index(struct saving *saving)
{
    json_t *map = json_object();
    for (int32_t i = 0; i < saving->count; i++) {
        json_object_set_new(map, saving->tensors[i].name,
                            json_string(shard_name(saving, saving->entries[i].shard)));
    }
    json_t *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                              (json_int_t)saving->total_bytes, "weight_map", map);
    MF_ASSERT(index != NULL);
    return write_json(saving, "model.safetensors.index.json", index);
}

/* Both spellings of the type, for Transformers 4 and 5. */
static enum mf_status write_config(struct saving *saving)
{
    json_t *config = json_deep_copy(saving->model->config);
    MF_ASSERT(config != NULL);
    json_object_set_new(config, "torch_dtype", json_string("bfloat16"));
    json_object_set_new(config, "dtype", json_string("bfloat16"));
    return write_json(saving, "config.json", config);
}

static enum mf_status copy_companions(struct saving *saving, const char *from)
{
    for (size_t i = 0; i < sizeof(companions) / sizeof(companions[0]); i++) {
        enum mf_status status =
            mf_files_copy(mf_arena_format(&saving->arena, "%s/%s", from, companions[i]),
                          mf_arena_format(&saving->arena, "%s/%s", saving->folder, companions[i]));
        if (status != MF_STATUS_OK && status != MF_STATUS_NOT_FOUND) {
            return status;
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status write_files(struct saving *saving,
                                  const struct mf_weights_save_options *options)
{
    list_tensors(saving);
    MF_TRY(mf_safetensors_writer_measure(saving->tensors, saving->count, &saving->total_bytes));
    MF_TRY(mf_files_require_space(saving->folder, saving->total_bytes + SMALL_FILES_BYTES,
                                  "saved model"));
    cut_shards(saving, options->shard_bytes > 0 ? options->shard_bytes : SHARD_BYTES_DEFAULT);
    for (int32_t first = 0; first < saving->count;) {
        int32_t end = first + 1;
        while (end < saving->count && saving->entries[end].shard == saving->entries[first].shard) {
            end++;
        }
        MF_TRY(write_shard(saving, first, end));
        first = end;
    }
    if (saving->shard_count > 1) {
        MF_TRY(write_index(saving));
    }
    MF_TRY(write_config(saving));
    if (options->companions != NULL) {
        MF_TRY(copy_companions(saving, options->companions));
    }
    return mf_files_sync_folder(saving->folder);
}

enum mf_status mf_weights_save_into(const struct mf_model *model, const char *folder,
                                    const struct mf_weights_save_options *options,
                                    mf_weights_source source, void *context)
{
    struct saving saving = {
        .model = model, .folder = folder, .source = source, .context = context, .held_unit = -1};
    if (model->config == NULL) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "%s is a list of units: it cannot be saved as a model", model->name);
    }
    mf_arena_init(&saving.arena);
    saving.values = malloc((size_t)CHUNK_ELEMENTS * sizeof(*saving.values));
    MF_ASSERT(saving.values != NULL);
    enum mf_status status = write_files(&saving, options);
    free(saving.values);
    mf_arena_reset(&saving.arena);
    return status;
}

/* An early answer, before minutes of writing; the rename at the end decides. */
static enum mf_status check_free(const char *folder)
{
    struct stat info;
    if (stat(folder, &info) != 0) {
        return errno == ENOENT ? MF_STATUS_OK : mf_files_failed(errno, "look at", folder);
    }
    DIR *stream = S_ISDIR(info.st_mode) ? opendir(folder) : NULL;
    bool empty = stream != NULL;
    for (struct dirent *entry = stream ? readdir(stream) : NULL; entry != NULL;
         entry = readdir(stream)) {
        empty = empty && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0);
    }
    if (stream != NULL) {
        closedir(stream);
    }
    return empty ? MF_STATUS_OK
                 : mf_status_set(MF_STATUS_EXISTS, "%s is there already and not empty", folder);
}

enum mf_status mf_weights_save(const struct mf_model *model, const char *folder,
                               const struct mf_weights_save_options *options,
                               mf_weights_source source, void *context)
{
    char *partial = NULL;
    MF_TRY(check_free(folder));
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') {
        length--;
    }
    MF_ASSERT(asprintf(&partial, "%.*s.partial", (int)length, folder) > 0);
    enum mf_status status = mf_files_remove_tree(partial);
    if (status == MF_STATUS_OK) {
        status = mf_files_make_folder(partial);
    }
    if (status == MF_STATUS_OK) {
        status = mf_weights_save_into(model, partial, options, source, context);
    }
    if (status == MF_STATUS_OK) {
        status = mf_files_publish(partial, folder);
    }
    if (status != MF_STATUS_OK) {
        /* What is left only takes space; its removal must not hide why the save failed. */
        struct mf_error why = *mf_status_error();
        if (mf_files_remove_tree(partial) != MF_STATUS_OK) {
            mf_log_warn("%s", mf_status_text());
        }
        status = mf_status_restore(&why);
    }
    free(partial);
    return status;
}
