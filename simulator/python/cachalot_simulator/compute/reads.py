"""Counts what the program reads of unknown values, with the places in the program that do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from cachalot_simulator.places import COMPUTE, place_of

MOST_TIMES = 10_000  # at one place, before the run may end: a loop that waits for a value which nothing computes


class UnknownReads:
    """The reads so far. `how` is "value", a number on the host; or "size", the size of a result on the device."""

    def __init__(self, stop: Callable[[str], None]) -> None:
        """`stop` gets the place each time that it has read MOST_TIMES unknown values, and ends a program that waits there."""
        self._stop = stop
        self._times: dict[tuple[str, str], int] = {}

    def note(self, how: str) -> None:
        """Counts a read at the innermost line of the program."""
        key = (how, place_of_call())
        times = self._times.get(key, 0) + 1
        self._times[key] = times
        if times % MOST_TIMES == 0:
            self._stop(key[1])

    def report(self) -> list[dict[str, Any]]:
        """The places, in the order of their first read."""
        return [{"at": at, "how": how, "times": times} for (how, at), times in self._times.items()]


def place_of_call() -> str:
    """The place of the call that reads, as that of an allocation."""
    frames: list[dict[str, Any]] = []
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(COMPUTE):
            frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return place_of({"frames": frames})
