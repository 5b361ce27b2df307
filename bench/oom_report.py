#!/usr/bin/env python3
"""Measures an out-of-memory failure with many live blocks: the collection of garbage before it (decision 0134), and its report.

    bench/oom_report.py [BLOCKS]    with the python that has torch and cachalot, on a GPU or on the simulated CUDA runtime

Prints the median CPU times of failed requests without a report, and of the collections within them; then host time and host memory of
one with a report.
"""

import gc
import resource
import statistics
import sys
import tempfile
import time

import torch

import cachalot

MODULES = 2000
FAILURES = 9  # without a report


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


class Collections:
    """The seconds of CPU time that each collection of garbage takes, from now on."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._begin = 0.0
        gc.callbacks.append(self)

    def __call__(self, phase: str, _: object) -> None:
        now = time.thread_time()  # a collection is on one thread
        if phase == "start":
            self._begin = now
        else:
            self.seconds.append(now - self._begin)


def cpu_seconds() -> float:
    """The CPU time of this process, and of the command that it asks."""
    command = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + command.ru_utime + command.ru_stime


def fail() -> tuple[float, float]:
    """Requests more memory than the device has; returns the seconds of CPU time, and of all time, that the failure takes."""
    cpu, wall = cpu_seconds(), time.perf_counter()
    try:
        torch.empty(torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return cpu_seconds() - cpu, time.perf_counter() - wall
    raise AssertionError("the request was served")


def measure_collections() -> None:
    objects = len(gc.get_objects())
    gc.collect()
    collections = Collections()
    failures = [fail()[0] for _ in range(FAILURES)]
    assert len(collections.seconds) >= FAILURES, "no collection before a failure"
    gc.callbacks.remove(collections)
    failed, collected = (1e3 * statistics.median(seconds) for seconds in (failures, collections.seconds))
    print(f"{objects:,} objects of Python: a failed request takes {failed:.0f} ms of CPU time, {collected:.0f} ms of it collect garbage")


def main() -> None:
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    cachalot.enable()
    kept = [torch.empty(1000, device="cuda") for _ in range(blocks)]
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(MODULES)]).cuda()
    measure_collections()
    with tempfile.TemporaryDirectory() as folder:
        cachalot.on_out_of_memory(f"snapshot:{folder}")
        peak = peak_mib()
        cpu, wall = fail()
        peak = peak_mib() - peak
    live = len(kept) + sum(1 for _ in model.parameters())
    print(f"{live:,} live blocks: {cpu:.2f} s of CPU time, {wall:.2f} s, {peak} MiB of host memory in this process")


if __name__ == "__main__":
    main()
