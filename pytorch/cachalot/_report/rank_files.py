"""Reports of ranks that die: files in the folder CACHALOT_REPORT_DIR, of each rank one in JSON and one to read.

A thread writes them every CACHALOT_REPORT_SECONDS, so that a rank that is killed leaves a recent one, and when the process gets
SIGTERM. They are written as well at exit and at an uncaught exception, by the thread that it happens in.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import dataclasses
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
import types
from pathlib import Path

from .._base import environment
from .._base.log import logger
from .._base.whole_file import write_whole
from .rank_report import DistributedReport, RankReport, own_report, report_of


_MOST_SITES = 5
_MOST_SECONDS = 1_000_000


def asked_by_environment() -> tuple[Path, float] | None:
    """Returns the folder and the seconds between two writes; None without CACHALOT_REPORT_DIR. Makes the folder.

    Raises:
        ValueError: the folder cannot be written to, or CACHALOT_REPORT_SECONDS is not a number of this range.
    """
    seconds = environment.parsed("CACHALOT_REPORT_SECONDS", _seconds, "10")
    folder = environment.parsed("CACHALOT_REPORT_DIR", _folder)
    return (folder, seconds) if folder else None


def _seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= _MOST_SECONDS:
            return float(text)
    raise ValueError(f"it must be a number above 0, at most {_MOST_SECONDS}")


def _folder(text: str) -> Path | None:
    if not text:
        return None
    folder = Path(text).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError("this user may not write there")
        return folder
    except OSError as error:
        raise ValueError(f"it is no folder to write to: {error}") from None


def start(folder: Path, seconds: float) -> None:
    """Writes reports from now on, in this interval and when the process ends. Forked children write none."""
    _Writer(folder, seconds).start()


class _Writer:
    """Writes this process's report, in intervals and when it ends. Any thread may; the first report of an end is the last one.

    Python runs handlers of signals in the main thread, between two instructions: not while it waits for a GPU or for another rank.
    But Python's own handler writes the signal's number to a file descriptor at once, and a thread reads that. Then the signal takes
    its course: a handler that the program has is called as before; without one the process dies of the signal, as it would have.
    Forked children have neither the thread nor the handler.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._has_ended = False
        self._written: RankReport | None = None
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._of_thread = threading.local()

    def start(self) -> None:
        """Begins. SIGTERM is noticed only if the main thread calls this."""
        atexit.register(self.end, "exit")
        previous = sys.excepthook

        def tell(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
            first_line = str(error).partition("\n")[0]
            self.end(f"{kind.__name__}: {first_line}"[:300])
            previous(kind, error, trace)

        sys.excepthook = tell
        if threading.current_thread() is threading.main_thread():
            self._watch_signals()
        else:
            logger().debug("cachalot: SIGTERM leaves no report, because cachalot.enable() was not called by the main thread")
        threading.Thread(target=self._run, name="cachalot-reports", daemon=True).start()

    def end(self, how: str) -> None:
        """Writes the last report: the figures first, since there may be little time, then with call stacks."""
        self.write(how)
        self.write(how, sites=True)
        self._has_ended = True

    def write(self, ended: str = "", *, sites: bool = False) -> None:
        """Writes both files, if anything has changed. An error is for the log alone: the program goes on."""
        if os.getpid() != self._process or self._has_ended:
            return
        with self._lock:
            try:
                self._write(ended, sites)
            except Exception as error:
                logger().debug("cachalot: no report in %s: %s", self._folder, error)

    def _write(self, ended: str, sites: bool) -> None:
        rank, ranks = _place_in_job()
        report = dataclasses.replace(own_report(rank, _MOST_SITES, sites=sites), ended=ended)
        if self._written is not None and report == dataclasses.replace(self._written, time=report.time):
            return
        if report.rank is None and report.device is None and not ended:
            return  # a helper process
        name = f"process-{report.process}" if report.rank is None else f"rank-{report.rank:05}"
        write_whole(self._folder / f"{name}.json", report.to_json().encode())
        write_whole(self._folder / f"{name}.txt", f"{report_of([report], ranks)}\n".encode())
        self._written = report

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
                self.end("SIGTERM")
                self._die_unless_handled()
            if time.monotonic() >= due:
                self.write()
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


def _place_in_job() -> tuple[int | None, int]:
    """The rank and the number of ranks by torch.distributed, otherwise by the launcher's variables. A helper process, which inherits
    them, has no rank.
    """
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(dist.get_rank()), int(dist.get_world_size())
    rank = environment.number("RANK") if multiprocessing.parent_process() is None else None
    return rank, environment.number("WORLD_SIZE") or 1


def read(folder: Path) -> DistributedReport:
    """Returns the report over the files of a folder. Ranks whose end is not in their file are named.

    Raises:
        ValueError: there are no reports, or a file is not a report.
    """
    paths = sorted([*folder.glob("rank-*.json"), *folder.glob("process-*.json")])
    if not paths:
        raise ValueError(f"{folder} has no reports (rank-*.json): CACHALOT_REPORT_DIR names the folder in which programs leave them")
    ranks: list[RankReport] = []
    for path in paths:
        try:
            ranks.append(RankReport.from_json(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    newest = max(rank.time for rank in ranks)
    told = [_with_end(rank, newest) for rank in ranks]
    numbers = [rank.rank for rank in told if rank.rank is not None]
    return report_of(told, max(numbers) + 1 if numbers else len(told))


def _with_end(rank: RankReport, newest: float) -> RankReport:
    if rank.ended:
        return rank
    age = f"{newest - rank.time:.0f} s before the newest report"
    note = f"no end is recorded, so it runs or was killed; these are its figures of {age}"
    return dataclasses.replace(rank, note="; ".join(filter(None, (rank.note, note))))
