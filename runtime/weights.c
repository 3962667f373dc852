/* Reading a Hugging Face folder into units: see weights.h. */
#include "runtime/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "runtime/host/bf16.h"
#include "runtime/safetensors.h"
#include "runtime/weights_layout.h"

/* Elements read at once: 1 MiB of fp32. */
#define CHUNK_ELEMENTS ((int64_t)1 << 18)
#define ELEMENT_BYTES_MAX 4
#define NAMES_LISTED_MAX 3

struct mf_weights {
    const struct mf_model *model;
    struct mf_safetensors *set;
    const struct mf_safetensors_tensor *(*tensors)[MF_WEIGHTS_PART_COUNT]; /* by unit */
    bool *used;                                                            /* by index in the set */
    unsigned char *raw;
    float *values;
    float *others; /* when two copies are compared */
};

/* Names for a message: the first few, and how many there are. */
struct name_list {
    char text[300];
    size_t used;
    int32_t count;
};

static void add_name(struct name_list *list, const char *name)
{
    if (list->count < NAMES_LISTED_MAX && list->used < sizeof(list->text)) {
        list->used += (size_t)snprintf(list->text + list->used, sizeof(list->text) - list->used,
                                       "%s%.90s", list->count > 0 ? ", " : "", name);
    }
    list->count++;
}

/* IEEE half to float, exactly. */
static float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = half >> 10 & 0x1fu;
    uint32_t fraction = half & 0x3ffu;
    uint32_t bits = sign;
    float result;
    if (exponent == 0) { /* zero or subnormal: the fraction in units of 2^-24 */
        result = (float)fraction * 0x1p-24f;
        return sign != 0 ? -result : result;
    }
    bits |= (exponent == 31 ? 0xffu : exponent + 112) << 23 | fraction << 13;
    memcpy(&result, &bits, sizeof(result));
    return result;
}

static void convert(enum mf_safetensors_type type, const unsigned char *raw, int64_t count,
                    float *values)
{
    uint16_t half = 0;
    switch (type) {
    case MF_SAFETENSORS_TYPE_F32:
        memcpy(values, raw, (size_t)count * sizeof(*values));
        break;
    case MF_SAFETENSORS_TYPE_BF16:
        for (int64_t i = 0; i < count; i++) {
            memcpy(&half, raw + 2 * i, sizeof(half));
            values[i] = mf_bf16_to_float(half);
        }
        break;
    default:
        MF_ASSERT(type == MF_SAFETENSORS_TYPE_F16);
        for (int64_t i = 0; i < count; i++) {
            memcpy(&half, raw + 2 * i, sizeof(half));
            values[i] = half_to_float(half);
        }
    }
}

/* `count` elements of a stored tensor from element `first`, as fp32. */
static enum mf_status read_values(struct mf_weights *weights,
                                  const struct mf_safetensors_tensor *tensor, int64_t first,
                                  int64_t count, float *values)
{
    int64_t size = mf_safetensors_type_bytes(tensor->type);
    MF_TRY(mf_safetensors_read(weights->set, tensor, first * size, count * size, weights->raw));
    convert(tensor->type, weights->raw, count, values);
    return MF_STATUS_OK;
}

/* Exactly as named, or without the outer model's prefix. */
static const struct mf_safetensors_tensor *find(const struct mf_safetensors *set, const char *name)
{
    static const char *const prefixes[] = {"transformer.", "model."};
    const struct mf_safetensors_tensor *tensor = mf_safetensors_find(set, name);
    for (size_t i = 0; tensor == NULL && i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        size_t length = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], length) == 0) {
            tensor = mf_safetensors_find(set, name + length);
        }
    }
    return tensor;
}

static void mark_used(struct mf_weights *weights, const struct mf_safetensors_tensor *tensor)
{
    weights->used[tensor - mf_safetensors_at(weights->set, 0)] = true;
}

static enum mf_status check_tensor(const struct mf_weights *weights, const struct mf_unit *unit,
                                   enum mf_weights_part part,
                                   const struct mf_safetensors_tensor *tensor)
{
    char found[128];
    char wanted_text[128];
    struct mf_safetensors_tensor wanted = {0};
    if (tensor->type != MF_SAFETENSORS_TYPE_BF16 && tensor->type != MF_SAFETENSORS_TYPE_F16 &&
        tensor->type != MF_SAFETENSORS_TYPE_F32) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "%s: tensor \"%.120s\" has type %s; BF16, F16 and F32 are read, not "
                             "quantized weights",
                             mf_safetensors_path(weights->set), tensor->name,
                             mf_safetensors_type_name(tensor->type));
    }
    wanted.dimension_count = mf_weights_layout_shape(unit, part, wanted.shape);
    if (tensor->dimension_count == wanted.dimension_count &&
        memcmp(tensor->shape, wanted.shape, (size_t)wanted.dimension_count * sizeof(int64_t)) ==
            0) {
        return MF_STATUS_OK;
    }
    return mf_status_set(MF_STATUS_INVALID,
                         "%s: tensor \"%.120s\" has shape %s, the config asks for %s",
                         mf_safetensors_path(weights->set), tensor->name,
                         mf_safetensors_shape_text(tensor, found, sizeof(found)),
                         mf_safetensors_shape_text(&wanted, wanted_text, sizeof(wanted_text)));
}

static uint32_t bits_of(float value)
{
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Two copies of a tied parameter must be one, to the bit. */
static enum mf_status compare_copies(struct mf_weights *weights,
                                     const struct mf_safetensors_tensor *left,
                                     const struct mf_safetensors_tensor *right)
{
    int64_t count = left->bytes / mf_safetensors_type_bytes(left->type);
    for (int64_t first = 0; first < count; first += CHUNK_ELEMENTS) {
        int64_t part = count - first < CHUNK_ELEMENTS ? count - first : CHUNK_ELEMENTS;
        MF_TRY(read_values(weights, left, first, part, weights->values));
        MF_TRY(read_values(weights, right, first, part, weights->others));
        for (int64_t i = 0; i < part; i++) {
            if (bits_of(weights->values[i]) != bits_of(weights->others[i])) {
                return mf_status_set(MF_STATUS_INVALID,
                                     "%s: tie_word_embeddings is true, but \"%.90s\" and \"%.90s\" "
                                     "differ (element %lld: %g and %g): set it to false to train "
                                     "both, or remove one tensor",
                                     mf_safetensors_path(weights->set), left->name, right->name,
                                     (long long)first + (long long)i, (double)weights->values[i],
                                     (double)weights->others[i]);
            }
        }
    }
    return MF_STATUS_OK;
}

/* A head tied to `owner`: its stored copy stands in when the owner's is missing. */
static enum mf_status resolve_tied(struct mf_weights *weights, const struct mf_unit *head)
{
    const struct mf_safetensors_tensor *copy = find(weights->set, head->weight.name);
    const struct mf_safetensors_tensor **owned =
        &weights->tensors[head->owner][MF_WEIGHTS_PART_WEIGHT];
    if (copy == NULL) {
        return MF_STATUS_OK;
    }
    mark_used(weights, copy);
    MF_TRY(check_tensor(weights, head, MF_WEIGHTS_PART_WEIGHT, copy));
    if (*owned == NULL) {
        *owned = copy;
        return MF_STATUS_OK;
    }
    MF_TRY(check_tensor(weights, head, MF_WEIGHTS_PART_WEIGHT, *owned));
    return compare_copies(weights, *owned, copy);
}

static enum mf_status resolve_unit(struct mf_weights *weights, int32_t index)
{
    const struct mf_unit *unit = &weights->model->units[index];
    if (unit->owner != index) {
        return resolve_tied(weights, unit);
    }
    for (int part = 0; part < MF_WEIGHTS_PART_COUNT; part++) {
        const char *name = mf_weights_layout_tensor(unit, (enum mf_weights_part)part)->name;
        const struct mf_safetensors_tensor *tensor = name ? find(weights->set, name) : NULL;
        if (tensor != NULL) {
            mark_used(weights, tensor);
            MF_TRY(check_tensor(weights, unit, (enum mf_weights_part)part, tensor));
            weights->tensors[index][part] = tensor;
        }
    }
    return MF_STATUS_OK;
}

static enum mf_status check_complete(const struct mf_weights *weights)
{
    const struct mf_model *model = weights->model;
    struct name_list missing = {0};
    int32_t needed = 0;
    for (int32_t i = 0; i < model->unit_count; i++) {
        for (int part = 0; model->units[i].owner == i && part < MF_WEIGHTS_PART_COUNT; part++) {
            const char *name =
                mf_weights_layout_tensor(&model->units[i], (enum mf_weights_part)part)->name;
            needed += name != NULL;
            if (name != NULL && weights->tensors[i][part] == NULL) {
                add_name(&missing, name);
            }
        }
    }
    if (missing.count == 0) {
        return MF_STATUS_OK;
    }
    const char *path = mf_safetensors_path(weights->set);
    size_t length = strlen(path);
    bool index = length > 5 && strcmp(path + length - 5, ".json") == 0;
    const char *other =
        mf_safetensors_count(weights->set) > 0
            ? mf_safetensors_at(weights->set, mf_safetensors_count(weights->set) - 1)->name
            : "nothing";
    bool foreign = missing.count > needed / 2; /* a head is called the same in every family */
    return mf_status_set(
        MF_STATUS_NOT_FOUND, "%s %s %d of the %d tensors of this %s model: %s%s%s%.90s", path,
        index ? "does not list" : "lacks", (int)missing.count, (int)needed, model->family,
        missing.text, missing.count > NAMES_LISTED_MAX ? " ..." : "",
        foreign ? "; these weights are of another model, with tensors like " : "",
        foreign ? other : "");
}

/* Buffers that old files carry and nobody needs. */
static bool is_harmless(const char *name)
{
    static const char *const suffixes[] = {".attn.bias", ".attn.masked_bias", ".inv_freq"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        size_t tail = strlen(suffixes[i]);
        if (length >= tail && strcmp(name + length - tail, suffixes[i]) == 0) {
            return true;
        }
    }
    return false;
}

static void report_unused(const struct mf_weights *weights)
{
    struct name_list unused = {0};
    for (int32_t i = 0; i < mf_safetensors_count(weights->set); i++) {
        const char *name = mf_safetensors_at(weights->set, i)->name;
        if (!weights->used[i] && !is_harmless(name)) {
            add_name(&unused, name);
        }
    }
    if (unused.count > 0) {
        mf_log_warn("%s: %d tensors are not used by this %s model: %s%s",
                    mf_safetensors_path(weights->set), (int)unused.count, weights->model->family,
                    unused.text, unused.count > NAMES_LISTED_MAX ? " ..." : "");
    }
}

static enum mf_status resolve(struct mf_weights *weights, const char *folder)
{
    MF_TRY(mf_safetensors_open(folder, &weights->set));
    weights->used = calloc((size_t)mf_safetensors_count(weights->set) + 1, sizeof(bool));
    MF_ASSERT(weights->used != NULL);
    for (int32_t i = 0; i < weights->model->unit_count; i++) {
        MF_TRY(resolve_unit(weights, i));
    }
    MF_TRY(check_complete(weights));
    report_unused(weights);
    return MF_STATUS_OK;
}

enum mf_status mf_weights_open(const struct mf_model *model, const char *folder,
                               struct mf_weights **out)
{
    *out = NULL;
    if (!model->executable) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             "%s is a list of units: it has no weights that can be read",
                             model->name);
    }
    struct mf_weights *weights = calloc(1, sizeof(*weights));
    MF_ASSERT(weights != NULL);
    weights->model = model;
    weights->tensors = calloc((size_t)model->unit_count, sizeof(*weights->tensors));
    weights->raw = malloc((size_t)CHUNK_ELEMENTS * ELEMENT_BYTES_MAX);
    weights->values = malloc((size_t)CHUNK_ELEMENTS * sizeof(float));
    weights->others = malloc((size_t)CHUNK_ELEMENTS * sizeof(float));
    MF_ASSERT(weights->tensors != NULL && weights->raw != NULL && weights->values != NULL &&
              weights->others != NULL);
    enum mf_status status = resolve(weights, folder);
    if (status != MF_STATUS_OK) {
        mf_weights_close(weights);
        return status;
    }
    *out = weights;
    return MF_STATUS_OK;
}

void mf_weights_close(struct mf_weights *weights)
{
    if (weights == NULL) {
        return;
    }
    mf_safetensors_close(weights->set);
    free(weights->tensors);
    free(weights->used);
    free(weights->raw);
    free(weights->values);
    free(weights->others);
    free(weights);
}

static enum mf_status read_part(struct mf_weights *weights, int32_t index,
                                enum mf_weights_part part, float *master)
{
    const struct mf_unit *unit = &weights->model->units[index];
    const struct mf_safetensors_tensor *tensor = weights->tensors[index][part];
    struct mf_weights_piece piece = {0};
    int64_t first = 0;
    while (tensor != NULL && mf_weights_layout_next(unit, part, CHUNK_ELEMENTS, &piece)) {
        int64_t count = piece.line_count * piece.at_count;
        MF_TRY(read_values(weights, tensor, first, count, weights->values));
        mf_weights_layout_scatter(unit, part, &piece, weights->values, master);
        first += count;
    }
    return MF_STATUS_OK;
}

enum mf_status mf_weights_read_unit(struct mf_weights *weights, int32_t unit, float *master)
{
    MF_ASSERT(unit >= 0 && unit < weights->model->unit_count);
    MF_ASSERT(weights->model->units[unit].owner == unit);
    memset(master, 0, (size_t)weights->model->units[unit].elements * sizeof(*master));
    MF_TRY(read_part(weights, unit, MF_WEIGHTS_PART_WEIGHT, master));
    return read_part(weights, unit, MF_WEIGHTS_PART_BIAS, master);
}
