"""Writes the reports of a process when it ends: by itself, by SIGTERM, because enough steps were done, or before the program kills it.

A program that handles SIGTERM itself keeps its handler. A child by fork reports for itself; those of multiprocessing end by os._exit().
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from cachalot_simulator.kills import KILL, SUCCEED, end_others
from cachalot_simulator.settings import setting


class ProcessEnd:
    """The end of a process, before which the writers are called once, in the order in which they were added."""

    def __init__(self) -> None:
        self._writers: list[Callable[[], None]] = []
        self._process = os.getpid()
        self._is_written = False
        self._lock = threading.RLock()  # of two threads that end the process, the second one waits for the reports
        self._is_writing = False
        self._signal_meanwhile: int | None = None
        self._write_more = ctypes.CFUNCTYPE(None)(self._write)
        os.register_at_fork(after_in_child=self._begin_child)
        self._see_exits()

    def _begin_child(self) -> None:
        self._process = os.getpid()
        self._is_written = self._is_writing = False
        self._lock = threading.RLock()  # the parent's may be held

    def _see_exits(self) -> None:
        exit_at_once = os._exit

        def write_and_exit(status: int) -> Any:
            try:
                self._write()
            finally:
                exit_at_once(status)

        os._exit = write_and_exit

    def add(self, writer: Callable[[], None]) -> None:
        """Adds a writer. Also makes the writers be called before the functions registered with atexit until now."""
        self._writers.append(writer)
        atexit.register(self._write)

    def watch_signals(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        for number in (signal.SIGTERM, KILL, SUCCEED):
            if is_main and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, self._end_by_signal)
        tell_simulator(self._write_more)

    def end_now(self) -> None:
        """Ends the process as if it had succeeded, with its reports and what it has printed so far.

        The driver writes its own as _exit() is called.
        """
        self._end(lambda: None)

    def end_program_now(self) -> None:
        """Ends this process so, and the others of the program, which may wait for this one."""
        def end_others_after_reports() -> None:
            self.write()  # the command reads the driver's report when the first of them has ended
            end_others(setting("observe") or ".")

        self._end(end_others_after_reports)

    def write(self) -> None:
        """Writes the reports, the driver's as well, which are not written again when the process ends."""
        self._write()
        if os.getpid() == self._process:
            ctypes.CDLL(None).cachalot_sim_write_report()

    def _end(self, end_more: Callable[[], None]) -> None:
        try:
            self._write()
            flush()
            end_more()
        finally:
            os._exit(0)

    def _write(self) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._is_written or not os.path.isdir(setting("observe") or "."):  # removed: the command has ended
                return
            self._is_written = self._is_writing = True
            try:
                for writer in self._writers:
                    write_or_print(writer)
            finally:
                self._is_writing = False
                tell_simulator(None)  # Python may be gone when it would call
        if self._signal_meanwhile is not None:
            os.kill(os.getpid(), self._signal_meanwhile)  # the handler runs in the main thread

    def _end_by_signal(self, number: int, _frame: Any) -> None:
        if self._is_writing:  # perhaps in this thread
            self._signal_meanwhile = number
            return
        signal.signal(number, signal.SIG_IGN)  # a second one does not cut the report short
        try:
            self.write()
        finally:
            signal.signal(number, signal.SIG_DFL)
            if number == SUCCEED:
                self.end_now()
            os.kill(os.getpid(), signal.SIGKILL if number == KILL else number)


def tell_simulator(write: Any) -> None:
    """Lets the simulator call `write` when C code ends the process at once, or another process kills it; None: nothing.

    A handler of Python's waits for the main thread, which may run C code without end, as that of Ray's workers.
    """
    ctypes.CDLL(None).cachalot_sim_write_more(write)


def write_or_print(writer: Callable[[], None]) -> None:
    """Calls a writer. Its error is printed: the program and the other writers are not to suffer from it."""
    try:
        writer()
    except Exception:
        traceback.print_exc()


def flush() -> None:
    """Flushes the output that the program has printed so far, except on streams that it has closed."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    ctypes.CDLL(None).fflush(None)
