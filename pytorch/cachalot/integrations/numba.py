"""Numba's GPU memory from the process's heap. Importing this imports Numba."""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import Any

from .._bindings.plug import process_plug
from .._heap.libraries import LibraryHeap
from . import required

_PACKAGE = "'numba-cuda[cu13]'"
required("numba_cuda", _PACKAGE, "0.20")
cuda: Any = required("numba.cuda", _PACKAGE)
driver: Any = required("numba.cuda.cudadrv.driver", _PACKAGE)

# Two names of one stream, 0 and cudaStreamLegacy. A free on the one of memory for the other waits for an event on that
# stream, and so for all of Numba's streams: a kernel on any of them may have used the memory.
_DEFAULT_STREAM = 0
_SAME_STREAM = 1

_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY

_heap: LibraryHeap | None = None


def enable(config: str | None) -> None:
    """Implements cachalot.enable_numba."""
    _open_heap(config)
    if driver._memory_manager is MemoryManager:
        return
    cuda.set_memory_manager(MemoryManager)
    for context in _contexts():
        context.memory_manager = MemoryManager(context=context)
        context.memory_manager.initialize()


class MemoryManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
    """A MemoryManager serves one context's device memory, as numba.cuda.BaseCUDAMemoryManager documents.

    Numba names no stream. Memory is used in stream order with the default stream, and reused after all work that was queued
    before its free on the streams that wait for the default stream. Numba's streams do; an external stream that does not must
    be waited for before its arrays are freed.
    """

    interface_version = 1

    def initialize(self) -> None:
        """Does nothing: the heap comes with its first use."""

    def memalloc(self, size: int) -> Any:
        """Returns a MemoryPointer of `size` bytes; CudaAPIError CUDA_ERROR_OUT_OF_MEMORY where there is too little memory."""
        heap = _open_heap()
        device = int(self.context.device.id)
        address = self._attempt_allocation(lambda: heap.allocate(size, device, _DEFAULT_STREAM))
        free = functools.partial(heap.free_after, address, _SAME_STREAM)
        return cuda.MemoryPointer(weakref.proxy(self.context), ctypes.c_void_p(address), size, finalizer=free)

    def get_memory_info(self) -> Any:
        """Returns the memory that can be allocated, which is the device's free and the heap's cached memory, and the total."""
        plug, device = process_plug(), int(self.context.device.id)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        plug.call("plug_memory_info", device, free, total)
        stats = plug.stats(device)
        cached = stats["reserved_bytes.all.current"] - stats["active_bytes.all.current"]
        return cuda.MemoryInfo(free=free.value + cached, total=total.value)

    def get_ipc_handle(self, memory: Any) -> Any:
        """Returns an IpcHandle of the allocation.

        Raises:
            RuntimeError: the heap is the page heap, whose memory has no such handles.
        """
        numbas_own: Any = super()
        try:
            return numbas_own.get_ipc_handle(memory)
        except driver.CudaAPIError as error:
            raise RuntimeError(
                f"this memory has no IPC handle ({error}): the page heap's never does; select CACHALOT_CONF=heap:segments"
            ) from None


def _open_heap(config: str | None = None) -> LibraryHeap:
    global _heap
    if _heap is None or config is not None:
        _heap = LibraryHeap("numba", config, functools.partial(driver.CudaAPIError, _OUT_OF_MEMORY))
    return _heap


def _contexts() -> list[Any]:
    """Returns the contexts that Numba has made. Makes none."""
    devices = driver.driver.devices.values() if driver.driver.is_initialized else ()
    return [device.primary_context for device in devices if device.primary_context is not None]
