"""Measures calls of torch.cuda.empty_cache(): after every step, never, or under pressure; on both heaps.

    python cleanup.py [--steps 20] [--most-cached 1024] [--leave-free 0] …

Trains a small transformer on texts of varying length. Ends with an error where what must hold of the figures does not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import gpu, table, training

HEAPS = ("segments", "pages")
MEMORY_CALLS = ("malloc", "free", "reserve", "unreserve", "create", "release", "map", "unmap", "set_access")


def under_pressure(options: argparse.Namespace) -> bool:
    """Much is cached that no tensor uses, or the device has little left for those who are not PyTorch."""
    if gpu.cached_bytes() > options.most_cached * gpu.MiB:
        return True
    return options.leave_free > 0 and torch.cuda.mem_get_info()[0] < options.leave_free * gpu.MiB


POLICIES: dict[str, Callable[[argparse.Namespace], bool]] = {
    "every step": lambda options: True,
    "never": lambda options: False,
    "under pressure": under_pressure,
}


def parse(arguments: list[str] | None = None) -> tuple[argparse.Namespace, training.Shape]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    training.add_shape_options(parser)
    parser.add_argument("--steps", type=gpu.at_least(1), default=20, help="of the training (20)")
    parser.add_argument("--most-cached", type=gpu.at_least(1), default=1024, metavar="MiB",
                        help="pressure is more than this in the cache (1024)")  # fmt: skip
    parser.add_argument("--leave-free", type=gpu.at_least(0), default=0, metavar="MiB",
                        help="and less than this free on the device, for others (0: it is not asked)")  # fmt: skip
    parser.add_argument("--only", choices=HEAPS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    return options, training.shape_from(parser, options)


def memory_calls() -> dict[str, int]:
    """Calls for memory so far: the allocator's own count, and the driver's where that is simulated."""
    statistics = torch.cuda.memory_stats()
    calls = {"allocs + frees": statistics["num_device_alloc"] + statistics["num_device_free"]}
    simulator = gpu.simulator()
    if simulator is not None:
        device = torch.cuda.current_device()
        calls["driver calls"] = sum(simulator.cachalot_sim_calls(device, call.encode()) for call in MEMORY_CALLS)
    return calls


def train(options: argparse.Namespace, shape: training.Shape, empties: Callable[[argparse.Namespace], bool]) -> dict:
    """The figures of a training from an empty cache on."""
    gpu.begin_anew()
    lengths = random.Random(0)
    work = training.Training(shape, training.Precision())
    emptied = most_cached = 0
    before, begin_ms = memory_calls(), gpu.now_ms()
    for _ in range(options.steps):
        length = lengths.randint(max(1, shape.length // 4), shape.length)
        work.step((training.random_texts(dataclasses.replace(shape, length=length)),))
        if empties(options):
            torch.cuda.empty_cache()
            emptied += 1
        most_cached = max(most_cached, gpu.cached_bytes())
    return {
        "emptied": emptied,
        "ms a step": (gpu.now_ms() - begin_ms) / options.steps,
        "peak reserved": torch.cuda.max_memory_reserved(),
        "most cached": most_cached,
        **{what: calls - before[what] for what, calls in memory_calls().items()},
    }


def measure(options: argparse.Namespace, shape: training.Shape) -> dict[str, dict[str, float]]:
    """The figures of each policy, on the heap that this process has."""
    training.warm_up(training.Precision())
    return {name: train(options, shape, empties) for name, empties in POLICIES.items()}


def measure_apart(heap: str) -> dict[str, dict[str, float]]:
    """Measures in a process of its own, as a heap is chosen before the first use of memory."""
    command = [sys.executable, __file__, *sys.argv[1:], "--only", heap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        first, figures = child.communicate()[0].partition("\n")[::2]
    if child.returncode != 0:
        sys.exit(child.returncode)
    print(first)
    return json.loads(figures)


def text(figure: float) -> str:
    return f"{figure:,}" if isinstance(figure, int) else f"{figure:,.2f}"


def check(measured: dict[tuple[str, str], dict[str, float]], steps: int) -> None:
    relations = table.Relations()
    for heap in HEAPS:
        always, never, pressed = (measured[heap, policy] for policy in POLICIES)
        relations.equal(f"{heap}: emptied after every step", always["emptied"], steps)
        relations.equal(f"{heap}: emptied never", never["emptied"], 0)
        for name, figures in (("every step", always), ("under pressure", pressed)):
            relations.at_most(f"{heap}: most cached, {name}, never", figures["most cached"], never["most cached"])
            nearly = 1.05 * never["peak reserved"]  # a page more or less is chance
            relations.at_most(f"{heap}: peak reserved, {name}, 1.05 x never", figures["peak reserved"], nearly)
        given_back = always["most cached"] < never["most cached"]
        costs = relations.less if given_back else relations.at_most
        for what in {"allocs + frees", "driver calls"} & never.keys():
            costs(f"{heap}: {what}, never, every step", never[what], always[what])
            relations.at_most(f"{heap}: {what}, under pressure, every step", pressed[what], always[what])
    relations.finish()


def main() -> None:
    options, shape = parse()
    if options.only:
        print(gpu.start(config=f"heap:{options.only}"))
        return print(json.dumps(measure(options, shape)))
    apart = {heap: measure_apart(heap) for heap in HEAPS}
    measured = {(heap, policy): figures for heap in HEAPS for policy, figures in apart[heap].items()}
    rows = [[*run, *map(text, figures.values())] for run, figures in measured.items()]
    print(*table.lines(["heap", "empty_cache", *next(iter(measured.values()))], *rows), sep="\n")
    check(measured, options.steps)


if __name__ == "__main__":
    main()
