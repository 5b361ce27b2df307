"""A thread that works in intervals, and at once when the process gets SIGTERM, even while the main thread is in a C function.

Python runs handlers of signals in the main thread, between two instructions: not while it waits for a GPU or for another rank.
But Python's own handler writes the signal's number to a file descriptor at once, and the thread reads that.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import threading
import time
import types
from collections.abc import Callable

from ._log import logger


class Termination:
    """Calls `work` in intervals and `end("SIGTERM")` at the signal; then the signal takes its course.

    A handler that the program has is called as before. Without one the process dies of the signal, as it would have.
    Forked children have neither the thread nor the handler.
    """

    def __init__(self, work: Callable[[], None], end: Callable[[str], None], seconds: float) -> None:
        self._work = work
        self._end = end
        self._seconds = seconds
        self._process = os.getpid()
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._of_thread = threading.local()

    def start(self) -> None:
        """Starts the thread. Signals are noticed only if the main thread calls this."""
        if threading.current_thread() is threading.main_thread():
            self._watch_signals()
        else:
            logger().debug("cachalot: SIGTERM leaves no report, because cachalot.enable() was not called by the main thread")
        threading.Thread(target=self._run, name="cachalot-reports", daemon=True).start()

    def _watch_signals(self) -> None:
        before = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if before != -1:  # another's, such as asyncio's
            signal.set_wakeup_fd(before)
            logger().debug("cachalot: SIGTERM leaves no report, because signal.set_wakeup_fd is in use")
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_signal)
        # A signal to a child must not arrive at this process's pipe, which the child has until it is told otherwise.
        os.register_at_fork(before=self._hold, after_in_parent=self._resume, after_in_child=self._forget)

    def _on_signal(self, number: int, frame: types.FrameType | None) -> None:
        """Runs in the main thread, if that comes to it; the thread ends the process."""

    def _hold(self) -> None:
        self._of_thread.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _resume(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._of_thread.mask)

    def _forget(self) -> None:
        if os.getpid() != self._process and threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
            if signal.getsignal(signal.SIGTERM) == self._on_signal:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._resume()

    def _run(self) -> None:
        due = time.monotonic() + self._seconds
        while os.getpid() == self._process:
            select.select([self._pipe[0]], [], [], max(0.0, due - time.monotonic()))
            if self._has_sigterm():
                self._end("SIGTERM")
                self._die_unless_handled()
            if time.monotonic() >= due:
                self._work()
                due = time.monotonic() + self._seconds

    def _has_sigterm(self) -> bool:
        try:
            return signal.SIGTERM in os.read(self._pipe[0], 4096)
        except BlockingIOError:
            return False

    def _die_unless_handled(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            # signal.signal is for the main thread alone, which may not come back from C.
            ctypes.CDLL(None).signal(ctypes.c_int(signal.SIGTERM), ctypes.c_void_p(0))
            os.kill(self._process, signal.SIGTERM)
