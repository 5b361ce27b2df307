"""The `cachalot` command from Python: `python -m cachalot snapshot …` is `cachalot snapshot …`.

The command is a program of its own, in C++. Wheels bring it beside the interpreter; a package that was built from source may
lack it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
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
            "Install a wheel of packaging/wheels.sh, or build with "
            "-C cmake.define.CACHALOT_BUILD_TOOLS=ON\n"
        )
        sys.exit(2)
    return command


class CommandError(RuntimeError):
    """The command does not answer; the message says why."""


def answer(arguments: list[str], seconds: float) -> str:
    """Returns what the command writes on standard output, for a process that may be short of host memory.

    The command is not a fork of this process, may take half of the memory that the host has available, and is what Linux ends
    first where that runs out.

    Raises:
        CommandError: there is no command, it fails, or it has not answered after `seconds`, when it is ended.
    """
    command = find()
    if command is None:
        raise CommandError("this installation has no `cachalot` command, which would say why; wheels bring it")
    environment_of_it = environment.copied("LD_PRELOAD")  # without the simulated GPU
    try:
        process = subprocess.Popen(
            [str(command), *arguments], env=environment_of_it, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except OSError as error:
        raise CommandError(f"{command} cannot be started: {error.strerror or error}") from None
    try:
        _limit_memory(process.pid)
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise CommandError(f"`cachalot {arguments[0]}` took longer than {seconds:g} s") from None
    finally:
        process.kill()  # does nothing where it has ended
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1)  # one that waits for its pages may take longer
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    if not output:
        raise CommandError(f"`cachalot {arguments[0]}` failed: {errors.strip() or f'status {process.returncode}'}")
    return output


def _limit_memory(process: int) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        Path(f"/proc/{process}/oom_score_adj").write_text("1000")
        most = _available_bytes() // 2
        resource.prlimit(process, resource.RLIMIT_AS, (most, most))


def _available_bytes() -> int:
    """Returns the host's memory that is free, or the container's: where that runs out, Linux may end all its processes."""
    available = int(_words_of("/proc/meminfo")["MemAvailable:"]) * 1024
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError, KeyError):
        most, used = (int((group / name).read_text()) for name in ("memory.max", "memory.current"))
        available = min(available, max(0, most - used + int(_words_of(group / "memory.stat")["inactive_file"])))
    return available


def _words_of(file: str | Path) -> dict[str, str]:
    return dict(line.split()[:2] for line in Path(file).read_text().splitlines())


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
