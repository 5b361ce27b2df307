"""Leak detectors, tracks, and the search for the objects that keep memory alive.

docs/leaks.md says how growth is distinguished from noise, and what the suspects are.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import functools
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .._base.text import bytes_text, held_text
from .._bindings.plug import Functions, Plug
from .frames import Frame, site_frame, where
from .suspects import Suspect
from .suspects import find as find_suspects

LISTED = 10  # sites that a report lists, unless asked for more
_FEWEST_SAMPLES = 8  # that are judged: kFewestSamples of diagnostics/trend.h

_FUNCTIONS: Functions = {
    "plug_leaks_begin": (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_double, ctypes.c_void_p, ctypes.POINTER(ctypes.c_long)),
    "plug_leaks_step": (ctypes.c_long,),
    "plug_leaks_end": (ctypes.c_long,),
    "plug_leaks_json": (ctypes.c_long, ctypes.c_size_t),
    "plug_track_begin": (ctypes.POINTER(ctypes.c_long),),
    "plug_track_stop": (ctypes.c_long,),
    "plug_track_end": (ctypes.c_long,),
    "plug_track_json": (ctypes.c_long, ctypes.c_size_t),
}


@dataclasses.dataclass(frozen=True)
class AllocationSite:
    """A place in the program that allocates: one call stack, and its live memory."""

    live_bytes: int  # of blocks, as memory_allocated counts them
    live_blocks: int
    allocated_blocks: int  # since the site was first seen
    oldest_iterations: int  # steps since the oldest live block was allocated
    oldest_seconds: float
    stack: tuple[Frame, ...]  # innermost first; Python's where a thread that runs Python allocated, else native
    some_addresses: tuple[int, ...] = dataclasses.field(repr=False)  # data_ptrs, the youngest first

    @property
    def frame(self) -> Frame | None:
        """Returns the most informative frame: Python's innermost frame outside of torch and cachalot, or autograd's operation."""
        return site_frame(self.stack)

    def __str__(self) -> str:
        return f"{held_text(self.live_bytes, self.live_blocks)} from {where(self.frame)}"


@dataclasses.dataclass(frozen=True)
class Leak(AllocationSite):
    """A site whose live bytes grow from iteration to iteration."""

    bytes_per_iteration: float  # Theil and Sen's slope
    confidence: float  # of Mann and Kendall's test
    iterations: int  # that were looked at
    sample_allocations: int  # 0; or with too few iterations: the allocations between two samples, per which it grows
    highest_bytes: int  # live when the last iteration ended, or now if that is more
    highest_blocks: int
    suspects: tuple[Suspect, ...] = ()

    def __str__(self) -> str:
        unit = "sample" if self.sample_allocations else "iteration"
        age = f"{self.oldest_seconds:.1f} s"
        age = f"oldest {age}" if self.sample_allocations else f"oldest {self.oldest_iterations} iterations ({age})"
        age = f"{age}, " if self.live_blocks else ""
        left = f"{held_text(self.live_bytes, self.live_blocks)} left" if self.live_blocks else "all given back"
        left = f"{left} since the last {unit}, " if self.was_freed else ""
        lines = [
            f"+{bytes_text(round(self.bytes_per_iteration))} {_every(self.sample_allocations)}: "
            f"{held_text(self.highest_bytes, self.highest_blocks)} from {where(self.frame)}",
            f"  {left}{age}confidence {min(self.confidence, 0.9999):.4f} over {self.iterations} {unit}s",
        ]
        if self.frame and self.frame.source:
            lines.insert(1, f"  > {self.frame.source}")
        if self.live_blocks and not self.sample_allocations and self.oldest_iterations <= 1:
            lines.append("  its newest blocks grow, and no older ones are kept: sizes that rise look so, too")
        lines += [f"  {suspect}" for suspect in self.suspects]
        return "\n".join(lines)

    @property
    def was_freed(self) -> bool:
        """True if blocks were freed after the last iteration: by a function that has returned, say."""
        return self.live_bytes < self.highest_bytes


@dataclasses.dataclass(frozen=True)
class LeakReport:
    """The result of a detector."""

    iterations: int
    live_bytes: int
    live_blocks: int
    site_count: int  # places with live blocks
    leak_count: int  # that grow, or grew until they were freed
    sample_allocations: int  # as that of the leaks
    reserved_bytes: int  # when the last iteration ended
    idle_bytes: int  # of these, what no block has
    idle_bytes_per_iteration: float  # growth of idle_bytes, where reserved memory grows with it and live memory less; else 0
    leaks: tuple[Leak, ...]  # the steepest
    sites: tuple[AllocationSite, ...]  # with the most live bytes
    judges_iterations: bool = False  # true if there were enough of them

    def __str__(self) -> str:
        verb = "grows" if self.leak_count == 1 else "grow"
        grow = f"{self.leak_count} of {max(self.site_count, self.leak_count)} sites {verb}"
        found = f"{grow} after {self.iterations} iterations"
        if self.sample_allocations:
            found = f"{self._judged_by_allocations}, {grow}"
        lines = [f"cachalot leaks: {found}; {held_text(self.live_bytes, self.live_blocks)} live"]
        lines += map(str, self.leaks)
        if self.leak_count > len(self.leaks):
            lines.append(f"and {self.leak_count - len(self.leaks)} more")
        if self.idle_bytes_per_iteration:
            lines.append(
                f"+{bytes_text(round(self.idle_bytes_per_iteration))} {_every(self.sample_allocations)} of reserved memory that "
                f"lies idle: {bytes_text(self.idle_bytes)} of {bytes_text(self.reserved_bytes)}. Requests whose sizes vary leave "
                "pieces that serve no later one: pad them to a few sizes, or use the page heap (CACHALOT_CONF=heap:pages)"
            )
        return "\n".join(lines)

    @property
    def _judged_by_allocations(self) -> str:
        seen = f"{self.iterations} iteration{'' if self.iterations == 1 else 's'} seen"
        if self.judges_iterations:
            return f"{seen}, and the program went on for long after the last. Judged by these and by the allocations since"
        few = "no iteration was seen: no optimizer made a step, and nothing called cachalot.watch_leaks().step()"
        if self.iterations:
            few = f"{seen}, too few to judge by"
        return f"{few}. Judged from allocation to allocation, where loading a model looks like a leak"


@dataclasses.dataclass(frozen=True)
class TrackReport:
    """Memory that a block of code allocated, freed and left. Bytes are those of blocks, as in memory_allocated."""

    label: str
    allocated_blocks: int
    allocated_bytes: int
    freed_blocks: int  # those that were there before, too
    freed_bytes: int
    freed_earlier_blocks: int  # of the freed, those that were there before
    freed_earlier_bytes: int
    left_blocks: int  # allocated and not freed
    left_bytes: int
    peak_bytes: int  # the most that was allocated at a time, over what there was at the beginning
    site_count: int  # places that left something
    sites: tuple[AllocationSite, ...]  # those that left most

    def __str__(self) -> str:
        earlier = ""
        if self.freed_earlier_blocks:
            earlier = f", {held_text(self.freed_earlier_bytes, self.freed_earlier_blocks)} of it from before"
        lines = [
            f"cachalot track '{self.label}': allocated {held_text(self.allocated_bytes, self.allocated_blocks)}, "
            f"freed {held_text(self.freed_bytes, self.freed_blocks)}{earlier}, "
            f"left {held_text(self.left_bytes, self.left_blocks)}; peak +{bytes_text(self.peak_bytes)}"
        ]
        return "\n".join(lines + _listed(self))


class LeakDetector:
    """Finds the sites whose live bytes grow from iteration to iteration.

        with cachalot.LeakDetector() as detector:
            for batch in batches:
                train(batch)
                detector.step()
            print(detector.report())

    A detector sees the allocations of all threads from its creation on, and may be used from any thread.
    """

    def __init__(
        self,
        *,
        warm_up: int = 2,
        window: int = 64,
        min_confidence: float = 0.999,
        on_optimizer_step: bool = False,
    ) -> None:
        """Watches from now on.

        Args:
            warm_up: iterations at the beginning in which growth is not looked at.
            window: iterations that are looked back; at least 8.
            min_confidence: from 0.5 to below 1: a chance of at most 1 - this that noise is taken for growth.
            on_optimizer_step: an iteration ends with each optimizer's step, until `step` is called.

        Raises:
            EnableError: cachalot is not enabled.
            ValueError: an argument out of its range.
        """
        if warm_up < 0 or window < 0:
            raise ValueError(f"warm_up is {warm_up} and window is {window}; neither may be negative")
        self._plug = _plug()
        soon = ctypes.cast(_AFTER_SAMPLE, ctypes.c_void_p) if on_optimizer_step else None
        number = ctypes.c_long()
        self._plug.call("plug_leaks_begin", warm_up, window, min_confidence, soon, number, bad_input=ValueError)
        self._number: int | None = number.value
        self._warm_up = warm_up
        self._process = os.getpid()  # a forked child has the detector, and nothing that it sees
        self._hook: Any = None
        if on_optimizer_step:
            from torch.optim.optimizer import register_optimizer_step_post_hook

            self._hook = register_optimizer_step_post_hook(self._on_optimizer_step)
        self._looks: _Looks | None = None
        self._at_exit = atexit._ncallbacks()  # before the program's

    def step(self) -> None:
        """Ends an iteration."""
        self._forget_hook()
        self._step()

    def leaks(self, most: int = LISTED, *, suspects: bool = True) -> tuple[Leak, ...]:
        """Returns the sites that grow, the steepest first; none before warm_up + 8 steps or 8 allocations. `report` has more."""
        return tuple(leak for leak in self.report(most, suspects=suspects).leaks if leak.live_blocks)

    def report(self, most: int = LISTED, *, suspects: bool = True) -> LeakReport:
        """Returns a report so far, with what grew and was freed since the last step. The suspects take about a second."""
        if self._is_closed:
            raise RuntimeError("this leak detector was closed; it reports no more")
        json = self._plug.json("plug_leaks_json", self._number, most)
        leaks = [Leak(**_site_fields(leak)) for leak in json.pop("leaks")]
        if suspects and leaks:
            at_exit = atexit._ncallbacks() - self._at_exit
            found = find_suspects([set(leak.some_addresses) for leak in leaks], at_exit)
            leaks = [dataclasses.replace(leak, suspects=self._best(leak, found[i])) for i, leak in enumerate(leaks)]
        sites = tuple(AllocationSite(**_site_fields(site)) for site in json.pop("sites"))
        enough = json["iterations"] >= self._warm_up + _FEWEST_SAMPLES
        return LeakReport(leaks=tuple(leaks), sites=sites, judges_iterations=enough, **json)

    def close(self) -> None:
        """Stops the detector; allocations cost the same as before it. A second call does nothing."""
        self._forget_hook()
        number, self._number = self._number, None
        if number is not None:
            self._plug.call("plug_leaks_end", number)

    def __enter__(self) -> LeakDetector:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def _is_closed(self) -> bool:
        return self._number is None

    @property
    def _is_inherited(self) -> bool:
        """Returns whether this is a forked child of the process that watches."""
        return self._process != os.getpid()

    def _step(self) -> None:
        if self._is_closed:
            raise RuntimeError("this leak detector was closed; it counts no more iterations")
        self._plug.call("plug_leaks_step", self._number)
        if self._looks:
            self._looks.after(self, "iteration")

    def _best(self, leak: Leak, found: list[Suspect]) -> tuple[Suspect, ...]:
        """The suspects found now or, where they or their names are gone, those that were seen while the leak grew."""
        if self._looks is None:
            return tuple(found)
        seen = self._looks.seen.get(leak.stack, ())
        is_gone = 2 * leak.live_blocks < leak.highest_blocks
        is_nameless = not any(suspect.name for suspect in found) and any(suspect.name for suspect in seen)
        return seen if is_gone or is_nameless else tuple(found)

    def _on_optimizer_step(self, *_: object) -> None:
        if not self._is_inherited:
            self._step()

    def _forget_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


class _Looks:
    """Suspects that were seen while the program ran, by the stack of the site.

    A program whose leak lies in main() has released it when the report at exit is made. So one looks at iterations that lie
    further and further apart, as long as that takes a fiftieth of the time, or three seconds in all. The garbage collector waits
    meanwhile: it would free cycles that leak, and so change the watched program.
    """

    def __init__(self) -> None:
        self.seen: dict[tuple[Frame, ...], tuple[Suspect, ...]] = {}
        self._began = time.monotonic()
        self._spent = 0.0
        self._counts = {"iteration": 0, "sample": 0}
        self._next = {"iteration": 10, "sample": 10}

    def after(self, detector: LeakDetector, unit: str) -> None:
        """An iteration has ended, or the detector has taken a sample between allocations."""
        self._counts[unit] += 1
        if self._counts[unit] < self._next[unit]:
            return
        self._next[unit] += self._next[unit] // 2 if unit == "iteration" else self._next[unit]
        if self._spent > max(3.0, (time.monotonic() - self._began) / 50):
            return
        began = time.thread_time()  # other programs may use the processor, too
        collects = gc.isenabled()
        gc.disable()
        try:
            self._look(detector, f"{unit} {self._counts[unit]}")
        finally:
            if collects:
                gc.enable()
        self._spent += time.thread_time() - began

    def _look(self, detector: LeakDetector, when: str) -> None:
        before, self.seen = self.seen, {}  # the report is to show the present state
        found = {leak.stack: leak for leak in detector.report().leaks if leak.suspects}
        self.seen = before | {stack: _dated(leak, when) for stack, leak in found.items()}


def _dated(leak: Leak, when: str) -> tuple[Suspect, ...]:
    """Its suspects, with the moment at which they were seen and what they held then."""
    live = "1 of its blocks was" if leak.live_blocks == 1 else f"{leak.live_blocks:,} of its blocks were"
    date = f" (seen at {when}, when {live} live)"
    return tuple(dataclasses.replace(suspect, text=suspect.text + date) for suspect in leak.suspects)


def _after_sample(_: object) -> int:
    """Python's main thread calls it between two of its instructions."""
    detector = detector_of_process()
    if detector is not None and detector._looks is not None and not detector._is_inherited:
        detector._looks.after(detector, "sample")
    return 0


_AFTER_SAMPLE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(_after_sample)


class track:
    """Measures the memory that a block of code allocates, frees and leaves, in all threads, and prints it at the end.

        with cachalot.track("evaluation") as tracked:
            evaluate(model)
        tracked.report.left_bytes

    It is also a decorator. `report` is available within the block as well.
    """

    def __init__(self, label: str = "", *, file: Any = None, quiet: bool = False, most: int = LISTED) -> None:
        """`file` is where to print (default: stderr); `quiet`: not at all; `most`: sites to list."""
        self._label = label
        self._file = file
        self._quiet = quiet
        self._most = most
        self._number: int | None = None
        self._report: TrackReport | None = None

    def __enter__(self) -> track:
        if self._number is not None:
            raise RuntimeError(f"track {self._label!r} is running already; another block needs another track")
        self._plug = _plug()
        self._report = None
        number = ctypes.c_long()
        self._plug.call("plug_track_begin", number)
        self._number = number.value
        self._process = os.getpid()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process != os.getpid():  # a forked child leaves the block that its parent is in
            return
        number = self._number
        self._plug.call("plug_track_stop", number)
        self._report = self._read()
        self._number = None
        self._plug.call("plug_track_end", number)
        if not self._quiet:
            print(self._report, file=self._file or sys.stderr)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def tracked(*arguments: Any, **keywords: Any) -> Any:
            label = self._label or function.__qualname__
            with track(label, file=self._file, quiet=self._quiet, most=self._most):
                return function(*arguments, **keywords)

        return tracked

    @property
    def report(self) -> TrackReport:
        """Returns the figures so far. Raises RuntimeError before the block begins."""
        if self._number is not None:
            return self._read()
        if self._report is None:
            raise RuntimeError(f"track {self._label!r} was not begun: it is used in a with statement")
        return self._report

    def _read(self) -> TrackReport:
        json = self._plug.json("plug_track_json", self._number, self._most)
        sites = tuple(AllocationSite(**_site_fields(site)) for site in json.pop("sites"))
        return TrackReport(label=self._label, sites=sites, **json)


_lock = threading.Lock()
_of_process: LeakDetector | None = None


def watch_leaks(
    *, warm_up: int = 2, window: int = 64, min_confidence: float = 0.999, report_at_exit: bool = False
) -> LeakDetector:
    """Starts the leak detector of the process, which `leaks()` uses, and returns it.

    An iteration ends with each step of an optimizer, or with the detector's `step()` if the program calls it. A second call
    returns the existing detector, or starts another one if that was closed.

    Args:
        warm_up: as in LeakDetector, and so are window and min_confidence.
        window: …
        min_confidence: …
        report_at_exit: print growing and live memory on stderr when the process ends, unless the detector was closed before.
            Forked children print nothing.
    """
    global _of_process
    with _lock:
        detector = detector_of_process()
        if detector is None:
            detector = _of_process = LeakDetector(
                warm_up=warm_up, window=window, min_confidence=min_confidence, on_optimizer_step=True
            )
        if report_at_exit:
            atexit.unregister(_report_at_exit)
            atexit.register(_report_at_exit, detector)
            detector._looks = detector._looks or _Looks()
        return detector


def leaks(most: int = LISTED, *, suspects: bool = True) -> tuple[Leak, ...]:
    """Returns the sites that grow, from the process's detector (`watch_leaks()`).

    Raises:
        RuntimeError: there is no detector, or it was closed.
    """
    detector = detector_of_process()
    if detector is None:
        raise RuntimeError("nobody watches for leaks: call cachalot.watch_leaks() first, or set CACHALOT_LEAK_REPORT=1")
    return detector.leaks(most, suspects=suspects)


def watch_once_in_use() -> None:
    """Watches from the first use of CUDA on, and reports at exit. A program that forks before may still do so."""
    import torch

    cuda: Any = torch.cuda
    cuda._lazy_call(lambda: watch_leaks(report_at_exit=True))


def detector_of_process() -> LeakDetector | None:
    """The process's own detector; None before there is one, and when it was closed."""
    return None if _of_process is None or _of_process._is_closed else _of_process


def _report_at_exit(detector: LeakDetector) -> None:
    if detector._is_closed or detector._is_inherited:
        return
    report = detector.report()
    lines = [str(report)]
    if report.sites:
        lines.append("still live at exit:")
    print("\n".join(lines + _listed(report)), file=sys.stderr)


def _plug() -> Plug:
    """The library that serves PyTorch, with CUDA in use: the allocator is there from then on."""
    import torch

    from .._heap.enabled import require_enabled

    plug = require_enabled().plug
    torch.cuda.init()
    plug.declare(_FUNCTIONS)
    return plug


def _site_fields(json: dict[str, Any]) -> dict[str, Any]:
    stack = tuple(Frame(**frame) for frame in json["stack"])
    return json | {"stack": stack, "some_addresses": tuple(json["some_addresses"])}


def _listed(report: LeakReport | TrackReport) -> list[str]:
    """Lines on the sites of a report."""
    lines: list[str] = []
    for site in report.sites:
        lines.append(f"  {site}")
        if site.frame and site.frame.source:
            lines.append(f"    > {site.frame.source}")
    if report.site_count > len(report.sites):
        lines.append(f"  and {report.site_count - len(report.sites)} more sites")
    return lines


def _every(allocations: int) -> str:
    return "an iteration" if not allocations else "each allocation" if allocations == 1 else f"every {allocations} allocations"
