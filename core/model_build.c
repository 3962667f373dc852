/* Units, panels, operations: see model_build.h. */
#include "core/model_build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PANEL_ROWS_MULTIPLE 16
#define PANEL_ROWS_TILE 128
#define PANEL_ELEMENTS_MULTIPLE 64
#define WEIGHT_BYTES 2 /* bf16 */

struct builder {
    const struct mf_model_sizes *sizes;
    struct mf_model *model;
    int32_t slots[MF_SLOT_COUNT]; /* the value last written under each name, -1 = none yet */
};

static int64_t round_up(int64_t value, int64_t multiple)
{
    return (value + multiple - 1) / multiple * multiple;
}

static int64_t divide_up(int64_t value, int64_t by)
{
    return (value + by - 1) / by;
}

static int64_t panel_elements(const struct mf_unit *unit, int64_t rows)
{
    int64_t width = unit->columns + (unit->bias.name != NULL ? 1 : 0);
    return round_up(rows * width, PANEL_ELEMENTS_MULTIPLE);
}

/* Cuts a unit into panels as equal as whole groups of 16 rows allow. A norm is never cut: every
 * row of activations needs all of it at once. */
static enum mf_status cut_panels(struct mf_unit *unit, int64_t panel_bytes)
{
    if (unit->rows > MF_DIMENSION_MAX || unit->columns > MF_DIMENSION_MAX) {
        return mf_status_set(
            MF_STATUS_INVALID, "unit %s: [%lld, %lld] is above %lld in a dimension", unit->name,
            (long long)unit->rows, (long long)unit->columns, (long long)MF_DIMENSION_MAX);
    }
    int64_t rows_max = panel_bytes / (WEIGHT_BYTES * unit->columns);
    unit->panel_rows = unit->rows;
    if (unit->kind != MF_UNIT_NORM && unit->rows > rows_max) {
        rows_max = rows_max / PANEL_ROWS_MULTIPLE * PANEL_ROWS_MULTIPLE;
        int64_t count = rows_max > 0 ? divide_up(unit->rows, rows_max) : 0;
        if (count == 0 || count > MF_PANELS_PER_UNIT_MAX) {
            return mf_status_set(MF_STATUS_INVALID,
                                 "unit %s: [%lld, %lld] does not go into %d panels of %lld bytes "
                                 "and at least %d rows",
                                 unit->name, (long long)unit->rows, (long long)unit->columns,
                                 MF_PANELS_PER_UNIT_MAX, (long long)panel_bytes,
                                 PANEL_ROWS_MULTIPLE);
        }
        int64_t rows = divide_up(unit->rows, count);
        /* Whole tiles of the matrix units where that still fits. */
        int64_t tiles = round_up(rows, PANEL_ROWS_TILE);
        unit->panel_rows = tiles <= rows_max ? tiles : round_up(rows, PANEL_ROWS_MULTIPLE);
    }
    unit->panel_count = (int32_t)divide_up(unit->rows, unit->panel_rows);
    int64_t last_rows = unit->rows - (unit->panel_count - 1) * unit->panel_rows;
    unit->panel_elements = panel_elements(unit, unit->panel_rows);
    unit->elements =
        (unit->panel_count - 1) * unit->panel_elements + panel_elements(unit, last_rows);
    unit->params = unit->rows * (unit->columns + (unit->bias.name != NULL ? 1 : 0));
    return MF_STATUS_OK;
}

static int64_t size_of(const struct builder *builder, enum mf_model_dimension dimension)
{
    return builder->sizes->dimensions[dimension];
}

static enum mf_unit_kind unit_kind(enum mf_op_kind op)
{
    switch (op) {
    case MF_OP_EMBEDDING:
        return MF_UNIT_EMBEDDING;
    case MF_OP_POSITION:
        return MF_UNIT_POSITION;
    case MF_OP_RMS_NORM:
    case MF_OP_LAYER_NORM:
        return MF_UNIT_NORM;
    case MF_OP_HEAD:
        return MF_UNIT_HEAD;
    default:
        return MF_UNIT_LINEAR;
    }
}

static void describe_tensors(const struct builder *builder, const struct mf_model_template *row,
                             struct mf_unit *unit)
{
    struct mf_arena *arena = &builder->model->arena;
    bool norm = unit->kind == MF_UNIT_NORM;
    double std = builder->sizes->init_std;
    if (row->flags & MF_TEMPLATE_RESIDUAL) {
        std /= sqrt(2.0 * builder->sizes->layers);
    }
    unit->weight = (struct mf_tensor){.name = mf_arena_format(arena, "%s.weight", unit->name),
                                      .transposed = (row->flags & MF_TEMPLATE_TRANSPOSED) != 0,
                                      .decay = !norm,
                                      .init_std = norm ? 0.0f : (float)std,
                                      .init_value = norm ? 1.0f : 0.0f};
    if (builder->sizes->switches[row->bias]) {
        unit->bias.name = mf_arena_format(arena, "%s.bias", unit->name);
    }
}

static enum mf_status add_unit(struct builder *builder, const struct mf_model_template *row,
                               int32_t block, int32_t *out)
{
    struct mf_model *model = builder->model;
    int32_t index = model->unit_count++;
    struct mf_unit *unit = &model->units[index];
    const char *mark = strstr(row->unit, "%d");
    unit->name = mark == NULL ? row->unit
                              : mf_arena_format(&model->arena, "%.*s%d%s", (int)(mark - row->unit),
                                                row->unit, block - 1, mark + 2);
    unit->kind = unit_kind(row->op);
    unit->block = block;
    unit->owner = index;
    unit->rows = size_of(builder, row->rows);
    unit->columns = size_of(builder, row->columns);
    describe_tensors(builder, row, unit);
    MF_TRY(cut_panels(unit, model->panel_bytes));
    if (unit->kind == MF_UNIT_HEAD && builder->sizes->tie) {
        unit->owner = 0; /* the embedding is every family's first unit */
        MF_ASSERT(model->units[0].kind == MF_UNIT_EMBEDDING);
        unit->params = 0;
    }
    model->params += unit->params;
    *out = index;
    return MF_STATUS_OK;
}

static int32_t add_value(struct mf_model *model, int64_t width, int32_t block)
{
    model->values[model->value_count] = (struct mf_value){.width = width, .block = block};
    return model->value_count++;
}

static void describe_heads(const struct builder *builder, const struct mf_model_template *row,
                           struct mf_op *op)
{
    const struct mf_model_sizes *sizes = builder->sizes;
    bool norm = op->kind == MF_OP_RMS_NORM || op->kind == MF_OP_LAYER_NORM;
    op->eps = norm ? sizes->eps : 0.0;
    if (op->kind == MF_OP_ATTENTION) {
        op->heads = sizes->heads;
        op->kv_heads = sizes->kv_heads;
        op->head_dim = sizes->head_dim;
    } else if (row->group != MF_GROUP_ONE) {
        op->heads = row->group == MF_GROUP_HEADS ? sizes->heads : sizes->kv_heads;
        op->head_dim = sizes->head_dim;
    } else if (norm) {
        op->heads = 1;
    }
}

static enum mf_status add_op(struct builder *builder, const struct mf_model_template *row,
                             int32_t block)
{
    struct mf_model *model = builder->model;
    struct mf_op *op = &model->ops[model->op_count++];
    op->kind = row->op;
    op->unit = -1;
    if (row->unit != NULL) {
        MF_TRY(add_unit(builder, row, block, &op->unit));
    }
    for (int i = 0; i < MF_OP_INPUTS_MAX; i++) {
        op->inputs[i] = (struct mf_use){.value = -1};
        if (row->inputs[i].slot != MF_SLOT_NONE) {
            int32_t value = builder->slots[row->inputs[i].slot];
            MF_ASSERT(value >= 0 && op->input_count == i);
            op->inputs[i] = (struct mf_use){.value = value,
                                            .column = size_of(builder, row->inputs[i].column),
                                            .width = size_of(builder, row->inputs[i].width)};
            op->input_count++;
        }
    }
    describe_heads(builder, row, op);
    op->output = -1;
    if (row->output != MF_SLOT_NONE) {
        op->output = add_value(model, size_of(builder, row->width), block);
        builder->slots[row->output] = op->output;
    }
    return MF_STATUS_OK;
}

static enum mf_status add_block(struct builder *builder, const struct mf_model_template_list *list)
{
    struct mf_model *model = builder->model;
    int32_t index = model->block_count++;
    struct mf_block *block = &model->blocks[index];
    block->op_first = model->op_count;
    block->unit_first = model->unit_count;
    block->input = builder->slots[MF_SLOT_STREAM];
    for (int32_t i = 0; i < list->count; i++) {
        MF_TRY(add_op(builder, &list->rows[i], index));
    }
    block->op_count = model->op_count - block->op_first;
    block->unit_count = model->unit_count - block->unit_first;
    block->output = builder->slots[MF_SLOT_STREAM];
    return MF_STATUS_OK;
}

static int32_t count_units(const struct mf_model_template_list *list)
{
    int32_t count = 0;
    for (int32_t i = 0; i < list->count; i++) {
        count += list->rows[i].unit != NULL ? 1 : 0;
    }
    return count;
}

static enum mf_status reserve(struct mf_model *model, int64_t units, int64_t ops, int64_t blocks)
{
    if (units > MF_UNITS_MAX || ops > MF_OPS_MAX || blocks > MF_BLOCKS_MAX) {
        return mf_status_set(MF_STATUS_INVALID,
                             "the model has %lld units, %lld operations and %lld blocks; at most "
                             "%d, %d and %d",
                             (long long)units, (long long)ops, (long long)blocks, MF_UNITS_MAX,
                             MF_OPS_MAX, MF_BLOCKS_MAX);
    }
    model->units = mf_arena_alloc(&model->arena, (size_t)units, sizeof(*model->units));
    model->ops = mf_arena_alloc(&model->arena, (size_t)ops, sizeof(*model->ops));
    model->values = mf_arena_alloc(&model->arena, (size_t)ops, sizeof(*model->values));
    model->blocks = mf_arena_alloc(&model->arena, (size_t)blocks, sizeof(*model->blocks));
    return MF_STATUS_OK;
}

enum mf_status mf_model_build_family(const struct mf_model_sizes *sizes, struct mf_model *out)
{
    const struct mf_model_family *family = sizes->family;
    int64_t layers = sizes->layers;
    MF_TRY(reserve(out,
                   count_units(&family->input) + layers * count_units(&family->layer) +
                       count_units(&family->output),
                   family->input.count + layers * family->layer.count + family->output.count,
                   layers + 2));
    out->family = family->model_type;
    out->executable = true;
    out->vocab = sizes->dimensions[MF_DIMENSION_VOCAB];
    out->width = sizes->dimensions[MF_DIMENSION_HIDDEN];
    out->positions_max = sizes->positions_max;
    out->layers = sizes->layers;
    out->head_dim = sizes->head_dim;
    out->rope = sizes->rope;
    struct builder builder = {.sizes = sizes, .model = out};
    for (int i = 0; i < MF_SLOT_COUNT; i++) {
        builder.slots[i] = -1;
    }
    MF_TRY(add_block(&builder, &family->input));
    for (int64_t i = 0; i < layers; i++) {
        MF_TRY(add_block(&builder, &family->layer));
    }
    MF_TRY(add_block(&builder, &family->output));
    out->blocks[out->block_count - 1].output = -1;
    return MF_STATUS_OK;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static enum mf_status check_names(const struct mf_unit_shape *shapes, int32_t count)
{
    const char **names = calloc((size_t)count, sizeof(*names));
    MF_ASSERT(names != NULL);
    enum mf_status status = MF_STATUS_OK;
    for (int32_t i = 0; i < count && status == MF_STATUS_OK; i++) {
        const char *name = shapes[i].name;
        if (name == NULL || name[0] == '\0' || strlen(name) >= MF_NAME_MAX - sizeof(".weight")) {
            status = mf_status_set(MF_STATUS_INVALID, "unit %d: needs a name of 1 to %d bytes",
                                   (int)i, (int)(MF_NAME_MAX - sizeof(".weight") - 1));
        }
        names[i] = name;
    }
    if (status == MF_STATUS_OK) {
        qsort(names, (size_t)count, sizeof(*names), compare_names);
    }
    for (int32_t i = 1; i < count && status == MF_STATUS_OK; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            status = mf_status_set(MF_STATUS_INVALID, "two units have the name %s", names[i]);
        }
    }
    free(names);
    return status;
}

static enum mf_status check_shapes(const struct mf_unit_shape *shapes, int32_t count,
                                   int32_t *block_count)
{
    if (count < 1 || count > MF_UNITS_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "a model has 1 to %d units, not %d", MF_UNITS_MAX,
                             (int)count);
    }
    MF_TRY(check_names(shapes, count));
    *block_count = 1;
    for (int32_t i = 0; i < count; i++) {
        const struct mf_unit_shape *shape = &shapes[i];
        if (shape->rows < 1 || shape->columns < 1) {
            return mf_status_set(MF_STATUS_INVALID, "unit %s: [%lld, %lld] must be positive",
                                 shape->name, (long long)shape->rows, (long long)shape->columns);
        }
        int32_t before = i > 0 ? shapes[i - 1].block : 0;
        if (shape->block < before) {
            return mf_status_set(MF_STATUS_INVALID, "unit %s: block %d comes after block %d",
                                 shape->name, (int)shape->block, (int)before);
        }
        *block_count += i > 0 && shape->block > before ? 1 : 0;
    }
    return MF_STATUS_OK;
}

static enum mf_status add_shape(struct mf_model *model, const struct mf_unit_shape *shape,
                                int32_t block)
{
    int32_t index = model->unit_count++;
    struct mf_unit *unit = &model->units[index];
    unit->name = mf_arena_string(&model->arena, shape->name);
    unit->kind = MF_UNIT_LINEAR;
    unit->block = block;
    unit->owner = index;
    unit->rows = shape->rows;
    unit->columns = shape->columns;
    unit->weight.name = mf_arena_format(&model->arena, "%s.weight", unit->name);
    unit->weight.decay = true;
    if (shape->bias) {
        unit->bias.name = mf_arena_format(&model->arena, "%s.bias", unit->name);
    }
    MF_TRY(cut_panels(unit, model->panel_bytes));
    model->params += unit->params;
    struct mf_op *op = &model->ops[model->op_count++];
    *op = (struct mf_op){.kind = MF_OP_LINEAR, .unit = index, .input_count = 1};
    for (int i = 0; i < MF_OP_INPUTS_MAX; i++) {
        op->inputs[i].value = -1;
    }
    op->inputs[0] = (struct mf_use){.value = model->value_count - 1, .width = shape->columns};
    op->output = add_value(model, shape->rows, block);
    return MF_STATUS_OK;
}

enum mf_status mf_model_build_list(const struct mf_unit_shape *shapes, int32_t count,
                                   struct mf_model *out)
{
    int32_t block_count = 0;
    MF_TRY(check_shapes(shapes, count, &block_count));
    MF_TRY(reserve(out, count, count, block_count));
    out->family = "units";
    out->width = shapes[0].columns;
    out->positions_max = MF_SEQ_LEN_MAX;
    out->layers = block_count;
    for (int32_t i = 0; i < count; i++) {
        /* A client's block numbers may have holes; ours are dense. */
        if (i == 0 || shapes[i].block != shapes[i - 1].block) {
            out->blocks[out->block_count++] =
                (struct mf_block){.op_first = i, .unit_first = i, .input = out->value_count - 1};
        }
        struct mf_block *block = &out->blocks[out->block_count - 1];
        MF_TRY(add_shape(out, &shapes[i], out->block_count - 1));
        block->op_count++;
        block->unit_count++;
        block->output = out->value_count - 1;
    }
    out->blocks[out->block_count - 1].output = -1;
    return MF_STATUS_OK;
}
