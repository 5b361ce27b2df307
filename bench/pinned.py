#!/usr/bin/env python3
"""Pinned memory through PyTorch: torch's own host allocator and cachalot's, on the simulated CUDA runtime or a GPU.

    CACHALOT_PYTHON=PYTHON bench/pinned.sh [BUILD FOLDER]

Each workload runs in a process of its own with each allocator, and again, to warm up, within it:

  loader    as a DataLoader's: 400 batches of images of varied sizes with labels, 4 of them live, each copied to the GPU
  exact     weight offload: 95 tensors of 2 to 32 MiB, all live, sizes powers of two
  offload   the same with sizes of 1.05 of a power of two
  swap      optimizer states of 24 layers of varied width, 3 layers live, in and out in turn, three times

It prints for each the peak of pinned memory / the peak of requested memory; the calls that pinned memory; and the host time of an
allocation with its free, the median of five passes of the warm workload.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable

MiB = 1 << 20


class Recorder:
    """Allocates pinned tensors, copies them to the GPU as asked, and counts the requested bytes and the time."""

    def __init__(self, torch):
        self._torch = torch
        self._target = torch.empty(64 * MiB, dtype=torch.uint8, device="cuda")
        self.live = self.peak = self.calls = 0
        self.seconds = 0.0

    def allocate(self, sizes, copied):
        began = time.perf_counter()
        tensors = [self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True) for size in sizes]
        self.seconds += time.perf_counter() - began
        self.calls += len(tensors)
        self.live += sum(sizes)
        self.peak = max(self.peak, self.live)
        for tensor in tensors if copied else ():
            part = min(tensor.numel(), self._target.numel())
            self._target[:part].copy_(tensor[:part], non_blocking=True)
        return tensors

    def free(self, tensors):
        self.live -= sum(tensor.numel() for tensor in tensors)
        began = time.perf_counter()
        tensors.clear()
        self.seconds += time.perf_counter() - began

    def stream_through(self, batches, depth):
        """Each batch is allocated and copied; `depth` are live; after each the GPU is done, as for a loss that is printed."""
        live = deque()
        for sizes in batches:
            live.append(self.allocate(sizes, True))
            if len(live) > depth:
                self.free(live.popleft())
            self._torch.cuda.synchronize()
        while live:
            self.free(live.popleft())


def loader(recorder):
    rng = random.Random(1)
    batches = []
    for _ in range(400):
        height, width = (32 * rng.randint(5, 14) for _ in range(2))
        batch = rng.randint(24, 32)
        batches.append((batch * 3 * height * width, batch * 8, batch * 160))
    recorder.stream_through(batches, 4)


def _offload(recorder, factor):
    recorder.free(recorder.allocate([int(factor * (2 * MiB << shift)) for _ in range(19) for shift in range(5)], False))


def exact(recorder):
    _offload(recorder, 1)


def offload(recorder):
    _offload(recorder, 1.05)


def swap(recorder):
    rng = random.Random(2)
    widths = rng.choices(range(512, 1280, 32), k=24)
    layers = [[4 * width * width * rng.choice((1, 4)) for _ in range(4)] for width in widths]
    recorder.stream_through(layers * 3, 3)


WORKLOADS: tuple[Callable, ...] = (loader, exact, offload, swap)


def measure(workload, allocator):
    """The figures of one workload, in this process."""
    import torch

    if allocator == "cachalot":
        import cachalot

        cachalot.enable(pinned=True)
    torch.cuda.init()
    recorder = Recorder(torch)
    times = []
    for run in range(6):
        recorder.calls, recorder.seconds = 0, 0.0
        workload(recorder)
        if run == 0:
            stats = torch.cuda.host_memory_stats()
            cold = {"pinned": stats["allocated_bytes.peak"], "pins": stats["num_host_alloc"]}
        else:
            times.append(recorder.seconds * 1e6 / recorder.calls)
    print(json.dumps(cold | {"asked": recorder.peak, "us": statistics.median(times)}))


def figures(workload, allocator):
    command = [sys.executable, __file__, "--measure", workload.__name__, "--allocator", allocator]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode != 0:
        sys.exit(f"pinned.py: {workload.__name__} with {allocator} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", choices=[each.__name__ for each in WORKLOADS], help=argparse.SUPPRESS)
    parser.add_argument("--allocator", choices=("native", "cachalot"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        return measure(globals()[arguments.measure], arguments.allocator)
    print(f"{'':10}{'pinned / asked for':>24}{'calls that pin':>20}{'us an allocation':>22}{'time':>8}")
    print(f"{'':10}{'PyTorch':>12}{'cachalot':>12}{'PyTorch':>10}{'cachalot':>10}{'PyTorch':>11}{'cachalot':>11}{'ratio':>8}")
    for workload in WORKLOADS:
        native, ours = (figures(workload, allocator) for allocator in ("native", "cachalot"))
        assert native["asked"] == ours["asked"]
        print(
            f"{workload.__name__:10}"
            f"{native['pinned'] / native['asked']:12.2f}{ours['pinned'] / ours['asked']:12.2f}"
            f"{native['pins']:10}{ours['pins']:10}{native['us']:11.2f}{ours['us']:11.2f}{ours['us'] / native['us']:8.2f}"
        )


if __name__ == "__main__":
    main()
