"""Writes how a Python program ended, as JSON into the folder that `observe` of CACHALOT_SIM names: python-<process>.json.

The file has the error that ended the program, its steps, and why it was ended early: after `max_steps` of CACHALOT_SIM,
or because it read unknown values 10,000 times at one place without a step of an optimizer, at which. With traces_only:1 it has
the modules that other runs of the program may find imported.
"""

from __future__ import annotations

import importlib.abc
import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cachalot_simulator.places import innermost_own, short_path
from cachalot_simulator.process_end import ProcessEnd
from cachalot_simulator.settings import setting

if TYPE_CHECKING:
    from cachalot_simulator.steps import StepCounter


class Ending:
    """The ending of the program, known at its end."""

    def __init__(self, end: ProcessEnd) -> None:
        self._end = end
        self._folder = setting("observe") or "."  # the program may change its environment
        self._imports = Imports() if setting("traces_only") == "1" else None
        self._counter: StepCounter | None = None
        self._stopped: str | None = None
        self._circles_at: str | None = None
        end.add(self._write)

    def count_steps(self, stepped: Callable[[Any, int | None], None] | None) -> None:
        """To be called when torch was imported. `stepped` is as StepCounter has it."""
        from cachalot_simulator.steps import StepCounter  # needs torch

        most = setting("max_steps")
        self._counter = StepCounter(int(most) if most else None, self._stop_after_steps, stepped)

    def optimizer_steps(self) -> int:
        """Returns the number of steps so far."""
        return self._counter.optimizer_steps if self._counter else 0

    def _stop_after_steps(self) -> None:
        self._stopped = "steps"
        self._end.end_now()

    def stop_at_unknown_value(self, at: str) -> None:
        """Ends the program at a place where it reads unknown values again and again."""
        self._stopped, self._circles_at = "unknown value", at
        self._end.end_program_now()

    def _write(self) -> None:
        error = error_of_program()
        if error is None and self._counter is None:
            return
        report = {
            "error": error,
            "optimizer_steps": self.optimizer_steps(),
            "forward_calls": self._counter.forward_calls if self._counter else 0,
            "stopped": self._stopped,
            "circles_at": self._circles_at,
            "modules": self._imports.modules() if self._imports else [],
        }
        with open(os.path.join(self._folder, f"python-{os.getpid()}.json"), "w", encoding="utf-8") as file:
            json.dump(report, file)


def error_of_program() -> dict[str, Any] | None:
    """The error that nothing caught; Python keeps it before it prints it."""
    kind = getattr(sys, "last_type", None)
    if kind is None:
        return None
    error = getattr(sys, "last_value", None)
    told = {"type": kind.__name__, "may_be_of_memory": may_be_of_memory(error)}
    if isinstance(error, SyntaxError) and error.filename:
        return told | {"at": f"{short_path(error.filename)}:{error.lineno}"}
    frames = [{"filename": frame.filename, "line": frame.lineno, "name": frame.name}
              for frame in traceback.extract_tb(getattr(sys, "last_traceback", None))]
    frame = innermost_own(frames[::-1])
    return told | {"at": f"{short_path(frame['filename'])}:{frame['line']}" if frame else None}


def may_be_of_memory(error: BaseException | None) -> bool:
    """Returns whether the error, or one of its causes, may say that memory ran out: libraries of CUDA raise RuntimeError in many
    words."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if isinstance(error, (RuntimeError, MemoryError)) or "memory" in str(error):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


class Imports(importlib.abc.MetaPathFinder):
    """Knows which modules of libraries a program imports while its environment is as it was: what fork_server may import for it.

    Modules read variables when they are imported. One that is imported after the program has changed a variable might be another in
    a process where the variable is unchanged. This finder looks at each import, and finds no module itself.
    """

    def __init__(self) -> None:
        self._environment = self._variables().copy()
        self._before_change: list[str] | None = None
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if self._before_change is None and self._variables() != self._environment:
            self._before_change = imported_modules()

    def modules(self) -> list[str]:
        """The modules, in the order in which their import began."""
        return imported_modules() if self._before_change is None else self._before_change

    @staticmethod
    def _variables() -> dict:
        return os.environ._data  # type: ignore[attr-defined]  # a comparison of os.environ itself takes 100 times as long


def imported_modules() -> list[str]:
    """The modules of installed packages whose import is done."""
    return [name for name, module in list(sys.modules.items()) if is_installed(getattr(module, "__spec__", None))]


def is_installed(spec: Any) -> bool:
    is_done = spec is not None and not getattr(spec, "_initializing", False)
    return is_done and any(folder in (spec.origin or "") for folder in ("site-packages", "dist-packages"))
