"""The `cachalot` command from Python: `python -m cachalot snapshot …` is `cachalot snapshot …`.

The command is a program of its own, in C++. Wheels bring it beside the interpreter; a package that was built from source may
lack it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from .._base import environment

# Its subcommands, which are never taken for scripts of these names. It knows others as well, if there are any.
SUBCOMMANDS = (
    "advise", "check", "compare", "completion", "convert", "diff", "explain", "fit", "replay", "simulate", "snapshot", "top",
)  # fmt: skip


def run(arguments: list[str]) -> None:
    """Becomes the command with these arguments; does not return. SystemExit where there is none, or it cannot be started."""
    command = _find_or_exit()
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(command, [str(command), *arguments])
    except OSError as error:
        sys.stderr.write(f"cachalot: {command}: cannot be started: {error.strerror or error}\n")
        sys.exit(2)


def _find_or_exit() -> Path:
    """Returns the command of this installation. SystemExit with 2 and a line on standard error where there is none."""
    command = find()
    if command is None:
        sys.stderr.write(
            "cachalot: this installation has no `cachalot` command: the package was built from source without it. "
            "Install a wheel (pip install --only-binary cachalot cachalot), or build with "
            "-C cmake.define.CACHALOT_BUILD_TOOLS=ON\n"
        )
        sys.exit(2)
    return command


def find() -> Path | None:
    """Returns the command of this installation; None where there is none."""
    return next((path for path in _candidates() if _is_a_program(path)), None)


def _candidates() -> Iterator[Path]:
    named = environment.text("CACHALOT_COMMAND")  # a build tree's, for its tests
    if named:
        yield Path(named)
    package = Path(__file__).parents[1]
    for folder in (
        sysconfig.get_path("scripts"),
        sysconfig.get_path("scripts", f"{os.name}_user"),  # pip install --user
        str(package.parent / "bin"),  # pip install --target
        str(package.parents[3] / "bin") if len(package.parents) > 3 else None,  # pip install --prefix
        str(Path(sys.executable).parent),
    ):
        if folder:
            yield Path(folder) / "cachalot"


def _is_a_program(path: Path) -> bool:
    """Returns whether the file is machine code: a script of that name may have started this process."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF" and os.access(path, os.X_OK)
    except OSError:
        return False
