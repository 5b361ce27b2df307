"""cuda.core's GPU memory from the process's heap. Importing this imports cuda.core."""

from __future__ import annotations

import importlib
from typing import Any

from .._heap.libraries import LibraryHeap
from . import required

core: Any = required("cuda.core", "'cuda-core[cu13]'", "1.2")  # from then on buffers know their stream


_resources: dict[int, HeapMemoryResource] = {}


def enable(device: Any, config: str | None) -> None:
    """Implements cachalot.enable_cuda_core."""
    heap = LibraryHeap("cuda.core", config, _out_of_memory)
    devices = core.Device.get_all_devices() if device is None else [core.Device(getattr(device, "device_id", device))]
    for chosen in devices:
        index = chosen.device_id
        chosen.memory_resource = _resources.setdefault(index, HeapMemoryResource(index, heap))


class HeapMemoryResource(core.MemoryResource):  # type: ignore[misc]
    """A HeapMemoryResource allocates from the process's heap, as cuda.core.MemoryResource documents. May be called from any
    thread.
    """

    is_device_accessible = True
    is_host_accessible = False
    is_managed = False

    def __init__(self, device_id: int, heap: LibraryHeap) -> None:
        self._device_id = device_id
        self._heap = heap
        self._malloc = heap.malloc
        self._free_after = heap.free_after_quickly

    @property
    def device_id(self) -> int:
        return self._device_id

    def allocate(self, size: int, *, stream: Any) -> Any:
        """Returns a Buffer of `size` bytes for work on `stream`; CUDAError, a MemoryError too, where there is no memory."""
        address = self._malloc(size, self._device_id, stream.__cuda_stream__()[1])
        if address == 0 and size != 0:
            self._heap.raise_last_error()
        return core.Buffer.from_handle(address, size, mr=self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """Frees a buffer's memory. Work on `stream` and on the allocation's comes before its next use."""
        if self._free_after(int(ptr), stream.__cuda_stream__()[1]) != 0:
            self._heap.raise_last_error()


def _out_of_memory(message: str) -> Exception:
    """Returns cuda.core's own error, which it does not export, as a MemoryError too."""
    error = importlib.import_module("cuda.core._utils.cuda_utils").CUDAError
    made: Exception = type("CUDAOutOfMemoryError", (error, MemoryError), {})(message)
    return made
