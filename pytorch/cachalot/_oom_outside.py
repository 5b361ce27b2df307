"""Memory of a device that this process's allocator does not hold: other processes by NVML, and the context and libraries."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

from . import _nvml


@dataclasses.dataclass(frozen=True)
class Outside:
    """Bytes on the device outside of the allocator. None: unknown."""

    all_bytes: int = 0
    own_bytes: int | None = None  # this process's: the context, NCCL, other libraries
    other_bytes: int | None = None  # other processes'
    processes: tuple[tuple[int, int], ...] = ()  # pid and bytes of other processes, the largest first
    has_nccl: bool = False  # this process has communicators of NCCL


def outside_of(device: int, all_bytes: int, reserved_bytes: int) -> Outside:
    """Divides `all_bytes` as far as NVML answers. Makes no CUDA call but for the device's UUID."""
    has_nccl = _has_nccl()
    answer = _ask_nvml(device)
    if answer is None:
        return Outside(all_bytes, has_nccl=has_nccl)
    used_bytes, processes = answer
    own_used = processes.pop(os.getpid(), None)
    listed = tuple(sorted(processes.items(), key=lambda entry: -entry[1]))
    if own_used is None:  # in a container NVML may know this process by another number, or not at all
        return Outside(all_bytes, None, sum(processes.values()) or None, listed, has_nccl)
    others = sum(processes.values()) or max(0, used_bytes - own_used)
    own = max(0, min(own_used - reserved_bytes, all_bytes))
    return Outside(all_bytes, own, min(others, all_bytes - own), listed, has_nccl)


def _has_nccl() -> bool:
    distributed: Any = sys.modules.get("torch.distributed")  # a program that did not import it has no communicator
    try:
        return bool(distributed and distributed.is_initialized() and "nccl" in str(distributed.get_backend()))
    except Exception:  # a backend that does not say
        return False


def _ask_nvml(device: int) -> tuple[int, dict[int, int]] | None:
    """Returns the bytes used on the device, and those of each process that NVML tells; None where it does not answer."""
    import torch

    cuda: Any = torch.cuda
    try:
        with _nvml.opened(str(cuda.get_device_properties(device).uuid)) as nvml:
            processes = {pid: size for pid, size in nvml.processes().items() if size is not None}
            return nvml.memory().used, processes
    except _nvml.NvmlError:
        return None
