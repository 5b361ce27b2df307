"""Measures the cost of watching for leaks for a user of PyTorch: a tensor of 4 KiB made and dropped, at two depths of Python's
stack.

    python bench/pytorch/leaks.py [--tensors 20000]     (a GPU, or `cachalot simulate python …`)
"""

from __future__ import annotations

import argparse
import contextlib
import time

import cachalot
import torch

WATCHES = {
    "nobody": contextlib.nullcontext,
    "LeakDetector": cachalot.LeakDetector,
    "track": lambda: cachalot.track(quiet=True),
}


def best_us(tensors: int, depth: int, repeats: int = 5) -> float:
    """Microseconds of the thread's own time a tensor, below `depth` calls of Python functions."""
    if depth > 0:
        return best_us(tensors, depth - 1, repeats)
    times = []
    for _ in range(repeats):
        start = time.thread_time_ns()
        for _ in range(tensors):
            torch.empty(4096, dtype=torch.uint8, device="cuda")
        times.append((time.thread_time_ns() - start) / tensors / 1000)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=20_000, help="of a measurement (20000)")
    options = parser.parse_args()
    cachalot.enable()
    best_us(options.tensors, 0)
    print(f"{'who watches':14} {'depth 2':>12} {'depth 22':>12}   µs a tensor")
    for name, watch in WATCHES.items():
        with watch():
            figures = [best_us(options.tensors, depth) for depth in (0, 20)]
        print(f"{name:14} {figures[0]:12.2f} {figures[1]:12.2f}")


if __name__ == "__main__":
    main()
