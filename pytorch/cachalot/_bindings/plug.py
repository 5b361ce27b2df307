"""libcachalot_torch.so through ctypes: options, statistics and snapshots of the allocator that serves PyTorch."""

from __future__ import annotations

import ctypes
import functools
import json
import re
from pathlib import Path
from typing import Any

from .._base.errors import EnableError

NATIVE = Path(__file__).parents[1] / "native"
LIBRARY = NATIVE / "libcachalot_torch.so"

ALL_DEVICES = -1

# The codes of c_api.h that have an exception of their own.
_INVALID_ARGUMENT = 1
_OUT_OF_MEMORY = 2
_BAD_ENVIRONMENT = 4

_HISTOGRAM_ENTRIES = 32


class _Fragmentation(ctypes.Structure):
    """cachalot_fragmentation_t."""

    _fields_ = (
        ("requested_bytes", ctypes.c_size_t),
        ("allocated_bytes", ctypes.c_size_t),
        ("reserved_bytes", ctypes.c_size_t),
        ("free_bytes", ctypes.c_size_t),
        ("largest_free_bytes", ctypes.c_size_t),
        ("free_blocks", ctypes.c_size_t),
        ("peak_requested_bytes", ctypes.c_size_t),
        ("peak_reserved_bytes", ctypes.c_size_t),
        ("internal", ctypes.c_double),
        ("external", ctypes.c_double),
        ("reserved_ratio", ctypes.c_double),
        ("peak_ratio", ctypes.c_double),
        ("free_block_histogram", ctypes.c_uint64 * _HISTOGRAM_ENTRIES),
    )


# Functions of the library, whose names begin with cachalot_, and the types of their arguments. They return a code of c_api.h;
# those with names that end in _json, a text.
Functions = dict[str, tuple[Any, ...]]
_FUNCTIONS: Functions = {
    # c_api.h has these:
    "empty_cache": (ctypes.c_int,),
    "reset_peak_memory_stats": (ctypes.c_int,),
    "reset_accumulated_memory_stats": (ctypes.c_int,),
    "begin_tagged": (ctypes.c_char_p, ctypes.c_int),
    "end_tagged": (ctypes.c_char_p, ctypes.c_int),
    "restore_physical": (ctypes.c_char_p, ctypes.c_int),
    "tags_json": (),
    "read_saved": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)),
    "make_evictable": (ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_char_p, ctypes.c_int),
    "make_resident": (ctypes.c_char_p, ctypes.c_int),
    "ensure": (ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int)),
    "let_go": (ctypes.c_char_p, ctypes.c_int),
    "fragmentation": (ctypes.c_int, ctypes.POINTER(_Fragmentation)),
    "memory_stats_json": (ctypes.c_int,),
    "snapshot_json": (),
    "check_guard_json": (),
    "set_limit": (ctypes.c_char_p, ctypes.c_int),
    "set_soft_limit": (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int),
    "reserve": (ctypes.c_size_t, ctypes.c_int),
    "publish": (ctypes.c_char_p,),
    "stop_publishing": (),
    "join_budget": (
        *(ctypes.c_double, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_char_p),
        *(ctypes.c_int, ctypes.c_int),
    ),
    "leave_budget": (ctypes.c_int,),
    "budget_json": (ctypes.c_char_p, ctypes.c_int),
    # pytorch/plug has these:
    "plug_give_options": (ctypes.c_char_p,),
    "plug_settings": (ctypes.c_char_p,),
    "plug_place": (ctypes.c_uint, ctypes.POINTER(ctypes.c_uint)),
    "plug_set_plain": (ctypes.c_ulonglong, ctypes.c_ulonglong),
    "plug_takes_pages": (ctypes.POINTER(ctypes.c_int),),
    "plug_collect_garbage": (ctypes.c_int,),
    "plug_release_physical": (ctypes.c_char_p, ctypes.c_ulonglong, ctypes.c_ulonglong, ctypes.c_int, ctypes.c_char_p),
    "plug_restore_pool_physical": (ctypes.c_ulonglong, ctypes.c_ulonglong),
    "plug_record_history": (ctypes.c_int, ctypes.c_long),
    "plug_memory_fraction": (ctypes.c_int, ctypes.POINTER(ctypes.c_double)),
    "plug_hide_launcher": (ctypes.c_char_p,),
    "plug_bytes": (ctypes.c_char_p, ctypes.POINTER(ctypes.c_size_t)),
    "plug_limits_json": (ctypes.c_int,),
    "plug_memory_info": (ctypes.c_int, ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)),
    "plug_segments_json": (),
    "plug_pool_memory_json": (),
    "plug_published_json": (),
    "plug_library": (ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)),
    "plug_library_usage_json": (),
}

# The dynamic linker's messages on a library that it cannot load, and their cures.
_CURES = (
    (
        r"version `(GLIBC\w*_[\d.]+|CXXABI_[\d.]+)' not found",
        "this system's {} is older than it needs; wheels are for glibc 2.28 and newer (docs/support_matrix.md); on older "
        "systems build the package from its source: pip install .",
    ),
    (
        r"([\w.+-]+\.so[\w.]*): cannot open shared object file",
        "it needs the library {}, which is not installed or not on the linker's path (LD_LIBRARY_PATH)",
    ),
    (
        r"invalid ELF header|file too short|ELF load command|not a dynamic executable|wrong ELF class|cannot read file",
        "the file is damaged or for another kind of processor: install its wheel again (pip install --force-reinstall WHEEL)",
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
        self._functions: dict[str, Any] = {}
        self.declare(_FUNCTIONS)
        self._trim = self.function("trim", ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
        self._give_way = self.function("give_way", ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
        self._last_error = self.function("last_error", ctypes.c_char_p)
        self._last_error_code = self.function("last_error_code", ctypes.c_int)
        self._free_text = self.function("string_free", None, ctypes.c_void_p)

    def declare(self, functions: Functions) -> None:
        """Makes functions known to `call` and `json`."""
        for name, arguments in functions.items():
            result = ctypes.c_void_p if name.endswith("_json") else ctypes.c_int
            self._functions[name] = self.function(name, result, *arguments)

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        """cachalot_`name` of the library, to be called as it is."""
        function = self._symbol(f"cachalot_{name}")
        function.restype = result
        function.argtypes = arguments
        return function

    def configure(self, options: str) -> None:
        """Puts options in CACHALOT_CONF's grammar on top of all others, in place of those that an earlier call gave.

        All or none: ValueError names key, value and rule.
        """
        self.call("plug_give_options", options.encode(), error_type=ValueError)

    def settings(self, text: str) -> None:
        """Takes PyTorch's settings over, in place of earlier ones; ValueError names key, value and rule."""
        self.call("plug_settings", text.encode(), error_type=ValueError)

    def json(self, name: str, *arguments: Any, bad_input: type[Exception] = RuntimeError) -> Any:
        """Returns the JSON that a function returns as a text, parsed. RuntimeError if it fails; for the caller's mistake `bad_input`."""
        text = self._functions[name](*arguments)
        if text is None:
            code, message = self.last_failure()
            raise (bad_input if is_bad_input(code) else RuntimeError)(message)
        try:
            return json.loads(ctypes.string_at(text))
        finally:
            self._free_text(text)

    def stats(self, device: int) -> dict[str, int]:
        """The statistics of a device, with the keys of torch.cuda.memory_stats."""
        stats: dict[str, int] = self.json("memory_stats_json", device)
        return stats

    def fragmentation(self, device: int) -> dict[str, Any]:
        """cachalot_fragmentation_t's members, of a device."""
        figures = _Fragmentation()
        self.call("fragmentation", device, ctypes.byref(figures))
        return {field[0]: getattr(figures, field[0]) for field in figures._fields_}

    def reset_peak(self, device: int = ALL_DEVICES) -> None:
        """Every peak starts again from the current value."""
        self.call("reset_peak_memory_stats", device)

    def reset_accumulated(self, device: int = ALL_DEVICES) -> None:
        """Every sum starts again from 0."""
        self.call("reset_accumulated_memory_stats", device)

    def empty_cache(self, device: int = ALL_DEVICES) -> None:
        """Gives unused memory back to the device."""
        self.call("empty_cache", device)

    def memory_fraction(self, device: int) -> float:
        """The share of the device's memory that may be held, in [0, 1]."""
        fraction = ctypes.c_double()
        self.call("plug_memory_fraction", device, fraction)
        return fraction.value

    def bytes_of(self, size: bytes) -> int:
        """The bytes of a size as the library reads it, such as 2GiB; ValueError for another text."""
        count = ctypes.c_size_t()
        self.call("plug_bytes", size, count, bad_input=ValueError)
        return count.value

    def trim(self, keep: int, device: int) -> int:
        """Gives cached memory back while at least `keep` bytes stay held; returns the bytes given back."""
        return self._count(self._trim(keep, device))

    def give_way(self, size: int, device: int) -> int:
        """Gives `size` bytes back as far as possible, of evictable tags, too; returns the bytes given back."""
        return self._count(self._give_way(size, device))

    def _count(self, count: int) -> int:
        """Returns a count whose 0 may be a failure."""
        if count == 0:
            self._raise_if_failed(self._last_error_code(), RuntimeError, ValueError)
        return count

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
    ) -> None:
        """Calls a function that returns a code; raises an exception for a failure.

        That memory ran out is torch.OutOfMemoryError, the caller's mistake is `bad_input`, else as `error_type`.
        """
        self._raise_if_failed(self._functions[name](*arguments), error_type, bad_input)

    def last_failure(self) -> tuple[int, str]:
        """The code and the message of the calling thread's last call that failed."""
        return self._last_error_code(), self._last_error().decode(errors="replace")

    def _raise_if_failed(self, code: int, error_type: type[Exception], bad_input: type[Exception] | None) -> None:
        if code == 0:
            return
        _, text = self.last_failure()
        if is_out_of_memory(code):
            raise out_of_memory_error()(text)
        raise (bad_input if bad_input and is_bad_input(code) else error_type)(text)

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
    """Returns the folder of the headers, which are cachalot/….h: those of C++, and c_api.h, of which the library exports all functions."""
    return NATIVE / "include"


@functools.cache
def process_plug() -> Plug:
    """Returns the loaded library, one for PyTorch and all other libraries. EnableError if it cannot be loaded: then the next call tries again."""
    return Plug()


def is_out_of_memory(code: int) -> bool:
    """Returns whether the code of a failure says that memory ran out."""
    return code == _OUT_OF_MEMORY


def is_bad_input(code: int) -> bool:
    """Returns whether the code of a failure says that an argument or the environment is invalid."""
    return code in (_INVALID_ARGUMENT, _BAD_ENVIRONMENT)


def _cure(error: str) -> str:
    for pattern, cure in _CURES:
        found = re.search(pattern, error)
        if found:
            return ": " + cure.format(*found.groups())
    return ""


def out_of_memory_error() -> type[Exception]:
    """Returns torch.OutOfMemoryError, without an import of torch before it is needed."""
    import torch

    return torch.OutOfMemoryError
