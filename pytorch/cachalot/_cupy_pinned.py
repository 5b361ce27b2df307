"""CuPy's pinned host memory from cachalot's pinned heap."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from . import _pinned
from ._errors import EnableError
from ._libraries import process_plug


def enable_cupy_pinned(limit: _pinned.Limit | None = None) -> None:
    """Makes cachalot the allocator of CuPy's pinned memory: cupy.cuda.alloc_pinned_memory, cupyx.empty_pinned and the like.

    The heap is that of enable(pinned=True), which it does not need. Buffers of before stay with CuPy's own pool until they are
    freed. CuPy itself keeps a buffer until the copies are done that CuPy made of it; other work must be waited for before the
    buffer is freed. A second call changes the limit alone.

    Args:
        limit: the most pinned memory of the process, as for enable(pinned_limit=…); None leaves the limit as it is.

    Raises:
        ValueError: `limit` is not a size, or is below 2 MiB.
        EnableError: CuPy cannot be imported.
    """
    if limit is not None:
        _pinned.set_pinned_limit(limit)
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise EnableError(f"cupy cannot be imported: {error}. Install it: pip install cupy-cuda13x") from None
    cupy.cuda.set_pinned_memory_allocator(_Allocator(cupy))


class _Allocator:
    """What CuPy calls for each buffer."""

    def __init__(self, cupy: Any) -> None:
        self._plug = _pinned.declared(process_plug())
        self._cuda = cupy.cuda
        self._free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._plug.address("cachalot_pinned_free"))

    def __call__(self, size: int) -> Any:
        buffer = ctypes.c_void_p()
        device = self._cuda.runtime.getDevice()
        self._plug.call(
            "pinned_malloc", ctypes.byref(buffer), size, device, error_type=RuntimeError, out_of_memory=MemoryError
        )
        return self._cuda.PinnedMemoryPointer(_Buffer(buffer.value or 0, size, self._free), 0)


class _Buffer:
    """A buffer, as the owner that CuPy's pointers to it share. It is freed with the last of them."""

    def __init__(self, ptr: int, size: int, free: Any) -> None:
        self.ptr = ptr
        self.size = size
        self._free = free

    def __del__(self) -> None:
        self._free(self.ptr)
