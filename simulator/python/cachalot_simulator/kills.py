"""Lets a process write its reports before the program kills it. Servers end their engines by SIGKILL, which leaves no time for that.

`os.kill`, which subprocess, multiprocessing and psutil call, first sends another signal; the process that gets it writes its reports and
kills itself. A process that does not handle that signal, or does not end soon, is killed as it is without this module.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

REQUEST = signal.SIGRTMIN + 17  # to write the reports and end; no meaning in libc, Python or CUDA
PATIENCE = 10  # seconds, for a long history of memory
TICK = 0.005


def see_kills() -> None:
    """From now on, a process that this one kills is asked for its reports first."""
    os.kill = asking_first(os.kill)


def asking_first(kill: Callable[[int, int], None]) -> Callable[[int, int], None]:
    def ask_and_kill(process: int, number: int, /) -> None:
        if number != signal.SIGKILL or process == os.getpid() or not answers(process):
            return kill(process, number)
        with contextlib.suppress(ProcessLookupError):  # it has gone as it was asked to
            kill(process, REQUEST)
            wait_for(process)
            kill(process, number)

    return ask_and_kill


def answers(process: int) -> bool:
    """Returns whether there is one process of this number, and it handles the request."""
    handled = status_of(process).get("SigCgt", "0")
    return process > 0 and bool(int(handled, 16) >> (REQUEST - 1) & 1)


def wait_for(process: int) -> None:
    """Waits until a process has ended, and is a zombie or gone; for PATIENCE at most."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and status_of(process).get("State", "Z")[0] not in "ZX":
        time.sleep(TICK)


def status_of(process: int) -> dict[str, str]:
    """Returns the fields of a process in /proc; none if there is no such process."""
    try:
        with open(f"/proc/{process}/status", encoding="utf-8", errors="replace") as file:
            lines = [line.partition(":") for line in file]
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in lines}
