"""The lines of a program that hold GPU memory, from the call stacks that are recorded: a leak detector's or memory history's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from .._base.text import held_text
from . import leaks
from .frames import Frame, site_frame, where

HOW_TO_RECORD = (
    "no call stacks are recorded: call cachalot.watch_leaks() or torch.cuda.memory._record_memory_history() "
    "before the program allocates, or set CACHALOT_LEAK_REPORT=1"
)


@dataclasses.dataclass(frozen=True)
class MemorySite:
    """A line of the program, with the memory that its allocations hold."""

    bytes: int
    blocks: int
    where: str  # "train.py:27 in step", or what is known instead
    source: str = ""  # the text of the line; "" where the file is not there

    def __str__(self) -> str:
        text = f"{held_text(self.bytes, self.blocks)} from {self.where}"
        return f"{text}\n    > {self.source}" if self.source else text


def live_sites(device: int, most: int) -> tuple[MemorySite, ...] | None:
    """Returns the lines with the most live memory; None where no call stacks are recorded.

    A leak detector's sites are those of all devices. History is read as a snapshot, which can take seconds in a large process.
    """
    detector = leaks.detector_of_process()
    if detector is not None:
        found = detector.report(most, suspects=False).sites
        return tuple(_site(site.live_bytes, site.live_blocks, site.frame) for site in found)
    import torch

    if not torch._C._cuda_isHistoryEnabled():
        return None
    snapshot: Any = torch.cuda.memory._snapshot(device)
    segments: list[dict[str, Any]] = snapshot["segments"]
    blocks = (block for segment in segments if segment["device"] == device for block in segment["blocks"])
    live = ((block["requested_size"], block.get("frames") or ()) for block in blocks if block["state"] == "active_allocated")
    return largest(live, most)


def largest(blocks: Iterable[tuple[int, Iterable[Mapping[str, Any]]]], most: int) -> tuple[MemorySite, ...]:
    """Returns the lines that hold most of the blocks' bytes. A block is its size and its frames, as in PyTorch's snapshots."""
    held: dict[str, tuple[int, int, Frame | None]] = {}
    for size, frames in blocks:
        frame = site_frame(tuple(map(_frame, frames)))
        key = "" if frame is None else f"{frame.file}:{frame.line}:{frame.function}"
        total, count, _ = held.get(key, (0, 0, None))
        held[key] = (total + size, count + 1, frame)
    return tuple(_site(*one) for one in sorted(held.values(), key=lambda one: -one[0])[:most])


def _site(size: int, blocks: int, frame: Frame | None) -> MemorySite:
    return MemorySite(size, blocks, where(frame), frame.source if frame else "")


def _frame(frame: Mapping[str, Any]) -> Frame:
    file = str(frame["filename"])
    return Frame(str(frame["name"]), file, int(frame["line"]), file.endswith(".py") or file.startswith("<"))
