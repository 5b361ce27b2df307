"""cachalot.memory_report(): the uses of a device's memory, by all sources that report them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from .._base.text import bytes_text
from .._bindings import driver as _driver, nccl as _nccl, nvml as _nvml
from .._bindings.driver import DriverDevice, DriverError
from .._heap.libraries import library_usage
from .._heap.regions import pools as all_pools

if TYPE_CHECKING:
    from .._heap.enabled import Device


# The memory of one device in rows that add up: what cachalot.memory_report() returns, and its table.


@dataclasses.dataclass(frozen=True)
class MemoryRow:
    """A MemoryRow is a part of a device's memory."""

    key: str  # "live", "cached", "torch", "mempool", "nccl", "context", "others" or "unexplained"; of a part, its name
    name: str  # the same, in words
    bytes: int | None  # None: it is unknown, and in "unexplained"
    source: str  # the source of the figure, or why it is unknown
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
    notes: tuple[str, ...] = ()  # facts of this machine that a reader of the figures should know

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
        """Returns the used memory that is in no other row."""
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


# The used memory of a whole device, and its processes, by NVML or, without its answer, by CUDA.

_CONTEXT = "CUDA context, and more of this process"


class WholeDevice(NamedTuple):
    """A device's memory, of all its users."""

    total: int
    used: int | None  # None: unknown
    source: str
    notes: tuple[str, ...]
    process_rows: tuple[MemoryRow, MemoryRow]  # the rest of this process, and the other processes


_Used = tuple[int, int | None, str]  # total, used, the source


class _Processes(NamedTuple):
    bytes: dict[int, int | None] | None  # by process; None: unknown
    why_not: str = ""


def look(driver: DriverDevice, is_used: bool, known_bytes: int) -> WholeDevice:
    """Returns the device's memory.

    Args:
        driver: the device.
        is_used: whether this process uses it. If not, CUDA is not asked: that would make a context.
        known_bytes: what is known of this process's memory.
    """
    notes: list[str] = []
    total_used_source: _Used
    if driver.is_integrated():
        notes.append("the GPU shares the host's memory: what is used of it includes what programs on the host use")
    try:
        with _nvml.opened(driver.uuid()) as nvml:
            memory = nvml.memory()
            processes = _processes(nvml)
        if memory.reserved:
            notes.append(f"the driver reserves {memory.reserved:,} bytes beside, which nvidia-smi does not show as used")
        total_used_source = memory.total, memory.used, "NVML"
    except (_nvml.NvmlError, DriverError) as error:
        total_used_source = _asked_of_cuda(driver, is_used)
        processes = _Processes(None, str(error))
    return WholeDevice(*total_used_source, tuple(notes), _rows(processes, is_used, known_bytes))


def _asked_of_cuda(driver: DriverDevice, is_used: bool) -> _Used:
    if not is_used:
        return driver.total_bytes(), None, "no NVML, and this process does not use the device"
    free, total = driver.free_and_total_bytes()
    return total, total - free, "cudaMemGetInfo"


def _processes(nvml: _nvml.NvmlDevice) -> _Processes:
    try:
        return _Processes(nvml.processes())
    except _nvml.NvmlError as error:
        return _Processes(None, str(error))


def _rows(processes: _Processes, is_used: bool, known_bytes: int) -> tuple[MemoryRow, MemoryRow]:
    others = dict(processes.bytes or {})
    own = others.pop(os.getpid(), None)
    if own is not None:
        rest = max(0, own - known_bytes)
        context = MemoryRow("context", _CONTEXT, rest, "NVML's figure of this process, less the rows above")
    elif not is_used:
        context = MemoryRow("context", _CONTEXT, 0, "this process does not use the device")
    else:
        why_not = processes.why_not or "NVML does not tell this process's memory: a container, MIG or WDDM can hide it"
        return MemoryRow("context", _CONTEXT, None, why_not), MemoryRow("others", "other processes", None, why_not)
    return context, _row_of_others(others, processes)


def _row_of_others(others: dict[int, int | None], processes: _Processes) -> MemoryRow:
    if processes.bytes is None:
        return MemoryRow("others", "other processes", None, processes.why_not)
    parts = tuple(MemoryRow(str(pid), f"process {pid}", size, "") for pid, size in sorted(others.items()))
    name = f"other processes: {len(parts)}"
    if any(part.bytes is None for part in parts):
        return MemoryRow("others", name, None, "NVML does not tell the memory of each of them", parts)
    return MemoryRow("others", name, sum(part.bytes or 0 for part in parts), "NVML", parts)


_SNAPSHOT = "the allocator's snapshot"
_MEMPOOL = "cudaMallocAsync's default pool"


def memory_report(device: Device = None) -> DeviceMemoryReport:
    """Returns what the memory of a device is used for, in rows that add up to what nvidia-smi shows.

    Needs neither PyTorch nor cachalot.enable(). Takes no memory of the device, and makes no context there: a device that
    the process does not use is reported by what NVML tells. May be called from any thread. The allocator's part takes a
    snapshot, under its lock.

    Args:
        device: an index, "cuda:1" or a torch.device; None: the current device.

    Raises:
        ValueError: there is no such device; the message says which there are.
        RuntimeError: there is no CUDA driver, or the process is a forked child of one that used CUDA.
    """
    index = _index_of(device)
    driver = _driver.DriverDevice(index)
    is_used = driver.has_context()
    rows = _own_rows(index, driver) if is_used else _rows_of_unused()
    pools = [pool for pool in all_pools() if pool["device"] == index]
    rows = [_live(pools), _cached(pools), *rows]
    whole = look(driver, is_used, sum(row.bytes or 0 for row in rows))
    return DeviceMemoryReport(
        device=index,
        device_name=driver.name(),
        total_bytes=whole.total,
        used_bytes=whole.used,
        used_source=whole.source,
        rows=add_unexplained([*rows, *whole.process_rows], whole.used),
        libraries={usage.library: usage.live_bytes for usage in library_usage() if usage.device == index},
        tensor_pools_bytes=_tensor_pools_bytes(index),
        asleep_bytes=sum(pool["asleep"] for pool in pools),
        notes=whole.notes,
    )


def _index_of(device: object) -> int:
    index, count = _parsed(device), _driver.device_count()
    if index is None or not 0 <= index < count:
        raise ValueError(f"device is {device!r}; there are {count} CUDA devices: give an index below {count}, or 'cuda:0'")
    return index


def _parsed(device: object) -> int | None:
    if device is None or device == "cuda":
        return _current_index()
    if isinstance(device, str):
        match = re.fullmatch(r"cuda:(\d+)", device)
        return int(match[1]) if match else None
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    index = getattr(device, "index", None)
    is_cuda = getattr(device, "type", None) == "cuda"
    return (_current_index() if index is None else int(index)) if is_cuda else None


def _current_index() -> int:
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized():
        return int(torch.cuda.current_device())
    return _driver.current_device()


def _pool_name(pool: dict[str, Any]) -> str:
    if pool["tag"]:
        return f"tag '{pool['tag']}'"
    number = pool["first"], pool["second"]
    return "default pool" if number == (0, 0) else f"private pool {number}"


def _live(pools: list[dict[str, Any]]) -> MemoryRow:
    parts = [MemoryRow(_pool_name(pool), _pool_name(pool), pool["live"], "") for pool in pools]
    return _sum("live", "cachalot: in use", _SNAPSHOT, parts)


def _cached(pools: list[dict[str, Any]]) -> MemoryRow:
    parts = [MemoryRow(_pool_name(pool), _pool_name(pool), pool["cached"], "") for pool in pools]
    waiting = sum(pool["waiting"] for pool in pools)
    if waiting:
        parts.append(MemoryRow("waiting", "freed; other streams may use it", waiting, ""))
    return _sum("cached", "cachalot: cached", _SNAPSHOT, parts)


def _sum(key: str, name: str, source: str, parts: list[MemoryRow]) -> MemoryRow:
    return MemoryRow(key, name, sum(part.bytes or 0 for part in parts), source, tuple(parts))


def _own_rows(index: int, driver: _driver.DriverDevice) -> list[MemoryRow]:
    """Returns the memory of this process that others than cachalot have and report."""
    rows: list[MemoryRow] = []
    torch = _torch_bytes(index)
    if torch is not None:
        rows.append(MemoryRow("torch", "PyTorch's own allocator", torch, "torch.cuda.memory_reserved()"))
    rows.append(_row_of_mempool(driver))
    nccl = _nccl.memory(index)
    name = f"NCCL, communicators: {nccl.communicators}"
    rows.append(MemoryRow("nccl", name, nccl.bytes, nccl.why_not or "ncclCommMemStats"))
    return rows


def _rows_of_unused() -> list[MemoryRow]:
    why = "this process does not use the device"
    return [MemoryRow("mempool", _MEMPOOL, 0, why), MemoryRow("nccl", "NCCL", 0, why)]


def _row_of_mempool(driver: _driver.DriverDevice) -> MemoryRow:
    try:
        return MemoryRow("mempool", _MEMPOOL, driver.pool_bytes(), "cuMemPoolGetAttribute")
    except _driver.DriverError as error:  # a driver or a device without such pools
        return MemoryRow("mempool", _MEMPOOL, None, str(error))


def _torch_bytes(index: int) -> int | None:
    """Returns the memory that PyTorch's own allocator holds; None where cachalot serves PyTorch, or PyTorch does not use CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None
    from .._heap.enabled import is_enabled

    if is_enabled() or torch.cuda.memory.get_allocator_backend() != "native":
        return None
    return int(torch._C._cuda_memoryStats(index)["reserved_bytes"]["all"]["current"])


def _tensor_pools_bytes(index: int) -> int:
    calls = sys.modules.get("cachalot._tensors.pool_calls")
    return 0 if calls is None else sum(pool.bytes_on(index) for pool in calls.pools_in_use())
