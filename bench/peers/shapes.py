"""What every row trains: the shapes by name, a folder with their weights, and the text.

The shapes are written as config.json for both sides, so memferry and PyTorch read the same file.
Weights are Transformers' own random initialisation in bf16, made once and read by every row."""
import json
import os
import pathlib

VOCABULARY = 32000


def llama(hidden, layers, heads, kv_heads, intermediate, vocabulary=VOCABULARY):
    return {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": intermediate, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": vocabulary,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "tie_word_embeddings": False, "initializer_range": 0.02, "attention_bias": False,
        "mlp_bias": False, "dtype": "bfloat16"}


def gpt2(hidden, layers, heads):
    return {
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new", "n_embd": hidden, "n_head": heads, "n_layer": layers,
        "n_positions": 1024, "vocab_size": 50257, "layer_norm_epsilon": 1e-5,
        "initializer_range": 0.02, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "dtype": "bfloat16"}


SHAPES = {
    "llama-1b": llama(2048, 22, 32, 4, 5632),     # TinyLlama's shape, 1.10 G parameters
    "llama-3b": llama(3072, 28, 24, 8, 8192),     # 3.02 G: Llama-3.2-3B with a small vocabulary
    "gpt2-xl": gpt2(1600, 48, 25),                # 1.56 G
    "tiny-llama": llama(128, 2, 4, 2, 352, 512),  # for a try on a CPU
    "tiny-gpt2": dict(gpt2(64, 2, 4), vocab_size=512),
}


def by_depth(width, layers):
    """A Llama-type model of any depth, for capacity.py: Llama-3-8B's layer at 4096, a quarter of
    it at 2048."""
    return llama(width, layers, width // 128, width // 512, width * 7 // 2)


def parameters(config):
    if config["model_type"] == "gpt2":
        width = config["n_embd"]
        layer = 12 * width * width + 13 * width
        tables = config["vocab_size"] + config["n_positions"] + 2
        return tables * width + config["n_layer"] * layer
    width = config["hidden_size"]
    head = width // config["num_attention_heads"]
    attention = 2 * width * width + 2 * width * head * config["num_key_value_heads"]
    layer = attention + 3 * width * config["intermediate_size"] + 2 * width
    return config["num_hidden_layers"] * layer + (2 * config["vocab_size"] + 1) * width


def write_config(config, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def write_weights(name, folder):
    """The folder of shape `name`, written by Transformers; initialised on a GPU if there is one."""
    if (folder / "model.safetensors").exists():
        return
    write_config(SHAPES[name], folder)
    import torch
    import transformers
    torch.manual_seed(17)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="100GB")
    write_config(SHAPES[name], folder)  # as it stands here, without what save_pretrained adds


def write_text(path, least):
    """At least `least` bytes of text that every machine has; each byte is a token."""
    files = [file for file in sorted(pathlib.Path("/usr/share/common-licenses").glob("*"))
             if file.is_file() and not file.is_symlink()]
    files += sorted(pathlib.Path(os.__file__).parent.glob("*.py"))
    data = b""
    for file in files:
        if len(data) >= least:
            break
        data += file.read_bytes()
    path.write_bytes(data)
    return len(data)
