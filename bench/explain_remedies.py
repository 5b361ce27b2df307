#!/usr/bin/env python3
"""Compares what `cachalot explain` promises of its remedies with runs of the same programs with them.

    bench/explain_remedies.py [KEY...]    with a Python that has torch, on the simulated CUDA runtime (LD_PRELOAD)

CACHALOT_COMMAND is the command; KEY is a remedy, expandable_segments or page_heap (needs the package cachalot), both by default.
Prints the peak of reserved memory that is promised and that was measured; the exit code is 1 where they differ by more than 0.5 %.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

MIB = 1 << 20


def block(mib: float) -> torch.Tensor:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def answers() -> None:
    """Answers of growing length, each of which leaves a summary behind."""
    summaries = []
    for i in range(40):
        length = 20 + 3 * i
        answer = block(length)
        del answer
        first = block(length - 2.5)
        summaries.append(block(2.5))
        del first


def training() -> None:
    """A transformer with batches of varied lengths."""
    layers = [torch.nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True) for _ in range(3)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for length in (64, 96, 80, 128, 112, 160, 144, 192):
        loss = model(torch.randn(16, length, 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def requests() -> None:
    """A server whose requests overlap."""
    live: list[torch.Tensor] = []
    for i in range(300):
        live.append(block(3 + 37 * i % 61 * 0.75))
        if len(live) > 12:
            del live[(i * 7) % 12]


PROGRAMS = (answers, training, requests)
REMEDIES: dict[str, Callable[[], None]] = {}


def remedy(function: Callable[[], None]) -> Callable[[], None]:
    REMEDIES[function.__name__] = function
    return function


@remedy
def expandable_segments() -> None:
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


@remedy
def page_heap() -> None:
    import cachalot

    cachalot.enable("heap:pages")


def forked(work: Callable[[], int]) -> int:
    """Returns work() of a process of its own, which has imported torch already."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(work()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    if not text:
        raise SystemExit("a program failed")
    return int(text)


def recorded(program: Callable[[], None], path: Path) -> int:
    torch.cuda.memory._record_memory_history()
    program()
    peak = torch.cuda.max_memory_reserved()
    torch.cuda.memory._dump_snapshot(str(path))
    return peak


def measured(program: Callable[[], None], key: str) -> int:
    REMEDIES[key]()
    program()
    return torch.cuda.max_memory_reserved()


def promised(path: Path) -> dict[str, int]:
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [os.environ["CACHALOT_COMMAND"], "explain", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return {one["key"]: one["reserved_bytes"] for one in json.loads(done.stdout)["devices"][0]["remedies"]}


def main() -> int:
    keys = sys.argv[1:] or list(REMEDIES)
    worst = compared = 0
    for program in PROGRAMS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.pickle"
            now = forked(lambda: recorded(program, path))
            promises = promised(path)
        print(f"{program.__name__:<10} {'now':<20} {now / MIB:>10.2f} MiB reserved")
        for key in keys:
            if key not in promises:
                print(f"{program.__name__:<10} {key:<20} no remedy")
                continue
            peak = forked(lambda: measured(program, key))
            error = abs(promises[key] - peak) / peak
            compared, worst = compared + 1, max(worst, error)
            print(f"{program.__name__:<10} {key:<20} {promises[key] / MIB:>10.2f} MiB promised, {peak / MIB:.2f} MiB measured: {100 * error:.2f} %")
    print(f"{compared} remedies, at most {100 * worst:.2f} % off")
    return 0 if compared and worst <= 0.005 else 1


if __name__ == "__main__":
    sys.exit(main())
