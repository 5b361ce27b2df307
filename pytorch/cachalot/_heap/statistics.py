"""Figures of memory and of its use: cachalot.stats() and fragmentation(); for other processes, which `cachalot top` shows,
publish() and stop_publishing(); and for a training's log on_statistics() and log_statistics().
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .._bindings.plug import process_plug
from .enabled import index_of, require_enabled

if TYPE_CHECKING:
    from .enabled import Device


@dataclasses.dataclass(frozen=True)
class Fragmentation:
    """The use of one device's memory at one moment. Each ratio is computed from the byte counts beside it."""

    requested_bytes: int = 0  # asked for by live allocations (those waiting for other streams included)
    allocated_bytes: int = 0  # of the blocks that serve them
    reserved_bytes: int = 0  # held from the device
    free_bytes: int = 0  # cached: in free blocks
    largest_free_bytes: int = 0  # of the largest free block
    free_blocks: int = 0
    peak_requested_bytes: int = 0
    peak_reserved_bytes: int = 0
    internal: float = 0.0  # 1 - requested/allocated; 0 when nothing is allocated
    external: float = 0.0  # 1 - largest_free/free; 0 when nothing is cached
    reserved_ratio: float = 0.0  # reserved/allocated; 0 when nothing is allocated
    peak_ratio: float = 0.0  # peak reserved/peak requested; 0 when nothing was requested
    free_block_histogram: tuple[int, ...] = ()  # entry i: blocks of [512 << i, 1024 << i) bytes; the last: and more


def stats(device: Device = None) -> dict[str, int]:
    """Returns the statistics of torch.cuda.memory_stats in PyTorch 2.11, by default of the current device. Empty before CUDA is in use."""
    import torch

    plug = require_enabled().plug
    return plug.stats(index_of(device)) if torch.cuda.is_initialized() else {}


def fragmentation(device: Device = None) -> Fragmentation:
    """Returns the fragmentation of a device, by default of the current one. All figures are 0 before CUDA is in use."""
    import torch

    plug = require_enabled().plug
    if not torch.cuda.is_initialized():
        return Fragmentation()
    figures = plug.fragmentation(index_of(device))
    figures["free_block_histogram"] = tuple(figures["free_block_histogram"])
    return Fragmentation(**figures)


def publish(directory: str | os.PathLike[str] | None = None) -> Path:
    """Publishes the statistics of cachalot's allocator on a page in shared memory, until the process ends.

    `cachalot top`, Prometheus and other readers see it (docs/reference/statistics_page.md). Allocations do nothing for it: a thread
    takes the figures once a second, and ten times a second while a reader reads. CACHALOT_PUBLISH=1 in the environment does the
    same when the allocator is first used. Call it after enable(): it makes the allocator. It may be called from any thread; a
    further call does nothing. A forked child publishes nothing of its parent.

    Args:
        directory: the folder of the page; None: the one that CACHALOT_PUBLISH_DIR names, or /dev/shm.

    Returns:
        The path of the page.

    Raises:
        ValueError: the page cannot be made, or `directory` is the path of no folder; the message says why.
        EnableError: the library cannot be loaded.
    """
    plug = process_plug()
    plug.call("publish", None if directory is None else _encoded(directory), bad_input=ValueError)
    return Path(plug.json("plug_published_json")["path"])


def _encoded(directory: str | os.PathLike[str]) -> bytes:
    try:
        encoded = os.fsencode(directory)
    except UnicodeEncodeError:  # half of a surrogate pair
        encoded = b"\0"
    if b"\0" in encoded:
        raise ValueError(f"directory is {directory!r}; it must be the path of a folder, without a character 0")
    return encoded


def stop_publishing() -> None:
    """Ends publishing and removes the page. Does nothing if nothing is published."""
    process_plug().call("stop_publishing")


_log = logging.getLogger("cachalot")

Statistics = dict[str, float]
# Is called with the figures and the step of the training; None: the caller did not tell one.
OnStatistics = Callable[[Statistics, "int | None"], object]

# Figures of torch.cuda.memory_stats: the figure there, and the name in a log.
_FIGURES = (
    ("reserved_bytes.all.current", "reserved_bytes"),
    ("allocated_bytes.all.current", "allocated_bytes"),
    ("requested_bytes.all.current", "requested_bytes"),
    ("active_bytes.all.current", "active_bytes"),
    ("reserved_bytes.all.peak", "peak_reserved_bytes"),
    ("allocated_bytes.all.peak", "peak_allocated_bytes"),
    ("segment.all.current", "segments"),
    ("allocation.all.current", "blocks"),
    ("allocation.all.allocated", "allocations"),
    ("num_device_alloc", "device_allocations"),
    ("num_device_free", "device_frees"),
    ("num_alloc_retries", "retries"),
    ("num_ooms", "ooms"),
)


class StatisticsLog:
    """A StatisticsLog calls a function with the allocator's figures, every interval or when log_statistics() asks for it.

    Every method may be called from any thread; calls of the function do not overlap. An exception of the function ends a call in
    the background with a line of the logger "cachalot", and reaches the caller of `log()`.
    """

    def __init__(self, callback: OnStatistics, interval_s: float | None) -> None:
        self._callback = callback
        self._interval_s = interval_s
        self._lock = threading.Lock()  # held during a call
        self._ends = threading.Event()
        self._step: int | None = None
        self._thread: threading.Thread | None = None
        if interval_s is not None:
            self._thread = threading.Thread(target=self._run, name="cachalot statistics", daemon=True)
            self._thread.start()

    def log(self, step: int | None = None) -> None:
        """Calls the function now. `step` also is that of the calls of the interval from now on. Does nothing after stop().

        Raises:
            RuntimeError: a function of cachalot.on_statistics calls this: two could wait for each other.
        """
        if _is_in_a_call():
            raise RuntimeError("a function of cachalot.on_statistics calls log_statistics(), which would call it again")
        self._call(lambda: step)

    def _call(self, step_now: Callable[[], int | None]) -> None:
        with self._lock:
            if self._ends.is_set():
                return
            _this_thread.calls = True
            try:
                self._step = step_now()
                self._callback(current_statistics(), self._step)
            finally:
                _this_thread.calls = False

    def stop(self) -> None:
        """Ends the calls, and waits for one that is under way on another thread.

        A function of cachalot.on_statistics may call this; then it does not wait, since two could wait for each other.
        """
        self._ends.set()
        with _logs_lock:
            if self in _logs:
                _logs.remove(self)
        if _is_in_a_call() or self._thread is threading.current_thread():
            return
        if self._thread is not None:
            self._thread.join()
        with self._lock:  # of a call of log_statistics()
            pass

    def _run(self) -> None:
        while not self._ends.wait(self._interval_s):
            try:
                self._call(lambda: self._step)
            except Exception:
                _log.exception("the function of cachalot.on_statistics failed")


_this_thread = threading.local()  # `calls`: it is in a function of on_statistics
_logs_lock = threading.Lock()
_logs: list[StatisticsLog] = []


def _is_in_a_call() -> bool:
    return getattr(_this_thread, "calls", False)


def on_statistics(callback: OnStatistics, interval_s: float | None = 10.0) -> StatisticsLog:
    """Calls `callback` with the allocator's figures every `interval_s` seconds, and in each log_statistics().

    Args:
        callback: takes a dict of names and numbers, of every device with memory, and the step of the training or None:
            {"cachalot/0/reserved_bytes": 21474836480.0, "cachalot/0/unused_share": 0.04, ...}. It runs on a thread of its own, or
            on that of log_statistics(). docs/tools/top.md has those for TensorBoard and W&B.
        interval_s: seconds between two calls, from 0.01 to 1,000,000; None: only log_statistics() calls it.

    Returns:
        What its stop() ends.

    Raises:
        TypeError: `callback` is not callable.
        ValueError: `interval_s` is not in this range.
        EnableError: cachalot is not enabled.
    """
    if not callable(callback):
        raise TypeError(f"callback is {callback!r}; it must be callable with a dict and a step")
    if interval_s is not None and not 0.01 <= interval_s <= 1_000_000:
        raise ValueError(f"interval_s is {interval_s!r}; it must be from 0.01 to 1000000, or None")
    require_enabled()
    log = StatisticsLog(callback, interval_s)
    with _logs_lock:
        _logs.append(log)
    return log


def log_statistics(step: int | None = None) -> None:
    """Calls the functions of all on_statistics() now, as a line of a training loop: log_statistics(step)."""
    with _logs_lock:
        logs = list(_logs)
    for log in logs:
        log.log(step)


def current_statistics() -> Statistics:
    """Returns the figures of every device with memory, by names of the form "cachalot/<device>/<figure>".

    Sizes are in bytes. `unused_share` is 1 - requested / reserved, `internal_fragmentation` and `external_fragmentation` are those
    of cachalot.fragmentation(). Empty before CUDA is in use. EnableError: cachalot is not enabled.
    """
    import torch

    plug = require_enabled().plug
    figures: Statistics = {}
    for device in range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ():
        stats = plug.stats(device)
        if stats["reserved_bytes.all.peak"] == 0:
            continue
        prefix = f"cachalot/{device}/"
        figures |= {prefix + name: float(stats[key]) for key, name in _FIGURES}
        fragmentation = plug.fragmentation(device)
        figures[prefix + "free_bytes"] = float(fragmentation["free_bytes"])
        figures[prefix + "internal_fragmentation"] = float(fragmentation["internal"])
        figures[prefix + "external_fragmentation"] = float(fragmentation["external"])
        figures[prefix + "unused_share"] = _share_beside(fragmentation["requested_bytes"], fragmentation["reserved_bytes"])
    return figures


def _share_beside(part: int, whole: int) -> float:
    return max(0.0, 1.0 - part / whole) if whole else 0.0
