"""cachalot.memory_report(): what a device's memory is used for, by everybody who tells."""

from __future__ import annotations

import ctypes
import functools
import re
import sys
from typing import TYPE_CHECKING, Any

from . import _driver, _nccl, _whole_device
from ._libraries import library_usage
from ._memory_rows import DeviceMemoryReport, MemoryRow, add_unexplained
from ._plug import process_plug

if TYPE_CHECKING:
    from ._enable import Device

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
    pools = [pool for pool in _pools() if pool["device"] == index]
    rows = [_live(pools), _cached(pools), *rows]
    whole = _whole_device.look(driver, is_used, sum(row.bytes or 0 for row in rows))
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


@functools.cache
def _pool_function() -> Any:
    return process_plug().function("pool_memory", ctypes.c_long, ctypes.c_char_p, ctypes.c_long)


def _pools() -> list[dict[str, Any]]:
    pools: list[dict[str, Any]] = process_plug().parsed(_pool_function())
    return pools


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
    """What others than cachalot have of this process, and tell."""
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
    """What PyTorch's own allocator holds; None where cachalot serves PyTorch, or PyTorch does not use CUDA."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None
    from ._enable import is_enabled

    if is_enabled() or torch.cuda.memory.get_allocator_backend() != "native":
        return None
    return int(torch._C._cuda_memoryStats(index)["reserved_bytes"]["all"]["current"])


def _tensor_pools_bytes(index: int) -> int:
    calls = sys.modules.get("cachalot._pool_calls")
    return 0 if calls is None else sum(pool.bytes_on(index) for pool in calls.pools_in_use())
