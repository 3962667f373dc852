"""Between messages of the contract and dataclasses, by the names of their fields.

A field that a newer daemon adds is passed over; one that an older daemon lacks has its default."""
from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Mapping
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from .errors import InvalidError

T = TypeVar("T")


@functools.lru_cache(maxsize=None)
def _targets(kind: Any) -> dict[str, type[Any] | None]:
    """The dataclass that each field holds, alone, optional, or in a tuple; None = plain values."""
    found: dict[str, type[Any] | None] = {}
    for name, hint in get_type_hints(kind).items():
        inside = get_args(hint) if get_origin(hint) in (tuple, Union, types.UnionType) else (hint,)
        found[name] = next((part for part in inside if dataclasses.is_dataclass(part)
                            and isinstance(part, type)), None)
    return found


def _prefix(enum: Any) -> str:
    """"WEIGHT_FORWARD_" of an enum whose zero is WEIGHT_FORWARD_UNSPECIFIED."""
    return str(enum.values_by_number[0].name).removesuffix("UNSPECIFIED")


def _short(enum: Any, number: int) -> str:
    value = enum.values_by_number.get(number)
    if value is None:
        return str(number)  # of a newer daemon
    return "" if number == 0 else str(value.name).removeprefix(_prefix(enum)).lower()


def _number(field: Any, text: str) -> int:
    enum = field.enum_type
    choices = {_short(enum, value.number): int(value.number) for value in enum.values}
    if text not in choices:
        words = ", ".join(f'"{word}"' for word in choices if word)
        raise InvalidError(f'{field.name}: "{text}" is none of {words}', "UNKNOWN_CHOICE")
    return choices[text]


def _is_list(message: Any, field: Any) -> bool:
    value = getattr(message, field.name)
    return hasattr(value, "extend")


def _read_field(message: Any, field: Any, target: type[Any] | None) -> Any:
    value = getattr(message, field.name)
    if field.message_type is not None and target is not None:
        return tuple(read(target, item) for item in value) if _is_list(message, field) else \
            read(target, value)
    if field.enum_type is not None:
        return tuple(_short(field.enum_type, item) for item in value) \
            if _is_list(message, field) else _short(field.enum_type, value)
    return tuple(value) if _is_list(message, field) else value


def read(kind: type[T], message: Any, **more: Any) -> T:
    """The dataclass `kind` from a message; `more` are fields that come from elsewhere."""
    targets = _targets(cast(Any, kind))
    fields = message.DESCRIPTOR.fields_by_name
    values = dict(more)
    for name in targets:
        field = fields.get(name)
        if field is None or name in more:
            continue
        absent = field.containing_oneof is not None and not message.HasField(name)
        values[name] = None if absent else _read_field(message, field, targets[name])
    return kind(**values)


def fill(message: Any, source: Any) -> Any:
    """Sets the fields of a message from a dataclass or a mapping; returns the message.

    Keys are the contract's; None is not set. InvalidError for an unknown choice."""
    values = source if isinstance(source, Mapping) else {
        field.name: getattr(source, field.name) for field in dataclasses.fields(source)}
    for name, value in values.items():
        field = message.DESCRIPTOR.fields_by_name[name]
        if value is None:
            continue
        if _is_list(message, field):
            for item in value if field.message_type is not None else ():
                fill(getattr(message, name).add(), item)
            if field.message_type is None:
                getattr(message, name).extend(value)
        elif field.message_type is not None:
            getattr(message, name).SetInParent()
            fill(getattr(message, name), value)
        elif field.enum_type is not None:
            setattr(message, name, _number(field, value))
        else:
            setattr(message, name, value)
    return message
