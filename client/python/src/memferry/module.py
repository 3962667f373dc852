"""The units of a PyTorch module, for a plan that your own process then applies.

PyTorch is not imported: named_modules(), the shapes of parameters and, for the order of the
forward, register_forward_pre_hook() are all that is used."""
from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
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
    """Output and input features."""
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


def _forward_order(module: Any, example: Sequence[Any] | Mapping[str, Any]) -> list[int]:
    """Identities of modules in the order in which a forward of `example` calls them first."""
    called: dict[int, None] = {}

    def note(part: Any, _: Any) -> None:
        called.setdefault(id(part))
    hooks = [part.register_forward_pre_hook(note) for _, part in module.named_modules()]
    try:
        module(**example) if isinstance(example, Mapping) else module(*example)
    finally:
        for hook in hooks:
            hook.remove()
    return list(called)


def _in_order(module: Any, example: Sequence[Any] | Mapping[str, Any] | None) -> list[Any]:
    """(path, module) of all modules; one that the example does not call keeps its place behind the
    one before it (MultiheadAttention reads its output layer's weights without calling it)."""
    parts = list(module.named_modules())
    if example is None:
        return parts
    rank = {identity: i for i, identity in enumerate(_forward_order(module, example))}
    last, keys = -1, []
    for _, part in parts:
        last = rank.get(id(part), last)
        keys.append(last)
    return [part for _, part in sorted(zip(keys, parts), key=lambda pair: pair[0])]


def module_units(module: Any, *, example: Sequence[Any] | Mapping[str, Any] | None = None,
                 ignore: Iterable[str] = ()) -> list[Unit]:
    """The linear, embedding and norm layers of a torch.nn.Module, in the order of the forward.

    The order is that in which `example`, the arguments of one forward, calls them; without an
    example that in which they were registered. A numbered module ("layers.3") is a block.
    Parameters whose full name matches a shell glob of `ignore` are left out; others that fit no
    unit are an InvalidError. Where an embedding and a head share their parameters the head stands
    for both. An embedding counts as a product with all its rows, so its time is an upper bound."""
    globs = tuple(ignore)
    found: list[tuple[Unit, int, bool]] = []
    unknown: list[str] = []
    block, key = 0, ""
    for path, part in _in_order(module, example):
        weights, others = _weights(part)
        names = {name: ".".join(filter(None, (path, name))) for name in weights + others}
        kept = [name for name in weights + others
                if not any(fnmatch.fnmatchcase(names[name], glob) for glob in globs)]
        unknown += [names[name] for name in kept if name in others]
        here = _block_key(path)
        if here and here != key and kept:
            block, key = (block + 1 if key else block), here
        for name in kept:
            if name in weights:
                weight = getattr(part, name)
                bias = getattr(part, name.removesuffix("weight") + "bias", None)
                found.append((Unit(names[name].removesuffix("weight").rstrip("._") or "weight",
                                   block, *_shape(part, weight), bias is not None),
                              id(weight), hasattr(part, "num_embeddings")))
    if unknown:
        raise InvalidError(f"{len(unknown)} parameters belong to no linear, embedding or norm "
                           f"layer: {', '.join(unknown[:8])}; leave them out with ignore=[...] or "
                           "write the units yourself", "UNKNOWN_PARAMETERS",
                           {"parameter_count": len(unknown)})
    products = {identity for _, identity, embedding in found if not embedding}
    return [unit for unit, identity, embedding in found
            if not embedding or identity not in products]
