"""CuPy's pinned host memory from cachalot's pinned heap."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from . import _pinned
from ._libraries import raise_last_error
from ._plug import process_plug
from .integrations._required import required

_OLDEST = "13.0"


def enable_cupy_pinned(limit: _pinned.Limit | None = None) -> None:
    """Makes cachalot the allocator of CuPy's pinned memory: cupy.cuda.alloc_pinned_memory, cupyx.empty_pinned and the like.

    The heap is that of enable(pinned=True), which it does not need. Buffers of before stay with CuPy's own pool until they are
    freed. CuPy itself keeps a buffer until the copies are done that CuPy made of it; other work must be waited for before the
    buffer is freed. A second call changes the limit alone.

    Args:
        limit: the most pinned memory of the process, as for enable(pinned_limit=…); None leaves the limit as it is.

    Raises:
        ValueError: `limit` is not a size, or is below 2 MiB.
        EnableError: CuPy cannot be imported, or is older than 13.
    """
    if limit is not None:
        _pinned.set_pinned_limit(limit)
    cupy = required("cupy", "cupy-cuda13x", _OLDEST)
    cupy.cuda.set_pinned_memory_allocator(_Allocator(cupy))


class _Allocator:
    """What CuPy calls for each buffer."""

    def __init__(self, cupy: Any) -> None:
        plug = process_plug()
        self._cuda = cupy.cuda
        self._malloc = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)(plug.address("cachalot_pinned_malloc"))
        self._free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(plug.address("cachalot_pinned_free"))
        self._through: int | None = None  # the GPU that pins; only the first buffer of the process needs it

    def __call__(self, size: int) -> Any:
        if self._through is None:
            self._through = int(self._cuda.runtime.getDevice())
        ptr = self._malloc(size, self._through)
        if ptr is None and size != 0:
            raise_last_error(MemoryError)
        return self._cuda.PinnedMemoryPointer(_Buffer(ptr or 0, size, self._free), 0)


class _Buffer:
    """A buffer, as the owner that CuPy's pointers to it share. It is freed with the last of them."""

    __slots__ = ("_free", "ptr", "size")

    def __init__(self, ptr: int, size: int, free: Callable[[int], None]) -> None:
        self.ptr = ptr
        self.size = size
        self._free = free

    def __del__(self) -> None:
        self._free(self.ptr)
