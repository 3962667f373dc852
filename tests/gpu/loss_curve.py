#!/usr/bin/env python3
"""Loss curves of memferry and of Transformers from the same folder on the same tokens.

    loss_curve.py --bin DIR [--device cuda|host] [--steps 50] [--json FILE] MODEL...

MODEL: gpt2 (124M), llama (350M, grouped-query attention) or tiny (for a try on a CPU). For each, a
folder with random weights is written by Transformers in bf16; memferry trains it under a device
budget that forces offloading (a real memferryd, driven by `memferry train`); PyTorch trains it
with bf16 weights and activations and fp32 master weights on the same device. The text is the
licence texts of /usr/share/common-licenses, or Python's own source where that folder is missing.
Prints the greatest and the mean difference of the losses, and beside them how far Transformers is
from itself when it computes attention another way (sdpa, eager): the noise of bf16.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import torch
import transformers

MODELS = {
    "gpt2": (transformers.GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0), 8, 512, "1536MiB"),
    "llama": (transformers.LlamaConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, num_key_value_heads=8,
        intermediate_size=2816, vocab_size=32000, max_position_embeddings=2048,
        rms_norm_eps=1e-5, tie_word_embeddings=False), 8, 1024, "3GiB"),
    "tiny": (transformers.LlamaConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=352, vocab_size=512, max_position_embeddings=256,
        rms_norm_eps=1e-5, tie_word_embeddings=False), 2, 64, "8MiB"),
}
RATE, DECAY, CLIP = 3e-4, 0.1, 1.0


def find_text(folder):
    sources = sorted(pathlib.Path("/usr/share/common-licenses").glob("*"))
    files = [path for path in sources if path.is_file() and not path.is_symlink()]
    if sum(path.stat().st_size for path in files) < 100_000:
        files = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))
    data = b"".join(path.read_bytes() for path in files)
    text = folder / "text"
    text.write_bytes(data)
    return text, data


def run_memferry(options, folder, name, text):
    _, micro_batch, seq_len, budget = MODELS[name]
    config = {
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": CLIP,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {
            "lr": RATE, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": DECAY}},
        "memferry": {
            "model": str(folder / name), "data": {"paths": [str(text)], "format": "bytes",
                                                  "shuffle": False},
            "seq_len": seq_len, "steps": options.steps, "device_memory": options.memory or budget,
            "output": str(folder / f"run-{name}")},
    }
    (folder / f"{name}.json").write_text(json.dumps(config))
    address = f"unix:{folder}/memferryd.sock"
    daemon = subprocess.Popen([f"{options.bin}/memferryd", "--device", options.device, "--socket",
                               address, "--home", str(folder / "home")])
    environment = dict(os.environ, MEMFERRY_HOST=address)
    try:
        for _ in range(600):
            if os.path.exists(address[5:]) or daemon.poll() is not None:
                break
            time.sleep(0.1)
        subprocess.run([f"{options.bin}/memferry", "train", "-c", str(folder / f"{name}.json")],
                       env=environment, check=True, stdout=sys.stderr)
    finally:
        daemon.terminate()
        daemon.wait()
    lines = (folder / f"run-{name}" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def run_torch(options, folder, name, data, attention):
    _, micro_batch, seq_len, _ = MODELS[name]
    device = "cuda" if options.device == "cuda" else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / name, dtype=torch.bfloat16, attn_implementation=attention).to(device).train()
    parameters = list(model.parameters())
    masters = [p.detach().float().clone().requires_grad_() for p in parameters]
    optimizer = torch.optim.AdamW(
        [{"params": [m for m in masters if m.ndim >= 2], "weight_decay": DECAY},
         {"params": [m for m in masters if m.ndim < 2], "weight_decay": 0.0}],
        lr=RATE, betas=(0.9, 0.999), eps=1e-8)
    stream = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
    sequences = (len(stream) - 1) // seq_len
    losses, times = [], []
    for step in range(options.steps):
        rows = [(step * micro_batch + i) % sequences * seq_len for i in range(micro_batch)]
        batch = torch.stack([stream[row:row + seq_len + 1] for row in rows]).to(device)
        start = time.perf_counter()
        logits = model(batch[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1),
                                                 batch[:, 1:].flatten())
        loss.backward()
        losses.append(loss.item())
        for parameter, master in zip(parameters, masters):
            master.grad = parameter.grad.float()
            parameter.grad = None
        torch.nn.utils.clip_grad_norm_(masters, CLIP)
        optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(parameters, masters):
                parameter.copy_(master)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return losses, sorted(times)[len(times) // 2]


def compare(options, folder, name):
    torch.manual_seed(17)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name][0]).to(torch.bfloat16)
    model.save_pretrained(folder / name)
    parameters = sum(p.numel() for p in model.parameters())
    del model
    text, data = find_text(folder)
    ours = run_memferry(options, folder, name, text)
    theirs, torch_seconds = run_torch(options, folder, name, data, "sdpa")
    again, _ = run_torch(options, folder, name, data, "eager")
    differences = [abs(a["loss"] - b) for a, b in zip(ours, theirs)]
    noise = [abs(a - b) for a, b in zip(again, theirs)]
    step_ms = sorted(a["step_time_ms"] for a in ours)[len(ours) // 2]
    result = {
        "model": name, "parameters": parameters, "steps": len(ours),
        "first_loss": [ours[0]["loss"], theirs[0]], "last_loss": [ours[-1]["loss"], theirs[-1]],
        "max_difference": max(differences), "mean_difference": sum(differences) / len(differences),
        "noise_max": max(noise), "noise_mean": sum(noise) / len(noise),
        "losses": [[a["loss"], b, c] for a, b, c in zip(ours, theirs, again)],
        "memferry_step_ms": step_ms, "predicted_step_ms": ours[-1]["predicted_step_ms"],
        "torch_resident_step_ms": torch_seconds * 1e3,
        "device_bytes": ours[-1]["hbm_peak_bytes"]}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=sorted(MODELS), metavar="MODEL")
    parser.add_argument("--bin", required=True, help="folder of memferryd and memferry")
    parser.add_argument("--device", default="cuda", choices=["cuda", "host"])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--memory", help="device budget instead of the model's own")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="memferry-loss-"))
    try:
        results = [compare(options, folder, name) for name in options.models]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for result in results:
        print("{model}: {parameters:,} parameters, {steps} steps; loss memferry / Transformers: "
              "first {first_loss[0]:.4f} / {first_loss[1]:.4f}, "
              "last {last_loss[0]:.4f} / {last_loss[1]:.4f}; "
              "difference max {max_difference:.4f}, mean {mean_difference:.5f} "
              "(Transformers with another attention against itself: {noise_max:.4f}, "
              "{noise_mean:.5f}); step {memferry_step_ms:.1f} ms offloaded "
              "(predicted {predicted_step_ms:.1f}), "
              "torch resident {torch_resident_step_ms:.1f} ms".format(**result))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
