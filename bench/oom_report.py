#!/usr/bin/env python3
"""Measures the report of an out-of-memory failure with many live blocks: host time and host memory.

    bench/oom_report.py [BLOCKS]    with the python that has torch and cachalot, on a GPU or on the simulated CUDA runtime
"""

import resource
import sys
import tempfile
import time

import torch

import cachalot

MODULES = 2000


def peak_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> None:
    blocks = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    cachalot.enable()
    kept = [torch.empty(1000, device="cuda") for _ in range(blocks)]
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(MODULES)]).cuda()
    with tempfile.TemporaryDirectory() as folder:
        cachalot.on_out_of_memory(f"snapshot:{folder}")
        peak, cpu, wall = peak_mib(), time.process_time(), time.perf_counter()
        try:
            torch.empty(torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            cpu, wall, peak = time.process_time() - cpu, time.perf_counter() - wall, peak_mib() - peak
    live = len(kept) + sum(1 for _ in model.parameters())
    print(f"{live:,} live blocks: {cpu:.2f} s of CPU time, {wall:.2f} s, {peak} MiB of host memory")


if __name__ == "__main__":
    main()
