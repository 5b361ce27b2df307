"""cachalot as the allocator of GPU libraries beside PyTorch: one function for each. All share one heap with each other and,
after cachalot.enable(), with PyTorch, in any order.

Each function imports its library. `config` are options as for cachalot.enable(). Each raises ValueError if `config` or
CACHALOT_CONF is invalid, with key, value and rule, and EnableError if the library is missing or too old or cachalot cannot be
loaded, with what to do; nothing was changed then. A second call changes nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from . import _pinned
from ._libraries import raise_last_error
from ._plug import process_plug
from .integrations._required import required


def enable_cupy(config: str | None = None) -> None:
    """Makes cachalot the allocator of CuPy's GPU memory, in all threads, on CuPy's current stream.

    Arrays that exist stay with CuPy's own pool until they are freed; what that has cached goes back to the device.
    `cupy.cuda.set_allocator(cupy.get_default_memory_pool().malloc)` restores the pool.
    """
    from .integrations import cupy

    cupy.enable(config)


def enable_numba(config: str | None = None) -> None:
    """Makes cachalot the memory manager of Numba's GPU memory, in all threads.

    Arrays that exist stay with Numba's own manager until they are freed. Numba's own manager comes back with the next process
    only. NUMBA_CUDA_MEMORY_MANAGER=cachalot.numba does the same without a change of the program.
    """
    from .integrations import numba

    numba.enable(config)


def enable_cuda_core(device: Any = None, config: str | None = None) -> None:
    """Makes cachalot the memory resource of `device`, a cuda.core.Device or its number; None: of all devices.

    cuda.core has a Device in each thread: that of the calling thread changes. Buffers that exist stay with their resource.
    `device.memory_resource = cuda.core.DeviceMemoryResource(device)` restores cuda.core's own.
    """
    from .integrations import cuda_core

    cuda_core.enable(device, config)


def enable_warp(config: str | None = None) -> None:
    """Makes cachalot the allocator of Warp's arrays on every CUDA device, in all threads, on Warp's current stream.

    Initializes Warp. Arrays that exist stay with Warp's own allocator until they are freed, as do those that are made while a
    graph is captured. `warp.set_cuda_allocator(None)` restores Warp's own.
    """
    from .integrations import warp

    warp.enable(config)


def enable_rmm(device: int | None = None, config: str | None = None) -> None:
    """Makes cachalot RMM's memory resource of a device; None: of all devices. cuDF, cuML and the other libraries of RAPIDS
    allocate from it, on the stream that they name, in all threads.

    Buffers that exist stay with their resource. `rmm.mr.set_per_device_resource(0, rmm.mr.CudaMemoryResource())` restores RMM's
    own.
    """
    from .integrations import rmm

    rmm.enable(device, config)


def onnxruntime_options(device: int = 0, config: str | None = None) -> dict[str, str]:
    """Returns options of ONNX Runtime's CUDA execution provider, with which a session's GPU memory is cachalot's.

        options = cachalot.onnxruntime_options()
        session = onnxruntime.InferenceSession("model.onnx", providers=[("CUDAExecutionProvider", options)])

    With these options the session works on CUDA's default stream, and ONNX Runtime refuses the option user_compute_stream. If
    memory runs out, the session raises ONNX Runtime's error, and a line on stderr has cachalot's. ONNX Runtime is not imported.
    Any number of sessions may have them.

    Raises:
        ValueError: there is no such device.
    """
    from .integrations import onnxruntime

    return onnxruntime.options(device, config)


# CuPy's pinned host memory from cachalot's pinned heap.

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
