"""The units of a PyTorch module, for a plan that your own process then applies.

PyTorch is not imported: named_modules() and the shapes of parameters are all that is looked at."""
from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import Any

from .data import Unit
from .errors import InvalidError


def _block_key(path: str) -> str:
    """"model.layers.3" of "model.layers.3.mlp.up_proj"; "" outside numbered modules."""
    parts = path.split(".")
    for i, part in enumerate(parts):
        if part.isdigit():
            return ".".join(parts[:i + 1])
    return ""


def _shape(module: Any, weight: Any) -> tuple[int, int]:
    """Output and input features, () of what is no matrix of any kind we know."""
    if len(weight.shape) == 1:  # a norm: one weight for each feature
        return int(weight.shape[0]), 1
    first, second = int(weight.shape[0]), int(weight.shape[1])
    turned = hasattr(module, "num_embeddings") or type(module).__name__ == "Conv1D"
    # An embedding's table is [ids, features]; Transformers' Conv1D (GPT-2) keeps [input, output].
    return (second, first) if turned else (first, second)


def _weights(module: Any) -> tuple[list[str], list[str]]:
    """Names of the module's own weights and of parameters that are neither these nor their
    biases."""
    own = dict(module.named_parameters(recurse=False))
    weights = [name for name, value in own.items()
               if name.endswith("weight") and len(value.shape) in (1, 2)]
    biases = {name.removesuffix("weight") + "bias" for name in weights}
    return weights, [name for name in own if name not in weights and name not in biases]


def module_units(module: Any, *, ignore: Iterable[str] = ()) -> list[Unit]:
    """The linear, embedding and norm layers of a torch.nn.Module, in the order in which they were
    registered, which has to be that of the forward.

    A numbered module ("layers.3") is a block. Parameters whose full name matches a shell glob of
    `ignore` are left out; others that fit no unit are an InvalidError. Where an embedding and a
    head share their parameters the head stands for both. An embedding counts as a product with
    all its rows, so its time is an upper bound."""
    globs = tuple(ignore)
    found: list[tuple[Unit, int, bool]] = []
    unknown: list[str] = []
    block, key = 0, ""
    for path, part in module.named_modules():
        weights, others = _weights(part)
        names = {name: ".".join(filter(None, (path, name))) for name in weights + others}
        kept = [name for name in weights + others
                if not any(fnmatch.fnmatchcase(names[name], glob) for glob in globs)]
        unknown += [names[name] for name in kept if name in others]
        here = _block_key(path)
        for name in kept:
            if name in others:
                continue
            if here and here != key:
                block, key = (block + 1 if key else block), here
            weight = getattr(part, name)
            bias = getattr(part, name.removesuffix("weight") + "bias", None)
            found.append((Unit(names[name].removesuffix("weight").rstrip("._") or "weight", block,
                               *_shape(part, weight), bias is not None),
                          id(weight), hasattr(part, "num_embeddings")))
    if unknown:
        raise InvalidError(f"{len(unknown)} parameters belong to no linear, embedding or norm "
                           f"layer: {', '.join(unknown[:8])}; leave them out with ignore=[...] or "
                           "write the units yourself", "UNKNOWN_PARAMETERS",
                           {"parameter_count": len(unknown)})
    products = {identity for _, identity, embedding in found if not embedding}
    return [unit for unit, identity, embedding in found
            if not embedding or identity not in products]
