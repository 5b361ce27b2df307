"""The heap as other libraries than PyTorch use it: what an integration calls, and cachalot.library_usage()."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from .._bindings.plug import Plug, is_bad_input, is_out_of_memory, process_plug
from . import options


class LibraryUsage(NamedTuple):
    """A LibraryUsage is what one library has of one device's memory."""

    library: str  # "cupy", "numba", …; "torch" is the remainder: what no other library has
    device: int
    live_bytes: int  # of the blocks of its live allocations, as torch.cuda.memory_allocated counts
    peak_bytes: int  # the largest live_bytes; of "torch", the peak of all libraries together
    allocations: int  # since the process began
    frees: int


class LibraryError(RuntimeError):
    """The heap could not serve a library, for another reason than a lack of memory."""


def library_usage() -> tuple[LibraryUsage, ...]:
    """Returns what each library has of each device's memory, the libraries by name, then PyTorch. Empty before the first
    allocation, and in a forked child of the process that made it.

    The live_bytes of a device add up to torch.cuda.memory_allocated. Of "torch", the peak is that of all libraries together,
    and torch.cuda.reset_peak_memory_stats and reset_accumulated_memory_stats apply to it. May be called from any thread.
    """
    return tuple(LibraryUsage(**usage) for usage in process_plug().json("plug_library_usage_json"))


class LibraryHeap:
    """A LibraryHeap is one library's access to the process's heap. Every method may be called from any thread, also while
    the process ends; the GIL is released meanwhile.
    """

    def __init__(
        self, library: str, config: str | None = None, out_of_memory: Callable[[str], Exception] = MemoryError
    ) -> None:
        """Opens the account of `library`, which is made at first use.

        Args:
            library: the name in library_usage().
            config: options of the heap, as for cachalot.enable().
            out_of_memory: makes what `allocate` raises when memory ran out, from the message.

        Raises:
            ValueError: `config` or CACHALOT_CONF is invalid; the message names key, value and rule.
            EnableError: the process has other options already, or cachalot's own library cannot be loaded.
        """
        plug = process_plug()
        options.give(plug, config)
        account = ctypes.c_void_p()
        plug.call("plug_library", library.encode(), account, error_type=ValueError)
        self.library = library
        self.account = account.value or 0  # the LibraryMemory*, for C callbacks
        self._out_of_memory = out_of_memory
        # The methods below, which return 0 and a code instead of raising: for callers that call raise_last_error then.
        self.malloc, self.free_quickly, self.free_after_quickly = _methods(plug, self.account)

    def allocate(self, size: int, device: int, stream: int = 0) -> int:
        """Returns the address of `size` bytes on `device` for work on `stream`, a cudaStream_t; 0 for 0 bytes.

        Raises:
            out_of_memory, as the constructor was given: the device or a limit has too little memory.
            ValueError: there is no such device or stream.
            LibraryError: CUDA failed.
        """
        address = self.malloc(size, device, stream)
        if address == 0 and size != 0:
            self.raise_last_error()
        return address

    def free(self, address: int) -> None:
        """Frees what allocate returned. The memory is reused in the order of the allocation's stream.

        Raises:
            ValueError: the address is not a live allocation.
            LibraryError: CUDA failed.
        """
        if self.free_quickly(address) != 0:
            self.raise_last_error()

    def free_after(self, address: int, stream: int) -> None:
        """Frees what allocate returned, and which work on `stream` may use, too: the memory is reused after that work.
        Raises as `free`.
        """
        if self.free_after_quickly(address, stream) != 0:
            self.raise_last_error()

    def raise_last_error(self, out_of_memory: Callable[[str], Exception] | None = None) -> NoReturn:
        """Raises the calling thread's last failure in the exported functions; `out_of_memory` as for the constructor."""
        raise_last_error(out_of_memory or self._out_of_memory)


def raise_last_error(out_of_memory: Callable[[str], Exception]) -> NoReturn:
    """Raises the calling thread's last failure in the exported functions; `out_of_memory` if memory ran out."""
    code, message = process_plug().last_failure()
    if is_out_of_memory(code):
        raise out_of_memory(message)
    raise ValueError(message) if is_bad_input(code) else LibraryError(message)


class _Method(ctypes.Structure):
    """The layout of PyMethodDef."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("name", "function", "flags", "documentation")]


def _methods(plug: Plug, account: int) -> tuple[Callable[..., int], ...]:
    """Returns the library's methods malloc, free and free_after, as Python's own functions: a call by ctypes takes longer."""
    methods = ctypes.CFUNCTYPE(ctypes.POINTER(_Method * 3))(plug.address("cachalot_library_methods"))().contents
    new_function = ctypes.pythonapi.PyCFunction_NewEx
    new_function.restype = ctypes.py_object
    new_function.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return tuple(new_function(ctypes.addressof(method), account, None) for method in methods)
