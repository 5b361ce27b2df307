"""cachalot.awake_report(): the memory of this process that a sleep leaves on the device, by owner, and what would free each part."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .._base.text import bytes_text
from .._bindings.plug import process_plug
from .._heap.regions import pools
from .memory_report import DeviceMemoryReport, memory_report

if TYPE_CHECKING:
    from .._heap.enabled import Device

# The calls for rows of the memory report whose owners have one way to free them.
_CALLS = {
    "torch": "torch.cuda.empty_cache(), once its tensors are gone: they are older than cachalot.enable()",
    "mempool": "cuMemPoolTrimTo of the device's default pool, once its allocations are freed",
    "nccl": "torch.distributed.destroy_process_group(); vLLM: --enable-nccl-comm-suspend",
    "context": "the end of the process",
}


@dataclasses.dataclass(frozen=True)
class AwakeRow:
    """An AwakeRow is memory of one owner that is on the device."""

    owner: str
    bytes: int | None  # None: it is unknown
    call: str  # in words: the call that would free it


@dataclasses.dataclass(frozen=True)
class AwakeReport:
    """An AwakeReport has the memory of this process on one device, largest first, at one moment. str() is a table."""

    device: int
    asleep_bytes: int  # not on the device: what sleeping tags and pools take when they wake
    rows: tuple[AwakeRow, ...]

    @property
    def awake_bytes(self) -> int:
        """Returns the bytes of all rows; rows of unknown size are left out."""
        return sum(row.bytes or 0 for row in self.rows)

    def to_json(self) -> str:
        """Returns a JSON object with the fields."""
        return json.dumps(dataclasses.asdict(self))

    def __str__(self) -> str:
        lines = [f"device {self.device}: {bytes_text(self.asleep_bytes)} asleep, {bytes_text(self.awake_bytes)} awake"]
        width = max((len(row.owner) for row in self.rows), default=0)
        for row in self.rows:
            figure = "unknown" if row.bytes is None else bytes_text(row.bytes)
            lines.append(f"  {figure:>12}  {row.owner:<{width}}  {row.call}")
        return "\n".join(lines)


def awake_report(device: Device = None) -> AwakeReport:
    """Returns what this process has on a device, by owner, with the call that would free each part.

    It is memory_report() without other processes, for the time after a sleep: owners are tags, graphs and MemPools, libraries,
    tensors outside of all regions, the cache, NCCL and the CUDA context. Takes no memory of the device. May be called from any
    thread. The allocator's part takes a snapshot, under its lock.

    Args:
        device: an index, "cuda:1" or a torch.device; None: the current device.

    Raises:
        ValueError: there is no such device; the message says which there are.
        RuntimeError: there is no CUDA driver, or the process is a forked child of one that used CUDA.
    """
    report = memory_report(device)
    rows = [*_rows_of_pools(report), *(AwakeRow(row.name, row.bytes, _CALLS[row.key]) for row in report.rows if row.key in _CALLS)]
    rows = [row for row in rows if row.bytes != 0]
    rows.sort(key=lambda row: -1 if row.bytes is None else row.bytes, reverse=True)
    return AwakeReport(report.device, report.asleep_bytes, tuple(rows))


def _rows_of_pools(report: DeviceMemoryReport) -> Iterator[AwakeRow]:
    of_device = [pool for pool in pools() if pool["device"] == report.device]
    outside = 0
    for pool in of_device:
        number = pool["first"], pool["second"]
        if pool["tag"]:
            yield AwakeRow(f"tag '{pool['tag']}'", pool["live"], f"cachalot.release_physical({pool['tag']!r})")
        elif number != (0, 0):
            yield AwakeRow(f"graph or MemPool {number}", pool["live"], f"cachalot.release_physical({number})")
        else:
            outside = pool["live"]
    plain = _plain_bytes(report.device) if outside else 0
    outside -= plain
    yield AwakeRow("plain memory", plain, "its end: plain memory cannot sleep")
    for library, held in sorted(report.libraries.items()):  # these have no regions
        if library != "torch":
            held = min(held, outside)
            outside -= held
            yield AwakeRow(f"library {library}", held, f"the end of the arrays of {library}")
    yield AwakeRow("tensors outside of all regions", outside, "their end, or allocate them within cachalot.region(tag)")
    yield AwakeRow("cache", sum(pool["cached"] for pool in of_device), "torch.cuda.empty_cache()")
    waiting = sum(pool["waiting"] for pool in of_device)
    yield AwakeRow("freed memory that other streams may use", waiting, "torch.cuda.synchronize(), then torch.cuda.empty_cache()")


def _plain_bytes(device: int) -> int:
    """Returns what is in use of plain memory, the segments of cudaMalloc that lie beside the pages of a page heap."""
    plug = process_plug()
    if plug.stats(device)["segment.all.current"] == 0:  # a page is not a segment, and a snapshot of pages takes long
        return 0
    segments = plug.json("snapshot_json")["segments"]
    if not any(each["is_expandable"] for each in segments):  # not the page heap
        return 0
    plain = [each for each in segments if each["device"] == device and not each["is_expandable"]]
    return sum(each["allocated_size"] for each in plain if each["segment_pool_id"] == [0, 0])
