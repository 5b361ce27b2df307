"""cachalot.on_out_of_memory() and CACHALOT_ON_OOM: a report of each failure before its exception reaches the program."""

from __future__ import annotations

import _thread
import ctypes
import dataclasses
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._base import environment
from .._base.log import logger

if TYPE_CHECKING:
    from .._bindings.plug import Plug
    from .oom_report import OutOfMemoryReport

# The text of CACHALOT_ON_OOM: what happens before an out-of-memory exception reaches the program.

_MOST_REPORTS = 10
_GRAMMAR = "'report', 'snapshot:DIR' and 'most:N', separated by commas, such as 'report,snapshot:/tmp/oom'"


@dataclasses.dataclass(frozen=True)
class Settings:
    report: bool = False  # print it on stderr
    folder: Path | None = None  # for the report's text and the snapshot
    most: int = _MOST_REPORTS  # failures of the process that are reported


def parse_settings(text: str) -> Settings:
    """Returns the settings. Raises ValueError that names the word and the rule."""
    given: dict[str, Any] = {}
    for word in (part.strip() for part in text.split(",")):
        key, _, value = word.partition(":")
        if key in given:
            raise ValueError(f"{key!r} occurs twice in {text!r}; give it once")
        if word == "report":
            given[key] = True
        elif key == "snapshot":
            given[key] = _folder(word, value)
        elif key == "most":
            if not value.isascii() or not value.isdigit() or int(value) < 1:
                raise ValueError(f"{word!r}: the number of reports must be 1 or more, such as 'most:{_MOST_REPORTS}'")
            given[key] = int(value)
        else:
            raise ValueError(f"{word!r} is unknown; it must be {_GRAMMAR}")
    if not given.keys() & {"report", "snapshot"}:
        raise ValueError(f"{text!r} asks for nothing; it must contain 'report' or 'snapshot:DIR'")
    return Settings("report" in given, given.get("snapshot"), given.get("most", _MOST_REPORTS))


def settings_of_environment() -> Settings | None:
    """Returns what CACHALOT_ON_OOM asks for; None: nothing. Raises ValueError that names the variable."""
    return environment.parsed("CACHALOT_ON_OOM", lambda text: parse_settings(text) if text else None, in_words=True)


def _folder(word: str, value: str) -> Path:
    if not value:
        raise ValueError(f"{word!r} names no folder; give one, such as 'snapshot:/tmp/oom'")
    try:
        folder = Path(value).expanduser().absolute()
        is_file = _is_file(folder)
    except (OSError, RuntimeError, ValueError) as error:  # a long name, an unknown user's home, a character 0
        reason = (isinstance(error, OSError) and error.strerror) or error
        raise ValueError(f"{word[:100]!r} cannot be a folder: {reason}") from None
    if is_file:
        raise ValueError(f"{word!r}: {str(folder)!r} is a file; give a folder, which may be new")
    return folder


def _is_file(path: Path) -> bool:
    try:
        return not stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        return False


_WAIT_SECONDS = 30.0  # for the report of another thread


class _Failure(ctypes.Structure):
    """CachalotOutOfMemory of oom_hooks.cpp."""

    _fields_ = [
        ("device", ctypes.c_int),
        ("is_refusal", ctypes.c_int),
        ("has_pages", ctypes.c_int),
        ("requested_bytes", ctypes.c_size_t),
        ("segment_bytes", ctypes.c_size_t),
        ("allowed_bytes", ctypes.c_size_t),
        ("device_free_bytes", ctypes.c_size_t),
        ("device_total_bytes", ctypes.c_size_t),
        ("stream", ctypes.c_void_p),
        ("pool_first", ctypes.c_ulonglong),
        ("pool_second", ctypes.c_ulonglong),
    ]


_CALL = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Failure))


class _Observer:
    """Reports failures by the settings in force. `call` runs on the thread whose request fails, with the GIL."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.function: Callable[[OutOfMemoryReport], None] | None = None
        self.plug: Plug | None = None
        self.count = 0  # of failures since the process began
        self.call = _CALL(self._called)  # the library has its address: it stays
        self._lock = threading.Lock()  # one report at a time
        self._reporter = 0  # the thread that has the lock

    def _called(self, failure: Any) -> None:
        try:
            self._report_alone(failure.contents)
        except KeyboardInterrupt:
            _thread.interrupt_main()  # it cannot leave through the allocator
        except BaseException as error:  # the program's error is that memory ran out
            logger().warning("cachalot: the out-of-memory report failed: %s: %s", type(error).__name__, error)

    def _report_alone(self, failure: _Failure) -> None:
        if self._reporter == threading.get_ident():  # the report, or a function that it called, ran out of memory
            return
        if not self._lock.acquire(timeout=_WAIT_SECONDS):
            logger().warning("cachalot: no out-of-memory report: that of another thread has taken %g s", _WAIT_SECONDS)
            return
        self._reporter = threading.get_ident()
        try:
            self._report(failure)
        finally:
            self._reporter = 0
            self._lock.release()

    def _report(self, failure: _Failure) -> None:
        settings, plug = self.settings, self.plug
        if plug is None or (settings is None and self.function is None):
            return
        self.count += 1
        most = (settings or Settings()).most
        if self.count > most:
            if self.count == most + 1:
                print(f"cachalot: out of memory again; more than {most} failures are not reported", file=sys.stderr)
            return
        from . import oom_report

        report = oom_report.made(plug, failure, self.count, settings.folder if settings else None)
        if settings and (settings.report or not report.files):
            print(report, file=sys.stderr, flush=True)
        elif settings:
            print(f"cachalot: out of memory; {report.files[0]} says why", file=sys.stderr, flush=True)
        if self.function is not None:
            self.function(report)


_observer = _Observer()


def on_out_of_memory(actions: str | None = None, *, call: Callable[[OutOfMemoryReport], None] | None = None) -> None:
    """Sets the actions before an out-of-memory exception reaches the program, in place of those that were set before.

    The report has the live memory, the cached memory and the reason why that cannot serve the request, and gives one
    recommendation: what the command `cachalot explain` says of a snapshot that the process writes. It is made on the thread whose
    request fails; it allocates no GPU memory, the command has 20 seconds, and an error is a line of the log: the program gets its
    out-of-memory exception in any case. The environment variable CACHALOT_ON_OOM has the same `actions`.

    Args:
        actions: "report" prints the report on stderr, within 40 lines. "snapshot:DIR" writes it as a whole to a new text
            file in DIR, with a snapshot for `cachalot explain` and PyTorch's memory viewer beside it; the names contain
            RANK or LOCAL_RANK, the process's number, and the number of the failure. "most:N" ends the reports after N
            failures (default 10). Combine them with commas. None: neither prints nor writes.
        call: a function that receives each OutOfMemoryReport. It may run on any thread that allocates.

    Raises:
        EnableError: cachalot is not enabled.
        ValueError: `actions` is invalid; the message names word and rule. Nothing was changed.
    """
    from .._heap.enabled import require_enabled

    plug = require_enabled().plug
    install(plug, None if actions is None else parse_settings(actions), call)


def install(
    plug: Plug, settings: Settings | None, call: Callable[[OutOfMemoryReport], None] | None = None
) -> None:
    """Installs a handler as on_out_of_memory, with settings that are parsed already."""
    _observer.settings, _observer.function, _observer.plug = settings, call, plug
    is_wanted = settings is not None or call is not None
    call_from_now_on = plug.function("plug_on_out_of_memory", None, ctypes.c_void_p)
    call_from_now_on(ctypes.cast(_observer.call, ctypes.c_void_p) if is_wanted else None)
