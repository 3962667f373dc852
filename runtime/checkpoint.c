/* Saving and loading checkpoints: see checkpoint.h. */
#include "runtime/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/json.h"
#include "core/limits.h"
#include "core/log.h"
#include "runtime/files.h"
#include "runtime/safetensors.h"
#include "runtime/safetensors_writer.h"
#include "runtime/weights.h"
#include "runtime/weights_layout.h"

#define KINDS 3
#define VERSION 1
static const char *const kinds[KINDS] = {"master", "exp_avg", "exp_avg_sq"};

/* Room for one unit's arrays, as large as the largest unit. */
static struct mf_checkpoint_unit new_arrays(const struct mf_model *model, bool moments)
{
    int64_t elements = 0;
    for (int32_t i = 0; i < model->unit_count; i++) {
        if (model->units[i].elements > elements) {
            elements = model->units[i].elements;
        }
    }
    struct mf_checkpoint_unit arrays = {.master = calloc((size_t)elements, sizeof(float))};
    MF_ASSERT(arrays.master != NULL);
    if (moments) {
        arrays.first = calloc((size_t)elements, sizeof(float));
        arrays.second = calloc((size_t)elements, sizeof(float));
        MF_ASSERT(arrays.first != NULL && arrays.second != NULL);
    }
    return arrays;
}

static void free_arrays(struct mf_checkpoint_unit *arrays)
{
    free(arrays->master);
    free(arrays->first);
    free(arrays->second);
}

static float *array_of(const struct mf_checkpoint_unit *arrays, int kind)
{
    float *const list[KINDS] = {arrays->master, arrays->first, arrays->second};
    return list[kind];
}

/* The stored tensors of the optimizer's file, in the order of their data. */
static int32_t list_tensors(const struct mf_model *model, struct mf_arena *arena,
                            struct mf_safetensors_tensor **out)
{
    int32_t count = 0;
    *out = mf_arena_alloc(arena, (size_t)model->unit_count * KINDS * MF_WEIGHTS_PART_COUNT,
                          sizeof(**out));
    for (int32_t i = 0; i < model->unit_count; i++) {
        const struct mf_unit *unit = &model->units[i];
        for (int kind = 0; kind < KINDS && unit->owner == i; kind++) {
            for (int part = 0; part < MF_WEIGHTS_PART_COUNT; part++) {
                const struct mf_tensor *tensor =
                    mf_weights_layout_tensor(unit, (enum mf_weights_part)part);
                if (tensor->name == NULL) {
                    continue;
                }
                bool matrix = part == MF_WEIGHTS_PART_WEIGHT && unit->columns > 1;
                (*out)[count++] = (struct mf_safetensors_tensor){
                    .name = mf_arena_format(arena, "%s.%s", kinds[kind], tensor->name),
                    .type = MF_SAFETENSORS_TYPE_F32,
                    .dimension_count = matrix ? 2 : 1,
                    .shape = {unit->rows, unit->columns},
                };
            }
        }
    }
    return count;
}

/* Row by row between panel layout and file order. */
static enum mf_status append_part(struct mf_safetensors_writer *writer, const struct mf_unit *unit,
                                  int part, const float *elements)
{
    for (int64_t row = 0; row < unit->rows; row++) {
        bool weight = part == MF_WEIGHTS_PART_WEIGHT;
        int64_t offset = weight ? mf_weights_layout_offset(unit, row, 0)
                                : mf_weights_layout_bias_offset(unit, row);
        int64_t count = weight ? unit->columns : 1;
        MF_TRY(
            mf_safetensors_writer_append(writer, elements + offset, (size_t)count * sizeof(float)));
    }
    return MF_STATUS_OK;
}

static enum mf_status append_unit(struct mf_safetensors_writer *writer, const struct mf_unit *unit,
                                  const struct mf_checkpoint_unit *arrays)
{
    for (int kind = 0; kind < KINDS; kind++) {
        for (int part = 0; part < MF_WEIGHTS_PART_COUNT; part++) {
            if (mf_weights_layout_tensor(unit, (enum mf_weights_part)part)->name != NULL) {
                MF_TRY(append_part(writer, unit, part, array_of(arrays, kind)));
            }
        }
    }
    return MF_STATUS_OK;
}

struct saving {
    const struct mf_model *model;
    mf_checkpoint_exchange read;
    void *context;
    struct mf_checkpoint_unit arrays;
};

static enum mf_status give_master(void *context, int32_t unit, struct mf_weights_elements *out)
{
    struct saving *saving = context;
    struct mf_checkpoint_unit wanted = {.master = saving->arrays.master};
    MF_TRY(saving->read(saving->context, unit, &wanted));
    *out = (struct mf_weights_elements){.master = saving->arrays.master};
    return MF_STATUS_OK;
}

static enum mf_status save_optimizer(struct saving *saving, const char *path)
{
    const struct mf_model *model = saving->model;
    struct mf_safetensors_writer *writer = NULL;
    struct mf_safetensors_tensor *tensors = NULL;
    static const char *const metadata[] = {"format", "memferry-optimizer-1", NULL};
    struct mf_arena arena;
    mf_arena_init(&arena);
    int32_t count = list_tensors(model, &arena, &tensors);
    enum mf_status status = mf_safetensors_writer_open(path, tensors, count, metadata, &writer);
    for (int32_t i = 0; i < model->unit_count && status == MF_STATUS_OK; i++) {
        if (model->units[i].owner != i) {
            continue;
        }
        status = saving->read(saving->context, i, &saving->arrays);
        if (status == MF_STATUS_OK) {
            status = append_unit(writer, &model->units[i], &saving->arrays);
        }
    }
    if (status == MF_STATUS_OK) {
        status = mf_safetensors_writer_finish(writer);
    }
    mf_safetensors_writer_close(writer);
    mf_arena_reset(&arena);
    return status;
}

static enum mf_status save_state(const json_t *state, const char *path)
{
    json_t *whole = state != NULL ? json_deep_copy(state) : json_object();
    MF_ASSERT(whole != NULL &&
              json_object_set_new(whole, "checkpoint_version", json_integer(VERSION)) == 0);
    char *text = json_dumps(whole, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    MF_ASSERT(text != NULL);
    enum mf_status status = mf_files_write(path, text, strlen(text));
    free(text);
    json_decref(whole);
    return status;
}

static enum mf_status save_files(struct saving *saving, const char *partial,
                                 const struct mf_checkpoint_options *options,
                                 struct mf_arena *arena)
{
    struct mf_weights_save_options weights = {.companions = options->companions};
    MF_TRY(mf_files_remove_tree(partial)); /* of an earlier save that was cut short */
    MF_TRY(mf_files_make_folder(partial));
    MF_TRY(mf_weights_save_into(saving->model, partial, &weights, give_master, saving));
    if (!options->weights_only) {
        MF_TRY(save_optimizer(saving, mf_arena_format(arena, "%s/optimizer.safetensors", partial)));
    }
    MF_TRY(save_state(options->state, mf_arena_format(arena, "%s/state.json", partial)));
    MF_TRY(mf_files_sync_folder(partial));
    return mf_files_write(mf_arena_format(arena, "%s/DONE", partial), "", 0);
}

int64_t mf_checkpoint_bytes(const struct mf_model *model, bool weights_only)
{
    return mf_weights_save_bytes(model) + (weights_only ? 0 : model->params * 12) + (1 << 20);
}

enum mf_status mf_checkpoint_save(const struct mf_model *model, const char *folder,
                                  const struct mf_checkpoint_options *options,
                                  mf_checkpoint_exchange read, void *context)
{
    if (access(folder, F_OK) == 0) {
        return mf_status_set(MF_STATUS_EXISTS, "%s is there already: choose another name", folder);
    }
    MF_TRY(mf_files_require_space(folder, mf_checkpoint_bytes(model, options->weights_only),
                                  "checkpoint"));
    struct saving saving = {.model = model, .read = read, .context = context};
    struct mf_arena arena;
    mf_arena_init(&arena);
    saving.arrays = new_arrays(model, !options->weights_only);
    const char *partial = mf_arena_format(&arena, "%s.partial", folder);
    enum mf_status status = save_files(&saving, partial, options, &arena);
    if (status == MF_STATUS_OK) {
        status = mf_files_publish(partial, folder);
    }
    if (status != MF_STATUS_OK) {
        struct mf_error error = *mf_status_error();
        if (mf_files_remove_tree(partial) != MF_STATUS_OK) {
            mf_log_warn("%s stays until the next save: %s", partial, mf_status_text());
        }
        status = mf_status_restore(&error);
    }
    free_arrays(&saving.arrays);
    mf_arena_reset(&arena);
    return status;
}

/* ---- loading ---- */

/* The stored tensor that is `wanted`, of just that type and shape. */
static enum mf_status find_tensor(const struct mf_safetensors *set,
                                  const struct mf_safetensors_tensor *wanted,
                                  const struct mf_safetensors_tensor **out)
{
    char found[64];
    char expected[64];
    const struct mf_safetensors_tensor *tensor = mf_safetensors_find(set, wanted->name);
    if (tensor == NULL) {
        return mf_status_set(MF_STATUS_CORRUPT, "%s: %s is missing for this model",
                             mf_safetensors_path(set), wanted->name);
    }
    if (tensor->type != wanted->type || tensor->dimension_count != wanted->dimension_count ||
        memcmp(tensor->shape, wanted->shape,
               (size_t)wanted->dimension_count * sizeof(tensor->shape[0])) != 0) {
        return mf_status_set(MF_STATUS_CORRUPT, "%s: %s is %s %s, this model needs F32 %s",
                             mf_safetensors_path(set), wanted->name,
                             mf_safetensors_type_name(tensor->type),
                             mf_safetensors_shape_text(tensor, found, sizeof(found)),
                             mf_safetensors_shape_text(wanted, expected, sizeof(expected)));
    }
    *out = tensor;
    return MF_STATUS_OK;
}

static enum mf_status read_part(const struct mf_safetensors *set,
                                const struct mf_safetensors_tensor *wanted,
                                const struct mf_unit *unit, int part, float *elements)
{
    const struct mf_safetensors_tensor *tensor = NULL;
    bool weight = part == MF_WEIGHTS_PART_WEIGHT;
    int64_t count = weight ? unit->columns : 1;
    MF_TRY(find_tensor(set, wanted, &tensor));
    for (int64_t row = 0; row < unit->rows; row++) {
        int64_t offset = weight ? mf_weights_layout_offset(unit, row, 0)
                                : mf_weights_layout_bias_offset(unit, row);
        MF_TRY(mf_safetensors_read(set, tensor, row * count * 4, count * 4, elements + offset));
    }
    return MF_STATUS_OK;
}

/* `next`: the unit's first tensor of the list, then the one after its last. */
static enum mf_status read_unit(const struct mf_safetensors *set, const struct mf_unit *unit,
                                const struct mf_safetensors_tensor **next,
                                const struct mf_checkpoint_unit *arrays)
{
    for (int kind = 0; kind < KINDS; kind++) {
        float *elements = array_of(arrays, kind);
        memset(elements, 0, (size_t)unit->elements * sizeof(float));
        for (int part = 0; part < MF_WEIGHTS_PART_COUNT; part++) {
            if (mf_weights_layout_tensor(unit, (enum mf_weights_part)part)->name != NULL) {
                MF_TRY(read_part(set, (*next)++, unit, part, elements));
            }
        }
    }
    return MF_STATUS_OK;
}

/* Every tensor is looked at before the first one is given away. */
static enum mf_status read_optimizer(const struct mf_model *model, const struct mf_safetensors *set,
                                     const struct mf_safetensors_tensor *wanted, int32_t count,
                                     mf_checkpoint_exchange write, void *context)
{
    const struct mf_safetensors_tensor *tensor = NULL;
    for (int32_t i = 0; i < count; i++) {
        MF_TRY(find_tensor(set, &wanted[i], &tensor));
    }
    struct mf_checkpoint_unit arrays = new_arrays(model, true);
    enum mf_status status = MF_STATUS_OK;
    for (int32_t i = 0; i < model->unit_count && status == MF_STATUS_OK; i++) {
        if (model->units[i].owner == i) {
            status = read_unit(set, &model->units[i], &wanted, &arrays);
            if (status == MF_STATUS_OK) {
                status = write(context, i, &arrays);
            }
        }
    }
    free_arrays(&arrays);
    return status;
}

static enum mf_status load_optimizer(const struct mf_model *model, const char *path,
                                     mf_checkpoint_exchange write, void *context)
{
    struct mf_safetensors *set = NULL;
    struct mf_safetensors_tensor *wanted = NULL;
    struct mf_arena arena;
    MF_TRY(mf_safetensors_open(path, &set));
    mf_arena_init(&arena);
    int32_t count = list_tensors(model, &arena, &wanted);
    enum mf_status status = read_optimizer(model, set, wanted, count, write, context);
    mf_arena_reset(&arena);
    mf_safetensors_close(set);
    return status;
}

enum mf_status mf_checkpoint_load_weights(const struct mf_model *model, const char *folder,
                                          mf_checkpoint_exchange write, void *context)
{
    struct mf_weights *weights = NULL;
    MF_TRY(mf_weights_open(model, folder, &weights));
    struct mf_checkpoint_unit arrays = new_arrays(model, false);
    enum mf_status status = MF_STATUS_OK;
    for (int32_t i = 0; i < model->unit_count && status == MF_STATUS_OK; i++) {
        if (model->units[i].owner == i) {
            status = mf_weights_read_unit(weights, i, arrays.master);
            if (status == MF_STATUS_OK) {
                status = write(context, i, &arrays);
            }
        }
    }
    free_arrays(&arrays);
    mf_weights_close(weights);
    return status;
}

/* state.json of a folder with DONE, which is one of ours; NULL for any other. The optimizer's state
 * is only taken from ours. */
static enum mf_status load_state(const char *folder, bool optimizer, struct mf_arena *arena,
                                 json_t **out)
{
    const char *path = mf_arena_format(arena, "%s/state.json", folder);
    int64_t version = 0;
    *out = NULL;
    if (access(mf_arena_format(arena, "%s/DONE", folder), F_OK) != 0) {
        return !optimizer ? MF_STATUS_OK
                          : mf_status_set(MF_STATUS_CORRUPT,
                                          "%s is not complete: it has no file DONE, which is "
                                          "written last",
                                          folder);
    }
    if (access(path, F_OK) != 0) {
        return mf_status_set(MF_STATUS_CORRUPT, "%s has lost its state.json", folder);
    }
    MF_TRY(mf_json_load(path, MF_CONFIG_FILE_MAX, out));
    enum mf_status status = mf_json_require(*out, path, "checkpoint_version");
    if (status == MF_STATUS_OK) {
        status = mf_json_int(*out, path, "checkpoint_version", 1, VERSION, &version);
    }
    if (status != MF_STATUS_OK) {
        json_decref(*out);
        *out = NULL;
    }
    return status;
}

enum mf_status mf_checkpoint_load(const struct mf_model *model, const char *folder,
                                  mf_checkpoint_exchange write, void *context, bool *optimizer,
                                  json_t **state)
{
    struct mf_arena arena;
    json_t *loaded = NULL;
    mf_arena_init(&arena);
    const char *optimizer_path = mf_arena_format(&arena, "%s/optimizer.safetensors", folder);
    *optimizer = access(optimizer_path, F_OK) == 0;
    enum mf_status status = load_state(folder, *optimizer, &arena, &loaded);
    if (status == MF_STATUS_OK) {
        status = *optimizer ? load_optimizer(model, optimizer_path, write, context)
                            : mf_checkpoint_load_weights(model, folder, write, context);
    }
    if (state != NULL) {
        *state = status == MF_STATUS_OK ? json_incref(loaded) : NULL;
    }
    json_decref(loaded);
    mf_arena_reset(&arena);
    return status;
}
