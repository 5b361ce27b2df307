"""A random program of allocations through torch, and what the allocator said of itself after every step.

    python differential_program.py native|full SEED STEPS OUT [expandable]

Writes to OUT a line of JSON a step: what was done, torch.cuda.memory_stats(), and every hundredth step the snapshot with
addresses counted from the start of their segment. Under a simulated CUDA whose calls take no time
and whose launches take very long (`latency` and `launch_ns` of CACHALOT_SIM) events are done when the program
synchronizes and not before, whatever the allocator asks in between, so two allocators see the same world.

When frees that wait for several streams are done at once, PyTorch finishes them in the order of a hash table, which shows
in the peak of inactive_split alone; so between two synchronizations one stream is the only one that uses others' memory.
The programs also stay out of two states that PyTorch's own allocator handles badly: no memory is asked for beyond what fits
while frees wait for events, and no cache is emptied inside a pool. With `expandable` they stay out of a third: its
expandable segments miscount the memory of a pool that goes ("cudaMalloc_count > 0 INTERNAL ASSERT FAILED", or a crash),
so pools and graphs stay.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable

import torch

KIB, MIB = 1 << 10, 1 << 20
DEVICE = "cuda"


def random_size(rng: random.Random) -> int:
    """Bytes: mostly small, some around the policy's boundaries, a few large."""
    kind = rng.random()
    if kind < 0.5:
        return rng.randrange(1, 64 * KIB)
    if kind < 0.7:
        return rng.randrange(64 * KIB, 2 * MIB)
    if kind < 0.85:
        return rng.choice([1, 512, MIB, 10 * MIB, 20 * MIB]) * rng.choice([1, 2]) + rng.randrange(-1, 2)
    return rng.randrange(2 * MIB, 48 * MIB)


class Program:
    def __init__(self, seed: int, expandable: bool) -> None:
        self.rng = random.Random(seed)
        self.expandable = expandable
        self.streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.user = 1  # the stream that uses memory of the others
        self.tensors: list[tuple[torch.Tensor, int]] = []  # with the index of the stream they were allocated on
        self.graphs: list[tuple[torch.cuda.CUDAGraph, list[torch.Tensor]]] = []
        self.pools: list[tuple[torch.cuda.MemPool, list[torch.Tensor]]] = []
        self.actions: list[tuple[int, Callable[[], str]]] = [
            (45, self.allocate),
            (35, self.free),
            (6, self.use_elsewhere),
            (4, self.launch),
            (3, self.synchronize),
            (2, self.empty_cache),
            (2, self.capture),
            (1, self.drop_graph),
            (2, self.fill_pool),
            (1, self.drop_pool),
            (1, self.reset_statistics),
        ]

    def step(self) -> str:
        weights = [weight for weight, _ in self.actions]
        (_, action), = self.rng.choices(self.actions, weights)
        return action()

    def new_tensor(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=DEVICE)

    def allocate(self) -> str:
        if len(self.tensors) > 300:
            return self.free()
        stream = self.rng.randrange(len(self.streams))
        size = random_size(self.rng)
        with torch.cuda.stream(self.streams[stream]):
            self.tensors.append((self.new_tensor(size), stream))
        return f"allocate {size} on stream {stream}"

    def take(self) -> tuple[torch.Tensor, int] | None:
        if not self.tensors:
            return None
        at = self.rng.randrange(len(self.tensors))
        self.tensors[at], self.tensors[-1] = self.tensors[-1], self.tensors[at]
        return self.tensors.pop()

    def free(self) -> str:
        taken = self.take()
        return "nothing to free" if taken is None else f"free {taken[0].numel()}"

    def use_elsewhere(self) -> str:
        """Work on another stream uses the tensor; it is freed at once, so the free waits for that work."""
        taken = self.take()
        if taken is None:
            return "nothing to use"
        tensor, stream = taken
        with torch.cuda.stream(self.streams[self.user]):
            tensor[:1].add_(1)
        tensor.record_stream(self.streams[self.user])
        return f"use {tensor.numel()} of stream {stream} on stream {self.user} and free it"

    def launch(self) -> str:
        stream = self.rng.randrange(len(self.streams))
        if not self.tensors:
            return "nothing to work on"
        with torch.cuda.stream(self.streams[stream]):
            self.tensors[-1][0][:1].add_(1)
        return f"launch on stream {stream}"

    def synchronize(self) -> str:
        torch.cuda.synchronize()
        self.new_tensor(1)  # now the frees that waited are done
        self.user = self.rng.randrange(len(self.streams))
        return f"synchronize; stream {self.user} uses others' memory from now on"

    def empty_cache(self) -> str:
        torch.cuda.empty_cache()
        return "empty_cache"

    def capture(self) -> str:
        if len(self.graphs) >= 4:
            return self.drop_graph()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        kept: list[torch.Tensor] = []
        with torch.cuda.graph(graph):
            for _ in range(self.rng.randrange(1, 12)):
                tensor = self.new_tensor(random_size(self.rng))
                tensor[:1].add_(1)
                if self.rng.random() < 0.5:
                    kept.append(tensor)
                del tensor
        graph.replay()
        self.graphs.append((graph, kept))
        return f"capture a graph that keeps {len(kept)}"

    def drop_graph(self) -> str:
        if not self.graphs or self.expandable:
            return "no graph to drop"
        graph, kept = self.graphs.pop(self.rng.randrange(len(self.graphs)))
        torch.cuda.synchronize()
        del graph
        kept.clear()
        return "drop a graph"

    def fill_pool(self) -> str:
        torch.cuda.synchronize()
        if not self.pools or (len(self.pools) < 4 and self.rng.random() < 0.5):
            self.pools.append((torch.cuda.MemPool(), []))
        pool, tensors = self.rng.choice(self.pools)
        with torch.cuda.use_mem_pool(pool):
            for _ in range(self.rng.randrange(1, 12)):
                if tensors and self.rng.random() < 0.4:
                    tensors.pop(self.rng.randrange(len(tensors)))
                else:
                    tensors.append(self.new_tensor(random_size(self.rng)))
        return f"a pool has {len(tensors)} tensors now"

    def drop_pool(self) -> str:
        if not self.pools or self.expandable:
            return "no pool to drop"
        torch.cuda.synchronize()
        _, tensors = self.pools.pop(self.rng.randrange(len(self.pools)))
        if self.rng.random() < 0.5:
            self.tensors += [(tensor, 0) for tensor in tensors]  # they outlive their pool
        return "drop a pool"

    def reset_statistics(self) -> str:
        torch.cuda.reset_peak_memory_stats()
        if self.rng.random() < 0.5:
            torch.cuda.reset_accumulated_memory_stats()
        return "reset the statistics"


def relative_snapshot() -> list[dict]:
    """Segments in the order of their addresses, with blocks by their offset."""
    segments = []
    for segment in torch.cuda.memory._snapshot()["segments"]:
        start = segment.pop("address")
        segment.pop("stream")  # a stream's name is its address
        segment.pop("frames", None)
        for block in segment["blocks"]:
            block["address"] -= start
            block.pop("frames", None)
        segments.append(segment)
    return segments


def main() -> None:
    mode, seed, steps, out, *options = sys.argv[1:]
    if mode == "full":
        import cachalot

        cachalot.enable()
    torch.cuda.init()
    program = Program(int(seed), "expandable" in options)
    with open(out, "w", encoding="utf-8") as lines:
        for step in range(int(steps)):
            record = {"step": step, "did": program.step(), "stats": torch.cuda.memory_stats()}
            if step % 100 == 99:
                record["snapshot"] = relative_snapshot()
            lines.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
