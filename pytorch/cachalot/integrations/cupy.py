"""CuPy's GPU memory from the process's heap."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any, NoReturn

from .._base.errors import EnableError
from .._bindings.plug import process_plug
from .._heap.libraries import LibraryHeap
from . import required

_OLDEST = "13.0"

# The possible C declarations of CuPy's function of the current stream.
_STREAM_SIGNATURES = (b"intptr_t (void)", b"size_t (void)")

_allocator: Any = None  # the function that CuPy calls; one for the process


def enable(config: str | None) -> None:
    """Implements cachalot.enable_cupy."""
    global _allocator
    cupy = required("cupy", "cupy-cuda13x", _OLDEST)
    heap = LibraryHeap("cupy", config)
    allocator = _allocator or _make_allocator(cupy, heap)
    try:
        cupy.cuda.set_allocator(allocator)
    except ValueError as error:
        raise EnableError(f"CuPy refuses another allocator: {error}. Call cachalot.enable_cupy() outside of it") from None
    _allocator = allocator
    cupy.get_default_memory_pool().free_all_blocks()


def _make_allocator(cupy: Any, heap: LibraryHeap) -> Any:
    plug = process_plug()
    use_stream = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(plug.address("cachalot_cupy_use_stream"))
    use_stream(_current_stream_function())
    malloc, free = plug.address("cachalot_cupy_malloc"), plug.address("cachalot_cupy_free")
    malloc_in_c = cupy.cuda.CFunctionAllocator(heap.account, malloc, free, heap).malloc

    def allocate(size: int) -> Any:
        pointer = malloc_in_c(size)
        if pointer.ptr == 0 and size > 0:
            _fail(heap, cupy.cuda.memory.OutOfMemoryError, size)
        return pointer

    return allocate


def _current_stream_function() -> int:
    """Returns the address of CuPy's C function that returns the calling thread's current stream."""
    capsules = importlib.import_module("cupy_backends.cuda.stream").__pyx_capi__
    capsule = ctypes.py_object(capsules.get("get_current_stream_ptr"))
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    for signature in _STREAM_SIGNATURES:
        if ctypes.pythonapi.PyCapsule_IsValid(capsule, ctypes.c_char_p(signature)):
            return int(get_pointer(capsule, signature))
    raise EnableError(
        "this CuPy does not say in C what its current stream is, as CuPy 13 and 14 do: pip install 'cupy-cuda13x<15'"
    )


def _fail(heap: LibraryHeap, out_of_memory: Any, size: int) -> NoReturn:
    def with_message(message: str) -> Exception:
        error: Exception = out_of_memory(size, -1)
        error.args = (message,)
        return error

    heap.raise_last_error(with_message)
