#!/usr/bin/env python3
"""Compares the promises of `cachalot advise` on settings with the memory that the same programs reserve when they run with these
settings.

    bench/advise.py [--command build/release/tools/cachalot] [--python PYTHON]

Three programs, each with each of four settings, on a simulated h100: the peak of reserved memory by the replay of one run with
PyTorch's default, that of a run with the setting, and the difference in percent. PYTHON needs torch and, for the page heap, the
package cachalot. The exit code is 1 if a difference is larger than 0.5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_PERCENT = 0.5

PROGRAMS = {
    # A training whose batches have other lengths in each step.
    "lengths": """
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
random = torch.Generator().manual_seed(7)
for _ in range(12):
    length = int(torch.randint(500, 9000, (1,), generator=random))
    model(torch.randn(length, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    # Caches that grow by a piece in each step and are copied, as those of keys and values in inference.
    "caches": """
caches = [torch.empty(1, 256, 64, device="cuda") for _ in range(24)]
for step in range(40):
    for i, cache in enumerate(caches):
        caches[i] = torch.cat([cache, torch.empty(1, 37 + 11 * (i % 5), cache.shape[2], device="cuda")], dim=1)
    scratch = torch.empty((40 + 3 * step) << 16, device="cuda")
    del scratch
    if step % 8 == 7: caches[:12] = [torch.empty(1, 256, 64 << (step % 3), device="cuda") for _ in range(12)]
""",
    # Blocks of many sizes that live long or briefly, on two streams.
    "streams": """
random = torch.Generator().manual_seed(3)
other, kept = torch.cuda.Stream(), []
for step in range(400):
    with torch.cuda.stream(other if step % 3 == 0 else torch.cuda.current_stream()):
        size = int(torch.randint(1 << 10, 24 << 20, (1,), generator=random))
        block = torch.zeros(size, dtype=torch.uint8, device="cuda")
    if step % 5: kept.append(block)
    if len(kept) > 60: del kept[int(torch.randint(0, 60, (1,), generator=random))]
""",
}

SETTINGS = ("expandable_segments:True", "roundup_power2_divisions:4", "max_split_size_mb:32", "garbage_collection_threshold:0.8",
            "heap:pages")


def write_programs(folder: pathlib.Path) -> list[pathlib.Path]:
    """Each prints what it reserved at most."""
    paths = []
    for name, text in PROGRAMS.items():
        paths.append(folder / f"{name}.py")
        paths[-1].write_text(f"import torch\n{text}\nprint('reserved', torch.cuda.max_memory_reserved())\n")
    return paths


def outside_environment() -> dict[str, str]:
    """Returns the environment without the variables of a test."""
    return {name: value for name, value in os.environ.items()
            if not name.startswith(("CACHALOT_SIM_", "LD_PRELOAD", "CACHALOT_CONF", "PYTORCH_"))}


def promised(command: str, python: str, program: pathlib.Path) -> dict[str, dict]:
    """Returns advise's answers on the program, by policy."""
    words = [command, "advise", "--gpu", "h100", "--context", "none", "--no-times", "--json", "--", python, str(program)]
    done = subprocess.run(words, env=outside_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return {one["policy"]: one for one in json.loads(done.stdout)["policies"]}


def real(command: str, python: str, program: pathlib.Path, line: str) -> int:
    """Bytes that a run with the setting reserves at its peak. Nothing observes it: the page heap has no thread caches then."""
    folder = pathlib.Path(os.environ.get("CACHALOT_SIMULATOR", pathlib.Path(command).parents[1] / "simulator"))
    environment, words = outside_environment() | {"CACHALOT_SIM": "gpu:h100"}, [python]
    environment |= {"LD_PRELOAD": str(folder / "libcachalot_simulator.so"), "LD_LIBRARY_PATH": str(folder / "driver")}
    if line.startswith("PYTORCH_CUDA_ALLOC_CONF="):
        name, _, value = line.partition("=")
        environment[name] = value
    elif line:
        words += line.split()[1:]
    done = subprocess.run([*words, str(program)], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    return int(next(text.split()[1] for text in done.stdout.splitlines() if text.startswith("reserved ")))


def compare(command: str, python: str, program: pathlib.Path, settings: tuple[str, ...]) -> list[tuple[str, int, int]]:
    """Returns, for PyTorch's default and each setting, the promised memory and that reserved by a run."""
    told = promised(command, python, program)
    return [(policy, told[policy]["peak_reserved_bytes"], real(command, python, program, told[policy]["line"]))
            for policy in ("native", *settings)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default=str(ROOT / "build" / "release" / "tools" / "cachalot"))
    parser.add_argument("--python", default=os.environ.get("CACHALOT_PYTHON", sys.executable))
    arguments = parser.parse_args()
    most = 0.0
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'program':<8}  {'setting':<33}  {'promised MiB':>12}  {'real MiB':>9}  {'off by':>7}")
        for program in write_programs(pathlib.Path(folder)):
            for policy, bytes_promised, bytes_real in compare(arguments.command, arguments.python, program, SETTINGS):
                percent = 100 * (bytes_promised / bytes_real - 1)
                most = max(most, abs(percent))
                print(f"{program.stem:<8}  {policy:<33}  {bytes_promised / 2**20:>12.0f}  {bytes_real / 2**20:>9.0f}  {percent:>5.2f} %")
    print(f"the largest difference is {most:.2f} %, at most {MOST_PERCENT} % is asked for")
    return 0 if most <= MOST_PERCENT else 1


if __name__ == "__main__":
    sys.exit(main())
