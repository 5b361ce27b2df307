"""libcachalot_torch.so through ctypes: options, statistics and snapshots of the allocator that serves PyTorch."""

from __future__ import annotations

import ctypes
import functools
import json
import re
import threading
from pathlib import Path
from typing import Any

from .._base.errors import EnableError

NATIVE = Path(__file__).parents[1] / "native"
LIBRARY = NATIVE / "libcachalot_torch.so"

ALL_DEVICES = -1

_ERROR_BYTES = 4096
_OUT_OF_MEMORY = -2
_BAD_INPUT = -3
_FIRST_JSON_BYTES = 1 << 16

# Functions of the library: the type of the result, then of the arguments up to `char* error, size_t capacity`.
Functions = dict[str, tuple[Any, ...]]
_FUNCTIONS: Functions = {
    "configure": (ctypes.c_int, ctypes.c_char_p),
    "settings": (ctypes.c_int, ctypes.c_char_p),
    "set_contiguous": (ctypes.c_int, ctypes.c_int),  # of this thread's allocations from now on; returns whether they were so far
    "empty_cache": (ctypes.c_int, ctypes.c_int),
    "reset_peak": (ctypes.c_int, ctypes.c_int),
    "reset_accumulated": (ctypes.c_int, ctypes.c_int),
    "begin_tagged": (ctypes.c_int, ctypes.c_char_p),
    "end_tagged": (ctypes.c_int, ctypes.c_char_p),
    "release_physical": (ctypes.c_int, ctypes.c_char_p, ctypes.c_ulonglong, ctypes.c_ulonglong, ctypes.c_int),
    "restore_physical": (ctypes.c_int, ctypes.c_char_p, ctypes.c_ulonglong, ctypes.c_ulonglong),
    "record_history": (ctypes.c_int, ctypes.c_int, ctypes.c_long),
    "check_memory": (ctypes.c_int,),
    "memory_fraction": (ctypes.c_double, ctypes.c_int),
    "hide_launcher": (ctypes.c_int, ctypes.c_char_p),
}

# The dynamic linker's messages on a library that it cannot load, and their cures.
_CURES = (
    (
        r"version `(GLIBC\w*_[\d.]+|CXXABI_[\d.]+)' not found",
        "this system's {} is older than it needs; wheels are for glibc 2.28 and newer (docs/support_matrix.md); on older "
        "systems build the package from source: pip install --no-binary cachalot cachalot",
    ),
    (
        r"([\w.+-]+\.so[\w.]*): cannot open shared object file",
        "it needs the library {}, which is not installed or not on the linker's path (LD_LIBRARY_PATH)",
    ),
    (
        r"invalid ELF header|file too short|ELF load command|not a dynamic executable|wrong ELF class|cannot read file",
        "the file is damaged or for another kind of processor: pip install --force-reinstall cachalot",
    ),
)


class Plug:
    """The loaded library. Every method may be called from any thread; ctypes releases the GIL meanwhile."""

    def __init__(self, path: Path = LIBRARY) -> None:
        """Loads the library; EnableError when the file is missing or is something else."""
        if not path.is_file():
            raise EnableError(f"{path} is missing: install the package again, whole")
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise EnableError(f"{path} cannot be loaded: {error}{_cure(str(error))}") from None
        self.path = path
        self._of_thread = threading.local()
        self._functions: dict[str, Any] = {}
        self.declare(_FUNCTIONS)
        self._json = self.function("json", ctypes.c_long, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_long)

    def declare(self, functions: Functions) -> None:
        """Makes functions known to `call`."""
        for name, (result, *arguments) in functions.items():
            self._functions[name] = self.function(name, result, *arguments, ctypes.c_char_p, ctypes.c_size_t)

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        """cachalot_plug_`name` of the library, to be called as it is."""
        function = self._symbol(f"cachalot_plug_{name}")
        function.restype = result
        function.argtypes = arguments
        return function

    def configure(self, options: str) -> None:
        """Puts options in CACHALOT_CONF's grammar on top of all others, in place of those that an earlier call gave.

        All or none: ValueError names key, value and rule.
        """
        self.call("configure", options.encode(), error_type=ValueError)

    def settings(self, text: str) -> None:
        """Takes PyTorch's settings over, in place of earlier ones; ValueError names key, value and rule."""
        self.call("settings", text.encode(), error_type=ValueError)

    def json(self, what: str, device: int = ALL_DEVICES) -> Any:
        """Returns "stats" or "fragmentation" of a device, or the "snapshot", "regions" or "guard_reports" of all, parsed."""
        return self.parsed(self._json, what.encode(), device)

    def parsed(self, function: Any, *arguments: Any) -> Any:
        """The JSON that a function of the library writes into a buffer."""
        capacity = _FIRST_JSON_BYTES
        while True:
            text = ctypes.create_string_buffer(capacity)
            length = function(*arguments, text, capacity)
            if length < 0:
                raise RuntimeError(_text(text))
            if length < capacity:
                return json.loads(text.value)
            capacity = 2 * length  # a snapshot may grow between two calls

    def reset_peak(self, device: int = ALL_DEVICES) -> None:
        """Every peak starts again from the current value."""
        self.call("reset_peak", device)

    def reset_accumulated(self, device: int = ALL_DEVICES) -> None:
        """Every sum starts again from 0."""
        self.call("reset_accumulated", device)

    def empty_cache(self, device: int = ALL_DEVICES) -> None:
        """Gives unused memory back to the device."""
        self.call("empty_cache", device)

    def memory_fraction(self, device: int) -> float:
        """The share of the device's memory that may be held, in [0, 1]."""
        return float(self.call("memory_fraction", device))

    def address(self, name: str) -> int:
        """The address of an exported function, for PyTorch to call."""
        address = ctypes.cast(self._symbol(name), ctypes.c_void_p).value
        assert address is not None
        return address

    def call(
        self,
        name: str,
        *arguments: Any,
        error_type: type[Exception] = RuntimeError,
        bad_input: type[Exception] | None = None,
    ) -> Any:
        """Returns the function's result; raises an exception if that is negative.

        That memory ran out is torch.OutOfMemoryError, the caller's mistake is `bad_input`, else as `error_type`.
        """
        error = self._error_buffer()
        result = self._functions[name](*arguments, error, _ERROR_BYTES)
        if result == _OUT_OF_MEMORY:
            raise _out_of_memory_error()(_text(error))
        if result < 0:
            raise (bad_input if bad_input and result == _BAD_INPUT else error_type)(_text(error))
        return result

    def _error_buffer(self) -> ctypes.Array[ctypes.c_char]:
        buffer: ctypes.Array[ctypes.c_char] | None = getattr(self._of_thread, "error", None)
        if buffer is None:
            buffer = self._of_thread.error = ctypes.create_string_buffer(_ERROR_BYTES)
        return buffer

    def _symbol(self, name: str) -> Any:
        try:
            return getattr(self._library, name)
        except AttributeError:
            raise EnableError(f"{self.path} is not this package's library: it has no {name}") from None


def library_path() -> Path:
    """Returns libcachalot_torch.so, for torch.cuda.memory.CUDAPluggableAllocator(path, "cachalot_malloc",
    "cachalot_free").
    """
    return LIBRARY


def include_path() -> Path:
    """Returns the folder of the C++ headers, which are cachalot/….h."""
    return NATIVE / "include"


@functools.cache
def process_plug() -> Plug:
    """Returns the loaded library, one for PyTorch and all other libraries. EnableError if it cannot be loaded: then the next call tries again."""
    return Plug()


def _cure(error: str) -> str:
    for pattern, cure in _CURES:
        found = re.search(pattern, error)
        if found:
            return ": " + cure.format(*found.groups())
    return ""


def _out_of_memory_error() -> type[Exception]:
    import torch

    return torch.OutOfMemoryError


def _text(buffer: ctypes.Array[ctypes.c_char]) -> str:
    return buffer.value.decode(errors="replace")
