"""Prints the allocator's work, in a line or a table on stderr when the process ends (CACHALOT_STATS).

All figures are counted, none is compared with what another allocator might have needed. Peaks are since the program's last
reset_peak_memory_stats.
"""

from __future__ import annotations

import atexit
import os
import resource
import sys
from typing import Literal

from .._base.log import logger
from .._base.text import bytes_text

Style = Literal["line", "table"]


def tell_at_exit(style: Style) -> None:
    """Writes the report on stderr when the process ends, and not in forked children. A second call changes the style."""
    atexit.unregister(_tell)
    atexit.register(_tell, style, os.getpid())


def _tell(style: Style, process: int) -> None:
    if os.getpid() != process:
        return
    try:
        print(_text(style), file=sys.stderr)
    except Exception as error:  # the program has ended, and its exit status is its own
        logger().debug("cachalot: no report at exit: %s", error)


def _text(style: Style) -> str:
    """Returns the report of the devices that memory was allocated on."""
    import torch

    from .._heap.statistics import stats

    counts = {device: stats(device) for device in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0)}
    used = {device: each for device, each in counts.items() if each["allocation.all.allocated"] or each["num_ooms"]}
    if not used:
        return f"cachalot: {_nothing()}"
    if style == "table":
        return _table_of(used)
    return "cachalot: " + "; ".join(
        (f"cuda:{device}: " if len(used) > 1 else "") + _line_of(figures) for device, figures in used.items()
    )


def _nothing() -> str:
    had_children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss != 0
    if had_children:
        return "this process allocated no GPU memory; the memory of its child processes is not counted here"
    return "the program allocated no GPU memory"


def _overhead(figures: dict[str, int]) -> str:
    """Returns the share of the peak of reserved memory that the peak of requested memory did not need."""
    requested, reserved = figures["requested_bytes.all.peak"], figures["reserved_bytes.all.peak"]
    return f"{100 * max(0.0, 1 - requested / reserved) if reserved else 0.0:.1f} %"


def _line_of(figures: dict[str, int]) -> str:
    """Returns "peak reserved 8.18 GiB for 8.05 GiB requested (1.6 % overhead), 12 device allocations"."""
    allocations, retries, refused = (figures[name] for name in ("num_device_alloc", "num_alloc_retries", "num_ooms"))
    parts = [
        f"peak reserved {bytes_text(figures['reserved_bytes.all.peak'])} for "
        f"{bytes_text(figures['requested_bytes.all.peak'])} requested ({_overhead(figures)} overhead)",
        f"{allocations:,} device allocation{'' if allocations == 1 else 's'}",
    ]
    if retries:
        parts.append(f"{retries:,} {'retry' if retries == 1 else 'retries'}")
    if refused:
        parts.append(f"{refused:,} times out of memory")
    return ", ".join(parts)


def _table_of(devices: dict[int, dict[str, int]]) -> str:
    """Returns a row for each figure and a column for each device."""
    columns = [
        {
            "cachalot statistics": f"cuda:{device}",
            "  peak reserved": bytes_text(figures["reserved_bytes.all.peak"]),
            "  peak requested": bytes_text(figures["requested_bytes.all.peak"]),
            "  overhead": _overhead(figures),
            "  live at exit": bytes_text(figures["allocated_bytes.all.current"]),
            "  allocations": f"{figures['allocation.all.allocated']:,}",
            "  device allocations": f"{figures['num_device_alloc']:,}",
            "  device frees": f"{figures['num_device_free']:,}",
            "  retries": f"{figures['num_alloc_retries']:,}",
            "  out of memory": f"{figures['num_ooms']:,}",
        }
        for device, figures in devices.items()
    ]
    return "\n".join(f"{name:<20}" + "".join(f"{column[name]:>16}" for column in columns) for name in columns[0])
