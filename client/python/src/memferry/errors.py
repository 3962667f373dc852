"""Why a call failed: one exception class for each status of memferry (core/status.h)."""
from __future__ import annotations

from collections.abc import Mapping

from ._size import flag_size, format_size


class MemferryError(Exception):
    """A call that failed.

    `status` is memferry's own ("NO_DEVICE_MEMORY"), `reason` stable and for programs
    ("DEVICE_MEMORY_TOO_SMALL", "" = none), `numbers` by name with the unit last
    ({"smallest_bytes": ...}), `text` for people. str() is the text, its numbers, the way out."""

    status = "INTERNAL"

    def __init__(self, text: str, reason: str = "", numbers: Mapping[str, int] | None = None):
        super().__init__(text, reason, numbers)
        self.text = text
        self.reason = reason
        self.numbers: dict[str, int] = dict(numbers or {})

    @property
    def way_out(self) -> str:
        """What to change, "" when the text says it or nothing can be said."""
        return ""

    def __str__(self) -> str:
        said = [f"{_plain(name)} {_value(name, value)}" for name, value in self.numbers.items()
                if value >= 0 and _value(name, value) not in self.text]
        return "; ".join(part for part in (self.text, ", ".join(said), self.way_out) if part)


def _plain(name: str) -> str:
    return name.removesuffix("_bytes").replace("_", " ")


def _value(name: str, value: int) -> str:
    return format_size(value) if name.endswith("_bytes") else str(value)


class InvalidError(MemferryError):
    """The input is not acceptable."""
    status = "INVALID"


class NotFoundError(MemferryError):
    """No such plan, session, preset or folder."""
    status = "NOT_FOUND"


class ExistsError(MemferryError):
    """It is there already."""
    status = "EXISTS"


class UnsupportedError(MemferryError):
    """Not supported here."""
    status = "UNSUPPORTED"


class DoesNotFitError(MemferryError):
    """Not enough memory; `smallest_bytes` is the least that works, 0 when it is not known."""

    @property
    def smallest_bytes(self) -> int:
        return self.numbers.get("smallest_bytes", 0)

    @property
    def way_out(self) -> str:
        side = {"DEVICE_MEMORY_TOO_SMALL": "device", "HOST_MEMORY_TOO_SMALL": "host"}
        if self.reason not in side or self.smallest_bytes <= 0:
            return ""
        return (f"the smallest {side[self.reason]} budget that works is "
                f"{format_size(self.smallest_bytes)}: "
                f'{side[self.reason]}_memory="{flag_size(self.smallest_bytes)}"')


class NoMemoryError(DoesNotFitError):
    """Not enough host memory."""
    status = "NO_MEMORY"


class NoDeviceMemoryError(DoesNotFitError):
    """Not enough device memory."""
    status = "NO_DEVICE_MEMORY"


class DeviceError(MemferryError):
    """The device failed."""
    status = "DEVICE"


class FileError(MemferryError):
    """Reading or writing failed on the daemon's machine."""
    status = "IO"


class BusyError(MemferryError):
    """The daemon is full at the moment; try again."""
    status = "BUSY"


class DeadlineError(MemferryError):
    """The time was up."""
    status = "DEADLINE"


class CancelledError(MemferryError):
    """Cancelled, or the session was closed meanwhile."""
    status = "CANCELLED"


class DeniedError(MemferryError):
    """Not allowed."""
    status = "DENIED"


class UnavailableError(MemferryError):
    """No daemon answers."""
    status = "UNAVAILABLE"


class CorruptError(MemferryError):
    """A file or an answer is damaged."""
    status = "CORRUPT"


class InternalError(MemferryError):
    """A fault in memferry."""
    status = "INTERNAL"


BY_STATUS: Mapping[str, type[MemferryError]] = {kind.status: kind for kind in (
    InvalidError, NotFoundError, ExistsError, UnsupportedError, NoMemoryError, NoDeviceMemoryError,
    DeviceError, FileError, BusyError, DeadlineError, CancelledError, DeniedError, UnavailableError,
    CorruptError, InternalError)}
