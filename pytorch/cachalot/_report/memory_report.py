"""cachalot.memory_report(): the uses of a device's memory, by all sources that report them."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from .._base.text import bytes_text
from .._bindings import driver as _driver, nccl as _nccl, nvml as _nvml
from .._bindings.driver import DriverDevice, DriverError
from .._heap.libraries import library_usage
from .._heap.regions import pools as all_pools

if TYPE_CHECKING:
    from .._heap.enabled import Device


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
            by_library = ", ".join(f"{library} {bytes_text(size)}" for library, size in in_use.items())
            lines.append(f"in use by library: {by_library}")
        if self.tensor_pools_bytes:
            lines.append(f"in use by tensor pools: {bytes_text(self.tensor_pools_bytes)}")
        if self.asleep_bytes:
            lines.append(f"asleep, not on the device: {bytes_text(self.asleep_bytes)}")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _unexplained(rows: list[MemoryRow], used: int | None) -> MemoryRow:
    """Returns the last row: with it, they add up to `used`."""
    name = "unexplained"
    if used is None:
        return MemoryRow(name, name, None, "what is used of the device is unknown")
    unknown = ", ".join(row.name for row in rows if row.bytes is None)
    source = "used less the rows above" + (f"; {unknown} included" if unknown else "")
    return MemoryRow(name, name, used - sum(row.bytes or 0 for row in rows), source)


def _lines_of(row: MemoryRow, indent: int) -> list[str]:
    """Parts that hold nothing are left out, and so is a lone part, which is its row."""
    lines = [f"{' ' * indent}{_figure(row.bytes)}  {row.name:<{50 - indent}}  {row.source}".rstrip()]
    for part in row.parts if len(row.parts) > 1 else ():
        if part.bytes != 0:
            lines += _lines_of(part, indent + 4)
    return lines


def _figure(size: int | None) -> str:
    if size is None:
        return f"{'unknown':>12}"
    return f"{'-' if size < 0 else ''}{bytes_text(abs(size))}".rjust(12)


_CONTEXT = "CUDA context, and more of this process"
_OTHERS = "other processes"
_SNAPSHOT = "the allocator's snapshot"
_MEMPOOL = "cudaMallocAsync's default pool"
_UNUSED = "this process does not use the device"


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
    own = _rows_of_others_in_process(index, driver, is_used)
    pools = [pool for pool in all_pools() if pool["device"] == index]
    rows = [_row_of_pools("live", "cachalot: in use", pools), _row_of_pools("cached", "cachalot: cached", pools), *own]
    notes: list[str] = []
    if driver.is_integrated():
        notes.append("the GPU shares the host's memory: what is used of it includes what programs on the host use")
    processes: dict[int, int | None] | None = None
    why_not = ""
    used: int | None
    try:
        with _nvml.opened(driver.uuid()) as nvml:
            memory = nvml.memory()
            try:
                processes = nvml.processes()
            except _nvml.NvmlError as error:
                why_not = str(error)
        total, used, source = memory.total, memory.used, "NVML"
        if memory.reserved:
            notes.append(f"the driver reserves {memory.reserved:,} bytes beside, which nvidia-smi does not show as used")
    except (_nvml.NvmlError, DriverError) as error:
        total, used, source = _asked_of_cuda(driver, is_used)
        processes, why_not = None, str(error)
    rows += _rows_of_processes(processes, why_not, is_used, sum(row.bytes or 0 for row in rows))
    return DeviceMemoryReport(
        device=index,
        device_name=driver.name(),
        total_bytes=total,
        used_bytes=used,
        used_source=source,
        rows=(*rows, _unexplained(rows, used)),
        libraries={usage.library: usage.live_bytes for usage in library_usage() if usage.device == index},
        tensor_pools_bytes=_tensor_pools_bytes(index),
        asleep_bytes=sum(pool["asleep"] for pool in pools),
        notes=tuple(notes),
    )


def _asked_of_cuda(driver: DriverDevice, is_used: bool) -> tuple[int, int | None, str]:
    """Returns the total and the used memory, and the source. A device that is not used is not asked: that would make a context."""
    if not is_used:
        return driver.total_bytes(), None, f"no NVML, and {_UNUSED}"
    free, total = driver.free_and_total_bytes()
    return total, total - free, "cudaMemGetInfo"


def _rows_of_processes(
    processes: dict[int, int | None] | None, why_not: str, is_used: bool, known_bytes: int
) -> tuple[MemoryRow, MemoryRow]:
    """Returns the rest of this process, of which `known_bytes` are in other rows, and the other processes.

    Args:
        processes: the bytes of each; None: unknown, and `why_not` has the reason.
    """
    others = dict(processes or {})
    own = others.pop(os.getpid(), None)
    if own is not None:
        context = MemoryRow("context", _CONTEXT, max(0, own - known_bytes), "NVML's figure of this process, less the rows above")
    elif not is_used:
        context = MemoryRow("context", _CONTEXT, 0, _UNUSED)
    else:
        why_not = why_not or "NVML does not tell this process's memory: a container, MIG or WDDM can hide it"
        return MemoryRow("context", _CONTEXT, None, why_not), MemoryRow("others", _OTHERS, None, why_not)
    if processes is None:
        return context, MemoryRow("others", _OTHERS, None, why_not)
    parts = tuple(MemoryRow(str(pid), f"process {pid}", size, "") for pid, size in sorted(others.items()))
    is_known = None not in others.values()
    size = sum(part.bytes or 0 for part in parts) if is_known else None
    source = "NVML" if is_known else "NVML does not tell the memory of each of them"
    return context, MemoryRow("others", f"{_OTHERS}: {len(parts)}", size, source, parts)


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


def _row_of_pools(key: str, name: str, pools: list[dict[str, Any]]) -> MemoryRow:
    parts = [MemoryRow(_pool_name(pool), _pool_name(pool), pool[key], "") for pool in pools]
    waiting = sum(pool["waiting"] for pool in pools) if key == "cached" else 0
    if waiting:
        parts.append(MemoryRow("waiting", "freed; other streams may use it", waiting, ""))
    return MemoryRow(key, name, sum(part.bytes or 0 for part in parts), _SNAPSHOT, tuple(parts))


def _rows_of_others_in_process(index: int, driver: DriverDevice, is_used: bool) -> list[MemoryRow]:
    """Returns the memory of this process that others than cachalot have and report."""
    if not is_used:
        return [MemoryRow("mempool", _MEMPOOL, 0, _UNUSED), MemoryRow("nccl", "NCCL", 0, _UNUSED)]
    torch = _torch_bytes(index)
    rows = [] if torch is None else [MemoryRow("torch", "PyTorch's own allocator", torch, "torch.cuda.memory_reserved()")]
    try:
        rows.append(MemoryRow("mempool", _MEMPOOL, driver.pool_bytes(), "cuMemPoolGetAttribute"))
    except DriverError as error:  # a driver or a device without such pools
        rows.append(MemoryRow("mempool", _MEMPOOL, None, str(error)))
    nccl = _nccl.memory(index)
    name = f"NCCL, communicators: {nccl.communicators}"
    return [*rows, MemoryRow("nccl", name, nccl.bytes, nccl.why_not or "ncclCommMemStats")]


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
