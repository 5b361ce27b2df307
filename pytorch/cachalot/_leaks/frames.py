"""Frames of call stacks, and which of them is the program's line."""

from __future__ import annotations

import dataclasses
import functools
import linecache
import os
import re
import sys
from pathlib import Path

_OPERATION = re.compile(r"\btorch::autograd::(?:generated::)?(\w+)::apply\(")
_ENGINE = "torch::autograd::Engine::"


@dataclasses.dataclass(frozen=True)
class Frame:
    """A call of a stack."""

    function: str
    file: str  # of the source; for native code without debug information the library that it is in
    line: int  # 0: unknown
    is_script: bool  # Python's

    @property
    def source(self) -> str:
        """The line of text, if the file is there; else ""."""
        return linecache.getline(self.file, self.line).strip() if self.line else ""

    def __str__(self) -> str:
        where = f"{shown(self.file)}:{self.line}" if self.line else shown(self.file)
        return f"{where} in {self.function}" if self.function else where


@functools.cache
def _library_folders() -> tuple[str, ...]:
    """Returns the folders of the code between a program's line and its memory: PyTorch, this package, and the simulator where it
    computes."""
    import torch

    simulator = sys.modules.get("cachalot_simulator")
    others = [Path(file).parent for file in (torch.__file__, simulator and simulator.__file__) if file]
    folders = [Path(__file__).parents[1], *others]
    return tuple({f"{path}{os.sep}" for folder in folders for path in (folder, folder.resolve())})


_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep


def is_of_library(file: str) -> bool:
    """Returns whether a Python file does not belong to the program, but to PyTorch, to cachalot, or to the standard library."""
    if file.startswith(("<frozen", *_library_folders())):
        return True
    return file.startswith(_STANDARD_LIBRARY) and "-packages" + os.sep not in file  # site-packages may lie in it


def site_frame(stack: tuple[Frame, ...]) -> Frame | None:
    script = [frame for frame in stack if frame.is_script]
    if script:
        return next((frame for frame in script if not is_of_library(frame.file)), None)
    # A backward pass on autograd's thread: the operation says more than what it calls.
    operations = [frame for frame in stack if _OPERATION.search(frame.function)]
    engine = [frame for frame in stack if _ENGINE in frame.function]
    return next(iter([*operations, *engine, *stack]), None)


def where(frame: Frame | None) -> str:
    if frame is None:
        return "a place outside of the program's code"
    if frame.is_script:
        return str(frame)
    if _ENGINE in frame.function:  # it adds gradients up
        return "a backward pass"
    operation = _OPERATION.search(frame.function)
    return f"{operation[1]} in a backward pass" if operation else f"{frame} (native code, outside of Python)"


def shown(file: str) -> str:
    """The file as a reader knows it: from the current folder on, if it is in there."""
    try:
        return file.removeprefix(os.getcwd() + os.sep)
    except OSError:  # the folder was removed
        return file
