/* Weights: every family's folder read, saved and read again; names, tied heads, missing and foreign
 * tensors; panels against a plain matrix; random initialisation. */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/json.h"
#include "core/model.h"
#include "runtime/host/bf16.h"
#include "runtime/safetensors.h"
#include "runtime/safetensors_writer.h"
#include "runtime/weights.h"
#include "runtime/weights_layout.h"

/* Small, so that the fixtures' matrices have several panels and a last one that is not full. */
#define PANEL_BYTES 8192

static const char *const families[] = {"gpt2", "llama", "llama3-rope", "mistral", "qwen2", "qwen3"};
#define FAMILY_COUNT (sizeof(families) / sizeof(families[0]))

static const char *fixture(const char *family)
{
    char relative[256];
    snprintf(relative, sizeof(relative), "tests/oracle/fixtures/%s", family);
    return harness_source(relative);
}

static struct mf_model load_model(const char *folder, const char *config_name, int64_t panel_bytes)
{
    struct mf_model model;
    json_t *config = NULL;
    assert_ok(mf_json_load(harness_path(folder, config_name), MF_CONFIG_FILE_MAX, &config));
    assert_ok(mf_model_from_config(config, folder, panel_bytes, &model));
    json_decref(config);
    return model;
}

static float *read_unit(struct mf_weights *weights, const struct mf_model *model, int32_t unit)
{
    float *master = malloc((size_t)model->units[unit].elements * sizeof(float));
    assert_non_null(master);
    assert_ok(mf_weights_read_unit(weights, unit, master));
    return master;
}

/* All bytes of a tensor; the caller frees. */
static uint16_t *read_tensor(const struct mf_safetensors *set, const char *name, int64_t *bytes)
{
    const struct mf_safetensors_tensor *tensor = mf_safetensors_find(set, name);
    if (tensor == NULL) {
        fail_msg("%s is not there", name);
    }
    uint16_t *values = malloc((size_t)tensor->bytes + 1);
    assert_non_null(values);
    assert_ok(mf_safetensors_read(set, tensor, 0, tensor->bytes, values));
    *bytes = tensor->bytes;
    return values;
}

/* Element by element against the stored matrix, written down here once more from model.h. */
static void check_unit(const struct mf_unit *unit, const struct mf_safetensors *set,
                       const float *master)
{
    int64_t bytes = 0;
    int64_t seen = 0;
    uint16_t *weight = read_tensor(set, unit->weight.name, &bytes);
    uint16_t *bias = unit->bias.name != NULL ? read_tensor(set, unit->bias.name, &bytes) : NULL;
    for (int32_t panel = 0; panel < unit->panel_count; panel++) {
        const float *at = master + mf_model_panel_offset(unit, panel);
        int64_t first = mf_model_panel_first_row(unit, panel);
        int64_t rows = mf_model_panel_row_count(unit, panel);
        for (int64_t row = first; row < first + rows; row++) {
            for (int64_t column = 0; column < unit->columns; column++) {
                int64_t stored = unit->weight.transposed ? column * unit->rows + row
                                                         : row * unit->columns + column;
                assert_true(*at++ == mf_bf16_to_float(weight[stored]));
            }
        }
        for (int64_t row = first; bias != NULL && row < first + rows; row++) {
            assert_true(*at++ == mf_bf16_to_float(bias[row]));
        }
        const float *end =
            master + mf_model_panel_offset(unit, panel) + mf_model_panel_size(unit, panel);
        for (; at < end; at++) {
            assert_true(*at == 0);
        }
        seen += mf_model_panel_size(unit, panel);
    }
    assert_int_equal(seen, unit->elements);
    free(weight);
    free(bias);
}

static void test_read_families(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILY_COUNT; f++) {
        const char *folder = fixture(families[f]);
        struct mf_model model = load_model(folder, "config.json", PANEL_BYTES);
        struct mf_safetensors *set = NULL;
        struct mf_weights *weights = NULL;
        int32_t several = 0;
        assert_ok(mf_safetensors_open(folder, &set));
        assert_ok(mf_weights_open(&model, folder, &weights));
        for (int32_t i = 0; i < model.unit_count; i++) {
            if (model.units[i].owner == i) {
                float *master = read_unit(weights, &model, i);
                check_unit(&model.units[i], set, master);
                free(master);
                several += model.units[i].panel_count > 1;
            }
        }
        assert_true(several > 5);
        mf_weights_close(weights);
        mf_safetensors_close(set);
        mf_model_reset(&model);
    }
}

/* What a save takes its units from: a reader, given as fp32 or as bf16. */
struct source {
    struct mf_weights *weights;
    const struct mf_model *model;
    bool as_bf16;
    float *master;
    uint16_t *bf16;
};

static enum mf_status give_unit(void *context, int32_t unit, struct mf_weights_elements *out)
{
    struct source *source = context;
    size_t count = (size_t)source->model->units[unit].elements;
    free(source->master);
    free(source->bf16);
    source->bf16 = NULL;
    source->master = read_unit(source->weights, source->model, unit);
    if (!source->as_bf16) {
        out->master = source->master;
        return MF_STATUS_OK;
    }
    source->bf16 = malloc(count * sizeof(uint16_t));
    assert_non_null(source->bf16);
    for (size_t i = 0; i < count; i++) {
        source->bf16[i] = mf_bf16_from_float(source->master[i]);
    }
    out->weights = source->bf16;
    return MF_STATUS_OK;
}

static void assert_same_tensors(const char *left, const char *right)
{
    struct mf_safetensors *a = NULL;
    struct mf_safetensors *b = NULL;
    assert_ok(mf_safetensors_open(left, &a));
    assert_ok(mf_safetensors_open(right, &b));
    assert_int_equal(mf_safetensors_count(a), mf_safetensors_count(b));
    for (int32_t i = 0; i < mf_safetensors_count(a); i++) {
        const struct mf_safetensors_tensor *tensor = mf_safetensors_at(a, i);
        const struct mf_safetensors_tensor *other = mf_safetensors_find(b, tensor->name);
        int64_t bytes = 0;
        int64_t other_bytes = 0;
        uint16_t *values = read_tensor(a, tensor->name, &bytes);
        uint16_t *others = read_tensor(b, tensor->name, &other_bytes);
        assert_int_equal(tensor->dimension_count, other->dimension_count);
        assert_memory_equal(tensor->shape, other->shape, sizeof(tensor->shape));
        assert_int_equal(bytes, other_bytes);
        assert_memory_equal(values, others, (size_t)bytes);
        free(values);
        free(others);
    }
    assert_string_equal(mf_safetensors_metadata(b, "format"), "pt");
    mf_safetensors_close(a);
    mf_safetensors_close(b);
}

static enum mf_status save(const char *from, const char *to, int64_t shard_bytes, bool as_bf16)
{
    struct mf_model model = load_model(from, "config.json", PANEL_BYTES);
    struct source source = {.model = &model, .as_bf16 = as_bf16};
    const struct mf_weights_save_options options = {.shard_bytes = shard_bytes, .companions = from};
    assert_ok(mf_weights_open(&model, from, &source.weights));
    enum mf_status status = mf_weights_save(&model, to, &options, give_unit, &source);
    free(source.master);
    free(source.bf16);
    mf_weights_close(source.weights);
    mf_model_reset(&model);
    return status;
}

static void test_round_trip(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILY_COUNT; f++) {
        const char *from = fixture(families[f]);
        const char *folder = harness_folder();
        const char *whole = harness_path(folder, "whole");
        const char *shards = harness_path(folder, "shards/");
        assert_ok(save(from, whole, 0, false));
        assert_ok(save(from, shards, 50000, true));
        assert_same_tensors(from, whole);
        assert_same_tensors(from, shards);
        assert_int_equal(access(harness_path(folder, "whole.partial"), F_OK), -1);
        assert_int_equal(access(harness_path(folder, "shards.partial"), F_OK), -1);
        assert_int_equal(access(harness_path(shards, "model.safetensors"), F_OK), -1);
        assert_int_equal(access(harness_path(whole, "generation_config.json"), F_OK), 0);
        char *config = harness_read(harness_path(whole, "config.json"), NULL);
        assert_non_null(strstr(config, "\"torch_dtype\": \"bfloat16\""));
        assert_non_null(strstr(config, "\"dtype\": \"bfloat16\""));

        /* The saved folder is the same model, and so is Transformers 4's spelling of it. */
        struct mf_model model = load_model(from, "config.json", 0);
        struct mf_model again = load_model(shards, "config.json", 0);
        struct mf_model old = load_model(from, "config.v4.json", 0);
        assert_string_equal(model.fingerprint, again.fingerprint);
        assert_string_equal(model.fingerprint, old.fingerprint);
        mf_model_reset(&model);
        mf_model_reset(&again);
        mf_model_reset(&old);

        /* The same model gives the same bytes. */
        const char *twice = harness_path(folder, "twice");
        size_t count = 0;
        size_t other_count = 0;
        assert_ok(save(from, twice, 0, true));
        char *bytes = harness_read(harness_path(whole, "model.safetensors"), &count);
        char *others = harness_read(harness_path(twice, "model.safetensors"), &other_count);
        assert_int_equal(count, other_count);
        assert_memory_equal(bytes, others, count);
        assert_fails(save(from, twice, 0, true), MF_STATUS_EXISTS, "not empty");
    }
}

static enum mf_status fail_late(void *context, int32_t unit, struct mf_weights_elements *out)
{
    return unit < 3 ? give_unit(context, unit, out)
                    : mf_status_set(MF_STATUS_DEVICE, "the device went away");
}

/* A save that fails leaves nothing, and says why. */
static void test_failed_save(void **state)
{
    (void)state;
    const char *folder = harness_folder();
    struct mf_model model = load_model(fixture("llama"), "config.json", 0);
    struct source source = {.model = &model};
    const struct mf_weights_save_options options = {0};
    assert_ok(mf_weights_open(&model, fixture("llama"), &source.weights));
    assert_fails(mf_weights_save(&model, harness_path(folder, "m"), &options, fail_late, &source),
                 MF_STATUS_DEVICE, "went away");
    assert_int_equal(access(harness_path(folder, "m"), F_OK), -1);
    assert_int_equal(access(harness_path(folder, "m.partial"), F_OK), -1);
    free(source.master);
    mf_weights_close(source.weights);
    mf_model_reset(&model);
}

/* How to change a folder's tensors when they are written again. */
struct change {
    const char *drop;              /* this tensor is left out */
    const char *strip;             /* this prefix is cut off names */
    const char *add;               /* this name gets a copy of ... */
    const char *like;              /* ... this tensor ... */
    bool differ;                   /* ... with its last byte changed */
    enum mf_safetensors_type type; /* of all tensors, F64 (0) = as they are */
};

/* F32: the same numbers. F16: bit patterns of all kinds. */
static void convert(enum mf_safetensors_type type, const uint16_t *from, int64_t count, void *to)
{
    for (int64_t i = 0; i < count; i++) {
        float value = mf_bf16_to_float(from[i]);
        uint16_t half = (uint16_t)(i * 7);
        if (type == MF_SAFETENSORS_TYPE_F32) {
            memcpy((char *)to + 4 * i, &value, 4);
        } else {
            memcpy((char *)to + 2 * i, &half, 2);
        }
    }
}

static void append_tensor(struct mf_safetensors_writer *writer, const struct mf_safetensors *set,
                          const char *name, enum mf_safetensors_type type, bool differ)
{
    int64_t bytes = 0;
    uint16_t *values = read_tensor(set, name, &bytes);
    unsigned char *out = malloc((size_t)bytes * 2);
    assert_non_null(out);
    size_t count = (size_t)bytes;
    memcpy(out, values, count);
    if (type == MF_SAFETENSORS_TYPE_F32 || type == MF_SAFETENSORS_TYPE_F16) {
        convert(type, values, bytes / 2, out);
        count = (size_t)(bytes / 2 * mf_safetensors_type_bytes(type));
    }
    out[count - 1] ^= differ ? 1 : 0;
    assert_ok(mf_safetensors_writer_append(writer, out, count));
    free(values);
    free(out);
}

/* The family's folder with its tensors changed. */
static const char *changed_folder(const char *family, const struct change *change)
{
    static struct mf_safetensors_tensor tensors[128];
    static const char *from[128];
    const char *folder = harness_folder();
    struct mf_safetensors *set = NULL;
    struct mf_safetensors_writer *writer = NULL;
    int32_t count = 0;
    assert_ok(mf_safetensors_open(fixture(family), &set));
    for (int32_t i = 0; i < mf_safetensors_count(set); i++) {
        const struct mf_safetensors_tensor *tensor = mf_safetensors_at(set, i);
        if (change->drop != NULL && strcmp(tensor->name, change->drop) == 0) {
            continue;
        }
        from[count] = tensor->name;
        tensors[count] = *tensor;
        size_t length = change->strip != NULL ? strlen(change->strip) : 0;
        if (length > 0 && strncmp(tensor->name, change->strip, length) == 0) {
            tensors[count].name += length;
        }
        count++;
    }
    if (change->add != NULL) {
        from[count] = change->like;
        tensors[count] = *mf_safetensors_find(set, change->like);
        tensors[count++].name = change->add;
    }
    for (int32_t i = 0; i < count; i++) {
        tensors[i].type = change->type != MF_SAFETENSORS_TYPE_F64 ? change->type : tensors[i].type;
    }
    assert_ok(mf_safetensors_writer_open(harness_path(folder, "model.safetensors"), tensors, count,
                                         NULL, &writer));
    for (int32_t i = 0; i < count; i++) {
        bool differ = change->differ && i == count - 1;
        append_tensor(writer, set, from[i], tensors[i].type, differ);
    }
    assert_ok(mf_safetensors_writer_finish(writer));
    mf_safetensors_writer_close(writer);
    mf_safetensors_close(set);
    return folder;
}

static enum mf_status try_open(const char *config_family, const char *folder)
{
    struct mf_model model = load_model(fixture(config_family), "config.json", 0);
    struct mf_weights *weights = NULL;
    enum mf_status status = mf_weights_open(&model, folder, &weights);
    mf_weights_close(weights);
    mf_model_reset(&model);
    return status;
}

/* The same numbers for every unit from both folders. */
static void assert_same_units(const char *family, const char *folder)
{
    struct mf_model model = load_model(fixture(family), "config.json", 0);
    struct mf_weights *left = NULL;
    struct mf_weights *right = NULL;
    assert_ok(mf_weights_open(&model, fixture(family), &left));
    assert_ok(mf_weights_open(&model, folder, &right));
    for (int32_t i = 0; i < model.unit_count; i++) {
        if (model.units[i].owner == i) {
            float *a = read_unit(left, &model, i);
            float *b = read_unit(right, &model, i);
            assert_memory_equal(a, b, (size_t)model.units[i].elements * sizeof(float));
            free(a);
            free(b);
        }
    }
    mf_weights_close(left);
    mf_weights_close(right);
    mf_model_reset(&model);
}

/* A13: prefix or not, mask buffers or not; and other float types of the same numbers. */
static void test_variants(void **state)
{
    (void)state;
    const struct change changes[] = {
        {.strip = "transformer."},
        {.add = "transformer.h.0.attn.bias", .like = "transformer.wpe.weight"},
        {.strip = "transformer.", .add = "h.1.attn.masked_bias", .like = "transformer.wpe.weight"},
        {.add = "who.knows", .like = "transformer.wpe.weight"},
        {.type = MF_SAFETENSORS_TYPE_F32},
    };
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        assert_same_units("gpt2", changed_folder("gpt2", &changes[i]));
    }
    const struct change base = {.strip = "model."};
    assert_same_units("qwen3", changed_folder("qwen3", &base));
}

/* By the definition of the format. */
static double half_value(uint16_t half)
{
    int exponent = half >> 10 & 31;
    int fraction = half & 1023;
    double magnitude = exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024, exponent - 25);
    if (exponent == 31) {
        magnitude = fraction == 0 ? (double)INFINITY : (double)NAN;
    }
    return half & 0x8000 ? -magnitude : magnitude;
}

static void test_half(void **state)
{
    (void)state;
    const struct change change = {.type = MF_SAFETENSORS_TYPE_F16};
    struct mf_model model = load_model(fixture("gpt2"), "config.json", 0);
    struct mf_weights *weights = NULL;
    assert_ok(mf_weights_open(&model, changed_folder("gpt2", &change), &weights));
    float *values = read_unit(weights, &model, 0);
    for (int64_t i = 0; i < model.units[0].rows * model.units[0].columns; i++) {
        double expected = half_value((uint16_t)(i * 7));
        assert_true(isnan(expected) ? isnan(values[i]) : (double)values[i] == expected);
    }
    free(values);
    mf_weights_close(weights);
    mf_model_reset(&model);
}

/* A11: a tied head under one name, the other, both. */
static void test_tied(void **state)
{
    (void)state;
    const char *wte = "transformer.wte.weight";
    const struct change only_head = {.drop = wte, .add = "lm_head.weight", .like = wte};
    const struct change both = {.add = "lm_head.weight", .like = wte};
    const struct change different = {.add = "lm_head.weight", .like = wte, .differ = true};
    const struct change neither = {.drop = wte};
    assert_same_units("gpt2", changed_folder("gpt2", &only_head));
    assert_same_units("gpt2", changed_folder("gpt2", &both));
    assert_fails(try_open("gpt2", changed_folder("gpt2", &different)), MF_STATUS_INVALID,
                 "tie_word_embeddings is true");
    assert_fails(try_open("gpt2", changed_folder("gpt2", &neither)), MF_STATUS_NOT_FOUND, wte);
    const struct change wrong = {.add = "lm_head.weight", .like = "transformer.wpe.weight"};
    assert_fails(try_open("gpt2", changed_folder("gpt2", &wrong)), MF_STATUS_INVALID,
                 "\"lm_head.weight\" has shape [48, 64]");
}

/* Missing, mis-shaped and foreign tensors, each with its own message. */
static void test_refused(void **state)
{
    (void)state;
    const struct change own_head = {.drop = "lm_head.weight"};
    const struct change integers = {
        .add = "x", .like = "model.norm.weight", .type = MF_SAFETENSORS_TYPE_I16};
    assert_fails(try_open("llama", changed_folder("llama", &own_head)), MF_STATUS_NOT_FOUND,
                 "lacks 1 of the 21 tensors of this llama model: lm_head.weight");
    assert_fails(try_open("gpt2", fixture("llama")), MF_STATUS_NOT_FOUND, "of another model");
    assert_fails(try_open("llama", changed_folder("llama", &integers)), MF_STATUS_UNSUPPORTED,
                 "has type I16");
    assert_fails(try_open("qwen3", fixture("llama")), MF_STATUS_INVALID, "the config asks for");
    const char *shards = harness_path(harness_folder(), "shards");
    assert_ok(save(fixture("llama"), shards, 50000, false));
    assert_fails(try_open("gpt2", shards), MF_STATUS_NOT_FOUND, "index.json does not list");

    const struct mf_unit_shape shape = {.name = "a", .rows = 4, .columns = 4};
    struct mf_model units;
    struct mf_weights *weights = NULL;
    assert_ok(mf_model_from_units(&shape, 1, 0, &units));
    assert_status(mf_weights_open(&units, fixture("llama"), &weights), MF_STATUS_UNSUPPORTED);
    mf_model_reset(&units);
}

/* Pieces of every size, in order, put a matrix into panels and take it out again. */
static void check_pieces(const struct mf_unit *unit, enum mf_weights_part part, int64_t most)
{
    int64_t shape[2];
    mf_weights_layout_shape(unit, part, shape);
    int64_t total = shape[0] * shape[1];
    float *stored = malloc((size_t)total * sizeof(float));
    float *elements = calloc((size_t)unit->elements, sizeof(float));
    uint16_t *values = malloc((size_t)most * sizeof(uint16_t));
    assert_true(stored != NULL && elements != NULL && values != NULL);
    for (int64_t i = 0; i < total; i++) {
        stored[i] = (float)(i % 251 + 1);
    }
    struct mf_weights_piece piece = {0};
    int64_t first = 0;
    while (mf_weights_layout_next(unit, part, most, &piece)) {
        assert_true(piece.line_count * piece.at_count <= most);
        mf_weights_layout_scatter(unit, part, &piece, stored + first, elements);
        first += piece.line_count * piece.at_count;
    }
    assert_int_equal(first, total);
    const struct mf_weights_elements source = {.master = elements};
    memset(&piece, 0, sizeof(piece));
    first = 0;
    while (mf_weights_layout_next(unit, part, most, &piece)) {
        mf_weights_layout_gather(unit, part, &piece, &source, values);
        for (int64_t i = 0; i < piece.line_count * piece.at_count; i++) {
            assert_true(mf_bf16_to_float(values[i]) == stored[first++]);
        }
    }
    free(stored);
    free(elements);
    free(values);
}

static void test_pieces(void **state)
{
    (void)state;
    struct mf_model model = load_model(fixture("gpt2"), "config.json", PANEL_BYTES);
    const int64_t sizes[] = {1, 7, 64, 100, 1000, 1 << 20};
    for (int32_t i = 0; i < 8; i++) {
        for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
            check_pieces(&model.units[i], MF_WEIGHTS_PART_WEIGHT, sizes[s]);
            if (model.units[i].bias.name != NULL) {
                check_pieces(&model.units[i], MF_WEIGHTS_PART_BIAS, sizes[s]);
            }
        }
    }
    mf_model_reset(&model);
}

static float *init_unit(const struct mf_model *model, int32_t unit, uint64_t seed)
{
    float *master = malloc((size_t)model->units[unit].elements * sizeof(float));
    assert_non_null(master);
    mf_weights_init_unit(model, unit, seed, master);
    return master;
}

/* Rows drawn by several callers are those of one. */
static void test_init_rows(void **state)
{
    (void)state;
    struct mf_model model = load_model(fixture("gpt2"), "config.json", PANEL_BYTES);
    for (int32_t u = 0; u < model.unit_count; u++) {
        const struct mf_unit *unit = &model.units[u];
        if (unit->owner != u) {
            continue;
        }
        float *whole = init_unit(&model, u, 42);
        float *parts = calloc((size_t)unit->elements, sizeof(float));
        assert_non_null(parts);
        for (int64_t first = unit->rows / 5 * 5; first >= 0; first -= 5) {
            int64_t end = first + 5 < unit->rows ? first + 5 : unit->rows;
            mf_weights_init_rows(&model, u, 42, first, end, parts);
        }
        assert_memory_equal(whole, parts, (size_t)unit->elements * sizeof(float));
        free(whole);
        free(parts);
    }
    mf_model_reset(&model);
}

/* Normal, of the deviation asked for, bf16 values, whatever the panels are. */
static void test_init(void **state)
{
    (void)state;
    struct mf_model small = load_model(fixture("gpt2"), "config.json", PANEL_BYTES);
    struct mf_model large = load_model(fixture("gpt2"), "config.json", 0);
    for (int32_t u = 0; u < small.unit_count; u++) {
        const struct mf_unit *unit = &small.units[u];
        if (unit->owner != u) {
            continue;
        }
        float *a = init_unit(&small, u, 42);
        float *b = init_unit(&large, u, 42);
        float *c = init_unit(&large, u, 43);
        double sum = 0;
        double squares = 0;
        int64_t same = 0;
        for (int64_t row = 0; row < unit->rows; row++) {
            for (int64_t column = 0; column < unit->columns; column++) {
                float value = a[mf_weights_layout_offset(unit, row, column)];
                int64_t other = mf_weights_layout_offset(&large.units[u], row, column);
                assert_true(value == b[other]);
                assert_true(value == mf_bf16_to_float(mf_bf16_from_float(value)));
                same += value == c[other];
                sum += value;
                squares += (double)value * value;
            }
        }
        double count = (double)(unit->rows * unit->columns);
        if (unit->kind == MF_UNIT_NORM) {
            assert_true(sum == count);
        } else {
            double deviation = unit->weight.init_std;
            assert_near(sum / count, 0, 5 * deviation / sqrt(count), 0);
            assert_near(sqrt(squares / count), deviation, 0, 5 / sqrt(2 * count));
            assert_true((double)same < 0.02 * count);
        }
        if (unit->bias.name != NULL) {
            assert_true(a[mf_weights_layout_bias_offset(unit, unit->rows - 1)] == 0);
        }
        free(a);
        free(b);
        free(c);
    }
    mf_model_reset(&small);
    mf_model_reset(&large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_families), cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_failed_save),   cmocka_unit_test(test_variants),
        cmocka_unit_test(test_half),          cmocka_unit_test(test_tied),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_init),          cmocka_unit_test(test_init_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
