"""The memory of one device in rows that add up: what cachalot.memory_report() returns, and its table."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from ._text import bytes_text


@dataclasses.dataclass(frozen=True)
class MemoryRow:
    """A MemoryRow is a part of a device's memory."""

    key: str  # "live", "cached", "torch", "mempool", "nccl", "context", "others" or "unexplained"; of a part, its name
    name: str  # the same, in words
    bytes: int | None  # None: it is unknown, and in "unexplained"
    source: str  # who tells, or why it is unknown
    parts: tuple[MemoryRow, ...] = ()  # they add up to `bytes`, unless one of them is None


@dataclasses.dataclass(frozen=True)
class DeviceMemoryReport:
    """A DeviceMemoryReport has the memory of one device at one moment. str() is a table.

    Invariant: the bytes of `rows` add up to used_bytes. If other threads or processes allocate meanwhile, "unexplained" has the
    difference, and may be negative.
    """

    device: int
    device_name: str
    total_bytes: int
    used_bytes: int | None  # as nvidia-smi shows it; None: unknown
    used_source: str
    rows: tuple[MemoryRow, ...]
    libraries: dict[str, int]  # "live" by library: "torch", "cupy", …
    tensor_pools_bytes: int  # of "live", what TensorPool and PoolSet hold
    asleep_bytes: int  # in no row: what sleeping tags and pools take when they wake
    notes: tuple[str, ...] = ()  # what a reader of the figures should know of this machine

    def row(self, key: str) -> MemoryRow:
        """Returns the row with this key; KeyError if there is none."""
        for row in self.rows:
            if row.key == key:
                return row
        raise KeyError(f"no row {key!r}; there are {', '.join(row.key for row in self.rows)}")

    @property
    def cachalot_bytes(self) -> int:
        """Returns what cachalot holds of the device, in use or cached."""
        return (self.live_bytes or 0) + (self.cached_bytes or 0)

    @property
    def live_bytes(self) -> int | None:
        """Returns what is in use of cachalot's memory."""
        return self.row("live").bytes

    @property
    def cached_bytes(self) -> int | None:
        """Returns what cachalot holds and no allocation uses."""
        return self.row("cached").bytes

    @property
    def nccl_bytes(self) -> int | None:
        """Returns what NCCL's communicators hold."""
        return self.row("nccl").bytes

    @property
    def context_bytes(self) -> int | None:
        """Returns the rest of this process: its CUDA context, and what libraries took past every row above."""
        return self.row("context").bytes

    @property
    def other_processes_bytes(self) -> int | None:
        """Returns what other processes hold."""
        return self.row("others").bytes

    @property
    def unexplained_bytes(self) -> int | None:
        """Returns what is used and in no other row."""
        return self.row("unexplained").bytes

    def to_json(self) -> str:
        """Returns a JSON object with the fields, rows with their parts included."""
        return json.dumps(dataclasses.asdict(self))

    def __str__(self) -> str:
        used = "an unknown part" if self.used_bytes is None else bytes_text(self.used_bytes)
        lines = [
            f"device {self.device}, {self.device_name}: {used} of {bytes_text(self.total_bytes)} used ({self.used_source})"
        ]
        for row in self.rows:
            lines += _lines_of(row, 2)
        lines.append(f"  {_figure(self.used_bytes)}  in all")
        in_use = {library: size for library, size in self.libraries.items() if size}
        if len(in_use) > 1:
            lines.append("in use by library: " + _list(in_use))
        if self.tensor_pools_bytes:
            lines.append(f"in use by tensor pools: {bytes_text(self.tensor_pools_bytes)}")
        if self.asleep_bytes:
            lines.append(f"asleep, not on the device: {bytes_text(self.asleep_bytes)}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def add_unexplained(rows: list[MemoryRow], used: int | None) -> tuple[MemoryRow, ...]:
    """Returns the rows with a last one, so that they add up to `used`."""
    known = sum(row.bytes or 0 for row in rows)
    if used is None:
        last = MemoryRow("unexplained", "unexplained", None, "what is used of the device is unknown")
    else:
        unknown = [row.name for row in rows if row.bytes is None]
        source = f"used less the rows above; {', '.join(unknown)} included" if unknown else "used less the rows above"
        last = MemoryRow("unexplained", "unexplained", used - known, source)
    return (*rows, last)


def _lines_of(row: MemoryRow, indent: int) -> list[str]:
    """Parts that hold nothing are left out, and so is a lone part, which is its row."""
    lines = [f"{' ' * indent}{_figure(row.bytes)}  {row.name:<{50 - indent}}  {row.source}".rstrip()]
    parts = [part for part in row.parts if part.bytes != 0]
    if len(row.parts) > 1:
        for part in parts:
            lines += _lines_of(part, indent + 4)
    return lines


def _figure(size: int | None) -> str:
    if size is None:
        return f"{'unknown':>12}"
    return f"{'-' if size < 0 else ''}{bytes_text(abs(size))}".rjust(12)


def _list(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name} {bytes_text(size)}" for name, size in figures.items())
