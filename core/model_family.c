/* The families, row by row: see model_family.h. Templates follow Hugging Face Transformers'
 * modeling files; dropout keys are not read, because memferry trains without dropout. */
#include "core/model_family.h"

#include <string.h>

#define IN(slot, column, width)                                                                    \
    {                                                                                              \
        MF_SLOT_##slot, MF_DIMENSION_##column, MF_DIMENSION_##width                                \
    }
#define OUT(slot, size) .output = MF_SLOT_##slot, .width = MF_DIMENSION_##size
#define UNIT(text, row_size, column_size)                                                          \
    .unit = (text), .rows = MF_DIMENSION_##row_size, .columns = MF_DIMENSION_##column_size
#define LIST(rows)                                                                                 \
    {                                                                                              \
        (rows), (int32_t)(sizeof(rows) / sizeof((rows)[0]))                                        \
    }

/* clang-format off */

#define NORM(name, normed)                                                                         \
    {.op = MF_OP_RMS_NORM, UNIT(name, HIDDEN, ONE),                                                \
     .inputs = {IN(STREAM, ZERO, HIDDEN)}, OUT(normed, HIDDEN)}
#define LAYER_NORM(name, normed)                                                                   \
    {.op = MF_OP_LAYER_NORM, UNIT(name, HIDDEN, ONE), .bias = MF_SWITCH_ALWAYS,                    \
     .inputs = {IN(STREAM, ZERO, HIDDEN)}, OUT(normed, HIDDEN)}
#define LINEAR(name, from, columns_, to, rows_, switch_)                                           \
    {.op = MF_OP_LINEAR, UNIT(name, rows_, columns_), .bias = MF_SWITCH_##switch_,                 \
     .inputs = {IN(from, ZERO, columns_)}, OUT(to, rows_)}
#define CONV1D(name, from, columns_, to, rows_, flags_)                                            \
    {.op = MF_OP_LINEAR, UNIT(name, rows_, columns_), .bias = MF_SWITCH_ALWAYS,                    \
     .flags = MF_TEMPLATE_TRANSPOSED | (flags_), .inputs = {IN(from, ZERO, columns_)},             \
     OUT(to, rows_)}
#define HEAD_NORM(name, slot, group_, size)                                                        \
    {.op = MF_OP_RMS_NORM, UNIT(name, HEAD, ONE), .group = MF_GROUP_##group_,                      \
     .inputs = {IN(slot, ZERO, size)}, OUT(slot, size)}
#define ROPE(slot, group_, size)                                                                   \
    {.op = MF_OP_ROPE, .group = MF_GROUP_##group_, .inputs = {IN(slot, ZERO, size)},               \
     OUT(slot, size)}
#define ATTENTION                                                                                  \
    {.op = MF_OP_ATTENTION, .inputs = {IN(Q, ZERO, Q), IN(K, ZERO, KV), IN(V, ZERO, KV)},          \
     OUT(MIXED, Q)}
#define SWIGLU                                                                                     \
    {.op = MF_OP_SWIGLU, .inputs = {IN(GATE, ZERO, INTERMEDIATE), IN(UP, ZERO, INTERMEDIATE)},     \
     OUT(ACTIVE, INTERMEDIATE)}
#define ADD                                                                                        \
    {.op = MF_OP_ADD, .inputs = {IN(STREAM, ZERO, HIDDEN), IN(BRANCH, ZERO, HIDDEN)},              \
     OUT(STREAM, HIDDEN)}
#define EMBEDDING(name)                                                                            \
    {.op = MF_OP_EMBEDDING, UNIT(name, VOCAB, HIDDEN), OUT(STREAM, HIDDEN)}
#define HEAD                                                                                       \
    {.op = MF_OP_HEAD, UNIT("lm_head", VOCAB, HIDDEN), .inputs = {IN(NORMED, ZERO, HIDDEN)}}

#define SELF "model.layers.%d.self_attn."
#define MLP "model.layers.%d.mlp."

static const struct mf_model_template gpt2_input[] = {
    EMBEDDING("transformer.wte"),
    {.op = MF_OP_POSITION, UNIT("transformer.wpe", POSITIONS, HIDDEN),
     .inputs = {IN(STREAM, ZERO, HIDDEN)}, OUT(STREAM, HIDDEN)},
};
static const struct mf_model_template gpt2_layer[] = {
    LAYER_NORM("transformer.h.%d.ln_1", NORMED),
    CONV1D("transformer.h.%d.attn.c_attn", NORMED, HIDDEN, QKV, QKV, 0),
    {.op = MF_OP_ATTENTION,
     .inputs = {IN(QKV, ZERO, Q), IN(QKV, Q, KV), IN(QKV, Q_KV, KV)}, OUT(MIXED, Q)},
    CONV1D("transformer.h.%d.attn.c_proj", MIXED, Q, BRANCH, HIDDEN, MF_TEMPLATE_RESIDUAL),
    ADD,
    LAYER_NORM("transformer.h.%d.ln_2", NORMED),
    CONV1D("transformer.h.%d.mlp.c_fc", NORMED, HIDDEN, UP, INTERMEDIATE, 0),
    {.op = MF_OP_GELU, .inputs = {IN(UP, ZERO, INTERMEDIATE)}, OUT(ACTIVE, INTERMEDIATE)},
    CONV1D("transformer.h.%d.mlp.c_proj", ACTIVE, INTERMEDIATE, BRANCH, HIDDEN,
           MF_TEMPLATE_RESIDUAL),
    ADD,
};
static const struct mf_model_template gpt2_output[] = {
    LAYER_NORM("transformer.ln_f", NORMED),
    HEAD,
};

static const struct mf_model_template llama_input[] = {EMBEDDING("model.embed_tokens")};
static const struct mf_model_template llama_output[] = {NORM("model.norm", NORMED), HEAD};

#define LLAMA_MLP(switch_)                                                                         \
    NORM("model.layers.%d.post_attention_layernorm", NORMED),                                      \
    LINEAR(MLP "gate_proj", NORMED, HIDDEN, GATE, INTERMEDIATE, switch_),                          \
    LINEAR(MLP "up_proj", NORMED, HIDDEN, UP, INTERMEDIATE, switch_),                              \
    SWIGLU,                                                                                        \
    LINEAR(MLP "down_proj", ACTIVE, INTERMEDIATE, BRANCH, HIDDEN, switch_),                        \
    ADD
#define LLAMA_QKV(switch_)                                                                         \
    NORM("model.layers.%d.input_layernorm", NORMED),                                               \
    LINEAR(SELF "q_proj", NORMED, HIDDEN, Q, Q, switch_),                                          \
    LINEAR(SELF "k_proj", NORMED, HIDDEN, K, KV, switch_),                                         \
    LINEAR(SELF "v_proj", NORMED, HIDDEN, V, KV, switch_)
#define LLAMA_MIX(switch_)                                                                         \
    ROPE(Q, HEADS, Q),                                                                             \
    ROPE(K, KV_HEADS, KV),                                                                         \
    ATTENTION,                                                                                     \
    LINEAR(SELF "o_proj", MIXED, Q, BRANCH, HIDDEN, switch_),                                      \
    ADD

static const struct mf_model_template llama_layer[] = {
    LLAMA_QKV(ATTENTION_BIAS), LLAMA_MIX(ATTENTION_BIAS), LLAMA_MLP(MLP_BIAS)};
static const struct mf_model_template mistral_layer[] = {
    LLAMA_QKV(NEVER), LLAMA_MIX(NEVER), LLAMA_MLP(NEVER)};
static const struct mf_model_template qwen2_layer[] = {
    LLAMA_QKV(ALWAYS), LLAMA_MIX(NEVER), LLAMA_MLP(NEVER)};
static const struct mf_model_template qwen3_layer[] = {
    LLAMA_QKV(ATTENTION_BIAS),
    HEAD_NORM(SELF "q_norm", Q, HEADS, Q),
    HEAD_NORM(SELF "k_norm", K, KV_HEADS, KV),
    LLAMA_MIX(ATTENTION_BIAS), LLAMA_MLP(NEVER)};

#define LLAMA_KEYS                                                                                 \
    .hidden = "hidden_size", .layers = "num_hidden_layers", .heads = "num_attention_heads",        \
    .kv_heads = "num_key_value_heads", .head_dim = "head_dim",                                     \
    .intermediate = "intermediate_size", .vocab = "vocab_size",                                    \
    .positions = "max_position_embeddings", .eps = "rms_norm_eps", .activation = "hidden_act"
#define LLAMA_REST                                                                                 \
    .eps_default = 1e-6, .rope = true, .activations = {"silu", "swish"},                           \
    .settings = {{"quantization_config", MF_SETTING_ABSENT},                                       \
                 {"partial_rotary_factor", MF_SETTING_ONE},                                        \
                 {"add_cross_attention", MF_SETTING_FALSE}},                                       \
    .input = LIST(llama_input), .output = LIST(llama_output)

static const struct mf_model_family families[] = {
    {.model_type = "gpt2",
     .keys = {.hidden = "n_embd", .layers = "n_layer", .heads = "n_head",
              .intermediate = "n_inner", .vocab = "vocab_size", .positions = "n_positions",
              .eps = "layer_norm_epsilon", .activation = "activation_function"},
     .positions_default = 1024, .intermediate_factor = 4, .eps_default = 1e-5, .tie_default = true,
     .activations = {"gelu_new", "gelu_pytorch_tanh"},
     .settings = {{"quantization_config", MF_SETTING_ABSENT},
                  {"scale_attn_weights", MF_SETTING_TRUE},
                  {"scale_attn_by_inverse_layer_idx", MF_SETTING_FALSE},
                  {"reorder_and_upcast_attn", MF_SETTING_FALSE},
                  {"add_cross_attention", MF_SETTING_FALSE}},
     .input = LIST(gpt2_input), .layer = LIST(gpt2_layer), .output = LIST(gpt2_output)},
    {.model_type = "llama", .keys = {LLAMA_KEYS},
     .positions_default = 2048, .attention_bias_key = true, .mlp_bias_key = true, LLAMA_REST,
     .layer = LIST(llama_layer)},
    {.model_type = "mistral", .keys = {LLAMA_KEYS, .window = "sliding_window"},
     .positions_default = 131072, .window_default = 4096, LLAMA_REST,
     .layer = LIST(mistral_layer)},
    {.model_type = "qwen2",
     .keys = {LLAMA_KEYS, .window = "sliding_window", .window_used = "use_sliding_window"},
     .positions_default = 32768, .window_default = 4096, LLAMA_REST, .layer = LIST(qwen2_layer)},
    {.model_type = "qwen3",
     .keys = {LLAMA_KEYS, .window = "sliding_window", .window_used = "use_sliding_window"},
     .positions_default = 32768, .head_dim_default = 128, .window_default = 4096,
     .attention_bias_key = true, LLAMA_REST, .layer = LIST(qwen3_layer)},
};
/* clang-format on */

const struct mf_model_family *mf_model_family_at(size_t index)
{
    return index < sizeof(families) / sizeof(families[0]) ? &families[index] : NULL;
}

const struct mf_model_family *mf_model_family_find(const char *model_type)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (strcmp(families[i].model_type, model_type) == 0) {
            return &families[i];
        }
    }
    return NULL;
}
