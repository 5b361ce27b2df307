"""The memory that NCCL holds of a device for the communicators of torch.distributed: ncclCommMemStats, which NCCL has since
2.29.7."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any, NamedTuple

# ncclCommMemStat_t, nccl.h
_SUSPENDABLE = 0
_IS_SUSPENDED = 1
_TOTAL = 3


class NcclMemory(NamedTuple):
    """The memory of NCCL's communicators on one device."""

    communicators: int
    bytes: int | None  # None: it is unknown
    why_not: str = ""  # why it is unknown


def memory(device: int) -> NcclMemory:
    """Returns what this process's communicators of torch.distributed hold on a device that is in use. Asks nothing of the GPU."""
    backends = _backends()
    if not backends:
        return NcclMemory(0, 0)
    function = _function()
    if function is None:
        return NcclMemory(len(backends), None, "this NCCL is older than 2.29.7 and cannot be asked")
    pointers = _communicators(backends, device)
    if pointers is None:
        return NcclMemory(len(backends), None, "this PyTorch does not give its communicators")
    try:
        return NcclMemory(len(pointers), sum(_bytes_of(function, pointer) for pointer in pointers))
    except RuntimeError as error:
        return NcclMemory(len(pointers), None, str(error))


def _backends() -> list[Any]:
    """Returns the backends of NCCL, of all process groups."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return []
    nccl = getattr(distributed, "ProcessGroupNCCL", None)
    if nccl is None:
        return []
    import torch

    found: list[Any] = []
    for group in list(distributed.distributed_c10d._world.pg_map):
        try:
            backend = group._get_backend(torch.device("cuda"))
        except RuntimeError:  # of a group for the CPU alone
            continue
        if isinstance(backend, nccl):
            found.append(backend)
    return found


def _communicators(backends: list[Any], device: int) -> set[int] | None:
    """Returns the ncclComm_t of each backend that has made its own on the device; None if PyTorch does not tell."""
    import torch

    pointers: set[int] = set()
    with torch.cuda.device(device):
        for backend in backends:
            if not hasattr(backend, "_comm_ptr"):
                return None
            try:
                pointers.add(int(backend._comm_ptr()))
            except RuntimeError:  # it has not communicated yet
                continue
    return pointers - {0}


def _function() -> Any:
    """Returns ncclCommMemStats of the NCCL that the process has loaded; None if it does not have it."""
    for name in (None, "libnccl.so.2"):
        try:
            library = ctypes.CDLL(name, mode=ctypes.DEFAULT_MODE | os.RTLD_NOLOAD)
        except OSError:
            continue
        function = getattr(library, "ncclCommMemStats", None)
        if function is not None:
            function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)]
            return function
    return None


def _bytes_of(function: Any, communicator: int) -> int:
    total = _statistic(function, communicator, _TOTAL)
    if _statistic(function, communicator, _IS_SUSPENDED):
        total -= _statistic(function, communicator, _SUSPENDABLE)
    return total


def _statistic(function: Any, communicator: int, which: int) -> int:
    value = ctypes.c_uint64()
    code = function(communicator, which, ctypes.byref(value))
    if code != 0:
        raise RuntimeError(f"ncclCommMemStats failed with code {code}")
    return value.value
