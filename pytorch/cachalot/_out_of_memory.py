"""cachalot.on_out_of_memory() and CACHALOT_ON_OOM: a report of each failure before its exception reaches the program."""

from __future__ import annotations

import _thread
import ctypes
import dataclasses
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import _oom_settings
from ._log import logger

if TYPE_CHECKING:
    from ._plug import Plug

_WAIT_SECONDS = 30.0  # for the report of another thread


@dataclasses.dataclass(frozen=True)
class OutOfMemoryReport:
    """Why a request failed for want of memory, and what holds the memory. Its str() has at most 40 lines."""

    device: int
    requested_bytes: int
    cause: str  # "fragmentation", "stream", "graph pool", "private pool", "waiting", "asleep", "limit", "another process", …
    recommendation: str
    files: tuple[Path, ...]  # that were written: the text and the snapshot
    full_text: str = dataclasses.field(repr=False)  # every line of the report
    _text: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return self._text


class _Failure(ctypes.Structure):
    """CachalotOutOfMemory of oom_hooks.h."""

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
        self.settings: _oom_settings.Settings | None = None
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
        most = (settings or _oom_settings.Settings()).most
        if self.count > most:
            if self.count == most + 1:
                print(f"cachalot: out of memory again; more than {most} failures are not reported", file=sys.stderr)
            return
        from . import _oom_report

        report = _oom_report.made(plug, failure, self.count, settings.folder if settings else None)
        if settings and (settings.report or not report.files):
            print(report, file=sys.stderr, flush=True)
        elif settings:
            print(f"cachalot: out of memory; {report.files[0]} says why", file=sys.stderr, flush=True)
        if self.function is not None:
            self.function(report)


_observer = _Observer()


def on_out_of_memory(actions: str | None = None, *, call: Callable[[OutOfMemoryReport], None] | None = None) -> None:
    """Sets the actions before an out-of-memory exception reaches the program, in place of those that were set before.

    The report says what is live, what is cached and why that cannot serve the request, and gives one recommendation. It is
    made on the thread whose request fails; it allocates no GPU memory, and an error in it is a line of the log: the
    program gets its out-of-memory exception in any case. The environment variable CACHALOT_ON_OOM has the same `actions`.

    Args:
        actions: "report" prints the report on stderr, within 40 lines. "snapshot:DIR" writes it as a whole to a new text
            file in DIR, with a snapshot for `cachalot snapshot` and PyTorch's memory viewer beside it; the names contain
            RANK or LOCAL_RANK, the process's number, and the number of the failure. "most:N" ends the reports after N
            failures (default 10). Combine them with commas. None: neither prints nor writes.
        call: a function that receives each OutOfMemoryReport. It may run on any thread that allocates.

    Raises:
        EnableError: cachalot is not enabled.
        ValueError: `actions` is invalid; the message names word and rule. Nothing was changed.
    """
    from ._enable import require_enabled

    plug = require_enabled().plug
    install(plug, None if actions is None else _oom_settings.parse(actions), call)


def install(
    plug: Plug, settings: _oom_settings.Settings | None, call: Callable[[OutOfMemoryReport], None] | None = None
) -> None:
    """As on_out_of_memory, with settings that are parsed already."""
    plug.declare({"on_out_of_memory": (ctypes.c_int, ctypes.c_void_p)})
    _observer.settings, _observer.function, _observer.plug = settings, call, plug
    is_wanted = settings is not None or call is not None
    plug.call("on_out_of_memory", ctypes.cast(_observer.call, ctypes.c_void_p) if is_wanted else None)
