#!/usr/bin/env python3
"""The tests of calls and the differential test with another PyTorch than the build's own: the newest one, in CI.

    python3 tests/pytorch/newest.py build/release PYTHON [--draw 4] [--seconds 240]

PYTHON is an interpreter with that PyTorch, numpy and pytest. The tests are in parts, each of one mode (native, full, pages), and as
many run at once as there are processors. With --draw so many of them run: conformance and the differential test, and others
drawn by the commit that is checked out. Prints the time of each part, and fails when a part does, or when all together take
longer than the limit.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
TABLES = ("test_functions.py", "test_newer_functions.py")
OTHERS = ("test_conformance.py", "test_weaknesses.py")


class Part(NamedTuple):
    mode: str
    files: tuple[str, ...]


ALWAYS = (
    Part("full", OTHERS),
    Part("full", ("test_differential.py",)),
)
DRAWN = (
    Part("full", TABLES),
    Part("full", ("test_computing.py",)),  # by `cachalot simulate`
    Part("full", ("test_pinned.py",)),
    Part("pages", TABLES + OTHERS),
    Part("pages", ("test_differential.py",)),
    Part("native", TABLES + OTHERS),
)


def environment(build: Path, mode: str) -> dict[str, str]:
    return os.environ | {
        "CACHALOT_TEST_MODE": mode,
        "CACHALOT_SIM": "devices:2,memory:8GiB",
        "CACHALOT_COMMAND": str(build / "tools" / "cachalot"),
        "CACHALOT_CACHE_DIR": str(build / "newest-cache"),  # the adapter is compiled once
        "LD_PRELOAD": str(build / "simulator" / "libcachalot_simulator.so"),
        "LD_LIBRARY_PATH": str(build / "simulator" / "driver"),
        "PYTHONPATH": str(build / "python"),
    }


def drawn(count: int) -> list[Part]:
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    if commit.returncode != 0:
        sys.exit(f"newest.py: --draw needs a commit to draw by: {commit.stderr.strip()}")
    others = random.Random(commit.stdout.strip()).sample(DRAWN, count - len(ALWAYS))
    return [*ALWAYS, *others]


def run(part: Part, build: Path, python: str) -> bool:
    files = [str(Path(__file__).with_name(name)) for name in part.files]
    command = [python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    began = time.monotonic()
    done = subprocess.run(command, env=environment(build, part.mode), capture_output=True, text=True, cwd=Path(__file__).parent)
    verdict = "passed" if done.returncode == 0 else f"FAILED with status {done.returncode}"
    print(f"{part.mode}, {', '.join(part.files)}: {verdict}, {time.monotonic() - began:.0f} s", flush=True)
    if done.returncode != 0:
        print(done.stdout[-8000:], done.stderr[-2000:], sep="\n", flush=True)
    return done.returncode == 0


def run_all(parts: Iterable[Part], build: Path, python: str, most_seconds: float | None = None) -> bool:
    """Runs parts, prints how each went, and returns whether all passed, within the seconds."""
    python = str(Path(python).absolute())  # a link in a virtual environment stays one
    began = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as processors:
        passed = list(processors.map(lambda part: run(part, build.resolve(), python), parts))
    seconds = time.monotonic() - began
    print(f"{sum(passed)} of {len(passed)} parts passed in {seconds:.0f} s")
    if most_seconds is not None and seconds > most_seconds:
        print(f"{Path(sys.argv[0]).name}: that is more than {most_seconds:.0f} s")
        return False
    return all(passed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("python")
    parser.add_argument("--draw", type=int, choices=range(len(ALWAYS), len(ALWAYS + DRAWN) + 1), metavar="N", help="so many of the parts")
    parser.add_argument("--seconds", type=float, help="the most that all may take together")
    arguments = parser.parse_args()
    parts = drawn(arguments.draw) if arguments.draw else [*ALWAYS, *DRAWN]
    return 0 if run_all(parts, arguments.build, arguments.python, arguments.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
