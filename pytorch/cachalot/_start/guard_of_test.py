"""The memory guard of a session of tests: it finds wrong writes, frees and uses of GPU memory in each test. For pytest_plugin."""

from __future__ import annotations

import os

from .._heap.enabled import enabled
from .._heap.guard import MemoryCall, MemoryReport, check_memory
from .._leaks.frames import Frame, site_frame, where
from . import enable as _enable

CONFIG = "debug:True"  # the guard, and reports of wrong calls with call stacks
_MOST_REPORTS = 10


def start() -> bool:
    """Makes cachalot with the guard the allocator of this process, if it has a GPU. Returns whether it has. A program that has enabled
    cachalot keeps its options.

    Raises EnableError if cachalot cannot be enabled.
    """
    import torch

    if not torch.cuda.is_available():
        return False
    if enabled() is None:
        _enable.enable(CONFIG)
    return True


def found() -> str:
    """Checks all memory and returns the text of a failure; "" if nothing was found since the last call, or CUDA is not used yet.

    Raises RuntimeError if a CUDA call fails, as after an error of a kernel, or if the guard is off.
    """
    import torch

    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return ""
    reports = check_memory()
    if not reports:
        return ""
    many = f"{len(reports):,} mistakes" if len(reports) > 1 else "a mistake"
    lines = [f"the memory guard found {many} in this test"]
    for report in reports[:_MOST_REPORTS]:
        lines += _lines(report)
    if len(reports) > _MOST_REPORTS:
        lines.append(f"  and {len(reports) - _MOST_REPORTS:,} more, which are on stderr")
    return "\n".join(lines)


def _lines(report: MemoryReport) -> list[str]:
    calls = (("here", report.mistake), ("allocated at", report.allocated), ("freed at", report.freed))
    return [f"  {_headline(report)}", *(f"    {name}: {_place(call)}" for name, call in calls if call is not None)]


def _headline(report: MemoryReport) -> str:
    if report.mistake is not None:
        return f"{report.kind}: {report.message}"
    block = f"the block of {report.requested_bytes:,} bytes at {report.address:#x} on cuda:{report.device}"
    offset = report.offset
    if offset < 0:
        return f"{report.kind}: something wrote {-offset:,} bytes before {block}"
    if offset >= report.requested_bytes:
        return f"{report.kind}: something wrote {offset - report.requested_bytes:,} bytes behind the end of {block}"
    return f"{report.kind}: something wrote at byte {offset:,} of {block}"


def _place(call: MemoryCall) -> str:
    if not call.stack:
        return "a line that is not known: debug:True records stacks"
    frame = site_frame(tuple(map(_frame, call.stack)))
    if frame and f"{os.sep}_pytest{os.sep}" in frame.file:
        return "the return of the test"
    source = frame.source if frame else ""
    return f"{where(frame)}\n      > {source}" if source else where(frame)


def _frame(text: str) -> Frame:
    """Reads "step at train.py:41"; a native frame has "at" or "in" and a file without a line."""
    function, _, place = text.rpartition(" at ")
    if not function:
        function, _, place = text.rpartition(" in ")
    file, _, line = place.rpartition(":")
    if not line.isdecimal():
        file, line = place, "0"
    return Frame(function, file, int(line), is_script=file.endswith(".py") or file.startswith("<"))
