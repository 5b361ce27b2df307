"""Limits of the memory that cachalot holds: at most (set_limit), before a warning (set_soft_limit), less (trim), beforehand
(reserve)."""

from __future__ import annotations

import ctypes
import dataclasses
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .enabled import index_of, require_enabled

if TYPE_CHECKING:
    from .enabled import Device


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of one device and what counts against them, at one moment."""

    device: int
    limit_bytes: int | None  # the lowest limit of held memory; None: there is none
    set_by: str  # its setting, as in 'set_limit("20GiB")' or 'limit:20GiB', the option; "" without a limit
    soft_limit_bytes: int | None
    held_bytes: int  # held from the device, in use or cached
    reservation_bytes: int  # of reserve(), what no stream has used yet


@dataclasses.dataclass(frozen=True)
class SoftLimit:
    """Says by how much held memory has come to exceed the soft limit of a device."""

    device: int
    held_bytes: int  # the memory of the allocation included
    soft_limit_bytes: int


class _SoftLimitReport(ctypes.Structure):
    """cachalot_soft_limit_t."""

    _fields_ = (("device", ctypes.c_int), ("held_bytes", ctypes.c_size_t), ("soft_limit_bytes", ctypes.c_size_t))


_OnSoft = ctypes.CFUNCTYPE(None, ctypes.POINTER(_SoftLimitReport))

_lock = threading.Lock()
_callbacks: dict[int, Callable[[SoftLimit], object]] = {}


def set_limit(limit: str | int | None, device: Device = None) -> None:
    """Limits the memory that cachalot holds of a device, in use or cached: an allocation beyond it is refused.

    torch.OutOfMemoryError is raised before the driver is asked, and names the limit. Beside it,
    torch.cuda.set_per_process_memory_fraction has a limit of its own; the lower one holds. If more is held already, cached memory
    is given back as by `trim`; tensors stay valid, and allocations that need more memory are refused until less is held.

    Args:
        limit: "20GiB" or a number of bytes; "80%" of the device's memory; "free-2GiB" or "free" is the memory that is free now and the
            memory that is held; None or "none" lifts the limit.
        device: by default the current device.

    Raises:
        ValueError: `limit` has another form. The limit stays as it was.
        EnableError: cachalot is not enabled.
    """
    require_enabled().plug.call("set_limit", size_text(limit), index_of(device), bad_input=ValueError)


def set_soft_limit(
    limit: str | int | None, on_soft: Callable[[SoftLimit], object] | None = None, device: Device = None
) -> None:
    """Calls `on_soft` when the memory that cachalot holds of a device comes to exceed the soft limit.

    It is called once, until held memory has been at or below the limit again; if more is held already, at the next growth. The call
    comes on the thread whose allocation made cachalot hold more, after that has succeeded and before it returns, without a lock of
    the allocator: the function may free tensors, allocate or call `trim`. An exception that it raises is reported as
    unraisable (sys.unraisablehook) and does not reach the allocation.

    Args:
        limit: as for `set_limit`.
        on_soft: the function; None only with the limit None.
        device: by default the current device.

    Raises:
        ValueError: `limit` has another form than those of `set_limit`, or `on_soft` is missing. The soft limit stays as it was.
        TypeError: `on_soft` is not callable.
        EnableError: cachalot is not enabled.
    """
    if on_soft is not None and not callable(on_soft):
        raise TypeError(f"on_soft is {on_soft!r}; it must be callable with one argument, a cachalot.SoftLimit")
    plug = require_enabled().plug
    index = index_of(device)
    with _lock:
        before = _callbacks.get(index)
        _keep_callback(index, on_soft)
        try:
            callback = plug.address("cachalot_plug_on_soft_limit") if on_soft else None
            plug.call("set_soft_limit", size_text(limit), callback, _ON_SOFT_ADDRESS, index, bad_input=ValueError)
        except BaseException:
            _keep_callback(index, before)
            raise


def limits(device: Device = None) -> Limits:
    """Returns the limits of a device, by default of the current one, and what counts against them.

    Raises:
        EnableError: cachalot is not enabled.
    """
    return Limits(**require_enabled().plug.json("plug_limits_json", index_of(device)))


def trim(keep: str | int = 0, device: Device = None) -> int:
    """Gives cached memory back to the device as long as at least `keep` stays held, without torch.cuda.synchronize.

    Tensors are not touched. On the page heap memory goes back whose work is done by now; other memory stays cached until a later
    call. On heap:segments whole free segments go back by cudaFree, which itself waits for the work that is queued on the device;
    on heap:async they go back behind the work of their streams. Memory of private pools and regions stays. Nothing happens
    while a graph is captured.

    Args:
        keep: bytes, or a size such as "2GiB".
        device: by default the current device.

    Returns:
        The bytes given back.

    Raises:
        ValueError: `keep` is not a size.
        EnableError: cachalot is not enabled.
    """
    plug = require_enabled().plug
    index = index_of(device)
    return plug.trim(plug.bytes_of(size_text(keep)), index)


def reserve(size: str | int, device: Device = None) -> None:
    """Takes memory from the device beforehand, until `size` is cached that no stream has used.

    Allocations up to that amount then make no call of the driver: on the page heap those of all sizes and streams; on the other
    heaps those of the stream that allocates first, from a 32nd of the memory those of up to 1 MiB, from the rest larger ones.
    Private pools, regions and graph captures do not use it. Memory that is cached already belongs to streams and does not count.

    Garbage collection and torch.cuda.empty_cache keep the memory, so that it is still there after a capture of a graph; `trim` and the
    recovery of an allocation that finds no memory give it back.

    Args:
        size: bytes, or a size such as "8GiB".
        device: by default the current device.

    Raises:
        torch.OutOfMemoryError: the device or a limit does not have the room.
        ValueError: `size` is not a size, or a graph is being captured.
        EnableError: cachalot is not enabled.
    """
    plug = require_enabled().plug
    index = index_of(device)
    plug.call("reserve", plug.bytes_of(size_text(size)), index, bad_input=ValueError)


def size_text(size: str | int | None) -> bytes:
    return b"none" if size is None else str(size).encode()


def _keep_callback(index: int, on_soft: Callable[[SoftLimit], object] | None) -> None:
    if on_soft is None:
        _callbacks.pop(index, None)
    else:
        _callbacks[index] = on_soft


def _on_soft(pointer: Any) -> None:
    report = pointer.contents
    callback = _callbacks.get(report.device)
    if callback is not None:  # it may have been taken away since the limit was crossed
        callback(SoftLimit(report.device, report.held_bytes, report.soft_limit_bytes))


_ON_SOFT = _OnSoft(_on_soft)  # one for all devices, never freed: a thread may be in it
_ON_SOFT_ADDRESS = ctypes.cast(_ON_SOFT, ctypes.c_void_p)
