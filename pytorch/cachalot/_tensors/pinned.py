"""cachalot's pinned host memory behind torch's pin_memory(): how it is turned on, limited and asked."""

from __future__ import annotations

import ctypes
from typing import Any, Union

from .._base.errors import EnableError
from .._base.sizes import bytes_of
from .._bindings import adapter as _adapter
from .._bindings.plug import Functions, Plug, process_plug

Limit = Union[int, str]

FUNCTIONS: Functions = {
    "plug_pinned_record_stream": (ctypes.c_void_p, ctypes.c_void_p),
    "plug_pinned_empty_cache": (),
    "plug_pinned_set_limit": (ctypes.c_size_t,),
    "plug_pinned_json": (),
}

_LEAST = 2 << 20  # one segment

_installed = False


def set_pinned_limit(limit: Limit | None) -> None:
    """Limits the pinned memory of cachalot's pinned heap from now on.

    If more is pinned already, buffers that are not in use go back to the system; those in use stay.

    Args:
        limit: bytes as a number, or as a text such as "4GiB"; None lifts the limit.

    Raises:
        ValueError: `limit` is not a size, or is below 2 MiB.
        EnableError: the library is missing.
    """
    bytes_ = 0 if limit is None else bytes_of("pinned_limit", limit, _LEAST)
    declared(process_plug()).call("plug_pinned_set_limit", bytes_, error_type=ValueError)


def pinned_stats() -> dict[str, Any]:
    """Returns the statistics of cachalot's pinned heap: the keys of torch.cuda.memory_stats, and "limit_bytes".

    "reserved_bytes.all.current" is the pinned memory, "allocated_bytes.all.current" the part of it in buffers in use.
    "limit_bytes" is None without a limit. torch's and CuPy's pinned memory are counted together.

    Raises:
        EnableError: the library is missing.
    """
    answer = declared(process_plug()).json("plug_pinned_json")
    return {**answer["stats"], "limit_bytes": answer["limit_bytes"] or None}


def is_pinned_enabled() -> bool:
    """Returns True if torch's pinned memory is cachalot's."""
    return _installed


def declared(plug: Plug) -> Plug:
    """The library, whose functions for pinned memory can be called."""
    plug.declare(FUNCTIONS)
    return plug


def require_good(pinned: bool, limit: Limit | None, mode: str) -> None:
    """ValueError or EnableError for arguments of enable() that cannot be served."""
    if limit is not None:
        bytes_of("pinned_limit", limit, _LEAST)
        if not pinned:
            raise ValueError(f"pinned_limit is {limit!r}, but pinned is False: enable(pinned=True, pinned_limit=…)")
    if pinned and mode == "plug":
        raise EnableError(_NEEDS_ADAPTER)


def require_adapter(pinned: bool, adapter: _adapter.Adapter | None) -> None:
    """EnableError where torch's pinned memory is asked for and there is no adapter."""
    if pinned and adapter is None:
        raise EnableError(_NEEDS_ADAPTER)


def install(adapter: _adapter.Adapter | None, plug: Plug, limit: Limit | None) -> None:
    """Makes cachalot torch's host allocator, once. EnableError says why not."""
    global _installed
    if not _installed:
        require_adapter(True, adapter)
        assert adapter is not None
        adapter.install_pinned()
        _installed = True
    if limit is not None:
        declared(plug).call("plug_pinned_set_limit", bytes_of("pinned_limit", limit, _LEAST), error_type=ValueError)


_NEEDS_ADAPTER = (
    "pinned=True needs an adapter for this PyTorch (mode 'full'): PyTorch has no hook for pinned memory in mode 'plug'. "
    "Leave out mode, or leave out pinned"
)
