/* The presets: see model_preset.h. Values are those of the public config.json files; the test
 * compares parameter counts with the published totals. The tiny ones are for tests and a first
 * run on a machine without a GPU. */
#include "core/model_preset.h"

#include <string.h>

/* JSON as it stands in the file: the preprocessor adds the quotes. */
#define CONFIG(...) #__VA_ARGS__

/* clang-format off */
/* X(name, config); clang-format would take JSON for C. */
#define PRESET_MAP(X)                                                                              \
    X("gpt2",                                                                                      \
      CONFIG({"model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 768,              \
              "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,               \
              "layer_norm_epsilon": 1e-5, "initializer_range": 0.02}))                             \
    X("gpt2-medium",                                                                               \
      CONFIG({"model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 1024,             \
              "n_head": 16, "n_layer": 24, "n_positions": 1024, "vocab_size": 50257,               \
              "layer_norm_epsilon": 1e-5, "initializer_range": 0.02}))                             \
    X("gpt2-large",                                                                                \
      CONFIG({"model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 1280,             \
              "n_head": 20, "n_layer": 36, "n_positions": 1024, "vocab_size": 50257,               \
              "layer_norm_epsilon": 1e-5, "initializer_range": 0.02}))                             \
    X("gpt2-xl",                                                                                   \
      CONFIG({"model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 1600,             \
              "n_head": 25, "n_layer": 48, "n_positions": 1024, "vocab_size": 50257,               \
              "layer_norm_epsilon": 1e-5, "initializer_range": 0.02}))                             \
    X("llama-2-7b",                                                                                \
      CONFIG({"model_type": "llama", "hidden_act": "silu", "hidden_size": 4096,                    \
              "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,      \
              "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,     \
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,           \
              "initializer_range": 0.02, "attention_bias": false}))                                \
    X("llama-3.2-1b",                                                                              \
      CONFIG({"model_type": "llama", "hidden_act": "silu", "hidden_size": 2048,                    \
              "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,       \
              "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,                      \
              "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,     \
              "tie_word_embeddings": true, "initializer_range": 0.02, "attention_bias": false,     \
              "mlp_bias": false, "rope_scaling": {"rope_type": "llama3", "factor": 32.0,           \
              "low_freq_factor": 1.0, "high_freq_factor": 4.0,                                     \
              "original_max_position_embeddings": 8192}}))                                         \
    X("llama-3.2-3b",                                                                              \
      CONFIG({"model_type": "llama", "hidden_act": "silu", "hidden_size": 3072,                    \
              "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,       \
              "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,                     \
              "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,     \
              "tie_word_embeddings": true, "initializer_range": 0.02, "attention_bias": false,     \
              "mlp_bias": false, "rope_scaling": {"rope_type": "llama3", "factor": 32.0,           \
              "low_freq_factor": 1.0, "high_freq_factor": 4.0,                                     \
              "original_max_position_embeddings": 8192}}))                                         \
    X("llama-3-8b",                                                                                \
      CONFIG({"model_type": "llama", "hidden_act": "silu", "hidden_size": 4096,                    \
              "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,      \
              "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,     \
              "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": false,          \
              "initializer_range": 0.02, "attention_bias": false, "mlp_bias": false}))             \
    X("llama-3.1-70b",                                                                             \
      CONFIG({"model_type": "llama", "hidden_act": "silu", "hidden_size": 8192,                    \
              "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,      \
              "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,   \
              "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": false,          \
              "initializer_range": 0.02, "attention_bias": false, "mlp_bias": false,               \
              "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,       \
              "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}))                \
    X("mistral-7b",                                                                                \
      CONFIG({"model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096,                  \
              "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,      \
              "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768,     \
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,           \
              "initializer_range": 0.02, "sliding_window": 4096}))                                 \
    X("qwen2.5-0.5b",                                                                              \
      CONFIG({"model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896,                     \
              "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,       \
              "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768,    \
              "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true,          \
              "initializer_range": 0.02, "use_sliding_window": false, "sliding_window": 32768,     \
              "max_window_layers": 24}))                                                           \
    X("qwen2.5-1.5b",                                                                              \
      CONFIG({"model_type": "qwen2", "hidden_act": "silu", "hidden_size": 1536,                    \
              "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,       \
              "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 131072,   \
              "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": true,          \
              "initializer_range": 0.02, "use_sliding_window": false, "sliding_window": 131072,    \
              "max_window_layers": 28}))                                                           \
    X("qwen2.5-7b",                                                                                \
      CONFIG({"model_type": "qwen2", "hidden_act": "silu", "hidden_size": 3584,                    \
              "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,      \
              "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 131072,   \
              "rms_norm_eps": 1e-6, "rope_theta": 1000000.0, "tie_word_embeddings": false,         \
              "initializer_range": 0.02, "use_sliding_window": false, "sliding_window": 131072,    \
              "max_window_layers": 28}))                                                           \
    X("qwen3-0.6b",                                                                                \
      CONFIG({"model_type": "qwen3", "hidden_act": "silu", "hidden_size": 1024,                    \
              "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,       \
              "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,                     \
              "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,       \
              "tie_word_embeddings": true, "initializer_range": 0.02, "attention_bias": false,     \
              "use_sliding_window": false, "sliding_window": null, "max_window_layers": 28}))      \
    X("qwen3-1.7b",                                                                                \
      CONFIG({"model_type": "qwen3", "hidden_act": "silu", "hidden_size": 2048,                    \
              "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16,       \
              "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,                     \
              "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,       \
              "tie_word_embeddings": true, "initializer_range": 0.02, "attention_bias": false,     \
              "use_sliding_window": false, "sliding_window": null, "max_window_layers": 28}))      \
    X("qwen3-4b",                                                                                  \
      CONFIG({"model_type": "qwen3", "hidden_act": "silu", "hidden_size": 2560,                    \
              "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,       \
              "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,                     \
              "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,       \
              "tie_word_embeddings": true, "initializer_range": 0.02, "attention_bias": false,     \
              "use_sliding_window": false, "sliding_window": null, "max_window_layers": 36}))      \
    X("qwen3-8b",                                                                                  \
      CONFIG({"model_type": "qwen3", "hidden_act": "silu", "hidden_size": 4096,                    \
              "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,      \
              "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,                     \
              "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,       \
              "tie_word_embeddings": false, "initializer_range": 0.02, "attention_bias": false,    \
              "use_sliding_window": false, "sliding_window": null, "max_window_layers": 36}))      \
    X("tiny-gpt2",                                                                                 \
      CONFIG({"model_type": "gpt2", "activation_function": "gelu_new", "n_embd": 64,               \
              "n_head": 4, "n_layer": 2, "n_positions": 512, "vocab_size": 256,                    \
              "layer_norm_epsilon": 1e-5, "initializer_range": 0.02}))                             \
    X("tiny-llama",                                                                                \
      CONFIG({"model_type": "llama", "hidden_act": "silu", "hidden_size": 64,                      \
              "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,          \
              "num_key_value_heads": 2, "vocab_size": 256, "max_position_embeddings": 512,         \
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,           \
              "initializer_range": 0.02}))                                                         \
    X("tiny-qwen3",                                                                                \
      CONFIG({"model_type": "qwen3", "hidden_act": "silu", "hidden_size": 64,                      \
              "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,          \
              "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 256,                         \
              "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,         \
              "tie_word_embeddings": true, "initializer_range": 0.02}))
/* clang-format on */

static const char *const names[] = {
#define X(name, config) name,
    PRESET_MAP(X)
#undef X
        NULL,
};

static const char *const configs[] = {
#define X(name, config) config,
    PRESET_MAP(X)
#undef X
};

const char *mf_model_preset_config(const char *name)
{
    for (size_t i = 0; names[i] != NULL; i++) {
        if (strcmp(names[i], name) == 0) {
            return configs[i];
        }
    }
    return NULL;
}

const char *const *mf_model_preset_names(size_t *count)
{
    if (count != NULL) {
        *count = sizeof(configs) / sizeof(configs[0]);
    }
    return names;
}
