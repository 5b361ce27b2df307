"""NVIDIA Warp's GPU memory from the process's heap."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from .._heap.libraries import LibraryHeap
from . import required

_OLDEST = "1.13"


def enable(config: str | None) -> None:
    """Implements cachalot.enable_warp."""
    warp: Any = required("warp", "warp-lang", _OLDEST)
    heap = LibraryHeap("warp", config)
    kinds = getattr(warp, "MemoryKind", None)  # later versions than 1.13 have them
    for device in warp.get_cuda_devices():
        if not isinstance(warp.get_device_allocator(device), DeviceAllocator):
            warp.set_device_allocator(device, DeviceAllocator(device, heap, kinds and kinds.CUDA_DEVICE))


def enable_once_initialized(config: str | None) -> None:
    """Enables Warp at once if it is initialized, otherwise right after it is: a program may set warp.config until then."""
    required("warp", "warp-lang", _OLDEST)
    context: Any = importlib.import_module("warp._src.context")
    if context.runtime is not None:
        enable(config)
        return
    init = context.init

    @functools.wraps(init)
    def init_and_enable() -> None:
        init()
        if context.runtime is not None and context.init is init_and_enable:
            context.init = init
            enable(config)

    context.init = init_and_enable


class DeviceAllocator:
    """A DeviceAllocator serves one device, as warp.Allocator documents. May be called from any thread."""

    deallocate_requires_context_guard = False

    def __init__(self, device: Any, heap: LibraryHeap, memory_kind: Any) -> None:
        self.memory_kind = memory_kind
        self._device = device
        self._heap = heap
        self._of_graphs: set[int] = set()  # addresses of Warp's own allocator

    def allocate(self, size_in_bytes: int) -> int:
        """Returns the address of memory for work on Warp's current stream; RuntimeError, as Warp's, where there is none.

        A graph that Warp captures takes its memory from Warp's own allocator, which keeps it as long as the graph is there.
        """
        device = self._device
        if device.captures:
            address: int = device.current_allocator.allocate(size_in_bytes)
            self._of_graphs.add(address)
            return address
        try:
            return self._heap.allocate(size_in_bytes, device.ordinal, device.stream.cuda_stream)
        except MemoryError as error:
            raise RuntimeError(f"Failed to allocate {size_in_bytes} bytes on device '{device}': {error}") from None

    def deallocate(self, ptr: int, size_in_bytes: int) -> None:
        """Frees the memory. Work on its own and on Warp's current stream comes before its next use."""
        if ptr in self._of_graphs:
            self._of_graphs.remove(ptr)
            with self._device.context_guard:
                self._device.current_allocator.deallocate(ptr, size_in_bytes)
        else:
            self._heap.free_after(ptr, self._device.stream.cuda_stream)
