#!/usr/bin/env python3
"""Loads a saved model folder with Transformers, strictly, and prints its loss on given tokens.

Question answered: is a folder that we wrote one that Hugging Face users can load, key by key, and
does it hold the model that we say it holds? Exit status: 0 yes, 1 no, 2 usage, 77 Transformers is
not installed (skipped).

    python3 tests/oracle/check_saved.py MODEL_DIR [--tokens FILE] [--logits FILE]
        [--expect-loss X] [--tolerance REL]
"""

import argparse
import pathlib
import sys

SKIPPED = 77
IGNORED = -100

try:
    import safetensors.torch
    import torch
    import transformers
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(SKIPPED)


def load_strictly(folder):
    """The model in float32 on the CPU, or exits 1 naming every key that does not match."""
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", local_files_only=True, dtype=torch.float32,
            output_loading_info=True)
    except (OSError, ValueError, RuntimeError, KeyError, safetensors.SafetensorError) as error:
        sys.exit(f"{folder}: does not load: {error}")
    bad = False
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        for key in info.get(kind) or []:
            print(f"{folder}: {kind.replace('_keys', '')} key: {key}", file=sys.stderr)
            bad = True
    if bad:
        sys.exit(1)
    return model.eval()


def read_tensors(path, names):
    try:
        tensors = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        sys.exit(f"{path}: {error}")
    absent = [name for name in names if name not in tensors]
    if absent:
        sys.exit(f"{path}: holds no {', '.join(absent)}")
    return [tensors[name] for name in names]


def compute(model, inputs, labels):
    """Mean loss over every counted target, and the logits of the first micro-batch."""
    seq = inputs.shape[-1]
    if inputs.ndim == 2:
        inputs, labels = inputs[None], labels[None]
    total, first = 0.0, None
    with torch.no_grad():
        for ids, targets in zip(inputs.long(), labels.long()):
            logits = model(input_ids=ids.view(-1, seq), use_cache=False).logits.float()
            total += float(torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"))
            first = logits if first is None else first
    count = int((labels != IGNORED).sum())
    if count == 0:
        sys.exit("the token file counts no target")
    return total / count, count, first


def logits_match(logits, path, tolerance):
    (expected,) = read_tensors(path, ["logits"])
    if expected.shape != logits.shape:
        print(f"logits: shape {list(logits.shape)}, expected {list(expected.shape)}")
        return False
    difference = (logits - expected.float()).double()
    relative = float(difference.square().mean().sqrt()
                     / expected.double().square().mean().sqrt())
    print(f"logits: max {float(difference.abs().max()):.3e} relative rms {relative:.3e}")
    return relative <= tolerance


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", metavar="MODEL_DIR", type=pathlib.Path)
    parser.add_argument("--tokens", metavar="FILE", type=pathlib.Path,
                        help="safetensors with input_ids and labels (shifted already), "
                             "[batches, rows, seq] or [rows, seq]; default: the --logits file")
    parser.add_argument("--logits", metavar="FILE", type=pathlib.Path,
                        help="safetensors with the expected logits of the first batch")
    parser.add_argument("--expect-loss", metavar="X", type=float)
    parser.add_argument("--tolerance", metavar="REL", type=float, default=1e-5,
                        help="relative, for the loss and for the rms of the logits (%(default)s)")
    options = parser.parse_args()
    if not options.folder.is_dir():
        parser.error(f"{options.folder}: not a folder")
    transformers.utils.logging.disable_progress_bar()
    model = load_strictly(options.folder)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"loaded: {type(model).__name__}, {parameters} parameters, no missing or unexpected key")

    tokens = options.tokens or options.logits
    if tokens is None:
        if options.expect_loss is not None:
            parser.error("--expect-loss needs --tokens")
        return 0
    loss, count, logits = compute(model, *read_tensors(tokens, ["input_ids", "labels"]))
    print(f"loss: {loss:.8f} over {count} tokens")
    good = loss == loss
    if options.expect_loss is not None:
        good = good and abs(loss - options.expect_loss) <= options.tolerance * abs(loss)
    if options.logits is not None:
        good = logits_match(logits, options.logits, options.tolerance) and good
    print("same" if good else "DIFFERS")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
