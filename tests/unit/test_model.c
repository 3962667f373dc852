/* Models: presets against published totals, fixtures against the tensors Hugging Face saved,
 * templates that hang together, panels that cover every row once, and refusals by name. */
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/model.h"
#include "core/model_family.h"
#include "core/model_preset.h"

#define ROUNDS 400

static json_t *parse(const char *text)
{
    json_t *json = NULL;
    assert_ok(mf_json_parse(text, strlen(text), "test", &json));
    return json;
}

/* A preset's config with keys of `patch` put over it; a key with the text "-" is taken away. */
static json_t *patched(const char *preset, const char *patch)
{
    json_t *config = parse(mf_model_preset_config(preset));
    json_t *keys = parse(patch);
    const char *key = NULL;
    json_t *value = NULL;
    json_object_foreach(keys, key, value)
    {
        if (json_is_string(value) && strcmp(json_string_value(value), "-") == 0) {
            (void)json_object_del(config, key);
        } else {
            assert_int_equal(json_object_set(config, key, value), 0);
        }
    }
    json_decref(keys);
    return config;
}

static enum mf_status build(const char *preset, const char *patch, int64_t panel_bytes,
                            struct mf_model *out)
{
    json_t *config = patched(preset, patch);
    enum mf_status status = mf_model_from_config(config, preset, panel_bytes, out);
    json_decref(config);
    return status;
}

static const struct {
    const char *name;
    int64_t params;
} totals[] = {
    {"gpt2", 124439808},          {"gpt2-medium", 354823168},  {"gpt2-large", 774030080},
    {"gpt2-xl", 1557611200},      {"llama-2-7b", 6738415616},  {"llama-3.2-1b", 1235814400},
    {"llama-3.2-3b", 3212749824}, {"llama-3-8b", 8030261248},  {"llama-3.1-70b", 70553706496},
    {"mistral-7b", 7241732096},   {"qwen2.5-0.5b", 494032768}, {"qwen2.5-1.5b", 1543714304},
    {"qwen2.5-7b", 7615616512},   {"qwen3-0.6b", 596049920},   {"qwen3-1.7b", 1720574976},
    {"qwen3-4b", 4022468096},     {"qwen3-8b", 8190735360},
};

static void test_parameter_counts(void **context)
{
    (void)context;
    for (size_t i = 0; i < sizeof(totals) / sizeof(totals[0]); i++) {
        struct mf_model model;
        assert_ok(mf_model_from_preset(totals[i].name, 0, &model));
        assert_string_equal(model.name, totals[i].name);
        assert_int_equal(model.params, totals[i].params);
        assert_true(model.executable);
        mf_model_reset(&model);
    }
    struct mf_model model;
    assert_fails(mf_model_from_preset("lama-3-8b", 0, &model), MF_STATUS_NOT_FOUND, "llama-3-8b");
    mf_model_reset(&model);
}

/* What a use may be, and that operations agree with their units about widths. */
static void check_op(const struct mf_model *model, const struct mf_op *op, const bool *written,
                     int32_t block)
{
    assert_in_range(op->input_count, 0, MF_OP_INPUTS_MAX);
    for (int32_t i = 0; i < MF_OP_INPUTS_MAX; i++) {
        const struct mf_use *use = &op->inputs[i];
        if (i >= op->input_count) {
            assert_int_equal(use->value, -1);
            continue;
        }
        assert_in_range(use->value, 0, model->value_count - 1);
        const struct mf_value *value = &model->values[use->value];
        assert_true(written[use->value]);
        assert_true(use->width > 0 && use->column >= 0);
        assert_true(use->column + use->width <= value->width);
        assert_true(value->block == block || use->value == model->blocks[block].input);
    }
    if (op->unit >= 0) {
        assert_int_equal(model->units[op->unit].block, block);
    }
    if (op->kind == MF_OP_LINEAR || op->kind == MF_OP_HEAD) {
        assert_int_equal(op->inputs[0].width, model->units[op->unit].columns);
    }
    if (op->kind == MF_OP_LINEAR) {
        assert_int_equal(model->values[op->output].width, model->units[op->unit].rows);
    }
    if (op->kind == MF_OP_ATTENTION) {
        assert_int_equal(op->inputs[0].width, (int64_t)op->heads * op->head_dim);
        assert_int_equal(op->inputs[1].width, (int64_t)op->kv_heads * op->head_dim);
        assert_int_equal(op->inputs[2].width, (int64_t)op->kv_heads * op->head_dim);
        assert_int_equal(model->values[op->output].width, op->inputs[0].width);
    }
    if (op->kind == MF_OP_RMS_NORM || op->kind == MF_OP_LAYER_NORM) {
        assert_true(op->eps > 0);
        assert_int_equal(op->inputs[0].width, op->heads * model->units[op->unit].rows);
    }
    if (op->kind == MF_OP_ROPE) {
        assert_int_equal(op->inputs[0].width, (int64_t)op->heads * op->head_dim);
    }
}

/* For y = a + b the gradient of a takes y's buffer over, so every other reader of a has to come
 * before the one that makes b. */
static void check_adds(const struct mf_model *model)
{
    for (int32_t i = 0; i < model->op_count; i++) {
        if (model->ops[i].kind != MF_OP_ADD) {
            continue;
        }
        int32_t a = model->ops[i].inputs[0].value;
        int32_t b = model->ops[i].inputs[1].value;
        int32_t producer = -1;
        for (int32_t j = 0; j < model->op_count; j++) {
            producer = model->ops[j].output == b ? j : producer;
        }
        for (int32_t j = 0; j < model->op_count; j++) {
            for (int32_t k = 0; j != i && k < model->ops[j].input_count; k++) {
                assert_true(model->ops[j].inputs[k].value != a || j < producer);
            }
        }
    }
}

static void check_model(const struct mf_model *model)
{
    bool *written = calloc((size_t)model->value_count, sizeof(*written));
    int32_t ops = 0;
    int32_t units = 0;
    assert_non_null(written);
    for (int32_t b = 0; b < model->block_count; b++) {
        const struct mf_block *block = &model->blocks[b];
        assert_int_equal(block->op_first, ops);
        assert_int_equal(block->unit_first, units);
        assert_int_equal(block->input, b == 0 ? -1 : model->blocks[b - 1].output);
        for (int32_t i = ops; i < ops + block->op_count; i++) {
            const struct mf_op *op = &model->ops[i];
            check_op(model, op, written, b);
            if (op->output >= 0) {
                assert_false(written[op->output]);
                assert_int_equal(model->values[op->output].block, b);
                written[op->output] = true;
            } else {
                assert_int_equal(op->kind, MF_OP_HEAD);
                assert_int_equal(i, model->op_count - 1);
            }
        }
        ops += block->op_count;
        units += block->unit_count;
    }
    assert_int_equal(ops, model->op_count);
    assert_int_equal(units, model->unit_count);
    assert_int_equal(model->blocks[model->block_count - 1].output, -1);
    for (int32_t i = 0; i < model->value_count; i++) {
        assert_true(written[i]);
    }
    check_adds(model);
    free(written);
}

static void test_operations_hang_together(void **context)
{
    (void)context;
    for (const char *const *name = mf_model_presets(); *name != NULL; name++) {
        struct mf_model model;
        assert_ok(mf_model_from_preset(*name, 0, &model));
        check_model(&model);
        int64_t params = 0;
        for (int32_t i = 0; i < model.unit_count; i++) {
            params += model.units[i].params;
            assert_int_equal(mf_model_find_unit(&model, model.units[i].name), i);
        }
        assert_int_equal(params, model.params);
        assert_int_equal(mf_model_find_unit(&model, "no.such.unit"), -1);
        mf_model_reset(&model);
    }
}

static void check_panels(const struct mf_unit *unit, int64_t panel_bytes)
{
    int64_t width = unit->columns + (unit->bias.name != NULL);
    int64_t row = 0;
    int64_t offset = 0;
    assert_in_range(unit->panel_count, 1, MF_PANELS_PER_UNIT_MAX);
    for (int32_t i = 0; i < unit->panel_count; i++) {
        int64_t rows = mf_model_panel_row_count(unit, i);
        int64_t size = mf_model_panel_size(unit, i);
        assert_int_equal(mf_model_panel_first_row(unit, i), row);
        assert_int_equal(mf_model_panel_offset(unit, i), offset);
        assert_true(rows > 0);
        assert_int_equal(size, (rows * width + 63) / 64 * 64);
        if (unit->kind != MF_UNIT_NORM) {
            assert_true(rows * unit->columns * 2 <= panel_bytes);
        }
        bool last = i == unit->panel_count - 1;
        assert_true(last || (rows % 16 == 0 && rows == unit->panel_rows));
        row += rows;
        offset += size;
    }
    assert_int_equal(row, unit->rows);
    assert_int_equal(offset, unit->elements);
    if (unit->panel_count > 1) { /* as equal as groups of 16 rows allow */
        int64_t even = (unit->rows + unit->panel_count - 1) / unit->panel_count;
        assert_true(unit->panel_rows - even < (unit->panel_rows % 128 == 0 ? 128 : 16));
    }
}

static void test_panels_cover_rows_once(void **context)
{
    (void)context;
    harness_random_restart(11);
    int built = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct mf_unit_shape shape = {
            .name = "u",
            .rows = 1 + (int64_t)harness_random_below(1ull << harness_random_below(20)),
            .columns = 1 + (int64_t)harness_random_below(1ull << harness_random_below(14)),
            .bias = harness_random_below(2) != 0};
        int64_t panel_bytes = 1024 + (int64_t)harness_random_below(1ull << 20);
        struct mf_model model;
        enum mf_status status = mf_model_from_units(&shape, 1, panel_bytes, &model);
        if (status == MF_STATUS_OK) {
            check_panels(&model.units[0], panel_bytes);
            assert_int_equal(model.units[0].params,
                             shape.rows * (shape.columns + (shape.bias ? 1 : 0)));
            built++;
        } else {
            assert_int_equal(status, MF_STATUS_INVALID);
            assert_true(16 * 2 * shape.columns > panel_bytes ||
                        shape.rows * shape.columns * 2 > 4000 * (panel_bytes / 2));
        }
        mf_model_reset(&model);
    }
    assert_true(built > ROUNDS / 2);
}

static void test_panels_of_presets(void **context)
{
    (void)context;
    static const int64_t sizes[] = {0, 256 << 10, 1 << 20, 64 << 20};
    for (const char *const *name = mf_model_presets(); *name != NULL; name++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            struct mf_model model;
            enum mf_status status = mf_model_from_preset(*name, sizes[i], &model);
            if (status == MF_STATUS_OK) {
                for (int32_t u = 0; u < model.unit_count; u++) {
                    check_panels(&model.units[u], model.panel_bytes);
                }
            } else {
                assert_int_equal(status, MF_STATUS_INVALID); /* too many small panels */
            }
            mf_model_reset(&model);
        }
    }
    struct mf_model model;
    assert_fails(mf_model_from_preset("tiny-gpt2", 512, &model), MF_STATUS_INVALID, "panel");
    assert_fails(mf_model_from_preset("tiny-gpt2", -1, &model), MF_STATUS_INVALID, "panel");
}

static void test_tied_head(void **context)
{
    (void)context;
    struct mf_model model;
    assert_ok(mf_model_from_preset("qwen3-0.6b", 0, &model));
    const struct mf_unit *owner = &model.units[0];
    const struct mf_unit *head = &model.units[model.unit_count - 1];
    assert_int_equal(head->kind, MF_UNIT_HEAD);
    assert_int_equal(head->owner, 0);
    assert_int_equal(head->params, 0);
    assert_int_equal(head->rows, owner->rows);
    assert_int_equal(head->columns, owner->columns);
    assert_int_equal(head->panel_count, owner->panel_count);
    assert_int_equal(head->panel_rows, owner->panel_rows);
    assert_int_equal(head->panel_elements, owner->panel_elements);
    assert_int_equal(head->elements, owner->elements);
    assert_int_equal(mf_model_use_count(&model, 0), 2);
    assert_int_equal(mf_model_use_count(&model, 1), 1);
    assert_int_equal(mf_model_use_count(&model, model.unit_count - 1), 0);
    mf_model_reset(&model);

    assert_ok(build("qwen3-0.6b", "{\"tie_word_embeddings\": false}", 0, &model));
    head = &model.units[model.unit_count - 1];
    assert_int_equal(head->owner, model.unit_count - 1);
    assert_int_equal(head->params, head->rows * head->columns);
    assert_int_equal(mf_model_use_count(&model, 0), 1);
    assert_int_equal(model.params, 596049920 + head->params);
    mf_model_reset(&model);
}

static void test_defaults(void **context)
{
    (void)context;
    struct mf_model model;
    assert_ok(build("gpt2", "{\"n_inner\": null}", 0, &model)); /* no tie key: tied */
    assert_int_equal(model.params, 124439808);
    mf_model_reset(&model);
    assert_ok(build("gpt2", "{\"n_inner\": 100, \"activation_function\": \"gelu_pytorch_tanh\"}", 0,
                    &model));
    int32_t fc = mf_model_find_unit(&model, "transformer.h.11.mlp.c_fc");
    assert_int_equal(model.units[fc].rows, 100);
    mf_model_reset(&model);
    assert_ok(build("tiny-llama",
                    "{\"num_key_value_heads\": \"-\", \"tie_word_embeddings\": \"-\","
                    " \"rope_theta\": \"-\", \"head_dim\": null}",
                    0, &model));
    int32_t k = mf_model_find_unit(&model, "model.layers.0.self_attn.k_proj");
    assert_int_equal(model.units[k].rows, 64);
    assert_int_equal(model.units[model.unit_count - 1].owner, model.unit_count - 1);
    assert_true(model.rope.theta == 10000.0);
    mf_model_reset(&model);
    assert_ok(build("tiny-qwen3", "{\"head_dim\": \"-\"}", 0, &model));
    assert_int_equal(model.head_dim, 128);
    mf_model_reset(&model);
    assert_ok(mf_model_from_preset("mistral-7b", 0, &model));
    assert_int_equal(model.positions_max, 4096); /* what fits into the sliding window */
    mf_model_reset(&model);
    assert_ok(build("mistral-7b", "{\"sliding_window\": null}", 0, &model));
    assert_int_equal(model.positions_max, 32768);
    mf_model_reset(&model);
    assert_ok(build("qwen2.5-7b", "{\"sliding_window\": 100}", 0, &model)); /* not used */
    assert_int_equal(model.positions_max, 131072);
    mf_model_reset(&model);
    assert_ok(
        build("qwen2.5-7b", "{\"sliding_window\": 100, \"use_sliding_window\": true}", 0, &model));
    assert_int_equal(model.positions_max, 100);
    mf_model_reset(&model);
}

static void test_biases(void **context)
{
    (void)context;
    static const struct {
        const char *preset, *patch;
        int biases; /* in layer 0, outside norms */
    } rows[] = {
        {"tiny-llama", "{}", 0},
        {"tiny-llama", "{\"attention_bias\": true}", 4},
        {"tiny-llama", "{\"mlp_bias\": true}", 3},
        {"mistral-7b", "{\"attention_bias\": true}", 0}, /* Transformers does not read it */
        {"qwen2.5-0.5b", "{}", 3},
        {"tiny-qwen3", "{\"attention_bias\": true}", 4},
        {"tiny-gpt2", "{}", 4},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mf_model model;
        assert_ok(build(rows[i].preset, rows[i].patch, 0, &model));
        const struct mf_block *layer = &model.blocks[1];
        int biases = 0;
        for (int32_t u = layer->unit_first; u < layer->unit_first + layer->unit_count; u++) {
            const struct mf_unit *unit = &model.units[u];
            biases += unit->kind != MF_UNIT_NORM && unit->bias.name != NULL;
        }
        assert_int_equal(biases, rows[i].biases);
        mf_model_reset(&model);
    }
}

static void test_init_and_decay(void **context)
{
    (void)context;
    struct mf_model model;
    assert_ok(build("tiny-gpt2", "{\"initializer_range\": 0.04}", 0, &model));
    for (int32_t i = 0; i < model.unit_count; i++) {
        const struct mf_unit *unit = &model.units[i];
        bool norm = unit->kind == MF_UNIT_NORM;
        bool residual = strstr(unit->name, "c_proj") != NULL;
        assert_true(unit->weight.decay == !norm && !unit->bias.decay);
        assert_near(unit->weight.init_std, norm ? 0 : residual ? 0.02 : 0.04, 1e-8, 0);
        assert_true(unit->weight.init_value == (norm ? 1.0f : 0.0f));
        assert_true(unit->bias.init_std == 0 && unit->bias.init_value == 0);
        bool conv = strstr(unit->name, "c_") != NULL;
        assert_true(unit->weight.transposed == conv);
    }
    mf_model_reset(&model);
}

static const struct {
    const char *preset, *patch, *fragment;
    enum mf_status status;
} refusals[] = {
    {"gpt2", "{\"model_type\": \"bert\"}", "bert", MF_STATUS_UNSUPPORTED},
    {"gpt2", "{\"model_type\": \"-\"}", "model_type", MF_STATUS_INVALID},
    {"gpt2", "{\"model_type\": 3}", "model_type", MF_STATUS_INVALID},
    {"gpt2", "{\"n_embd\": \"-\"}", "n_embd", MF_STATUS_INVALID},
    {"gpt2", "{\"n_embd\": 770}", "770", MF_STATUS_INVALID},
    {"gpt2", "{\"n_layer\": 0}", "n_layer", MF_STATUS_INVALID},
    {"gpt2", "{\"n_layer\": 511}", "n_layer", MF_STATUS_INVALID},
    {"gpt2", "{\"vocab_size\": -5}", "vocab_size", MF_STATUS_INVALID},
    {"gpt2", "{\"vocab_size\": 1e30}", "vocab_size", MF_STATUS_INVALID},
    {"gpt2", "{\"n_head\": \"many\"}", "n_head", MF_STATUS_INVALID},
    {"gpt2", "{\"layer_norm_epsilon\": -1}", "layer_norm_epsilon", MF_STATUS_INVALID},
    {"gpt2", "{\"activation_function\": \"gelu\"}", "gelu", MF_STATUS_UNSUPPORTED},
    {"gpt2", "{\"scale_attn_weights\": false}", "scale_attn_weights", MF_STATUS_UNSUPPORTED},
    {"gpt2", "{\"scale_attn_by_inverse_layer_idx\": true}", "inverse_layer", MF_STATUS_UNSUPPORTED},
    {"gpt2", "{\"reorder_and_upcast_attn\": true}", "upcast", MF_STATUS_UNSUPPORTED},
    {"gpt2", "{\"add_cross_attention\": true}", "add_cross_attention", MF_STATUS_UNSUPPORTED},
    {"gpt2", "{\"quantization_config\": {}}", "quantization_config", MF_STATUS_UNSUPPORTED},
    {"llama-3-8b", "{\"quantization_config\": {\"bits\": 4}}", "quant", MF_STATUS_UNSUPPORTED},
    {"llama-3-8b", "{\"num_key_value_heads\": 5}", "5", MF_STATUS_INVALID},
    {"llama-3-8b", "{\"num_attention_heads\": 24}", "24", MF_STATUS_INVALID},
    {"llama-3-8b", "{\"head_dim\": 127}", "127", MF_STATUS_INVALID},
    {"llama-3-8b", "{\"hidden_act\": \"gelu\"}", "hidden_act", MF_STATUS_UNSUPPORTED},
    {"llama-3-8b", "{\"intermediate_size\": null}", "intermediate_size", MF_STATUS_INVALID},
    {"llama-3-8b", "{\"partial_rotary_factor\": 0.5}", "partial_rotary", MF_STATUS_UNSUPPORTED},
    {"llama-3-8b", "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}", "linear",
     MF_STATUS_UNSUPPORTED},
    {"llama-3-8b", "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"beta_fast\": 32}}", "yarn",
     MF_STATUS_UNSUPPORTED},
    {"llama-3-8b", "{\"rope_parameters\": {\"rope_type\": \"longrope\"}}", "longrope",
     MF_STATUS_UNSUPPORTED},
    {"llama-3-8b", "{\"rope_parameters\": {\"partial_rotary_factor\": 0.25}}", "partial_rotary",
     MF_STATUS_UNSUPPORTED},
    {"llama-3-8b", "{\"rope_parameters\": {\"full_attention\": {}}}", "full_attention",
     MF_STATUS_INVALID},
    {"llama-3-8b", "{\"rope_parameters\": 3}", "rope_parameters", MF_STATUS_INVALID},
    {"llama-3-8b", "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}}",
     "low_freq_factor", MF_STATUS_INVALID},
    {"llama-3-8b",
     "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4,"
     " \"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192}}",
     "high_freq_factor", MF_STATUS_INVALID},
    {"llama-3-8b", "{\"rope_theta\": 0}", "rope_theta", MF_STATUS_INVALID},
    {"llama-3-8b", "{\"attention_bias\": \"no\"}", "attention_bias", MF_STATUS_INVALID},
    {"qwen2.5-7b", "{\"use_sliding_window\": 1}", "use_sliding_window", MF_STATUS_INVALID},
    {"qwen2.5-7b", "{\"layer_types\": [\"linear_attention\"]}", "linear_attention",
     MF_STATUS_UNSUPPORTED},
    {"qwen3-4b", "{\"intermediate_size\": 100000000000}", "intermediate_size", MF_STATUS_INVALID},
    {"qwen3-4b", "{\"num_attention_heads\": 65536, \"head_dim\": 65536}", "q_proj",
     MF_STATUS_INVALID},
};

static void test_refusals(void **context)
{
    (void)context;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        struct mf_model model;
        assert_fails(build(refusals[i].preset, refusals[i].patch, 0, &model), refusals[i].status,
                     refusals[i].fragment);
        assert_null(model.units); /* left empty */
        mf_model_reset(&model);
    }
    struct mf_model model;
    json_t *list = parse("[1, 2]");
    assert_fails(mf_model_from_config(list, "x", 0, &model), MF_STATUS_INVALID, "object");
    json_decref(list);
}

/* Configs with damaged bytes: refused, or models that hang together; never a crash. */
static void test_damaged_configs(void **context)
{
    (void)context;
    static const char alphabet[] = "0123456789-.eE{}[]\":,nulltruefalse ";
    size_t count = 0;
    while (mf_model_presets()[count] != NULL) {
        count++;
    }
    harness_random_restart(12);
    for (int round = 0; round < 4 * ROUNDS; round++) {
        const char *preset = mf_model_presets()[harness_random_below(count)];
        char *text = strdup(mf_model_preset_config(preset));
        assert_non_null(text);
        size_t length = strlen(text);
        for (uint64_t i = harness_random_below(3) + 1; i > 0; i--) {
            text[harness_random_below(length)] =
                alphabet[harness_random_below(sizeof(alphabet) - 1)];
        }
        json_t *config = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        struct mf_model model;
        if (config != NULL && mf_model_from_config(config, preset, 0, &model) == MF_STATUS_OK) {
            check_model(&model);
            for (int32_t u = 0; u < model.unit_count; u++) {
                check_panels(&model.units[u], model.panel_bytes);
            }
            mf_model_reset(&model);
        }
        json_decref(config);
        free(text);
    }
}

static void test_fingerprint(void **context)
{
    (void)context;
    static const struct {
        const char *patch;
        int64_t panel_bytes;
        bool same;
    } rows[] = {
        {"{\"attention_dropout\": 0.5, \"bos_token_id\": 7, \"torch_dtype\": \"float16\"}", 0,
         true},
        {"{\"max_position_embeddings\": 1024}", 0, true},
        {"{\"rope_theta\": \"-\", \"rope_parameters\": {\"rope_theta\": 10000}}", 0, true},
        {"{\"rope_theta\": 20000}", 0, false},
        {"{\"rms_norm_eps\": 1e-6}", 0, false},
        {"{\"num_attention_heads\": 8}", 0, false},
        {"{\"tie_word_embeddings\": true}", 0, false},
        {"{\"attention_bias\": true}", 0, false},
        {"{}", 1 << 20, false},
    };
    struct mf_model base;
    assert_ok(mf_model_from_preset("tiny-llama", 0, &base));
    assert_int_equal(strlen(base.fingerprint), 64);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct mf_model model;
        assert_ok(build("tiny-llama", rows[i].patch, rows[i].panel_bytes, &model));
        assert_int_equal(strcmp(model.fingerprint, base.fingerprint) == 0, rows[i].same);
        mf_model_reset(&model);
    }
    mf_model_reset(&base);
}

static void expect_tensor(json_t *tensors, const char *name, int64_t rows, int64_t columns)
{
    const json_t *shape = json_object_get(json_object_get(tensors, name), "shape");
    if (shape == NULL) {
        print_error("no tensor %s in the file\n", name);
    }
    assert_non_null(shape);
    assert_int_equal(json_array_size(shape), columns > 0 ? 2 : 1);
    assert_int_equal(json_integer_value(json_array_get(shape, 0)), rows);
    if (columns > 0) {
        assert_int_equal(json_integer_value(json_array_get(shape, 1)), columns);
    }
    assert_int_equal(json_object_del(tensors, name), 0);
}

/* Our tensors are exactly those that Transformers saved for the config. */
static void check_tensors(const struct mf_model *model, const char *path)
{
    size_t count = 0;
    const char *bytes = harness_read(path, &count);
    uint64_t length = 0;
    assert_true(count > sizeof(length));
    memcpy(&length, bytes, sizeof(length));
    json_t *tensors = NULL;
    assert_ok(mf_json_parse(bytes + sizeof(length), (size_t)length, path, &tensors));
    (void)json_object_del(tensors, "__metadata__");
    for (int32_t i = 0; i < model->unit_count; i++) {
        const struct mf_unit *unit = &model->units[i];
        if (unit->owner != i) {
            continue; /* a tied head is stored once */
        }
        bool turned = unit->weight.transposed;
        bool norm = unit->kind == MF_UNIT_NORM;
        expect_tensor(tensors, unit->weight.name, turned ? unit->columns : unit->rows,
                      norm ? 0 : (turned ? unit->rows : unit->columns));
        if (unit->bias.name != NULL) {
            expect_tensor(tensors, unit->bias.name, unit->rows, 0);
        }
    }
    assert_int_equal(json_object_size(tensors), 0);
    json_decref(tensors);
}

static void test_fixtures(void **context)
{
    (void)context;
    static const char *const names[] = {"gpt2",    "llama", "llama3-rope",
                                        "mistral", "qwen2", "qwen3"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const char *folder = harness_path(harness_source("tests/oracle/fixtures"), names[i]);
        static const char *const files[] = {"config.json", "config.v4.json"};
        struct mf_model models[2];
        for (int spelling = 0; spelling < 2; spelling++) {
            json_t *config = NULL;
            assert_ok(
                mf_json_load(harness_path(folder, files[spelling]), MF_CONFIG_FILE_MAX, &config));
            assert_ok(mf_model_from_config(config, names[i], 0, &models[spelling]));
            assert_true(json_equal(config, models[spelling].config));
            json_decref(config);
        }
        assert_string_equal(models[0].fingerprint, models[1].fingerprint);
        assert_int_equal(models[0].rope.llama3, strcmp(names[i], "llama3-rope") == 0);
        check_model(&models[0]);
        check_tensors(&models[0], harness_path(folder, "model.safetensors"));
        mf_model_reset(&models[0]);
        mf_model_reset(&models[1]);
    }
}

static void test_unit_lists(void **context)
{
    (void)context;
    const struct mf_unit_shape shapes[] = {
        {"a", 3, 100, 50, true}, {"b", 3, 60, 100, false}, {"c", 7, 10, 999, true}};
    struct mf_model model;
    assert_ok(mf_model_from_units(shapes, 3, 0, &model));
    assert_false(model.executable);
    assert_null(model.config);
    assert_string_equal(model.family, "units");
    assert_int_equal(model.block_count, 2); /* block numbers are made dense */
    assert_int_equal(model.blocks[0].unit_count, 2);
    assert_int_equal(model.blocks[1].unit_first, 2);
    assert_int_equal(model.blocks[1].input, 1);
    assert_int_equal(model.params, 100 * 51 + 60 * 100 + 10 * 1000);
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(model.ops[i].kind, MF_OP_LINEAR);
        assert_int_equal(model.ops[i].inputs[0].value, i - 1);
        assert_int_equal(model.ops[i].inputs[0].width, shapes[i].columns);
        assert_int_equal(model.ops[i].output, i);
        assert_int_equal(model.values[i].width, shapes[i].rows);
    }
    mf_model_reset(&model);
}

static void refuse_unit(struct mf_unit_shape second, const char *fragment)
{
    const struct mf_unit_shape shapes[] = {{"first", 1, 8, 8, false}, second};
    struct mf_model model;
    assert_fails(mf_model_from_units(shapes, 2, 0, &model), MF_STATUS_INVALID, fragment);
    mf_model_reset(&model);
}

static void test_unit_list_refusals(void **context)
{
    (void)context;
    char *name = calloc(MF_NAME_MAX + 1, 1);
    assert_non_null(name);
    memset(name, 'x', MF_NAME_MAX);
    refuse_unit((struct mf_unit_shape){"first", 1, 8, 8, false}, "two units");
    refuse_unit((struct mf_unit_shape){"", 1, 8, 8, false}, "name");
    refuse_unit((struct mf_unit_shape){name, 1, 8, 8, false}, "name");
    refuse_unit((struct mf_unit_shape){NULL, 1, 8, 8, false}, "name");
    refuse_unit((struct mf_unit_shape){"second", 0, 8, 8, false}, "block 0");
    refuse_unit((struct mf_unit_shape){"second", 1, 0, 8, false}, "positive");
    refuse_unit((struct mf_unit_shape){"second", 1, 8, -1, false}, "positive");
    refuse_unit((struct mf_unit_shape){"second", 1, INT64_MAX, 8, false}, "second");
    refuse_unit((struct mf_unit_shape){"second", 1, 8, INT64_MAX, false}, "second");
    refuse_unit((struct mf_unit_shape){"second", 1, MF_DIMENSION_MAX, MF_DIMENSION_MAX, true},
                "panels");
    struct mf_model model;
    assert_fails(mf_model_from_units(NULL, 0, 0, &model), MF_STATUS_INVALID, "units");
    assert_fails(mf_model_from_units(NULL, MF_UNITS_MAX + 1, 0, &model), MF_STATUS_INVALID,
                 "units");
    free(name);
}

static void test_flops(void **context)
{
    (void)context;
    struct mf_model model;
    assert_ok(mf_model_from_preset("gpt2", 0, &model));
    double matrices = 12.0 * 12 * 768 * 768 + 50257.0 * 768;
    double attention = 12.0 * 2 * 1024 * 768; /* a token: two products, half masked */
    assert_near(mf_model_step_flops(&model, 2048, 1024), 3 * 2048 * (2 * matrices + attention), 0,
                1e-12);
    mf_model_reset(&model);
    assert_string_equal(mf_model_unit_kind_name(MF_UNIT_HEAD), "head");
    assert_string_equal(mf_model_op_kind_name(MF_OP_SWIGLU), "swiglu");
    assert_string_equal(mf_model_op_kind_name(MF_OP_KIND_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameter_counts),
        cmocka_unit_test(test_operations_hang_together),
        cmocka_unit_test(test_panels_cover_rows_once),
        cmocka_unit_test(test_panels_of_presets),
        cmocka_unit_test(test_tied_head),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_biases),
        cmocka_unit_test(test_init_and_decay),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_damaged_configs),
        cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_unit_lists),
        cmocka_unit_test(test_unit_list_refusals),
        cmocka_unit_test(test_flops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
