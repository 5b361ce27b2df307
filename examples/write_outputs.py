#!/usr/bin/env python3
"""Runs the commands in the READMEs of examples/ over the simulated CUDA runtime and writes their output behind them.

The programs in C++ are those of build/release, or of the build that --build names.

    python examples/write_outputs.py [--build build/release] [NAME…]          with the python that has torch

NAME is an example, gradient_accumulation say; without one it is all of them. A command is a line `$ …` between the
marks in examples/NAME/README.md, and runs in the root of the repository.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MARKED = re.compile(
    r"(?<=<!-- examples/write_outputs.py writes from here -->\n```\n)(.*?)(?=```\n<!-- to here -->)", re.DOTALL
)


def simulated_environment(build: Path) -> dict[str, str]:
    simulator = build / "simulator" / "libcachalot_simulator.so"
    if not simulator.exists():
        sys.exit(f"write_outputs.py: --build {build}: there is no {simulator}; ./run build makes build/release")
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(build / "python"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_PRELOAD": str(simulator),
        "LD_LIBRARY_PATH": str(simulator.parent / "driver"),
    }


def output(command: str, build: Path, environment: dict[str, str]) -> str:
    words = [re.sub(r"^build/release/", f"{build}/", word) for word in shlex.split(command)]
    done = subprocess.run(words, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        sys.exit(f"write_outputs.py: {command}: exit status {done.returncode}\n{done.stdout}")
    return f"$ {command}\n{done.stdout}"


def update(readme: Path, build: Path, environment: dict[str, str]) -> None:
    text = readme.read_text()
    if not MARKED.search(text):
        sys.exit(f"write_outputs.py: {readme}: there are no marks, or nothing between them")

    def run_again(marked: re.Match[str]) -> str:
        commands = re.findall(r"^\$ (.*)$", marked[1], re.MULTILINE)
        return "\n".join(output(command, build, environment) for command in commands)

    readme.write_text(MARKED.sub(run_again, text))


def main() -> None:
    examples = sorted(path.parent.name for path in ROOT.glob("examples/*/README.md") if MARKED.search(path.read_text()))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(examples))
    options = parser.parse_args()
    for name in options.names:
        if name not in examples:
            parser.error(f"argument NAME: is {name!r}; it must be one of {', '.join(examples)}")
    build = options.build.resolve()
    environment = simulated_environment(build)
    for name in options.names or examples:
        update(ROOT / "examples" / name / "README.md", build, environment)


if __name__ == "__main__":
    main()
