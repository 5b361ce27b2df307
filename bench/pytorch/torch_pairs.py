"""Measures the cost of the allocator for torch's users: PyTorch's own, cachalot, and one that does nothing, in turn.

    python bench/pytorch/torch_pairs.py [--rounds 9]     (PYTHONPATH holds the built package; a GPU or a simulated one)

Each round starts one process an allocator, so that no order favours one; the best of the rounds counts. The allocator's
own share is the time of a pair less that of the allocator that does nothing.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ALLOCATORS = ("nothing", "native", "cachalot")
SOURCE = Path(__file__).with_name("do_nothing_allocator.cpp")
TARGET = 2.0


def best_ns(action: Callable[[], None], calls: int, repeats: int = 7) -> float:
    """Returns the time of one call of the many that `action` makes."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter_ns()
        action()
        times.append((time.perf_counter_ns() - start) / calls)
    return min(times)


def measure() -> dict[str, float]:
    import torch

    torch.cuda.init()
    raw_alloc, raw_delete = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    stream = torch.cuda.current_stream().cuda_stream
    calls = 50_000

    def raw_pairs(size: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(calls):
                raw_delete(raw_alloc(size, stream))

        return run

    def tensors(size: int) -> Callable[[], None]:
        def run() -> None:
            for _ in range(calls):
                torch.empty(size, dtype=torch.uint8, device="cuda")

        return run

    figures = {}
    for label, size in (("4 KiB", 4 << 10), ("4 MiB", 4 << 20)):
        raw_pairs(size)()
        figures[f"raw pair, {label}, ns"] = best_ns(raw_pairs(size), calls)
        tensors(size)()
        figures[f"torch.empty, {label}, ns"] = best_ns(tensors(size), calls)
    return figures


def measure_inspection() -> dict[str, float]:
    import torch

    live = [torch.empty(1024, dtype=torch.uint8, device="cuda") for _ in range(100_000)]
    figures = {
        "memory_stats(), us": best_ns(lambda: [torch.cuda.memory_stats() for _ in range(200)], 200) / 1e3,
        "snapshot of 100,000 blocks, ms": best_ns(torch.cuda.memory._snapshot, 1, 5) / 1e6,
    }
    del live
    return figures


def run_one(allocator: str, library: str) -> None:
    import torch  # noqa: F401, first: the libraries below need what it loads

    if allocator == "cachalot":
        import cachalot

        cachalot.enable(mode="full")
    elif allocator == "nothing":
        from cachalot._bindings import plug

        plug.Plug()
        ctypes.CDLL(library).install_do_nothing_allocator()
    figures = measure()
    if allocator != "nothing":
        figures |= measure_inspection()
    print(json.dumps(figures))


def compile_do_nothing(folder: str) -> str:
    from cachalot._bindings import adapter, plug

    plug.Plug()
    return str(adapter._compile(SOURCE, Path(folder) / "do_nothing_allocator.so"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one", nargs=2, metavar=("ALLOCATOR", "LIBRARY"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        return run_one(*arguments.one)
    rounds: dict[str, list[dict[str, float]]] = {allocator: [] for allocator in ALLOCATORS}
    with tempfile.TemporaryDirectory() as folder:
        library = compile_do_nothing(folder)
        for _ in range(arguments.rounds):
            for allocator in ALLOCATORS:
                command = [sys.executable, __file__, "--one", allocator, library]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                rounds[allocator].append(json.loads(done.stdout))
    report({allocator: best(results) for allocator, results in rounds.items()})


def best(results: list[dict[str, float]]) -> dict[str, float]:
    return {figure: min(result[figure] for result in results) for figure in results[0]}


def report(figures: dict[str, dict[str, float]]) -> None:
    print(f"{'':32} {'nothing':>9} {'native':>9} {'cachalot':>9}   own share: native / cachalot")
    for figure, nothing in figures["nothing"].items():
        native, ours = figures["native"][figure], figures["cachalot"][figure]
        ratio = (native - nothing) / max(ours - nothing, 1e-9)
        verdict = "met" if ratio >= TARGET else "MISSED"
        print(f"{figure:32} {nothing:9.1f} {native:9.1f} {ours:9.1f}   {ratio:.2f} (target {TARGET}: {verdict})")
    for figure in figures["native"].keys() - figures["nothing"].keys():
        native, ours = figures["native"][figure], figures["cachalot"][figure]
        verdict = "met" if ours <= native else "MISSED"
        print(f"{figure:32} {'':9} {native:9.1f} {ours:9.1f}   ratio {native / ours:.2f} (target 1: {verdict})")


if __name__ == "__main__":
    main()
