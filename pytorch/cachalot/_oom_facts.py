"""What is known of a failure, and what is said of it."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import Any

from . import _nvml
from ._oom_state import PAGE_BYTES, Failure, PoolId, State


# Memory of a device that this process's allocator does not hold: other processes by NVML, and the context and libraries.


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


@dataclasses.dataclass(frozen=True)
class Facts:
    failure: Failure
    state: State
    outside: Outside
    tags: Mapping[PoolId, str]
    awake_tags: Mapping[str, int]  # tags with reserved memory, and their bytes, the largest first
    asleep_tags: Mapping[str, int]  # tags that are asleep, and their bytes

    @property
    def is_limited(self) -> bool:
        return self.failure.allowed_bytes < self.failure.device_total_bytes

    @property
    def room(self) -> int:
        """Bytes that the device would still give this process."""
        limit = max(0, self.failure.allowed_bytes - self.state.reserved_bytes)
        return min(limit, self.failure.device_free_bytes)

    @property
    def page_bytes(self) -> int:
        """Bytes that the page heap could map together for the request: whole free pages, of any stream, and new ones."""
        free = sum(c.page_bytes for c in self.state.of("fragmentation", "small", "stream"))
        return free + self.room // PAGE_BYTES * PAGE_BYTES

    @property
    def serves_pages(self) -> bool:
        needed = -(-self.failure.requested_bytes // PAGE_BYTES) * PAGE_BYTES
        return not self.failure.has_pages and self.page_bytes >= needed

    @property
    def served_bytes(self) -> int:
        """The largest request that would have been served instead."""
        usable = max((c.largest for c in self.state.of("fragmentation")), default=0)
        return max(usable, self.room // PAGE_BYTES * PAGE_BYTES)

    def of_device(self) -> dict[str, Any]:
        """Returns what a snapshot does not tell of the device, in bytes, under the keys that `cachalot explain` reads."""
        facts: dict[str, Any] = {
            "device": self.failure.device,
            "total_bytes": self.failure.device_total_bytes,
            "free_bytes": self.failure.device_free_bytes,
            "processes": [{"pid": pid, "bytes": size} for pid, size in self.outside.processes],
        }
        if self.is_limited:
            facts["limit_bytes"] = self.failure.allowed_bytes
        if self.outside.own_bytes is not None:
            facts["process_bytes"] = self.state.reserved_bytes + self.outside.own_bytes
        return facts


@dataclasses.dataclass(frozen=True)
class Verdict:
    cause: str  # "fragmentation", "stream", …: docs/guides/out-of-memory.md lists them
    finding: str
    recommendation: str
