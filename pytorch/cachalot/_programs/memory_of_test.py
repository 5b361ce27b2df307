"""The GPU memory of one test: its peak, what it leaves, and the lines of both. For pytest_plugin; works with any allocator of torch.

Peaks come from torch's statistics; lines, and the memory left, from its memory history, which is recorded while the test runs.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator
from typing import Any, Literal

from .._base.text import bytes_text, held_text
from .._leaks import sites as _sites

Kind = Literal["allocated", "reserved"]
_MOST_ENTRIES = 1_000_000  # of history: 0.5 GB at most
_MOST_SITES = 5


@dataclasses.dataclass(frozen=True)
class Peak:
    """The most memory that a test had at a time, over what there was before it. Sizes are in bytes."""

    device: int
    kind: Kind
    before: int
    peak: int
    sites: tuple[_sites.MemorySite, ...]  # at the moment of most allocated memory

    def over(self, limit: int) -> str:
        """Returns the text of a failure."""
        lines = [f"the GPU memory of this test exceeds its limit of {bytes_text(limit)} on cuda:{self.device}",
                 f"  peak of {self.kind} memory: {bytes_text(self.peak)} over the {bytes_text(self.before)} from before the test"]
        return "\n".join([*lines, *_lines("at the peak", self.sites)])


@dataclasses.dataclass(frozen=True)
class Left:
    """The memory that a test allocated and did not free."""

    device: int
    bytes: int
    blocks: int
    sites: tuple[_sites.MemorySite, ...]

    def over(self, threshold: int) -> str:
        """Returns the text of a failure."""
        allowed = f", more than the {bytes_text(threshold)} that may stay" if threshold else ""
        lines = [f"this test leaves GPU memory on cuda:{self.device}: {held_text(self.bytes, self.blocks)}{allowed}",
                 "  it is still allocated after the fixtures of the test have ended and garbage has been collected"]
        return "\n".join([*lines, *_lines("allocated at", self.sites)])


class Measurement:
    """The measurement of one device from its creation on. `stop` must be called once."""

    def __init__(self, device: int, kinds: frozenset[Kind], *, trace: bool) -> None:
        """Begins. `trace` also records lines, which costs some microseconds per allocation. The peaks of torch's statistics begin anew."""
        import torch

        torch.cuda.init()
        self.device = device
        if "reserved" in kinds:
            torch.cuda.empty_cache()
        self._before = _current(device)
        torch.cuda.reset_peak_memory_stats(device)
        self._has_trace = trace
        # A program that records already has its history left as it is: the test is what comes after these entries.
        self._is_recording = trace and not torch._C._cuda_isHistoryEnabled()
        self._skipped = 0
        if self._is_recording:
            _record("all", context="all", stacks="python", max_entries=_MOST_ENTRIES)
        elif trace:
            self._skipped = len(_trace(device))
        self._called: list[dict[str, Any]] = []

    def end_of_call(self) -> None:
        """Notes what the test itself did: the fixtures that end later belong to it no more."""
        import torch

        torch.cuda.synchronize(self.device)
        self._peaks = _peaks(self.device)
        self._called = _trace(self.device)[self._skipped :] if self._has_trace else []

    def peak(self, kind: Kind) -> Peak:
        """Returns the peak until the end of the call."""
        before = self._before[kind]
        live = _live_at_the_peak(self._called)
        traced = sum(size for size, _ in live) if kind == "allocated" else 0  # the test may have reset the statistics
        return Peak(self.device, kind, before, max(self._peaks[kind] - before, traced, 0), _sites.largest(live, _MOST_SITES))

    def left(self) -> Left:
        """Returns what the call allocated and is allocated still. Collects garbage and waits for the device."""
        import torch

        gc.collect()
        torch.cuda.synchronize(self.device)
        torch._C._cuda_clearCublasWorkspaces()  # torch keeps them for later calls
        entries = _trace(self.device)[self._skipped :]
        live = list(_live(entries, upto=len(self._called)).values())
        return Left(self.device, sum(size for size, _ in live), len(live), _sites.largest(live, _MOST_SITES))

    def stop(self) -> None:
        """Stops recording, if this measurement began it."""
        if self._is_recording:
            _record(None)


_Block = tuple[int, list[dict[str, Any]]]  # its size and its frames


def _changes(entries: list[dict[str, Any]]) -> Iterator[tuple[int, int, _Block | None]]:
    """Yields the index, address and block of each allocation; None as the block of a free."""
    for index, entry in enumerate(entries):
        if entry["action"] == "alloc":
            yield index, entry["addr"], (entry["size"], entry.get("frames") or [])
        elif entry["action"] == "free_requested":
            yield index, entry["addr"], None


def _live_at_the_peak(entries: list[dict[str, Any]]) -> list[_Block]:
    sizes: dict[int, int] = {}
    total = most = end = 0
    for index, address, block in _changes(entries):
        if block is None:
            total -= sizes.pop(address, 0)
            continue
        sizes[address] = block[0]
        total += block[0]
        if total > most:
            most, end = total, index + 1
    return list(_live(entries[:end], upto=end).values())


def _live(entries: list[dict[str, Any]], upto: int) -> dict[int, _Block]:
    """The blocks of the first `upto` entries that are not freed in any, by address."""
    live: dict[int, _Block] = {}
    for index, address, block in _changes(entries):
        if block is None:
            live.pop(address, None)
        elif index < upto:
            live[address] = block
    return live


def _record(enabled: str | None, **options: Any) -> None:
    import torch

    memory: Any = torch.cuda.memory
    memory._record_memory_history(enabled, **options)


def _trace(device: int) -> list[dict[str, Any]]:
    import torch

    snapshot: Any = torch.cuda.memory._snapshot(device)
    traces: list[list[dict[str, Any]]] = snapshot["device_traces"]
    return traces[device] if device < len(traces) else []


def _current(device: int) -> dict[Kind, int]:
    return _bytes(device, "current")


def _peaks(device: int) -> dict[Kind, int]:
    return _bytes(device, "peak")


def _bytes(device: int, when: str) -> dict[Kind, int]:
    import torch

    stats = torch.cuda.memory_stats(device)
    return {"allocated": stats.get(f"allocated_bytes.all.{when}", 0), "reserved": stats.get(f"reserved_bytes.all.{when}", 0)}


def _lines(when: str, sites: tuple[_sites.MemorySite, ...]) -> list[str]:
    if not sites:
        return ["  which lines allocated it is not known: memory history was not recorded"]
    return [f"  {when}:", *("    " + str(site).replace("\n", "\n  ") for site in sites)]
