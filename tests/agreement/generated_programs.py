"""Makes memory snapshots of plausible programs, a different one for each seed, with the message of the error that ended them.

A program trains, serves, or packs memory badly. By its seed it has settings, streams, memory pools, two devices, a limit, memory that
others hold, failures that end it or that it survives, a history that begins late, annotations, and calls of empty_cache.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from torch_allocator import DEFAULT_POOL, MIB, Allocator, Block, OutOfMemory, Settings, snapshot

SETTINGS = (
    Settings(),
    Settings(max_split_size_mb=32),
    Settings(max_split_size_mb=128),
    Settings(roundup_power2_divisions=4),
    Settings(garbage_collection_threshold=0.8),
    Settings(expandable_segments=True),
    Settings(other="pinned_use_cuda_host_register:True"),
)
TORCH = "/usr/lib/python3.11/site-packages/torch"


@dataclass
class Made:
    """A snapshot and the truth about it."""

    name: str
    snapshot: dict[str, Any]
    message: str | None  # of the error that ended the program
    is_whole: bool  # the history begins with the program
    peaks: list[dict[str, int]]  # of each device, over the whole program


class Ended(Exception):
    """A failure that ends the program."""


def call(file: str, line: int, name: str) -> dict[str, Any]:
    return {"name": name, "filename": file, "line": line}


def stack(phase: str, line: int) -> list[dict[str, Any]]:
    """Returns the calls of an allocation, the newest first."""
    step = call("/app/train.py", 40, "step")
    if phase == "forward":
        return [call("/app/model.py", line, "forward"), call(f"{TORCH}/nn/modules/module.py", 1780, "_call_impl"), step]
    if phase == "backward":
        return [call(f"{TORCH}/autograd/graph.py", 829, "_engine_run_backward"), call(f"{TORCH}/_tensor.py", 647, "backward"), step]
    if phase == "optimizer":
        return [call(f"{TORCH}/optim/adamw.py", 190, "_init_group"), call(f"{TORCH}/optim/optimizer.py", 517, "wrapper"), step]
    if phase == "setup":
        return [call("/app/model.py", line, "__init__"), call("/app/train.py", 12, "build")]
    return [call("/app/serve.py", line, phase), call("/app/serve.py", 90, "main")]


class Program:
    """A running program on its devices."""

    STREAMS = (0, 0x55D80749B830, 0x55D8074A1000)

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        draw = self.draw
        self.kind = ("training", "serving", "packing", "mixed")[seed % 4]
        self.settings = SETTINGS[0] if draw.random() < 0.45 else draw.choice(SETTINGS)
        gib = draw.choice((1, 2, 4, 8, 24))
        self.unit = gib * 1024 * MIB // 100  # sizes are parts of the device
        devices = 2 if draw.random() < 0.15 else 1
        outside = draw.choice((120, 120, 300, 500)) * MIB
        self.devices = [Allocator(i, gib * 1024 * MIB, outside, self.settings) for i in range(devices)]
        if self.settings.garbage_collection_threshold or draw.random() < 0.15:
            for one in self.devices:
                one.limit_bytes = int(draw.choice((0.5, 0.7)) * one.device_bytes)
        self.streams = self.STREAMS[: draw.choice((1, 1, 2, 3))]
        self.pools = [DEFAULT_POOL] + [(0, 1), (3, 0)][: draw.choice((0, 0, 0, 1, 2))]
        self.failures = draw.choice(("none", "none", "end", "end", "survived"))
        self.empties = draw.random() < 0.25
        self.annotates = draw.random() < 0.4
        self.annotations: list[dict[str, Any]] = []
        self.survived = 0
        self.message: str | None = None

    # ---- calls

    def block(self, bytes_: float, phase: str, line: int, device: int = 0, stream: int = 0, pool: tuple[int, int] = DEFAULT_POOL) -> Block | None:
        one = self.devices[device]
        one.frames = stack(phase, line)
        bytes_ = max(1, int(bytes_))
        try:
            return one.allocate(bytes_, stream, pool)
        except OutOfMemory:
            if self.failures == "survived" and self.survived < 4:
                self.survived += 1
                return None
            self.message = message_of(one, bytes_)
            raise Ended from None

    def free(self, block: Block | None, device: int = 0) -> None:
        if block is not None:
            if len(self.streams) > 1 and self.draw.random() < 0.2:
                block.uses.append(self.devices[device].time_us + self.draw.randrange(10, 400))  # record_stream
            self.devices[device].free(block)

    def annotate(self, name: str, begins: bool) -> None:
        if self.annotates:
            one = {"stage": "START" if begins else "END", "name": name, "device": 0, "time_us": self.devices[0].time_us + 1}
            self.annotations.append(one)

    # ---- programs

    def train(self, steps: int) -> None:
        """Trains layers on batches of varied lengths, with the last part of them on a second device."""
        draw = self.draw
        layers = draw.randrange(3, 9)
        device_of = [i * len(self.devices) // layers for i in range(layers)]
        scale = self.unit * 30 / layers
        weights = [self.block(scale * draw.uniform(0.05, 0.25), "setup", 20 + i, device_of[i]) for i in range(layers)]
        bias = [self.block(draw.randrange(512, 40_000), "setup", 40 + i, device_of[i]) for i in range(layers)]
        states: list[Block | None] = []
        kept = []
        for step in range(steps):
            self.annotate(f"ProfilerStep#{step}", True)
            length = draw.uniform(0.1, 1)
            live: list[list[Block | None]] = []
            for i in range(layers):
                live.append([self.block(scale * length * draw.choice((0.05, 0.1, 0.3)), "forward", 60 + i, device_of[i]) for _ in range(3)])
                self.free(self.block(scale * length * 0.2, "forward", 80 + i, device_of[i]), device_of[i])
            gradients: list[Block | None] = []
            for i in reversed(range(layers)):
                gradients.append(self.block(bytes_of(weights[i]), "backward", 0, device_of[i]))
                for one in live[i]:
                    self.free(one, device_of[i])
            if not states:
                states = [self.block(bytes_of(weights[i]), "optimizer", 0, device_of[i]) for i in range(layers) for _ in range(2)]
            for one, i in zip(gradients, reversed(range(layers)), strict=True):
                self.free(one, device_of[i])
            if draw.random() < 0.3:
                kept.append(self.block(scale * 0.05, "forward", 99))
            self.annotate(f"ProfilerStep#{step}", False)
            self.maybe_empty()
        assert bias

    def serve(self, requests: int) -> None:
        """Serves requests on streams and in pools, each with a cache that grows."""
        draw = self.draw
        caches: list[tuple[Block | None, float]] = []
        for number in range(requests):
            stream, pool = draw.choice(self.streams), draw.choice(self.pools)
            first = self.unit * draw.uniform(0.3, 4)
            caches.append((self.block(first, "admit", 10, stream=stream, pool=pool), first))
            for i, (cache, bytes_) in enumerate(caches):
                if draw.random() < 0.4:
                    grown = self.block(bytes_ * 1.08, "extend", 30 + i % 3, stream=stream, pool=pool)
                    self.free(cache)
                    caches[i] = (grown, bytes_ * 1.08)
            self.free(self.block(draw.randrange(1, 900_000), "sample", 50, stream=stream))
            while len(caches) > 3 + number % 5:
                self.free(caches.pop(draw.randrange(len(caches)))[0])
            self.maybe_empty()

    def pack(self, answers: int) -> None:
        """Keeps a small part of each answer, beside memory that no other answer fits into."""
        draw = self.draw
        for i in range(answers):
            stream = draw.choice(self.streams)
            length = self.unit * (1 + i * 0.1)
            self.free(self.block(length, "answer", 5, stream=stream))
            first = self.block(length * 0.9, "answer", 6, stream=stream)
            self.block(length * 0.1, "summary", 9, stream=stream)
            self.free(first)
            self.maybe_empty()

    def maybe_empty(self) -> None:
        if self.empties and self.draw.random() < 0.15:
            for one in self.devices:
                one.frames = [call(f"{TORCH}/cuda/memory.py", 226, "empty_cache"), call("/app/train.py", 55, "step")]
                one.empty_cache()

    def run(self) -> None:
        draw = self.draw
        if self.kind in ("training", "mixed"):
            self.train(draw.randrange(3, 9))
        if self.kind in ("serving", "mixed"):
            self.serve(draw.randrange(15, 50))
        if self.kind in ("packing", "mixed"):
            self.pack(draw.randrange(8, 30))
        if self.failures == "end":  # more than the device has free, and perhaps less than is cached
            one = self.devices[0]
            cached = one.reserved - one.now["allocated_bytes"]
            self.block(max(one.device_free(), 4 * MIB) + cached * draw.choice((0.1, 0.6, 0.9, 1.5)) + MIB, "answer", 70)


def bytes_of(weight: Block | None) -> int:
    return weight.requested if weight is not None else 512  # one that failed


def size_text(bytes_: int) -> str:
    """Returns a size as PyTorch's messages have it."""
    for unit, name in ((1 << 30, "GiB"), (MIB, "MiB"), (1024, "KiB")):
        if bytes_ >= unit:
            return f"{bytes_ / unit:.2f} {name}"
    return f"{bytes_} bytes"


def message_of(one: Allocator, bytes_: int) -> str:
    live = one.now["allocated_bytes"]
    pending = sum(block.bytes for block in one.waiting)
    in_pools = sum(block.bytes for (pool_id, _), pool in one.pools.items() if pool_id != DEFAULT_POOL for block in pool.free)
    private = f"with {size_text(in_pools)} allocated in private pools (e.g., CUDA Graphs), " if in_pools else ""
    allowed = f"{size_text(one.limit_bytes)} allowed; " if one.limit_bytes else ""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size_text(one.rounded(bytes_))}. GPU {one.device} has a total capacity of "
        f"{size_text(one.device_bytes)} of which {size_text(one.device_free())} is free. Including non-PyTorch memory, this process has "
        f"{size_text(one.reserved + one.outside_bytes)} memory in use. {allowed}Of the allocated memory {size_text(live + pending + in_pools)} is "
        f"allocated by PyTorch, {private}and {size_text(one.reserved - live - pending - in_pools)} is reserved by PyTorch but unallocated. If "
        "reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
        "documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)\n"
    )


def make(seed: int) -> Made:
    """Returns the snapshot of the program of the seed."""
    program = Program(seed)
    try:
        program.run()
    except Ended:
        pass
    events = max(len(one.events) for one in program.devices)
    most = int(events * program.draw.uniform(0.2, 0.9)) if program.draw.random() < 0.3 else None
    return Made(
        name=f"{program.kind}_{seed}",
        snapshot=snapshot(program.devices, most, program.annotations),
        message=program.message,
        is_whole=most is None,
        peaks=[one.peaks for one in program.devices],
    )
