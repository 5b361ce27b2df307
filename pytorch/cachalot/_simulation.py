"""What `cachalot.fit` and `cachalot.estimate` share: how they start the command, and options of its runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from . import _command


class RunOptions(TypedDict, total=False):
    """Options of simulated runs that change what a program allocates.

    Attributes:
        context: what the CUDA context and libraries take of each device: a size such as "1429MiB", "model" (an estimate) or
            "none".
        devices: how many devices there are.
        world_size: the program is one rank of a job of so many, the others of which are absent.
        rank: which rank it is.
        local_rank: its rank on its machine, which is its device.
        max_seconds: ends each run after so many seconds.
        compute: which operations of PyTorch are computed: "none", "small" or "all".
        unknown: what sizes are that depend on unknown values, such as of what a mask selects: those of zeros ("zero"), half of
            all elements ("expected"), or all at most ("max").
    """

    context: str | None
    devices: int | None
    world_size: int | None
    rank: int | None
    local_rank: int | None
    max_seconds: float | None
    compute: str | None
    unknown: str | None


def flags(**options: object) -> list[str]:
    """Returns `--max-steps=2` for max_steps=2; nothing for None."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value is not None]


def flags_of_run(options: RunOptions) -> list[str]:
    """Raises TypeError for a name that is no option."""
    unknown = options.keys() - RunOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"{min(unknown)} is no option; these are: {', '.join(RunOptions.__annotations__)}")
    return flags(**options)


def words_of(given: Iterable[object] | str) -> list[str]:
    return [given] if isinstance(given, str) else [str(word) for word in given]


def run(subcommand: str, options: list[str], program: list[str], error: type[RuntimeError]) -> subprocess.CompletedProcess[str]:
    """Runs the command; its standard error is kept. Scripts run with this Python. Raises `error` where there is no command."""
    command = _command.find()
    if command is None:
        raise error("this installation has no `cachalot` command: install a wheel of cachalot")
    environment = {"CACHALOT_PYTHON": sys.executable, **os.environ}
    return subprocess.run([command, subcommand, *options, "--", *program], env=environment, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, text=True, errors="replace", check=False)


def complaint(done: subprocess.CompletedProcess[str]) -> str:
    """What the command says of an error of its own."""
    return done.stderr.strip().rpartition("\n")[2].removeprefix("cachalot: ")


def read(path: Path) -> str:
    """Returns "" where the command was stopped before it wrote."""
    return path.read_text() if path.exists() else ""
