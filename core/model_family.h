/*
 * Model families as tables: which keys of config.json mean what, and which operations a block is
 * made of. A new family is a new row, not a new branch.
 *
 * Who calls it: model_config.c reads configs by a row, model_build.c turns a row and the sizes read
 *   into units and operations. Owner: constant data. Thread: any. Fails: no.
 */
#ifndef MF_CORE_MODEL_FAMILY_H
#define MF_CORE_MODEL_FAMILY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/model.h"

/* Sizes that templates speak of; values are in struct mf_model_sizes. */
enum mf_model_dimension {
    MF_DIMENSION_ZERO,
    MF_DIMENSION_ONE,
    MF_DIMENSION_HIDDEN,
    MF_DIMENSION_Q,    /* heads * head_dim */
    MF_DIMENSION_KV,   /* kv_heads * head_dim */
    MF_DIMENSION_Q_KV, /* Q + KV: where v begins in a fused q, k, v */
    MF_DIMENSION_QKV,  /* Q + 2 KV */
    MF_DIMENSION_HEAD,
    MF_DIMENSION_INTERMEDIATE,
    MF_DIMENSION_VOCAB,
    MF_DIMENSION_POSITIONS,
    MF_DIMENSION_COUNT
};

/* Names for values inside a template; a name means the value last written under it. STREAM is the
 * residual stream, which goes from block to block. */
enum mf_model_slot {
    MF_SLOT_NONE,
    MF_SLOT_STREAM,
    MF_SLOT_NORMED,
    MF_SLOT_QKV,
    MF_SLOT_Q,
    MF_SLOT_K,
    MF_SLOT_V,
    MF_SLOT_MIXED, /* what attention gives */
    MF_SLOT_GATE,
    MF_SLOT_UP,
    MF_SLOT_ACTIVE, /* behind the activation function */
    MF_SLOT_BRANCH, /* what is added to the stream */
    MF_SLOT_COUNT
};

enum mf_model_switch {
    MF_SWITCH_NEVER,
    MF_SWITCH_ALWAYS,
    MF_SWITCH_ATTENTION_BIAS, /* config's attention_bias */
    MF_SWITCH_MLP_BIAS,       /* config's mlp_bias */
    MF_SWITCH_COUNT
};

/* How many heads an operation works on alone. */
enum mf_model_group { MF_GROUP_ONE, MF_GROUP_HEADS, MF_GROUP_KV_HEADS };

enum {
    MF_TEMPLATE_TRANSPOSED = 1 << 0, /* stored as Conv1D does: [columns, rows] */
    MF_TEMPLATE_RESIDUAL = 1 << 1
}; /* initialised with std / sqrt(2 * layers) */

struct mf_model_input {
    enum mf_model_slot slot;
    enum mf_model_dimension column;
    enum mf_model_dimension width;
};

struct mf_model_template {
    enum mf_op_kind op;
    const char *unit; /* name, "%d" = the layer; NULL = no parameters */
    enum mf_model_dimension rows;
    enum mf_model_dimension columns;
    enum mf_model_switch bias;
    enum mf_model_group group;
    unsigned flags; /* MF_TEMPLATE_* */
    struct mf_model_input inputs[MF_OP_INPUTS_MAX];
    enum mf_model_slot output;
    enum mf_model_dimension width; /* of the output */
};

struct mf_model_template_list {
    const struct mf_model_template *rows;
    int32_t count;
};

/* A setting that would change the computation; any value but `wanted` is refused by name. */
struct mf_model_setting {
    const char *key;
    enum { MF_SETTING_ABSENT, MF_SETTING_FALSE, MF_SETTING_TRUE, MF_SETTING_ONE } wanted;
};

#define MF_FAMILY_SETTINGS_MAX 8
#define MF_FAMILY_ACTIVATIONS_MAX 3

struct mf_model_family {
    const char *model_type;
    struct {
        const char *hidden, *layers, *heads, *kv_heads, *head_dim; /* NULL = no such key */
        const char *intermediate, *vocab, *positions, *eps, *activation;
        const char *window, *window_used; /* sliding window, and the key that turns it on */
    } keys;
    /* Transformers' defaults for keys that a config may leave out. */
    int64_t positions_default;
    int64_t head_dim_default;    /* 0 = hidden / heads */
    int64_t intermediate_factor; /* intermediate when null: this times hidden; 0 = needed */
    int64_t window_default;      /* 0 = none */
    double eps_default;
    bool tie_default;
    bool rope;
    bool attention_bias_key, mlp_bias_key;              /* the config decides about these biases */
    const char *activations[MF_FAMILY_ACTIVATIONS_MAX]; /* the first is the default */
    struct mf_model_setting settings[MF_FAMILY_SETTINGS_MAX];
    struct mf_model_template_list input, layer, output; /* blocks: first, the middle ones, last */
};

/* NULL when there is none of that model_type. */
const struct mf_model_family *mf_model_family_find(const char *model_type);
/* The rows by index, for messages and tests; NULL behind the last. */
const struct mf_model_family *mf_model_family_at(size_t index);

#endif
