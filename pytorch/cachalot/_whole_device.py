"""What is used of a whole device, and which process has it, by NVML or, where that does not tell, by CUDA."""

from __future__ import annotations

import os
from typing import NamedTuple

from . import _nvml
from ._driver import DriverDevice, DriverError
from ._memory_rows import MemoryRow

_CONTEXT = "CUDA context, and more of this process"


class WholeDevice(NamedTuple):
    """A device's memory, whoever uses it."""

    total: int
    used: int | None  # None: unknown
    source: str
    notes: tuple[str, ...]
    process_rows: tuple[MemoryRow, MemoryRow]  # the rest of this process, and the other processes


_Used = tuple[int, int | None, str]  # total, used, who tells


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
