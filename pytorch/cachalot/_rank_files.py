"""Reports of ranks that die: files in the folder CACHALOT_REPORT_DIR, of each rank one in JSON and one to read.

A thread writes them every CACHALOT_REPORT_SECONDS, so that a rank that is killed leaves a recent one, and when the process gets
SIGTERM. They are written as well at exit and at an uncaught exception, by the thread that it happens in.
"""

from __future__ import annotations

import atexit
import dataclasses
import multiprocessing
import os
import sys
import threading
import types
from pathlib import Path

from . import _ranks
from ._log import logger
from ._rank_report import DistributedReport, RankReport, report_of
from ._termination import Termination
from ._whole_file import write_whole

_MOST_SITES = 5
_SECONDS = 10.0
_MOST_SECONDS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Asked:
    """What the environment asks for."""

    folder: Path
    seconds: float  # between two writes


def asked_by_environment() -> Asked | None:
    """Returns the folder and the interval; None without CACHALOT_REPORT_DIR. Makes the folder.

    Raises:
        ValueError: the folder cannot be written to, or CACHALOT_REPORT_SECONDS is no number of this range.
    """
    folder = os.environ.get("CACHALOT_REPORT_DIR", "")
    text = os.environ.get("CACHALOT_REPORT_SECONDS", "") or str(_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _MOST_SECONDS:
        rule = f"it must be a number above 0, at most {_MOST_SECONDS}"
        raise ValueError(f"environment variable CACHALOT_REPORT_SECONDS is {text!r}; {rule}")
    if not folder:
        return None
    path = Path(folder).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"environment variable CACHALOT_REPORT_DIR is {folder!r}, which is no folder to write to: {error}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(f"environment variable CACHALOT_REPORT_DIR is {folder!r}, which this user cannot write to")
    return Asked(path, seconds)


def start(asked: Asked) -> None:
    """Writes reports from now on, until the process ends. Forked children write none."""
    _Writer(asked).start()


class _Writer:
    """Writes this process's report. Any thread may; the first report of an end is the last one."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._has_ended = False
        self._written: RankReport | None = None

    def start(self) -> None:
        atexit.register(self.end, "exit")
        previous = sys.excepthook

        def tell(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
            self.end(_text_of(error))
            previous(kind, error, trace)

        sys.excepthook = tell
        Termination(self.write, self.end, self._asked.seconds).start()

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
                logger().debug("cachalot: no report in %s: %s", self._asked.folder, error)

    def _write(self, ended: str, sites: bool) -> None:
        report = dataclasses.replace(_ranks.own_report(_rank(), _MOST_SITES, sites=sites), ended=ended)
        if self._written is not None and _is_same(report, self._written):
            return
        if report.rank is None and report.device is None and not ended:
            return  # a helper process
        name = f"process-{report.process}" if report.rank is None else f"rank-{report.rank:05}"
        write_whole(self._asked.folder / f"{name}.json", report.to_json().encode())
        write_whole(self._asked.folder / f"{name}.txt", f"{report_of([report], _world_size())}\n".encode())
        self._written = report


def _is_same(one: RankReport, other: RankReport) -> bool:
    return dataclasses.replace(one, time=0) == dataclasses.replace(other, time=0)


def _text_of(error: BaseException) -> str:
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}"[:300]


def _rank() -> int | None:
    """The rank by torch.distributed, otherwise by the launcher's variable, which helper processes inherit and are not."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() and multiprocessing.parent_process() is None else None


def _world_size() -> int:
    text = os.environ.get("WORLD_SIZE", "")
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return int(dist.get_world_size())
    return int(text) if text.isdecimal() else 1


def read(folder: Path) -> DistributedReport:
    """Returns the report over the files of a folder. Ranks whose end is not in their file are named.

    Raises:
        ValueError: there are no reports, or a file is none.
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
