"""Sizes between text and bytes, in the spelling of core/format.h."""
from __future__ import annotations

import math
import re

_SCALES = {"": 1.0, "b": 1.0,
           "k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40,
           "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
           "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_FORM = re.compile(r"\s*(\d+(?:\.\d*)?(?:e\+?\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_size(size: int | str) -> int:
    """Bytes of "8GiB", "512 MiB", "24GB", "4096" or a number. ValueError."""
    if isinstance(size, int):
        return size
    match = _FORM.fullmatch(size)
    if match is None or match[2].lower() not in _SCALES:
        raise ValueError(f'"{size}" is not a size: write for example 8GiB, 512MiB, 24GB or bytes')
    return round(float(match[1]) * _SCALES[match[2].lower()])


def format_size(size: float) -> str:
    """ "1.50 GiB"; exact below 1 KiB. """
    for scale, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(size) >= scale:
            value = size / scale
            return f"{value:.{2 if abs(value) < 100 else 1}f} {unit}"
    return f"{size:.0f} B"


def flag_size(size: int) -> str:
    """Text that parse_size() reads as no less than `size`, as the command line writes it."""
    if size >= 10 << 30:
        return f"{math.ceil(size / 2**30 * 10) / 10:.1f}GiB"
    for least, scale, unit in ((16 << 20, 2**20, "MiB"), (16 << 10, 2**10, "KiB")):
        if size >= least:
            return f"{-(-size // scale)}{unit}"
    return str(size)
