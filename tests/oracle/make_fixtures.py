#!/usr/bin/env python3
"""Writes the reference fixtures: tiny Hugging Face models and what PyTorch computes with them.

Question answered: does our arithmetic agree with PyTorch and Transformers, model family by family?
Run by a developer when a family or a quantity is added; the results are committed, so no test
needs PyTorch. Everything is drawn from fixed seeds with NumPy's PCG64, so a newer PyTorch changes
rounding at most. See README.md for the meaning of every file and tensor.

    python3 tests/oracle/make_fixtures.py [--out DIR] [FAMILY ...]
"""

import argparse
import copy
import json
import pathlib
import sys

import numpy
import safetensors
import safetensors.torch
import torch
import transformers

VOCAB = 320
HIDDEN = 64
INNER = 72
LAYERS = 2
ACCUMULATION = 2
MICRO_BATCH = 2
IGNORED = -100
INIT_STD = 0.08
STEPS = 10
OPTIMIZER = {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1,
             "max_grad_norm": 1.0}

COMMON = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER,
          "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
          "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}

# In every family: the configuration class, its arguments, the keys that Transformers 4 wrote
# otherwise, the sequence length, the steps whose master weights are kept (few, for the size).
FAMILIES = {
    "gpt2": {
        "config": transformers.GPT2Config,
        "arguments": {"vocab_size": VOCAB, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 4,
                      "n_positions": 48, "bos_token_id": 1, "eos_token_id": 2,
                      "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0},
        "old_keys": {}, "seq": 32, "kept": [10]},
    "llama": {
        "config": transformers.LlamaConfig,
        "arguments": {**COMMON, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
                      "tie_word_embeddings": False,
                      "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        "old_keys": {"rope_theta": 10000.0, "rope_scaling": None}, "seq": 32, "kept": [1, 10]},
    "llama3-rope": {
        "config": transformers.LlamaConfig,
        # The original length puts the pairs of a head of 16 into all three cases of the rule:
        # wavelengths 6.3 (kept, < 40 / 4), 32 (blended), 167 and more (slowed, > 40).
        "arguments": {**COMMON, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
                      "tie_word_embeddings": True,
                      "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0,
                                          "factor": 8.0, "low_freq_factor": 1.0,
                                          "high_freq_factor": 4.0,
                                          "original_max_position_embeddings": 40}},
        "old_keys": {"rope_theta": 500000.0,
                     "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
                                      "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                      "original_max_position_embeddings": 40}},
        "seq": 64, "kept": []},
    "mistral": {
        "config": transformers.MistralConfig,
        "arguments": {**COMMON, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
                      "tie_word_embeddings": False, "sliding_window": None,
                      "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
        "old_keys": {"rope_theta": 1000000.0}, "seq": 32, "kept": []},
    "qwen2": {
        "config": transformers.Qwen2Config,
        "arguments": {**COMMON, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
                      "tie_word_embeddings": True, "use_sliding_window": False,
                      "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
        "old_keys": {"rope_theta": 1000000.0, "rope_scaling": None}, "seq": 32, "kept": [1, 10]},
    "qwen3": {
        "config": transformers.Qwen3Config,
        "arguments": {**COMMON, "head_dim": 32, "max_position_embeddings": 128,
                      "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
                      "attention_bias": False, "use_sliding_window": False,
                      "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}},
        "old_keys": {"rope_theta": 1000000.0, "rope_scaling": None}, "seq": 32, "kept": []},
}


def make_model(family, rng):
    """A model in bfloat16 whose every parameter, biases and norms too, is far from its default."""
    config = family["config"](**family["arguments"])
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config)
    for name, parameter in model.named_parameters():
        values = rng.standard_normal(tuple(parameter.shape))
        if name.endswith("bias"):
            values = 0.1 * values
        elif parameter.ndim == 1:
            values = 1.0 + 0.2 * values
        else:
            values = INIT_STD * values
        parameter.data = torch.from_numpy(values.astype(numpy.float32))
    model.tie_weights()
    return model.to(torch.bfloat16).eval()


def make_tokens(seq, rng):
    """Inputs and already shifted labels; the micro-batches count different numbers of targets."""
    shape = (ACCUMULATION, MICRO_BATCH, seq)
    tokens = rng.integers(3, VOCAB, size=shape[:2] + (seq + 1,))
    inputs, labels = tokens[..., :-1].copy(), tokens[..., 1:].copy()
    labels[rng.random(shape) < 0.1] = IGNORED
    labels[1, 0, :seq // 4] = IGNORED
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def step_gradients(model, inputs, labels):
    """Forward and backward of one optimizer step; gradients are left in the model.

    Returns the first micro-batch's logits, and every micro-batch's sum of token losses.
    """
    count = int((labels != IGNORED).sum())
    model.zero_grad(set_to_none=True)
    sums, first = [], None
    for ids, targets in zip(inputs, labels):
        logits = model(input_ids=ids, use_cache=False).logits
        wide = logits if logits.dtype == torch.float64 else logits.float()
        loss = torch.nn.functional.cross_entropy(wide.flatten(0, 1), targets.flatten(),
                                                 ignore_index=IGNORED, reduction="sum")
        (loss / count).backward()
        sums.append(float(loss.detach()))
        first = wide.detach() if first is None else first
    return first, sums


def gradients_of(model):
    return {name: p.grad.detach().clone() for name, p in model.named_parameters()}


def global_norm(tensors):
    return float(torch.sqrt(sum((t.double() ** 2).sum() for t in tensors)))


def load(folder, dtype, config_file="config.json"):
    """The saved model in `dtype`, and only if its keys match exactly.

    Loaded and not cast: Module.to() would also round the rotary frequencies, which Transformers
    keeps in float32 whatever the weights are.
    """
    config = transformers.AutoConfig.from_pretrained(folder / config_file)
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.bfloat16 if dtype == torch.bfloat16 else torch.float32,
        attn_implementation="eager", output_loading_info=True)
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        sys.exit(f"{folder}: {config_file}: keys do not match: {info}")
    return model.to(dtype).eval()


def measure(folder, dtype, inputs, labels):
    """One step's quantities with the same weights, computed in `dtype` throughout."""
    run = load(folder, dtype)
    logits, sums = step_gradients(run, inputs, labels)
    count = int((labels != IGNORED).sum())
    gradients = gradients_of(run)
    return {"logits": logits, "loss_sum": sums, "loss": sum(sums) / count,
            "gradients": gradients, "norm": global_norm(gradients.values())}


def train(folder, dtype, inputs, labels, kept):
    """STEPS AdamW steps on float32 masters; forward and backward see them rounded to bfloat16,
    and compute in `dtype`. Returns losses, norms before clipping, masters after the kept steps.
    """
    run = load(folder, dtype)
    count = int((labels != IGNORED).sum())
    masters = {name: p.detach().float().clone().requires_grad_()
               for name, p in run.named_parameters()}
    groups = [{"params": [p for p in masters.values() if p.ndim >= 2],
               "weight_decay": OPTIMIZER["weight_decay"]},
              {"params": [p for p in masters.values() if p.ndim < 2], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=OPTIMIZER["lr"], betas=tuple(OPTIMIZER["betas"]),
                              eps=OPTIMIZER["eps"], foreach=False)
    losses, norms, states = [], [], {}
    for step in range(1, STEPS + 1):
        for name, parameter in run.named_parameters():
            parameter.data = masters[name].detach().to(torch.bfloat16).to(dtype)
        _, sums = step_gradients(run, inputs, labels)
        for name, parameter in run.named_parameters():
            masters[name].grad = parameter.grad.detach().float().clone()
        norm = torch.nn.utils.clip_grad_norm_(masters.values(), OPTIMIZER["max_grad_norm"],
                                              foreach=False)
        adamw.step()
        losses.append(sum(sums) / count)
        norms.append(float(norm))
        if step in kept:
            states[step] = {name: p.detach().clone() for name, p in masters.items()}
    return losses, norms, states


def deviation(got, exact):
    """How far `got` is from `exact`; tensors or dictionaries of tensors, all elements pooled."""
    if isinstance(got, dict):
        got = torch.cat([got[name].double().flatten() for name in exact])
        exact = torch.cat([t.double().flatten() for t in exact.values()])
    difference = got.double() - exact.double()
    rms = float(exact.double().square().mean().sqrt())
    return {"max": float(difference.abs().max()),
            "rms": float(difference.square().mean().sqrt()),
            "relative_rms": float(difference.square().mean().sqrt()) / rms}


def worst_parameter(got, exact):
    """The parameter whose gradient is relatively farthest off."""
    worst = {name: deviation(got[name], exact[name])["relative_rms"] for name in exact}
    name = max(worst, key=worst.get)
    return {"name": name, "relative_rms": worst[name]}


def deviations(got, exact):
    return {"logits": deviation(got["logits"], exact["logits"]),
            "loss": abs(got["loss"] - exact["loss"]),
            "loss_sum": [abs(g - e) for g, e in zip(got["loss_sum"], exact["loss_sum"])],
            "gradient": deviation(got["gradients"], exact["gradients"]),
            "gradient_worst": worst_parameter(got["gradients"], exact["gradients"]),
            "grad_norm_relative": abs(got["norm"] / exact["norm"] - 1.0)}


def train_deviations(got, exact, start):
    """How far bfloat16 activations move the masters; `update` is relative to the distance moved."""
    result = {"loss_max": max(abs(g - e) for g, e in zip(got[0], exact[0])),
              "grad_norm_relative_max": max(abs(g / e - 1.0) for g, e in zip(got[1], exact[1]))}
    for step in sorted(exact[2]):
        moved = {n: exact[2][step][n] - start[n] for n in start}
        other = {n: got[2][step][n] - start[n] for n in start}
        result[f"weight{step}"] = deviation(got[2][step], exact[2][step])
        result[f"update{step}"] = deviation(other, moved)
        result[f"update{step}_worst"] = worst_parameter(other, moved)
    return result


def save_model(model, family, folder):
    """The folder as Transformers writes it, and config.v4.json as Transformers 4 wrote it."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config.pop("rope_parameters", None)
    config.pop("layer_types", None)
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.51.0"
    config.update(family["old_keys"])
    write_json(folder / "config.v4.json", dict(sorted(config.items())))


def check_old_config(folder, inputs, logits):
    """What Transformers 4 wrote must mean the same model."""
    with torch.no_grad():
        model = load(folder, torch.float32, "config.v4.json")
        again = model(input_ids=inputs[0], use_cache=False).logits
    if not torch.equal(again, logits):
        sys.exit(f"{folder}: config.v4.json: gives other logits than config.json")


def check_rope(folder, inputs, logits):
    """Fails unless frequency scaling changes the result; returns by how much."""
    scaled = load(folder, torch.float32)
    config = copy.deepcopy(scaled.config)
    config.rope_parameters = {"rope_type": "default",
                              "rope_theta": config.rope_parameters["rope_theta"]}
    plain = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    plain.load_state_dict(scaled.state_dict())
    with torch.no_grad():
        other = plain(input_ids=inputs[0], use_cache=False).logits
    difference = deviation(other, logits)
    if difference["relative_rms"] < 0.01:
        sys.exit("llama3-rope: scaling makes no difference that a test could see")
    return difference


def write_json(path, value):
    path.write_text(json.dumps(value, indent=1) + "\n")


def make_family(name, folder, seed):
    family = FAMILIES[name]
    folder.mkdir(parents=True, exist_ok=True)
    rng = numpy.random.Generator(numpy.random.PCG64(seed))
    model = make_model(family, rng)
    inputs, labels = make_tokens(family["seq"], rng)
    start = {n: p.detach().float().clone() for n, p in model.named_parameters()}

    save_model(model, family, folder)
    exact = measure(folder, torch.float32, inputs, labels)
    double = measure(folder, torch.float64, inputs, labels)
    half = measure(folder, torch.bfloat16, inputs, labels)
    trained = train(folder, torch.float32, inputs, labels, [1, 10])
    trained_half = train(folder, torch.bfloat16, inputs, labels, [1, 10])
    trained_double = train(folder, torch.float64, inputs, labels, [1, 10])
    check_old_config(folder, inputs, exact["logits"])

    counts = [int((targets != IGNORED).sum()) for targets in labels]
    tensors = {"input_ids": inputs.int(), "labels": labels.int(), "logits": exact["logits"],
               "loss": torch.tensor([exact["loss"]]), "loss_sum": torch.tensor(exact["loss_sum"]),
               "grad_norm": torch.tensor([exact["norm"]]),
               "step_loss": torch.tensor(trained[0]), "step_norm": torch.tensor(trained[1])}
    tensors.update({f"grad.{n}": g for n, g in exact["gradients"].items()})
    for step in family["kept"]:
        tensors.update({f"weight{step}.{n}": w for n, w in trained[2][step].items()})
    safetensors.torch.save_file({n: t.contiguous() for n, t in tensors.items()},
                                folder / "reference.safetensors", metadata={"format": "pt"})

    reference = {
        "family": name, "seed": seed, "versions": versions(),
        "micro_batch": MICRO_BATCH, "seq": family["seq"], "accumulation": ACCUMULATION,
        "ignore_index": IGNORED, "tokens": counts, "optimizer": OPTIMIZER,
        "loss_sum": exact["loss_sum"], "loss": exact["loss"], "grad_norm": exact["norm"],
        "step_loss": trained[0], "step_norm": trained[1],
        "grad_norms": {n: global_norm([g]) for n, g in exact["gradients"].items()},
        "weight_change_norms": {f"step{s}": {n: global_norm([w - start[n]])
                                             for n, w in trained[2][s].items()} for s in (1, 10)},
        "bf16": {"loss_sum": half["loss_sum"], "loss": half["loss"], "grad_norm": half["norm"],
                 "step_loss": trained_half[0], "step_norm": trained_half[1]},
        "deviation_bf16": deviations(half, exact),
        "deviation_bf16_training": train_deviations(trained_half, trained, start),
        "deviation_fp64": deviations(double, exact),
        "deviation_fp64_training": train_deviations(trained_double, trained, start)}
    if name == "llama3-rope":
        reference["deviation_without_rope_scaling"] = check_rope(folder, inputs, exact["logits"])
    write_json(folder / "reference.json", reference)
    return reference


def versions():
    return {"torch": torch.__version__, "transformers": transformers.__version__,
            "safetensors": safetensors.__version__, "numpy": numpy.__version__}


def make_adamw(path):
    """AdamW alone, in float64: parameters and moments after each of five given gradients."""
    rng = numpy.random.Generator(numpy.random.PCG64(7))
    start = rng.standard_normal(16).astype(numpy.float32)
    gradients = rng.standard_normal((5, 16)).astype(numpy.float32)
    # What a kernel may get wrong: no gradient at all, none after the first, tiny, huge, constant.
    gradients[:, 0] = 0.0
    gradients[1:, 1] = 0.0
    gradients[:, 2] *= 1e-10
    gradients[:, 3] *= 1e6
    gradients[:, 4] = 0.5
    start[5] = 0.0
    cases = []
    for eps in (1e-8, 1e-3):
        for decay in (0.0, 0.1):
            cases.append(adamw_case(start, gradients, eps, decay))
    write_json(path, {"versions": versions(), "lr": OPTIMIZER["lr"], "betas": OPTIMIZER["betas"],
                      "start": start.tolist(), "gradients": gradients.tolist(), "cases": cases})


def adamw_case(start, gradients, eps, decay):
    parameter = torch.from_numpy(start.astype(numpy.float64)).requires_grad_()
    adamw = torch.optim.AdamW([parameter], lr=OPTIMIZER["lr"], betas=tuple(OPTIMIZER["betas"]),
                              eps=eps, weight_decay=decay, foreach=False)
    case = {"eps": eps, "weight_decay": decay, "parameters": [], "exp_avg": [], "exp_avg_sq": []}
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient.astype(numpy.float64))
        adamw.step()
        state = adamw.state[parameter]
        case["parameters"].append(parameter.detach().tolist())
        case["exp_avg"].append(state["exp_avg"].tolist())
        case["exp_avg_sq"].append(state["exp_avg_sq"].tolist())
    return case


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).resolve().parent / "fixtures")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=", ".join(FAMILIES))
    options = parser.parse_args()
    unknown = set(options.families) - set(FAMILIES)
    if unknown:
        parser.error(f"no such family: {', '.join(sorted(unknown))}")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    options.out.mkdir(parents=True, exist_ok=True)
    make_adamw(options.out / "adamw.json")
    for seed, name in enumerate(FAMILIES, start=1001):
        if options.families and name not in options.families:
            continue
        result = make_family(name, options.out / name, seed)
        bf16 = result["deviation_bf16"]
        print(f"{name:12} loss {result['loss']:.6f} norm {result['grad_norm']:.4f} "
              f"step10 {result['step_loss'][-1]:.4f} | bf16: loss {bf16['loss']:.1e} "
              f"logits {bf16['logits']['relative_rms']:.1e} "
              f"gradient {bf16['gradient']['relative_rms']:.1e}")


if __name__ == "__main__":
    main()
