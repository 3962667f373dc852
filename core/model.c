/* Models: see model.h. Reading configs is in model_config.c, families in model_family.c, building
 * in model_build.c. */
#include "core/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/format.h"
#include "core/json.h"
#include "core/model_build.h"
#include "core/model_config.h"
#include "core/model_preset.h"

static enum mf_status start(const char *name, int64_t panel_bytes, struct mf_model *out)
{
    memset(out, 0, sizeof(*out));
    mf_arena_init(&out->arena);
    if (panel_bytes == 0) {
        panel_bytes = MF_PANEL_BYTES_DEFAULT;
    }
    if (panel_bytes < MF_PANEL_BYTES_MIN || panel_bytes > MF_PANEL_BYTES_MAX) {
        return mf_status_set(MF_STATUS_INVALID, "a panel has %lld to %lld bytes, not %lld",
                             (long long)MF_PANEL_BYTES_MIN, (long long)MF_PANEL_BYTES_MAX,
                             (long long)panel_bytes);
    }
    out->panel_bytes = panel_bytes;
    out->name = mf_arena_string(&out->arena, name != NULL ? name : "model");
    return MF_STATUS_OK;
}

static void print_unit(FILE *text, const struct mf_unit *unit)
{
    fprintf(text, "unit %s %d %lld %lld %d %d %d %d %d %d\n", unit->name, (int)unit->kind,
            (long long)unit->rows, (long long)unit->columns, unit->bias.name != NULL,
            (int)unit->owner, (int)unit->block, unit->weight.decay, unit->bias.decay,
            unit->weight.transposed);
}

static void print_op(FILE *text, const struct mf_op *op)
{
    fprintf(text, "op %d %d", (int)op->kind, (int)op->unit);
    for (int32_t i = 0; i < op->input_count; i++) {
        fprintf(text, " %d:%lld:%lld", (int)op->inputs[i].value, (long long)op->inputs[i].column,
                (long long)op->inputs[i].width);
    }
    fprintf(text, " -> %d %d %d %d %.17g\n", (int)op->output, (int)op->heads, (int)op->kv_heads,
            (int)op->head_dim, op->eps);
}

/* Only what decides the computation and its panels: not names of models, nor how a config spells
 * its settings. */
static void fingerprint(struct mf_model *model)
{
    char *bytes = NULL;
    size_t count = 0;
    FILE *text = open_memstream(&bytes, &count);
    MF_ASSERT(text != NULL);
    fprintf(text, "model 1 panel_bytes %lld\n", (long long)model->panel_bytes);
    for (int32_t i = 0; i < model->unit_count; i++) {
        print_unit(text, &model->units[i]);
    }
    for (int32_t i = 0; i < model->op_count; i++) {
        print_op(text, &model->ops[i]);
    }
    const struct mf_rope *rope = &model->rope;
    fprintf(text, "rope %.17g %d %.17g %.17g %.17g %lld\n", rope->theta, rope->llama3, rope->factor,
            rope->low_freq_factor, rope->high_freq_factor, (long long)rope->original_positions);
    MF_ASSERT(fclose(text) == 0);
    mf_hash(bytes, count, model->fingerprint);
    free(bytes);
}

/* A model that could not be built is left empty, so that a reset does no harm. */
static enum mf_status finish(enum mf_status status, struct mf_model *out)
{
    if (status == MF_STATUS_OK) {
        fingerprint(out);
    } else {
        mf_model_reset(out);
    }
    return status;
}

enum mf_status mf_model_from_config(const json_t *config, const char *name, int64_t panel_bytes,
                                    struct mf_model *out)
{
    enum mf_status status = MF_STATUS_OK;
    struct mf_model_sizes sizes;
    MF_TRY_GOTO(start(name, panel_bytes, out), done);
    MF_TRY_GOTO(mf_model_config_read(config, &sizes), done);
    MF_TRY_GOTO(mf_model_build_family(&sizes, out), done);
    out->config = json_deep_copy(config);
    MF_ASSERT(out->config != NULL);
done:
    return finish(status, out);
}

enum mf_status mf_model_from_preset(const char *name, int64_t panel_bytes, struct mf_model *out)
{
    memset(out, 0, sizeof(*out));
    const char *text = mf_model_preset_config(name);
    if (text == NULL) {
        size_t count = 0;
        const char *const *names = mf_model_preset_names(&count);
        const char *nearest = mf_format_nearest(name, names, count);
        return mf_status_set(MF_STATUS_NOT_FOUND, "no preset is called \"%.100s\"%s%s%s", name,
                             nearest ? ", did you mean \"" : "", nearest ? nearest : "",
                             nearest ? "\"?" : "");
    }
    json_t *config = NULL;
    MF_TRY(mf_json_parse(text, strlen(text), name, &config));
    enum mf_status status = mf_model_from_config(config, name, panel_bytes, out);
    json_decref(config);
    return status;
}

enum mf_status mf_model_from_units(const struct mf_unit_shape *shapes, int32_t count,
                                   int64_t panel_bytes, struct mf_model *out)
{
    enum mf_status status = MF_STATUS_OK;
    MF_TRY_GOTO(start("units", panel_bytes, out), done);
    MF_TRY_GOTO(mf_model_build_list(shapes, count, out), done);
done:
    return finish(status, out);
}

void mf_model_reset(struct mf_model *model)
{
    json_decref(model->config);
    mf_arena_reset(&model->arena);
    memset(model, 0, sizeof(*model));
}

const char *const *mf_model_presets(void)
{
    return mf_model_preset_names(NULL);
}

int32_t mf_model_find_unit(const struct mf_model *model, const char *name)
{
    for (int32_t i = 0; i < model->unit_count; i++) {
        if (strcmp(model->units[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

int64_t mf_model_panel_first_row(const struct mf_unit *unit, int32_t panel)
{
    return panel * unit->panel_rows;
}

int64_t mf_model_panel_row_count(const struct mf_unit *unit, int32_t panel)
{
    MF_ASSERT(panel >= 0 && panel < unit->panel_count);
    int64_t left = unit->rows - panel * unit->panel_rows;
    return left < unit->panel_rows ? left : unit->panel_rows;
}

int64_t mf_model_panel_offset(const struct mf_unit *unit, int32_t panel)
{
    return panel * unit->panel_elements;
}

int64_t mf_model_panel_size(const struct mf_unit *unit, int32_t panel)
{
    MF_ASSERT(panel >= 0 && panel < unit->panel_count);
    int64_t left = unit->elements - panel * unit->panel_elements;
    return left < unit->panel_elements ? left : unit->panel_elements;
}

int32_t mf_model_use_count(const struct mf_model *model, int32_t owner)
{
    int32_t count = 0;
    for (int32_t i = 0; i < model->op_count; i++) {
        int32_t unit = model->ops[i].unit;
        count += unit >= 0 && model->units[unit].owner == owner ? 1 : 0;
    }
    return count;
}

const char *mf_model_unit_kind_name(enum mf_unit_kind kind)
{
    static const char *const names[MF_UNIT_KIND_COUNT] = {
        [MF_UNIT_EMBEDDING] = "embedding", [MF_UNIT_POSITION] = "position", [MF_UNIT_NORM] = "norm",
        [MF_UNIT_LINEAR] = "linear",       [MF_UNIT_HEAD] = "head",
    };
    return (unsigned)kind < MF_UNIT_KIND_COUNT ? names[kind] : "unknown";
}

const char *mf_model_op_kind_name(enum mf_op_kind kind)
{
    static const char *const names[MF_OP_KIND_COUNT] = {
        [MF_OP_EMBEDDING] = "embedding", [MF_OP_POSITION] = "position",
        [MF_OP_RMS_NORM] = "rms_norm",   [MF_OP_LAYER_NORM] = "layer_norm",
        [MF_OP_LINEAR] = "linear",       [MF_OP_ROPE] = "rope",
        [MF_OP_ATTENTION] = "attention", [MF_OP_GELU] = "gelu",
        [MF_OP_SWIGLU] = "swiglu",       [MF_OP_ADD] = "add",
        [MF_OP_HEAD] = "head",
    };
    return (unsigned)kind < MF_OP_KIND_COUNT ? names[kind] : "unknown";
}

double mf_model_step_flops(const struct mf_model *model, int64_t rows, int64_t seq_len)
{
    double forward = 0;
    for (int32_t i = 0; i < model->op_count; i++) {
        const struct mf_op *op = &model->ops[i];
        if (op->kind == MF_OP_LINEAR || op->kind == MF_OP_HEAD) {
            const struct mf_unit *unit = &model->units[op->unit];
            forward += 2.0 * (double)rows * (double)unit->rows * (double)unit->columns;
        } else if (op->kind == MF_OP_ATTENTION) {
            /* Two products over the sequence, of which the causal mask leaves half. */
            forward += 2.0 * 2.0 * (double)rows * (double)seq_len * op->heads * op->head_dim / 2;
        }
    }
    return 3.0 * forward; /* the backward has two products for each of the forward's */
}
