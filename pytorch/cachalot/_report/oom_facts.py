"""The known facts of a failure, and their text: the device's memory at that moment, live, cached and asleep, the reason why no cached
memory serves the request, and the memory of others.
"""

from __future__ import annotations

import bisect
import dataclasses
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .._bindings import nvml as _nvml

PAGE_BYTES = 2 << 20  # the smallest physical memory that the driver maps, and so that the page heap moves
_MOST_SMALL_BYTES = 1 << 20  # PyTorch's limit between the two size classes

PoolId = tuple[int, int]


@dataclasses.dataclass(frozen=True)
class Failure:
    """A request that is about to fail. Sizes are in bytes."""

    device: int
    requested_bytes: int
    segment_bytes: int  # that the device was asked for
    allowed_bytes: int  # the limit of the process, or the device's total
    device_free_bytes: int
    device_total_bytes: int
    stream: int = 0
    pool: PoolId = (0, 0)
    is_refusal: bool = False  # by throw_on_cudamalloc_oom, before the device was asked
    has_pages: bool = False  # the heap is the page heap
    where: str = ""  # the line of the program that asked; "" outside of Python code


@dataclasses.dataclass
class Cached:
    """Free memory that has one reason not to serve the request."""

    kind: str  # "fragmentation", "small", "idle", "stream", "graph", "pool", "tag" or "default"
    name: str  # for a reader: "stream 0x1f40"
    bytes: int = 0
    blocks: int = 0
    largest: int = 0
    page_bytes: int = 0  # in whole pages, which the page heap could map elsewhere

    def add(self, address: int, size: int) -> None:
        first = -(-address // PAGE_BYTES) * PAGE_BYTES
        self.bytes += size
        self.blocks += 1
        self.largest = max(self.largest, size)
        self.page_bytes += max(0, (address + size - first) // PAGE_BYTES * PAGE_BYTES)


@dataclasses.dataclass(frozen=True)
class Pinned:
    """A segment that live blocks keep from the device, although much of it is free."""

    address: int
    bytes: int
    live_bytes: int
    live_addresses: tuple[int, ...]


class Blocks:
    """Live blocks that are awake, in address order."""

    def __init__(self, blocks: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(blocks)
        self.addresses = [address for address, _ in ordered]
        self.sizes = [size for _, size in ordered]

    def find(self, address: int) -> int:
        """Returns the number of the block that contains the address; -1: no block does."""
        at = bisect.bisect_right(self.addresses, address) - 1
        return at if at >= 0 and address < self.addresses[at] + self.sizes[at] else -1


@dataclasses.dataclass
class State:
    """The allocator's memory on one device, in bytes."""

    live_bytes: int = 0
    waiting_bytes: int = 0  # freed, but other streams may still use it
    asleep_bytes: int = 0  # neither reserved nor live
    reserved_bytes: int = 0
    sleeping_pools: frozenset[PoolId] = frozenset()
    cached: list[Cached] = dataclasses.field(default_factory=list[Cached])  # the largest first
    pinned: list[Pinned] = dataclasses.field(default_factory=list[Pinned])  # the most free bytes first
    blocks: Blocks = dataclasses.field(default_factory=lambda: Blocks(()))

    @property
    def cached_bytes(self) -> int:
        return sum(cached.bytes for cached in self.cached)

    def of(self, *kinds: str) -> Iterator[Cached]:
        return (cached for cached in self.cached if cached.kind in kinds)


def state_of(segments: Iterable[Mapping[str, Any]], failure: Failure, tags: Mapping[PoolId, str]) -> State:
    """Returns the state that a snapshot's segments show; `tags` names pools of tags."""
    here = [segment for segment in segments if segment["device"] == failure.device]
    reader = _Reader(failure, tags)
    for segment in here:
        reader.read(segment)
    return reader.state()


class _Reader:
    def __init__(self, failure: Failure, tags: Mapping[PoolId, str]) -> None:
        self._failure = failure
        self._tags = tags
        self._cached: dict[tuple[str, str], Cached] = {}
        self._pinned: list[Pinned] = []
        self._live: list[tuple[int, int]] = []
        self._sleeping: set[PoolId] = set()
        self._sums = {"active_allocated": 0, "active_pending_free": 0, "inactive": 0}
        self._asleep = 0

    def read(self, segment: Mapping[str, Any]) -> None:
        pool = _pool(segment)
        if asleep := segment.get("asleep_size", 0):
            self._asleep += asleep
            self._sleeping.add(pool)
            return
        cached = self._of_segment(segment, pool)
        live: list[tuple[int, int]] = []
        for block in segment["blocks"]:
            state, size = block["state"], block["size"]
            self._sums[state] += size
            if state == "active_allocated":
                live.append((block["address"], size))
            elif state == "inactive":
                cached.add(block["address"], size)
        self._live += live
        if cached.kind == "fragmentation" and live:
            self._add_pinned(segment, live)

    def state(self) -> State:
        return State(
            live_bytes=self._sums["active_allocated"],
            waiting_bytes=self._sums["active_pending_free"],
            asleep_bytes=self._asleep,
            reserved_bytes=sum(self._sums.values()),
            sleeping_pools=frozenset(self._sleeping),
            cached=sorted((c for c in self._cached.values() if c.bytes), key=lambda cached: -cached.bytes),
            pinned=sorted(self._pinned, key=lambda pinned: pinned.live_bytes - pinned.bytes),
            blocks=Blocks(self._live),
        )

    def _of_segment(self, segment: Mapping[str, Any], pool: PoolId) -> Cached:
        kind, name = self._why_not(segment, pool)
        return self._cached.setdefault((kind, name), Cached(kind, name))

    def _why_not(self, segment: Mapping[str, Any], pool: PoolId) -> tuple[str, str]:
        """Why free memory of the segment does not serve the request: kind and name."""
        wanted = self._failure
        if pool != wanted.pool:
            return _kind_of_pool(pool), pool_name(pool, self._tags)
        if segment["stream"] != wanted.stream:
            return "stream", stream_name(segment["stream"])
        if pool != (0, 0) and all(block["state"] == "inactive" for block in segment["blocks"]):
            return "idle", pool_name(pool, self._tags)
        is_small = wanted.requested_bytes <= _MOST_SMALL_BYTES
        if (segment["segment_type"] == "small") != is_small:
            return "small", f"segments of {segment['segment_type']} blocks"
        return "fragmentation", "pieces between live blocks"

    def _add_pinned(self, segment: Mapping[str, Any], live: list[tuple[int, int]]) -> None:
        live_bytes = sum(size for _, size in live)
        if 2 * live_bytes < segment["total_size"]:
            addresses = tuple(address for address, _ in live)
            self._pinned.append(Pinned(segment["address"], segment["total_size"], live_bytes, addresses))


def pool_name(pool: PoolId, tags: Mapping[PoolId, str]) -> str:
    """Returns "tag 'weights'", "graph pool (1, 0)", "MemPool (0, 1)" or "the default pool"."""
    kind = _kind_of_pool(pool)
    if kind == "default":
        return "the default pool"
    if kind == "tag":
        return f"tag {tags[pool]!r}" if pool in tags else f"tag pool {pool}"
    return f"{'graph pool' if kind == 'graph' else 'MemPool'} {pool}"


def stream_name(stream: int) -> str:
    return f"stream {stream:#x}" if stream else "the default stream"


def _kind_of_pool(pool: PoolId) -> str:
    """By PoolId: graphs' are (n, 0), MemPools' (0, n), tags' (n, n)."""
    first, second = pool
    if not first and not second:
        return "default"
    return "graph" if not second else "pool" if not first else "tag"


def _pool(segment: Mapping[str, Any]) -> PoolId:
    first, second = segment["segment_pool_id"]
    return first, second


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
    """Divides `all_bytes` as far as NVML answers. Makes no CUDA call except for the device's UUID."""
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
        free = sum(c.page_bytes for c in self.state.of("fragmentation", "small", "idle", "stream"))
        return free + self.room // PAGE_BYTES * PAGE_BYTES

    @property
    def serves_pages(self) -> bool:
        needed = -(-self.failure.requested_bytes // PAGE_BYTES) * PAGE_BYTES
        return not self.failure.has_pages and self.page_bytes >= needed

    @property
    def served_bytes(self) -> int:
        """The largest request that would have been served instead."""
        usable = max((c.largest for c in self.state.of("fragmentation", "idle")), default=0)
        return max(usable, self.room // PAGE_BYTES * PAGE_BYTES)

    def of_device(self) -> dict[str, Any]:
        """Returns the facts of the device that a snapshot does not have, in bytes, under the keys that `cachalot explain`
        reads."""
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
