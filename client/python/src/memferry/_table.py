"""A plan as text: rows that differ only in the layer are one, as `memferry plan` prints them."""
from __future__ import annotations

import re
from collections.abc import Sequence

from ._size import format_size
from .data import Plan, UnitPlan

_HEADER = ("unit", "n", "shape", "weights", "forward", "backward", "gradient", "optimizer",
           "compute ms", "h2d ms", "d2h ms", "cpu ms")
_LEFT = (0, 4, 5, 6, 7)
RANGES_MAX = 4


def _key(unit: UnitPlan) -> tuple[object, ...]:
    return (re.sub(r"\b\d+\b", "*", unit.name), unit.rows, unit.columns, unit.forward,
            unit.backward, unit.gradient, unit.optimizer)


def _name(units: Sequence[UnitPlan]) -> str:
    """"layers.0-3,7.mlp" of units that differ in one number, else "*" for each number."""
    numbers = [[int(number) for number in re.findall(r"\b\d+\b", unit.name)] for unit in units]
    if len(units) == 1:
        return units[0].name
    if len(numbers[0]) != 1:
        return re.sub(r"\b\d+\b", "*", units[0].name)
    ranges: list[list[int]] = []
    for number, in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    text = ",".join(f"{a}-{b}" if b > a else str(a) for a, b in ranges[:RANGES_MAX])
    return re.sub(r"\b\d+\b", text + (",..." if len(ranges) > RANGES_MAX else ""), units[0].name)


def _row(units: Sequence[UnitPlan]) -> tuple[str, ...]:
    first = units[0]
    name = _name(units)
    times = [sum(getattr(unit, lane) for unit in units) / 1e6
             for lane in ("compute_ns", "h2d_ns", "d2h_ns", "cpu_ns")]
    return (name, str(len(units)), f"{first.rows}x{first.columns}",
            format_size(sum(unit.weight_bytes for unit in units)), first.forward, first.backward,
            first.gradient, first.optimizer, *(f"{time:.2f}" for time in times))


def plan_table(plan: Plan) -> str:
    groups: dict[tuple[object, ...], list[UnitPlan]] = {}
    for unit in plan.units:
        groups.setdefault(_key(unit), []).append(unit)
    rows = [_HEADER, *(_row(units) for units in groups.values())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADER))]
    lines = ["  ".join(cell.ljust(width) if i in _LEFT else cell.rjust(width)
                       for i, (cell, width) in enumerate(zip(row, widths))).rstrip()
             for row in rows]
    found = plan.prediction
    emulated = ", on an emulated link" if plan.link_emulated else ""
    lines += ["", f"plan {plan.id[:12]} of {plan.model_name} for {plan.hardware_name}"
              f" ({plan.how or ('measured' if plan.measured else 'estimated')}{emulated})",
              f"step {found.step_ns / 1e6:.2f} ms, bound {found.bound_ns / 1e6:.2f} ms by "
              f"{found.bound_lane}, gap {found.gap:.1%}, stall {found.stall_ns / 1e6:.2f} ms",
              f"device memory {format_size(found.device_peak_bytes)}, host memory "
              f"{format_size(found.host_peak_bytes)}, over the link "
              f"{format_size(found.h2d_bytes + found.d2h_bytes + found.direct_bytes)} a step"]
    return "\n".join(lines)
