"""Ends other processes of the program such that they write their reports before.

Servers end their engines by SIGKILL, which leaves no time for a report: the simulator's kill() first sends another signal, and the
process that gets it writes its reports and kills itself (simulator/base/kills.cpp). `os.kill`, which subprocess, multiprocessing and
psutil call, holds Python's lock meanwhile, which ctypes does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable

# Signals that mean nothing in libc, Python or CUDA: to write the reports and end, as killed or as having succeeded.
KILL, SUCCEED = signal.SIGRTMIN + 17, signal.SIGRTMIN + 18
PATIENCE = 30  # seconds, for a long history of memory on a busy machine
TICK = 0.005


def see_kills() -> None:
    """From now on, a process that this one kills is asked for its reports first, while other threads of this one run."""
    os.kill = asking_first(os.kill)


def asking_first(kill: Callable[[int, int], None]) -> Callable[[int, int], None]:
    simulator = ctypes.CDLL(None, use_errno=True)

    def ask_and_kill(process: int, number: int, /) -> None:
        if number != signal.SIGKILL:
            return kill(process, number)
        if simulator.kill(process, number) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))

    return ask_and_kill


def end_others(folder: str) -> None:
    """Ends the other processes whose reports go to a folder as if they had succeeded: the first of them, which may end the rest, is
    the last one. Those that do not handle the request go on, and may see that others have ended."""
    others = sorted(filter(writes_to(folder), all_processes()), reverse=True)
    for processes in (others[:-1], others[-1:]):
        asked = [process for process in processes if handles(process, SUCCEED)]
        for process in asked:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, SUCCEED)
        for process in asked:
            wait_for(process)


def all_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def writes_to(folder: str) -> Callable[[int], bool]:
    """Returns whether a process was started with this folder in its environment."""
    def is_such(process: int) -> bool:
        try:
            with open(f"/proc/{process}/environ", "rb") as file:
                return f"observe:{folder}".encode() in file.read()
        except OSError:
            return False

    return is_such


def handles(process: int, number: int) -> bool:
    """Returns whether there is one process of this number, and it handles the signal."""
    handled = status_of(process).get("SigCgt", "0")
    return process > 0 and bool(int(handled, 16) >> (number - 1) & 1)


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
