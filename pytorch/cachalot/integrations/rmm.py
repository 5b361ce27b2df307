"""RMM's GPU memory from the process's heap, which is that of cuDF, cuML and the other libraries of RAPIDS.

RMM's Python takes a resource of one's own as two Python functions (CallbackMemoryResource). A resource in C++ needs a compiler and
RMM's headers, of the very release that is installed. The functions call the heap without ctypes, and take no longer than RMM's own
pool (bench/libraries.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._bindings import driver
from .._heap.libraries import LibraryHeap
from . import required

_OLDEST = "25.12"  # the first whose streams have __cuda_stream__

_resources: dict[int, Any] = {}  # by device; RMM calls them as long as buffers live


def enable(device: int | None, config: str | None) -> None:
    """Implements cachalot.enable_rmm."""
    rmm: Any = required("rmm", "rmm-cu13", _OLDEST)
    driver.require_device(device or 0)
    devices = range(driver.device_count()) if device is None else (device,)
    heap = LibraryHeap("rmm", config)
    for index in devices:
        if index not in _resources:
            _resources[index] = rmm.mr.CallbackMemoryResource(*_functions(heap, index))
        rmm.mr.set_per_device_resource(index, _resources[index])


def _functions(heap: LibraryHeap, device: int) -> tuple[Callable[[int, Any], int], Callable[[int, int, Any], None]]:
    """Returns what RMM calls, with the GIL held, which is released while the allocator works."""
    malloc, free_after = heap.malloc, heap.free_after_quickly

    def allocate(size: int, stream: Any) -> int:
        address = malloc(size, device, stream.__cuda_stream__()[1])
        if address == 0 and size != 0:
            heap.raise_last_error()
        return address

    def deallocate(address: int, size: int, stream: Any) -> None:
        if free_after(address, stream.__cuda_stream__()[1]) != 0:
            heap.raise_last_error()

    return allocate, deallocate
