"""A model of PyTorch's caching allocator, which writes memory snapshots as PyTorch 2.15 does.

It has the default allocator with its settings, expandable segments, memory pools, uses by other streams, limits, and failures. Every
decision is PyTorch's; addresses are those of a device that hands out memory in its order. Its figures are an oracle, too.
"""

from __future__ import annotations

import bisect
import dataclasses
from dataclasses import dataclass, field
from typing import Any

MIB = 1 << 20
BLOCK = 512
SMALL_SIZE = MIB  # the largest request of the small pool
SMALL_BUFFER = 2 * MIB
LARGE_BUFFER = 20 * MIB
MIN_LARGE = 10 * MIB
ROUND_LARGE = 2 * MIB
NON_SPLIT_ROUNDING = 20 * MIB
DEFAULT_POOL = (0, 0)


def up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@dataclass
class Settings:
    """PYTORCH_CUDA_ALLOC_CONF, as far as it decides where blocks are."""

    max_split_size_mb: int = 0
    roundup_power2_divisions: int = 0
    garbage_collection_threshold: float = 0
    expandable_segments: bool = False
    other: str = ""  # a setting that moves no block

    def text(self) -> str:
        parts = [f"{one.name}:{getattr(self, one.name)}" for one in dataclasses.fields(self)[:-1] if getattr(self, one.name)]
        return ",".join(parts + ([self.other] if self.other else []))


@dataclass(eq=False)
class Block:
    address: int
    bytes: int
    stream: int
    pool: Pool
    requested: int = 0
    allocated: bool = False
    pending: bool = False
    mapped: bool = True
    before: Block | None = None
    after: Block | None = None
    frames: list[Any] = field(default_factory=list)
    uses: list[int] = field(default_factory=list)  # moments at which other streams are done with it
    age: int = 0  # for garbage collection

    def is_free(self) -> bool:
        return self.mapped and not self.allocated and not self.pending

    def key(self) -> tuple[int, int, int]:
        return (self.stream, self.bytes, self.address)


@dataclass(eq=False)
class Pool:
    id: tuple[int, int]
    is_small: bool
    free: list[Block] = field(default_factory=list)  # by stream, bytes and address
    unmapped: list[Block] = field(default_factory=list)  # of expandable segments, by stream, bytes and address

    def add(self, block: Block) -> None:
        bisect.insort(self.free, block, key=Block.key)

    def take(self, block: Block) -> None:
        del self.free[bisect.bisect_left(self.free, block.key(), key=Block.key)]


class OutOfMemory(Exception):
    """A request that the allocator could not serve."""


class Addresses:
    """The device's addresses: the lowest free ones that are large enough."""

    def __init__(self, first: int) -> None:
        self.free: list[tuple[int, int]] = [(first, 1 << 45)]

    def take(self, bytes_: int) -> int:
        for i, (address, room) in enumerate(self.free):
            if room >= bytes_:
                self.free[i : i + 1] = [(address + bytes_, room - bytes_)] if room > bytes_ else []
                return address
        raise AssertionError("no addresses")

    def give(self, address: int, bytes_: int) -> None:
        bisect.insort(self.free, (address, bytes_))
        merged: list[tuple[int, int]] = []
        for begin, room in self.free:
            if merged and sum(merged[-1]) == begin:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((begin, room))
        self.free = merged


class Allocator:
    """PyTorch's allocator on one device."""

    def __init__(self, device: int, device_bytes: int, outside_bytes: int, settings: Settings) -> None:
        self.device, self.settings = device, settings
        self.device_bytes, self.outside_bytes = device_bytes, outside_bytes
        self.limit_bytes: int | None = None
        self.reserved = 0
        self.pools: dict[tuple[tuple[int, int], bool], Pool] = {}
        self.heads: list[Block] = []  # the first block of each segment
        self.waiting: list[Block] = []
        self.addresses = Addresses(1 << 40)
        self.events: list[dict[str, Any]] = []
        self.time_us = 1_795_780_000_000_000
        self.frames: list[Any] = []  # of the program's next call
        self.peaks = {"requested_bytes": 0, "allocated_bytes": 0, "reserved_bytes": 0}
        self.now = {"requested_bytes": 0, "allocated_bytes": 0}

    # ---- the program's calls

    def allocate(self, bytes_: int, stream: int = 0, pool_id: tuple[int, int] = DEFAULT_POOL) -> Block:
        self.complete_frees()
        size = self.rounded(bytes_)
        pool = self.pool(pool_id, size <= SMALL_SIZE)
        block = self.find(pool, size, stream)
        if block is None and self.settings.garbage_collection_threshold and self.limit_bytes:
            self.collect_garbage(pool_id)
        if block is None:
            block = self.grow(pool, size, stream)
        if block is None and self.settings.max_split_size_mb and self.release_oversize(pool, size, stream):
            block = self.grow(pool, size, stream)
        if block is None:
            self.release_cached()
            block = self.grow(pool, size, stream)
        if block is None:
            self.record("oom", None, size, stream, pool_id, device_free=self.device_free())
            raise OutOfMemory
        if self.splits(block, size):
            self.split(block, size)
        block.allocated, block.requested, block.frames, block.age = True, bytes_, self.frames, 0
        self.count(bytes_, block.bytes)
        self.record("alloc", block.address, bytes_, stream, pool_id)
        return block

    def free(self, block: Block) -> None:
        block.allocated = False
        self.count(-block.requested, -block.bytes)
        self.record("free_requested", block.address, block.requested, block.stream, block.pool.id)
        if block.uses:
            block.pending = True
            self.waiting.append(block)
        else:
            self.give_back(block)

    def empty_cache(self) -> None:
        self.complete_frees(all_of_them=True)
        self.release_cached()

    def device_free(self) -> int:
        return self.device_bytes - self.outside_bytes - self.reserved

    # ---- sizes

    def rounded(self, bytes_: int) -> int:
        divisions = self.settings.roundup_power2_divisions
        if divisions > 1 and bytes_ > BLOCK * divisions:
            floor = 1 << (bytes_.bit_length() - 1)
            return bytes_ if bytes_ == floor else up(bytes_, floor // divisions)
        return max(BLOCK, up(bytes_, BLOCK))

    @staticmethod
    def segment_bytes(size: int) -> int:
        if size <= SMALL_SIZE:
            return SMALL_BUFFER
        return LARGE_BUFFER if size < MIN_LARGE else up(size, ROUND_LARGE)

    def most_split(self) -> float:
        return self.settings.max_split_size_mb * MIB or float("inf")

    def splits(self, block: Block, size: int) -> bool:
        rest = block.bytes - size
        if block.pool.is_small or self.settings.expandable_segments:
            return rest >= BLOCK
        return size < self.most_split() and rest > SMALL_SIZE

    # ---- blocks

    def pool(self, pool_id: tuple[int, int], is_small: bool) -> Pool:
        return self.pools.setdefault((pool_id, is_small), Pool(pool_id, is_small))

    def find(self, pool: Pool, size: int, stream: int) -> Block | None:
        for free in pool.free:
            free.age += 1
        at = bisect.bisect_left(pool.free, (stream, size, 0), key=Block.key)
        if at == len(pool.free) or pool.free[at].stream != stream:
            return None
        if self.settings.expandable_segments:
            at = self.least_reach(pool, at, stream)
        block = pool.free[at]
        if size < self.most_split() <= block.bytes:
            return None
        if size >= self.most_split() and block.bytes >= size + NON_SPLIT_ROUNDING:
            return None
        del pool.free[at]
        return block

    @staticmethod
    def reach(block: Block) -> int:
        return block.bytes + (block.after.bytes if block.after is not None and not block.after.mapped else 0)

    def least_reach(self, pool: Pool, at: int, stream: int) -> int:
        while at + 1 < len(pool.free) and pool.free[at + 1].stream == stream and self.reach(pool.free[at + 1]) < self.reach(pool.free[at]):
            at += 1
        return at

    def split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.bytes - size, block.stream, block.pool, before=block, after=block.after)
        if rest.after is not None:
            rest.after.before = rest
        block.after, block.bytes = rest, size
        block.pool.add(rest)

    def give_back(self, block: Block) -> None:
        self.record("free_completed", block.address, block.requested, block.stream, block.pool.id)
        block.pending, block.uses, block.frames = False, [], []
        for other in (block.before, block.after):
            if other is not None and other.is_free():
                block.pool.take(other)
                self.merge(block, other)
        block.pool.add(block)

    def merge(self, block: Block, other: Block) -> None:
        if other is block.before:
            block.address, block.before = other.address, other.before
            if block.before is not None:
                block.before.after = block
            if other in self.heads:
                self.heads[self.heads.index(other)] = block
        else:
            block.after = other.after
            if block.after is not None:
                block.after.before = block
        block.bytes += other.bytes

    def complete_frees(self, all_of_them: bool = False) -> None:
        done = [block for block in self.waiting if all_of_them or max(block.uses) <= self.time_us]
        self.waiting = [block for block in self.waiting if block not in done]
        for block in done:
            self.give_back(block)

    # ---- segments

    def has_room(self, bytes_: int) -> bool:
        return bytes_ <= self.device_free() and (self.limit_bytes is None or self.reserved + bytes_ <= self.limit_bytes)

    def grow(self, pool: Pool, size: int, stream: int) -> Block | None:
        if self.settings.expandable_segments:
            return self.grow_expandable(pool, size, stream)
        bytes_ = self.segment_bytes(size)
        if not self.has_room(bytes_):
            return None
        block = Block(self.addresses.take(bytes_), bytes_, stream, pool)
        self.heads.append(block)
        self.change_reserved(bytes_)
        self.record("segment_alloc", block.address, bytes_, stream, pool.id)
        return block

    def release(self, block: Block) -> None:
        """Gives a whole free segment back."""
        block.pool.take(block)
        self.heads.remove(block)
        self.addresses.give(block.address, block.bytes)
        self.change_reserved(-block.bytes)
        self.record("segment_free", block.address, block.bytes, block.stream, block.pool.id)

    def release_oversize(self, pool: Pool, size: int, stream: int) -> bool:
        """Gives back free blocks that are not split, for a large request: one that is large enough, or the largest ones."""
        key = max(size, int(self.most_split()))
        large = [block for block in pool.free if block.stream == stream and block.before is None and block.after is None]
        enough = [block for block in large if block.bytes >= key]
        if enough:
            self.release(enough[0])
            return True
        released = 0
        for block in sorted((block for block in large if block.bytes >= self.most_split()), key=Block.key, reverse=True):
            if released >= key:
                break
            released += block.bytes
            self.release(block)
        return released >= key

    def release_cached(self) -> None:
        self.complete_frees(all_of_them=True)
        for is_small in (False, True):
            for (pool_id, small), pool in list(self.pools.items()):
                if small != is_small or pool_id != DEFAULT_POOL:
                    continue
                for block in list(pool.free):
                    if self.settings.expandable_segments:
                        self.unmap(block)
                    elif block.before is None and block.after is None:
                        self.release(block)

    def collect_garbage(self, pool_id: tuple[int, int]) -> None:
        """Gives back old free segments of the pool of large blocks above the threshold."""
        wanted = int(self.settings.garbage_collection_threshold * (self.limit_bytes or 0))
        excess = self.reserved - wanted
        pool = self.pool(pool_id, False)
        whole = [block for block in pool.free if block.before is None and block.after is None]
        released, collected = 0, True
        while excess > 0 and released < excess and whole and collected:
            threshold, collected = sum(block.age for block in whole) / len(whole), False
            for block in list(whole):
                if released < excess and block.age >= threshold:
                    whole.remove(block)
                    released += block.bytes
                    self.release(block)
                    collected = True

    # ---- expandable segments

    def grow_expandable(self, pool: Pool, size: int, stream: int) -> Block | None:
        page = SMALL_BUFFER if pool.is_small else LARGE_BUFFER
        block = self.room_for(pool, size, stream, page)
        if not block.mapped and not self.map(block, min(block.bytes, size), page):
            return None
        while block.bytes < size:
            following = block.after
            assert following is not None
            if not self.map(following, min(size - block.bytes, following.bytes), page):
                return None
            block = following  # the two are one now
        pool.take(block)
        return block

    def room_for(self, pool: Pool, size: int, stream: int, page: int) -> Block:
        for unmapped in sorted(pool.unmapped, key=Block.key):
            if unmapped.stream != stream:
                continue
            first = unmapped.before if unmapped.before is not None and unmapped.before.is_free() else unmapped
            room, block = 0, first
            while block is not None and room < size and not block.allocated and not block.pending:
                room += block.bytes
                block = block.after  # type: ignore[assignment]
            if room >= size:
                return first
        bytes_ = up(self.device_bytes + self.device_bytes // 8, page)
        block = Block(self.addresses.take(bytes_), bytes_, stream, pool, mapped=False)
        self.heads.append(block)
        pool.unmapped.append(block)
        return block

    def map(self, block: Block, bytes_: int, page: int) -> bool:
        mapped = up(bytes_, page)
        if not self.has_room(mapped):
            return False
        pool = block.pool
        pool.unmapped.remove(block)
        if mapped < block.bytes:
            rest = Block(block.address + mapped, block.bytes - mapped, block.stream, pool, before=block, after=block.after, mapped=False)
            if rest.after is not None:
                rest.after.before = rest
            block.after, block.bytes = rest, mapped
            pool.unmapped.append(rest)
        self.record("segment_map", block.address, mapped, block.stream, pool.id)
        block.mapped = True
        for other in (block.before, block.after):
            if other is not None and other.is_free():
                pool.take(other)
                self.merge(block, other)
        pool.add(block)
        self.change_reserved(mapped)
        return True

    def unmap(self, block: Block) -> None:
        page = SMALL_BUFFER if block.pool.is_small else LARGE_BUFFER
        begin, end = up(block.address, page), (block.address + block.bytes) // page * page
        if begin >= end:
            return
        pool = block.pool
        pool.take(block)
        if begin > block.address:
            head = Block(block.address, begin - block.address, block.stream, pool, before=block.before, after=block)
            if head.before is not None:
                head.before.after = head
            elif block in self.heads:
                self.heads[self.heads.index(block)] = head
            block.before, block.address, block.bytes = head, begin, block.bytes - head.bytes
            pool.add(head)
        if block.address + block.bytes > end:
            self.split(block, end - begin)
        block.mapped = False
        self.change_reserved(begin - end)
        self.record("segment_unmap", begin, end - begin, block.stream, pool.id)
        for other in (block.before, block.after):
            if other is not None and not other.mapped:
                pool.unmapped.remove(other)
                self.merge(block, other)
        if block.before is None and block.after is None:
            self.heads.remove(block)
            self.addresses.give(block.address, block.bytes)
        else:
            pool.unmapped.append(block)

    # ---- figures and the history

    def count(self, requested: int, allocated: int) -> None:
        for key, change in (("requested_bytes", requested), ("allocated_bytes", allocated)):
            self.now[key] += change
            self.peaks[key] = max(self.peaks[key], self.now[key])

    def change_reserved(self, bytes_: int) -> None:
        self.reserved += bytes_
        self.peaks["reserved_bytes"] = max(self.peaks["reserved_bytes"], self.reserved)

    def record(self, action: str, address: int | None, size: int, stream: int, pool_id: tuple[int, int], **more: int) -> None:
        self.time_us += 3
        place = {} if address is None else {"addr": address}
        self.events.append(
            {"action": action, **place, **more, "size": size, "stream": stream, "time_us": self.time_us, "compile_context": "N/A"}
            | {"user_metadata": "", "pool_id": pool_id, "frames": self.frames}
        )

    def segments(self) -> list[dict[str, Any]]:
        """Returns the segments as a snapshot has them: of expandable ones, each range that is mapped."""
        found = []
        for head in self.heads:
            run: list[Block] = []
            block: Block | None = head
            while block is not None:
                if block.mapped:
                    run.append(block)
                if run and (not block.mapped or block.after is None):
                    found.append(self.segment(run))
                    run = []
                block = block.after
        return found

    def segment(self, blocks: list[Block]) -> dict[str, Any]:
        first = blocks[0]
        return {
            "device": self.device,
            "address": first.address,
            "total_size": sum(block.bytes for block in blocks),
            "allocated_size": sum(block.bytes for block in blocks if block.allocated),
            "active_size": sum(block.bytes for block in blocks if block.allocated or block.pending),
            "requested_size": sum(block.requested for block in blocks if block.allocated or block.pending),
            "stream": first.stream,
            "segment_type": "small" if first.pool.is_small else "large",
            "segment_pool_id": first.pool.id,
            "is_expandable": self.settings.expandable_segments,
            "frames": [],
            "blocks": [
                {"address": block.address, "size": block.bytes, "requested_size": block.requested, "state": state_of(block), "frames": block.frames}
                for block in blocks
            ],
        }


def state_of(block: Block) -> str:
    return "active_allocated" if block.allocated else "active_pending_free" if block.pending else "inactive"


def snapshot(allocators: list[Allocator], most_events: int | None, annotations: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what torch.cuda.memory._snapshot does, with the newest `most_events` of each device."""
    settings = allocators[0].settings
    return {
        "segments": [segment for one in allocators for segment in one.segments()],
        "device_traces": [one.events if most_events is None else one.events[-most_events:] if most_events else [] for one in allocators],
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": settings.text(),
            "max_split_size": settings.max_split_size_mb * MIB or -1,
            "garbage_collection_threshold": settings.garbage_collection_threshold,
            "expandable_segments": settings.expandable_segments,
            "roundup_power2_divisions": {str(1 << i): settings.roundup_power2_divisions for i in range(16)},
        },
        "external_annotations": annotations,
        "host_segments": [],
        "host_traces": [],
    }
