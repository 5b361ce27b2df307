"""Counts what the program reads of unknown values, with the places in the program that do."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cachalot_simulator.places import COMPUTE, place_of

if TYPE_CHECKING:
    from cachalot_simulator.ending import Ending

# Code that moves values to the host and back, and does not look at them: FSDP with parameters on the CPU, and save_on_cpu.
MOVING_FOLDER, MOVING_FUNCTION = "/torch/distributed/fsdp/", ("/torch/autograd/graph.py", "pack_to_cpu")
MOST_TIMES = 10_000  # at one place, before the run ends: a loop that waits for a value which nothing computes


@dataclass
class Place:
    """The reads at a line of the program."""

    times: int = 0
    since_step: int = 0  # those after the last step of an optimizer
    steps: int = 0


class UnknownReads:
    """The reads so far. `how` is "value", a number on the host; or "size", the size of a result on the device."""

    def __init__(self, ending: Ending) -> None:
        """`ending` ends a program that reads unknown values at one place again and again. A training that reads its loss in each step
        goes on."""
        self._ending = ending
        self._places: dict[tuple[str, str], Place] = {}

    def note(self, how: str) -> None:
        """Counts a read at the innermost line of the program, unless a library moves the values unseen."""
        frames = frames_of_call()
        if how == "value" and frames and moves_unseen(frames[0]):
            return
        at = place_of({"frames": frames})
        place = self._places.setdefault((how, at), Place())
        steps = self._ending.optimizer_steps()
        if steps != place.steps:
            place.steps, place.since_step = steps, 0
        place.times += 1
        place.since_step += 1
        if place.since_step == MOST_TIMES:
            self._ending.stop_at_unknown_value(at)

    def report(self) -> list[dict[str, Any]]:
        """The places, in the order of their first read."""
        return [{"at": at, "how": how, "times": place.times} for (how, at), place in self._places.items()]


def frames_of_call() -> list[dict[str, Any]]:
    """The frames of the call that reads, the innermost first, as those of an allocation."""
    frames: list[dict[str, Any]] = []
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(COMPUTE):
            frames.append({"filename": code.co_filename, "line": frame.f_lineno, "name": code.co_name})
        frame = frame.f_back
    return frames


def moves_unseen(frame: dict[str, Any]) -> bool:
    name, (file, function) = frame["filename"], MOVING_FUNCTION
    return MOVING_FOLDER in name or (name.endswith(file) and frame["name"] == function)
