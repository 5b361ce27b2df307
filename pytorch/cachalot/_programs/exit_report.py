"""Prints the allocator's work, in a line or a table on stderr when the process ends (CACHALOT_STATS).

All figures are counted, none is compared with what another allocator might have needed. Peaks are since the program's last
reset_peak_memory_stats.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from typing import Literal, NamedTuple

from .._base.log import logger
from .._base.text import bytes_text

Style = Literal["line", "table"]


class Figures(NamedTuple):
    """The figures of one device."""

    device: int
    allocations: int
    peak_requested: int  # bytes
    peak_reserved: int
    live: int  # bytes in blocks when the process ends
    device_allocations: int  # calls of the driver that brought memory
    device_frees: int
    retries: int  # times the cache was given back to serve a request
    out_of_memory: int

    @property
    def overhead(self) -> float:
        """The share of the peak of reserved memory that the peak of requested memory did not need."""
        return max(0.0, 1 - self.peak_requested / self.peak_reserved) if self.peak_reserved else 0.0


def tell_at_exit(style: Style) -> None:
    """Writes the report on stderr when the process ends, and not in forked children. A second call changes the style."""
    atexit.unregister(_tell)
    atexit.register(_tell, style, os.getpid())


def _tell(style: Style, process: int) -> None:
    if os.getpid() != process:
        return
    try:
        text = line_of(_figures()) if style == "line" else table_of(_figures())
        print(text, file=sys.stderr)
    except Exception as error:  # the program has ended, and its exit status is its own
        logger().debug("cachalot: no report at exit: %s", error)


def _figures() -> list[Figures]:
    """Returns the figures of the devices that memory was allocated on."""
    import torch

    from .._heap.statistics import fragmentation, stats

    found: list[Figures] = []
    for device in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
        counts, peaks = stats(device), fragmentation(device)
        if counts["allocation.all.allocated"] == 0 and counts["num_ooms"] == 0:
            continue
        found.append(
            Figures(
                device=device,
                allocations=counts["allocation.all.allocated"],
                peak_requested=peaks.peak_requested_bytes,
                peak_reserved=peaks.peak_reserved_bytes,
                live=counts["allocated_bytes.all.current"],
                device_allocations=counts["num_device_alloc"],
                device_frees=counts["num_device_free"],
                retries=counts["num_alloc_retries"],
                out_of_memory=counts["num_ooms"],
            )
        )
    return found


def line_of(devices: list[Figures]) -> str:
    """Returns "cachalot: peak reserved 8.18 GiB for 8.05 GiB requested (1.6 % overhead), 12 device allocations"."""
    if not devices:
        return "cachalot: the program allocated no GPU memory"
    told: list[str] = []
    for figures in devices:
        parts = [
            f"peak reserved {bytes_text(figures.peak_reserved)} for {bytes_text(figures.peak_requested)} requested "
            f"({100 * figures.overhead:.1f} % overhead)",
            _counted(figures.device_allocations, "device allocation"),
        ]
        if figures.retries:
            parts.append(_counted(figures.retries, "retry", "retries"))
        if figures.out_of_memory:
            parts.append(f"{figures.out_of_memory:,} times out of memory")
        told.append((f"cuda:{figures.device}: " if len(devices) > 1 else "") + ", ".join(parts))
    return "cachalot: " + "; ".join(told)


_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("peak reserved", lambda figures: bytes_text(figures.peak_reserved)),
    ("peak requested", lambda figures: bytes_text(figures.peak_requested)),
    ("overhead", lambda figures: f"{100 * figures.overhead:.1f} %"),
    ("live at exit", lambda figures: bytes_text(figures.live)),
    ("allocations", lambda figures: f"{figures.allocations:,}"),
    ("device allocations", lambda figures: f"{figures.device_allocations:,}"),
    ("device frees", lambda figures: f"{figures.device_frees:,}"),
    ("retries", lambda figures: f"{figures.retries:,}"),
    ("out of memory", lambda figures: f"{figures.out_of_memory:,}"),
)


def table_of(devices: list[Figures]) -> str:
    """Returns a row for each figure and a column for each device."""
    if not devices:
        return line_of(devices)
    lines = ["cachalot statistics " + "".join(f"{f'cuda:{figures.device}':>16}" for figures in devices)]
    for name, text in _ROWS:
        lines.append(f"  {name:<18}" + "".join(f"{text(figures):>16}" for figures in devices))
    return "\n".join(lines)


def _counted(number: int, one: str, several: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else several or one + 's'}"
