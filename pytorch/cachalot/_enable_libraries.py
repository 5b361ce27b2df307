"""cachalot as the allocator of GPU libraries beside PyTorch: one function for each. All share one heap with each other and,
after cachalot.enable(), with PyTorch, in any order.

Each function imports its library. `config` are options as for cachalot.enable(). Each raises ValueError if `config` or
CACHALOT_CONF is invalid, with key, value and rule, and EnableError if the library is missing or too old or cachalot cannot be
loaded, with what to do; nothing was changed then. A second call changes nothing.
"""

from __future__ import annotations

from typing import Any, Union

CoreDevice = Union[Any, int, None]  # a cuda.core.Device, which type checkers need not find, or its number


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


def enable_cuda_core(device: CoreDevice = None, config: str | None = None) -> None:
    """Makes cachalot the memory resource of a device of cuda.core; None: of all devices.

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
