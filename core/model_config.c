/* Reading config.json: see model_config.h. Both spellings of rotary settings are read: the old
 * rope_theta and rope_scaling, and rope_parameters of Transformers 5. */
#include "core/model_config.h"

#include <stdlib.h>
#include <string.h>

#include "core/format.h"
#include "core/json.h"

#define WHERE "config"
#define HEADS_MAX 65536
#define LAYERS_MAX (MF_BLOCKS_MAX - 2)
#define ROPE_THETA_DEFAULT 10000.0
#define ROPE_NUMBER_MAX 1e12

static const json_t *present(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value == NULL || json_is_null(value) ? NULL : value;
}

static enum mf_status unsupported(const char *key, const json_t *value, const char *wanted)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    enum mf_status status = mf_status_set(MF_STATUS_UNSUPPORTED,
                                          WHERE ": \"%s\": %.60s is not supported; supported: %s",
                                          key, text ? text : "?", wanted);
    free(text);
    return status;
}

static enum mf_status find_family(const json_t *config, const struct mf_model_family **out)
{
    if (!json_is_object(config)) {
        return mf_status_set(MF_STATUS_INVALID, WHERE ": must be a JSON object");
    }
    const char *type = NULL;
    MF_TRY(mf_json_require(config, WHERE, "model_type"));
    MF_TRY(mf_json_string(config, WHERE, "model_type", &type));
    *out = mf_model_family_find(type);
    if (*out != NULL) {
        return MF_STATUS_OK;
    }
    char known[256] = "";
    size_t used = 0;
    for (size_t i = 0; mf_model_family_at(i) != NULL; i++) {
        int written = snprintf(known + used, sizeof(known) - used, "%s%s", i > 0 ? ", " : "",
                               mf_model_family_at(i)->model_type);
        used += written > 0 && (size_t)written < sizeof(known) - used ? (size_t)written : 0;
    }
    return unsupported("model_type", json_object_get(config, "model_type"), known);
}

/* A setting that has one value which this code computes. */
static enum mf_status check_setting(const json_t *config, const struct mf_model_setting *setting)
{
    const json_t *value = present(config, setting->key);
    if (value == NULL) {
        return MF_STATUS_OK;
    }
    bool flag = false;
    double number = 0;
    switch (setting->wanted) {
    case MF_SETTING_ABSENT:
        return unsupported(setting->key, value, "none");
    case MF_SETTING_FALSE:
        MF_TRY(mf_json_bool(config, WHERE, setting->key, &flag));
        return flag ? unsupported(setting->key, value, "false") : MF_STATUS_OK;
    case MF_SETTING_TRUE:
        MF_TRY(mf_json_bool(config, WHERE, setting->key, &flag));
        return flag ? MF_STATUS_OK : unsupported(setting->key, value, "true");
    case MF_SETTING_ONE:
        MF_TRY(mf_json_number(config, WHERE, setting->key, 0, ROPE_NUMBER_MAX, &number));
        return number == 1 ? MF_STATUS_OK : unsupported(setting->key, value, "1");
    }
    return MF_STATUS_OK;
}

static enum mf_status check_activation(const json_t *config, const struct mf_model_family *family)
{
    const char *key = family->keys.activation;
    const char *name = family->activations[0];
    MF_TRY(mf_json_string(config, WHERE, key, &name));
    for (int i = 0; i < MF_FAMILY_ACTIVATIONS_MAX && family->activations[i] != NULL; i++) {
        if (strcmp(name, family->activations[i]) == 0) {
            return MF_STATUS_OK;
        }
    }
    return unsupported(key, json_object_get(config, key), family->activations[0]);
}

static enum mf_status check_settings(const json_t *config, const struct mf_model_family *family)
{
    for (int i = 0; i < MF_FAMILY_SETTINGS_MAX && family->settings[i].key != NULL; i++) {
        MF_TRY(check_setting(config, &family->settings[i]));
    }
    return check_activation(config, family);
}

/* Sliding windows are not computed; a sequence that never fills the window needs none. */
static enum mf_status read_window(const json_t *config, const struct mf_model_family *family,
                                  int64_t *positions)
{
    const json_t *types = present(config, "layer_types");
    size_t index = 0;
    const json_t *type = NULL;
    json_array_foreach(types, index, type)
    {
        const char *text = json_string_value(type);
        if (text == NULL ||
            (strcmp(text, "full_attention") != 0 && strcmp(text, "sliding_attention") != 0)) {
            return unsupported("layer_types", type, "full_attention, sliding_attention");
        }
    }
    if (family->keys.window == NULL) {
        return MF_STATUS_OK;
    }
    bool used = family->keys.window_used == NULL;
    if (!used) {
        MF_TRY(mf_json_bool(config, WHERE, family->keys.window_used, &used));
    }
    /* A missing key is the family's default, but null says that there is no window. */
    const json_t *value = json_object_get(config, family->keys.window);
    int64_t window = value == NULL ? family->window_default : MF_SEQ_LEN_MAX;
    MF_TRY(mf_json_int(config, WHERE, family->keys.window, 1, MF_DIMENSION_MAX, &window));
    if (used && window < *positions) {
        *positions = window;
    }
    return MF_STATUS_OK;
}

static enum mf_status read_llama3(const json_t *rope, const char *where, struct mf_rope *out)
{
    static const char *const needed[] = {"factor", "low_freq_factor", "high_freq_factor",
                                         "original_max_position_embeddings"};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
        MF_TRY(mf_json_require(rope, where, needed[i]));
    }
    out->llama3 = true;
    MF_TRY(mf_json_number(rope, where, "factor", 1, ROPE_NUMBER_MAX, &out->factor));
    MF_TRY(mf_json_number(rope, where, "low_freq_factor", 1e-6, ROPE_NUMBER_MAX,
                          &out->low_freq_factor));
    MF_TRY(mf_json_number(rope, where, "high_freq_factor", 1e-6, ROPE_NUMBER_MAX,
                          &out->high_freq_factor));
    MF_TRY(mf_json_int(rope, where, "original_max_position_embeddings", 1, MF_DIMENSION_MAX,
                       &out->original_positions));
    if (out->low_freq_factor >= out->high_freq_factor) {
        return mf_status_set(MF_STATUS_INVALID,
                             "%s: \"low_freq_factor\" %g must be below \"high_freq_factor\" %g",
                             where, out->low_freq_factor, out->high_freq_factor);
    }
    return MF_STATUS_OK;
}

static enum mf_status read_rope(const json_t *config, struct mf_rope *out)
{
    static const char *const known[] = {"rope_type",
                                        "type",
                                        "rope_theta",
                                        "factor",
                                        "low_freq_factor",
                                        "high_freq_factor",
                                        "original_max_position_embeddings",
                                        "partial_rotary_factor"};
    static const struct mf_model_setting whole = {"partial_rotary_factor", MF_SETTING_ONE};
    out->theta = ROPE_THETA_DEFAULT;
    MF_TRY(mf_json_number(config, WHERE, "rope_theta", 1, ROPE_NUMBER_MAX, &out->theta));
    const char *where = "rope_parameters";
    const json_t *rope = present(config, where);
    if (rope == NULL) {
        where = "rope_scaling";
        rope = present(config, where);
    }
    if (rope == NULL) {
        return MF_STATUS_OK;
    }
    if (!json_is_object(rope)) {
        return mf_status_set(MF_STATUS_INVALID, WHERE ": \"%s\" must be an object or null", where);
    }
    const char *type = "default";
    MF_TRY(mf_json_string(rope, where, "type", &type));
    MF_TRY(mf_json_string(rope, where, "rope_type", &type));
    bool llama3 = strcmp(type, "llama3") == 0;
    if (!llama3 && strcmp(type, "default") != 0) {
        return mf_status_set(MF_STATUS_UNSUPPORTED,
                             WHERE ": \"%s\" of type \"%.60s\" is not supported; supported: "
                                   "default, llama3",
                             where, type);
    }
    MF_TRY(mf_json_only(rope, where, known, sizeof(known) / sizeof(known[0])));
    MF_TRY(check_setting(rope, &whole));
    MF_TRY(mf_json_number(rope, where, "rope_theta", 1, ROPE_NUMBER_MAX, &out->theta));
    return llama3 ? read_llama3(rope, where, out) : MF_STATUS_OK;
}

/* Heads and how wide they are; the sizes that follow from them. */
static enum mf_status read_heads(const json_t *config, struct mf_model_sizes *out)
{
    const struct mf_model_family *family = out->family;
    int64_t hidden = out->dimensions[MF_DIMENSION_HIDDEN];
    int64_t heads = 0;
    MF_TRY(mf_json_require(config, WHERE, family->keys.heads));
    MF_TRY(mf_json_int(config, WHERE, family->keys.heads, 1, HEADS_MAX, &heads));
    int64_t kv_heads = heads;
    if (family->keys.kv_heads != NULL) {
        MF_TRY(mf_json_int(config, WHERE, family->keys.kv_heads, 1, HEADS_MAX, &kv_heads));
    }
    if (heads % kv_heads != 0) {
        return mf_status_set(
            MF_STATUS_INVALID, WHERE ": \"%s\" %lld is not a multiple of \"%s\" %lld",
            family->keys.heads, (long long)heads, family->keys.kv_heads, (long long)kv_heads);
    }
    int64_t head_dim = family->head_dim_default;
    if (family->keys.head_dim != NULL) {
        MF_TRY(mf_json_int(config, WHERE, family->keys.head_dim, 1, HEADS_MAX, &head_dim));
    }
    if (head_dim == 0) {
        if (hidden % heads != 0) {
            return mf_status_set(
                MF_STATUS_INVALID, WHERE ": \"%s\" %lld is not a multiple of \"%s\" %lld",
                family->keys.hidden, (long long)hidden, family->keys.heads, (long long)heads);
        }
        head_dim = hidden / heads;
    }
    if (head_dim > HEADS_MAX || (family->rope && head_dim % 2 != 0)) {
        return mf_status_set(MF_STATUS_INVALID, WHERE ": head size %lld must be %s and at most %d",
                             (long long)head_dim, family->rope ? "even" : "positive", HEADS_MAX);
    }
    out->heads = (int32_t)heads;
    out->kv_heads = (int32_t)kv_heads;
    out->head_dim = (int32_t)head_dim;
    out->dimensions[MF_DIMENSION_HEAD] = head_dim;
    out->dimensions[MF_DIMENSION_Q] = heads * head_dim;
    out->dimensions[MF_DIMENSION_KV] = kv_heads * head_dim;
    out->dimensions[MF_DIMENSION_Q_KV] = (heads + kv_heads) * head_dim;
    out->dimensions[MF_DIMENSION_QKV] = (heads + 2 * kv_heads) * head_dim;
    return MF_STATUS_OK;
}

static enum mf_status read_size(const json_t *config, const char *key, int64_t high, int64_t *out)
{
    MF_TRY(mf_json_require(config, WHERE, key));
    return mf_json_int(config, WHERE, key, 1, high, out);
}

static enum mf_status read_sizes(const json_t *config, struct mf_model_sizes *out)
{
    const struct mf_model_family *family = out->family;
    int64_t *sizes = out->dimensions;
    int64_t layers = 0;
    sizes[MF_DIMENSION_ONE] = 1;
    MF_TRY(read_size(config, family->keys.hidden, MF_DIMENSION_MAX, &sizes[MF_DIMENSION_HIDDEN]));
    MF_TRY(read_size(config, family->keys.vocab, MF_DIMENSION_MAX, &sizes[MF_DIMENSION_VOCAB]));
    MF_TRY(read_size(config, family->keys.layers, LAYERS_MAX, &layers));
    out->layers = (int32_t)layers;
    sizes[MF_DIMENSION_INTERMEDIATE] = family->intermediate_factor * sizes[MF_DIMENSION_HIDDEN];
    if (family->intermediate_factor == 0) {
        MF_TRY(mf_json_require(config, WHERE, family->keys.intermediate));
    }
    MF_TRY(mf_json_int(config, WHERE, family->keys.intermediate, 1, MF_DIMENSION_MAX,
                       &sizes[MF_DIMENSION_INTERMEDIATE]));
    sizes[MF_DIMENSION_POSITIONS] = family->positions_default;
    MF_TRY(mf_json_int(config, WHERE, family->keys.positions, 1, MF_DIMENSION_MAX,
                       &sizes[MF_DIMENSION_POSITIONS]));
    out->positions_max = sizes[MF_DIMENSION_POSITIONS];
    return read_window(config, family, &out->positions_max);
}

enum mf_status mf_model_config_read(const json_t *config, struct mf_model_sizes *out)
{
    memset(out, 0, sizeof(*out));
    MF_TRY(find_family(config, &out->family));
    const struct mf_model_family *family = out->family;
    MF_TRY(check_settings(config, family));
    MF_TRY(read_sizes(config, out));
    MF_TRY(read_heads(config, out));
    out->eps = family->eps_default;
    MF_TRY(mf_json_number(config, WHERE, family->keys.eps, 0, 1, &out->eps));
    out->tie = family->tie_default;
    MF_TRY(mf_json_bool(config, WHERE, "tie_word_embeddings", &out->tie));
    out->init_std = 0.02;
    MF_TRY(mf_json_number(config, WHERE, "initializer_range", 0, 100, &out->init_std));
    out->switches[MF_SWITCH_ALWAYS] = true;
    if (family->attention_bias_key) {
        MF_TRY(mf_json_bool(config, WHERE, "attention_bias",
                            &out->switches[MF_SWITCH_ATTENTION_BIAS]));
    }
    if (family->mlp_bias_key) {
        MF_TRY(mf_json_bool(config, WHERE, "mlp_bias", &out->switches[MF_SWITCH_MLP_BIAS]));
    }
    return family->rope ? read_rope(config, &out->rope) : MF_STATUS_OK;
}
