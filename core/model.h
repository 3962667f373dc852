/*
 * A model as data: units (weight-bearing operations) in blocks, and the list of operations that
 * computes the loss from tokens.
 *
 * What: built from a Hugging Face config (a family is a table of operations, model_family.c), from
 *   a preset name, or from a bare list of units (for clients that run the model themselves).
 * Who calls it: everybody. Owner: the model owns its arena; everything it points to dies at
 *   mf_model_reset. Thread: read-only after it is built. Fails: MF_STATUS_INVALID naming the key
 *   and both values, MF_STATUS_UNSUPPORTED naming what is not supported.
 */
#ifndef MF_CORE_MODEL_H
#define MF_CORE_MODEL_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/hash.h"
#include "core/limits.h"
#include "core/status.h"

enum mf_unit_kind {
    MF_UNIT_EMBEDDING, /* table [rows = vocabulary, columns = width] */
    MF_UNIT_POSITION,  /* learned positions [rows = positions, columns = width] */
    MF_UNIT_NORM,      /* weight[rows] and perhaps bias[rows]; columns = 1 */
    MF_UNIT_LINEAR, /* [rows = output features, columns = input features] and perhaps bias[rows] */
    MF_UNIT_HEAD,   /* [rows = vocabulary, columns = width]; fused with the loss */
    MF_UNIT_KIND_COUNT
};

/* One stored tensor of a unit, as Hugging Face names it. */
struct mf_tensor {
    const char *name;
    bool transposed;  /* stored as [columns, rows] (GPT-2's Conv1D) */
    bool decay;       /* weight decay applies */
    float init_std;   /* random initialisation: normal with this deviation; 0 = constant */
    float init_value; /* the constant */
};

/*
 * A unit's parameters live in one array of `elements`, the same layout for bf16 weights,
 * gradients, fp32 master and both moments: panels one after another, each panel holding
 * panel_rows rows of the weight (the last may hold fewer), then the bias of those rows, then zeros
 * up to a multiple of 64 elements. Panels belong to the model's geometry, never to a plan.
 */
struct mf_unit {
    const char *name; /* "model.layers.3.self_attn.q_proj" */
    enum mf_unit_kind kind;
    int32_t block; /* index of its block */
    int32_t owner; /* the unit that owns the parameters: itself, or the embedding of a tied head */
    int64_t rows;
    int64_t columns;
    struct mf_tensor weight;
    struct mf_tensor bias; /* name NULL = none */
    int32_t panel_count;
    int64_t panel_rows;
    int64_t panel_elements; /* of a full panel, padded */
    int64_t elements;       /* of all panels */
    int64_t params;         /* without padding; 0 for a unit that is tied to another */
};

enum mf_op_kind {
    MF_OP_EMBEDDING,
    MF_OP_POSITION,
    MF_OP_RMS_NORM,
    MF_OP_LAYER_NORM,
    MF_OP_LINEAR,
    MF_OP_ROPE,
    MF_OP_ATTENTION,
    MF_OP_GELU,
    MF_OP_SWIGLU,
    MF_OP_ADD,
    MF_OP_HEAD,
    MF_OP_KIND_COUNT
};

#define MF_OP_INPUTS_MAX 3

/* A use of a value: `column` elements from the start of its rows, `width` elements wide. */
struct mf_use {
    int32_t value; /* -1 = none */
    int64_t column;
    int64_t width;
};

/* One operation: reads values, writes one. The tokens are read by MF_OP_EMBEDDING, the labels by
 * MF_OP_HEAD, which writes no value. */
struct mf_op {
    enum mf_op_kind kind;
    int32_t unit; /* -1 = no parameters */
    int32_t input_count;
    struct mf_use inputs[MF_OP_INPUTS_MAX];
    int32_t output; /* value, -1 for the head */
    int32_t heads;  /* attention, rope; groups of a norm */
    int32_t kv_heads;
    int32_t head_dim;
    double eps;
};

/* An activation: bf16 [tokens, width], written by one operation. */
struct mf_value {
    int64_t width;
    int32_t block; /* where it is written */
};

/* A block: a run of operations whose only input from outside is `input` (-1 for the first block).
 * Block 0 holds the embeddings, the last holds the final norm and the head, the others are
 * transformer layers: the grain of activation policies. */
struct mf_block {
    int32_t op_first;
    int32_t op_count;
    int32_t unit_first;
    int32_t unit_count;
    int32_t input;  /* value */
    int32_t output; /* value; -1 for the last */
};

struct mf_rope {
    double theta;
    bool llama3; /* rope_type "llama3": the four numbers below */
    double factor;
    double low_freq_factor;
    double high_freq_factor;
    int64_t original_positions;
};

struct mf_model {
    struct mf_arena arena;
    const char *name;   /* folder, preset or config's name; not part of the fingerprint */
    const char *family; /* "gpt2", "llama", "mistral", "qwen2", "qwen3", "units" */
    json_t *config;     /* Hugging Face config as given; NULL for "units". Owned. */
    bool executable;    /* false for a bare list of units: can be planned, not run */
    int64_t vocab;
    int64_t width;
    int64_t positions_max;
    int32_t layers;
    int64_t head_dim; /* of the rope table */
    struct mf_rope rope;
    int64_t params;      /* distinct parameters */
    int64_t panel_bytes; /* upper size of a panel's bf16 weights: the model's geometry */
    int32_t unit_count, op_count, value_count, block_count;
    struct mf_unit *units;
    struct mf_op *ops;
    struct mf_value *values;
    struct mf_block *blocks;
    char fingerprint[MF_HASH_TEXT_MAX]; /* of units, operations and panel geometry */
};

/* `config` is a parsed config.json (borrowed); `panel_bytes` 0 = MF_PANEL_BYTES_DEFAULT. */
enum mf_status mf_model_from_config(const json_t *config, const char *name, int64_t panel_bytes,
                                    struct mf_model *out) MF_MUST_USE;
/* A preset ("gpt2", "llama-3-8b", ...): shapes only. MF_STATUS_NOT_FOUND lists the nearest. */
enum mf_status mf_model_from_preset(const char *name, int64_t panel_bytes,
                                    struct mf_model *out) MF_MUST_USE;
/* One unit of a foreign model: out = in W^T (+ bias), width in = columns, width out = rows. */
struct mf_unit_shape {
    const char *name;
    int32_t block; /* non-decreasing from unit to unit */
    int64_t rows;
    int64_t columns;
    bool bias;
};
enum mf_status mf_model_from_units(const struct mf_unit_shape *shapes, int32_t count,
                                   int64_t panel_bytes, struct mf_model *out) MF_MUST_USE;
void mf_model_reset(struct mf_model *model);

/* Names of all presets; NULL at the end. */
const char *const *mf_model_presets(void);
/* The unit of that name, -1 when there is none. */
int32_t mf_model_find_unit(const struct mf_model *model, const char *name);

/* Geometry of panel `panel` of `unit`. */
int64_t mf_model_panel_first_row(const struct mf_unit *unit, int32_t panel);
int64_t mf_model_panel_row_count(const struct mf_unit *unit, int32_t panel);
int64_t mf_model_panel_offset(const struct mf_unit *unit, int32_t panel); /* elements */
int64_t mf_model_panel_size(const struct mf_unit *unit, int32_t panel);   /* elements, padded */
/* How many times one micro-batch adds to the gradient of the parameters `owner` owns (2 if tied).
 */
int32_t mf_model_use_count(const struct mf_model *model, int32_t owner);
const char *mf_model_unit_kind_name(enum mf_unit_kind kind);
const char *mf_model_op_kind_name(enum mf_op_kind kind);
/* floor operations of one forward and backward of `rows` tokens in sequences of seq_len, 2 per
 * multiply-add, nothing recomputed: the numerator of MFU. */
double mf_model_step_flops(const struct mf_model *model, int64_t rows, int64_t seq_len);

#endif
