"""The figures of NVML, the library of nvidia-smi, on a device's memory, by ctypes. It needs no package."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Generator
from typing import Any, NamedTuple

_SUCCESS = 0
_INSUFFICIENT_SIZE = 7
_MEMORY_VERSION_2 = 2 << 24  # nvmlMemory_v2: the number of the version over the size of the structure
_NOT_AVAILABLE = (1 << 64) - 1  # NVML_VALUE_NOT_AVAILABLE

# The lists in which a process with memory can be; a process may be in several.
_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)


class NvmlError(RuntimeError):
    """NVML is missing, or does not know the figure; the message says which."""


class NvmlMemory(NamedTuple):
    """The memory of a device, in bytes."""

    total: int
    used: int  # as nvidia-smi shows it
    reserved: int  # the driver's and the firmware's, which are not in `used`


class _MemoryV1(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _MemoryV2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    ]


class _ProcessV1(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong)]


class _ProcessV3(ctypes.Structure):
    _fields_ = [*_ProcessV1._fields_, ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise NvmlError(f"NVML cannot be loaded: {error}") from None


def _call(name: str, *arguments: Any) -> None:
    try:
        code = getattr(_library(), name)(*arguments)
    except AttributeError:
        raise NvmlError(f"this NVML does not have {name}") from None
    if code != _SUCCESS:
        raise NvmlError(f"{name} failed with code {code}{_text_of(code)}")


def _text_of(code: int) -> str:
    function = getattr(_library(), "nvmlErrorString", None)
    if function is None:
        return ""
    function.restype = ctypes.c_char_p
    return f" ({function(code).decode(errors='replace')})"


@contextlib.contextmanager
def opened(uuid: str) -> Generator[NvmlDevice, None, None]:
    """Opens the device with CUDA's UUID, of a GPU or of a MIG instance, within the block. NvmlError if NVML cannot do it."""
    _call("nvmlInit_v2")
    try:
        yield NvmlDevice(uuid)
    finally:
        _call("nvmlShutdown")


class NvmlDevice:
    """An NvmlDevice is a device within the block of `opened`. Every method may be called from any thread, and raises NvmlError
    for a figure that NVML does not know.
    """

    def __init__(self, uuid: str) -> None:
        self._handle = ctypes.c_void_p()
        try:
            _call("nvmlDeviceGetHandleByUUID", f"GPU-{uuid}".encode(), ctypes.byref(self._handle))
        except NvmlError:
            _call("nvmlDeviceGetHandleByUUID", f"MIG-{uuid}".encode(), ctypes.byref(self._handle))

    def memory(self) -> NvmlMemory:
        """Returns the device's memory. NVML before version 510 counts reserved memory as used."""
        memory = _MemoryV2(version=ctypes.sizeof(_MemoryV2) | _MEMORY_VERSION_2)
        try:
            _call("nvmlDeviceGetMemoryInfo_v2", self._handle, ctypes.byref(memory))
        except NvmlError:
            older = _MemoryV1()
            _call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(older))
            return NvmlMemory(older.total, older.used, 0)
        return NvmlMemory(memory.total, memory.used, memory.reserved)

    def processes(self) -> dict[int, int | None]:
        """Returns the bytes of each process with memory of the device; None where NVML does not tell them."""
        found: dict[int, int | None] = {}
        for position, name in enumerate(_LISTS):
            try:
                found |= self._processes_of(name)
            except NvmlError:
                if position == 0:
                    raise
        return found

    def _processes_of(self, name: str) -> dict[int, int | None]:
        is_newer = hasattr(_library(), f"{name}_v3")
        function = getattr(_library(), f"{name}_v3" if is_newer else name, None)
        if function is None:
            raise NvmlError(f"this NVML does not have {name}")
        room = 0
        while True:
            count = ctypes.c_uint(room)
            processes = ((_ProcessV3 if is_newer else _ProcessV1) * max(room, 1))()
            code = function(self._handle, ctypes.byref(count), processes if room else None)
            if code == _SUCCESS:
                shown = processes[: count.value] if room else []
                return {each.pid: None if each.used == _NOT_AVAILABLE else each.used for each in shown}
            if code != _INSUFFICIENT_SIZE:
                raise NvmlError(f"{name} failed with code {code}{_text_of(code)}")
            room = count.value + 8  # processes may begin meanwhile
