"""The CUDA driver's figures of a device's memory, by ctypes. Nothing here makes a context: that would take memory of the device."""

from __future__ import annotations

import ctypes
import functools
import uuid as uuids
from typing import Any

from .._base.errors import EnableError

_INTEGRATED = 18  # CU_DEVICE_ATTRIBUTE_INTEGRATED, cuda.h
_POOL_RESERVED = 5  # CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
_NAME_BYTES = 256


class DriverError(RuntimeError):
    """The driver is missing, or a call failed; the message names the call and its code."""


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DriverError(f"the CUDA driver cannot be loaded: {error}") from None
    return library


def _call(name: str, *arguments: Any) -> None:
    try:
        code = getattr(_library(), name)(*arguments)
    except AttributeError:
        raise DriverError(f"this CUDA driver does not have {name}") from None
    if code != 0:
        raise DriverError(f"{name} failed with code {code}")


def device_count() -> int:
    """Returns how many devices the process sees. DriverError without a driver."""
    count = ctypes.c_int()
    _call("cuInit", 0)
    _call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


def require_device(device: object) -> None:
    """Raises ValueError if there is no device with this number, EnableError if there is no driver."""
    try:
        count = device_count()
    except DriverError as error:
        raise EnableError(f"{error}. cachalot needs a GPU and its driver") from None
    if isinstance(device, bool) or not isinstance(device, int) or not 0 <= device < count:
        raise ValueError(f"device is {device!r}; there are {count} CUDA devices: give an index below {count}")


def current_device() -> int:
    """Returns the device of the calling thread's context; 0 where it has none."""
    device = ctypes.c_int()
    try:
        _call("cuInit", 0)
        _call("cuCtxGetDevice", ctypes.byref(device))
    except DriverError:
        return 0
    return device.value


class DriverDevice:
    """A DriverDevice is a device by its number in the process. Every method may be called from any thread, whatever its
    context, and raises DriverError if a call fails.
    """

    def __init__(self, index: int) -> None:
        _call("cuInit", 0)
        self._device = ctypes.c_int()
        _call("cuDeviceGet", ctypes.byref(self._device), index)

    def name(self) -> str:
        text = ctypes.create_string_buffer(_NAME_BYTES)
        _call("cuDeviceGetName", text, _NAME_BYTES, self._device)
        return text.value.decode(errors="replace")

    def uuid(self) -> str:
        """Returns "00112233-4455-6677-8899-aabbccddeeff": of a MIG instance, if the device is one."""
        found = ctypes.create_string_buffer(16)
        _call("cuDeviceGetUuid_v2", found, self._device)
        return str(uuids.UUID(bytes=found.raw))

    def is_integrated(self) -> bool:
        """Returns whether the device has no memory of its own, but the host's."""
        value = ctypes.c_int()
        _call("cuDeviceGetAttribute", ctypes.byref(value), _INTEGRATED, self._device)
        return value.value != 0

    def total_bytes(self) -> int:
        total = ctypes.c_size_t()
        _call("cuDeviceTotalMem_v2", ctypes.byref(total), self._device)
        return total.value

    def has_context(self) -> bool:
        """Returns whether the process uses the device's primary context."""
        flags, active = ctypes.c_uint(), ctypes.c_int()
        _call("cuDevicePrimaryCtxGetState", self._device, ctypes.byref(flags), ctypes.byref(active))
        return active.value != 0

    def free_and_total_bytes(self) -> tuple[int, int]:
        """Returns cudaMemGetInfo's figures. The device must have a context."""
        context = ctypes.c_void_p()
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        _call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        try:
            _call("cuCtxPushCurrent_v2", context)
            try:
                _call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
            finally:
                _call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))
        finally:
            _call("cuDevicePrimaryCtxRelease_v2", self._device)
        return free.value, total.value

    def pool_bytes(self) -> int:
        """Returns what cudaMallocAsync's default pool holds of the device."""
        pool, value = ctypes.c_void_p(), ctypes.c_uint64()
        _call("cuDeviceGetDefaultMemPool", ctypes.byref(pool), self._device)
        _call("cuMemPoolGetAttribute", pool, _POOL_RESERVED, ctypes.byref(value))
        return value.value
