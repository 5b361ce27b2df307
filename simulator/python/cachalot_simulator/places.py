"""Finds the line of the program that a call stack belongs to."""

from __future__ import annotations

import os
import sysconfig
from types import CodeType

HERE = os.path.dirname(os.path.abspath(__file__))
START = os.getcwd()  # the program may go to another folder, and remove it
# Python's own modules. sys.base_prefix would not do: with Debian's Python it is /usr, and programs lie in /usr/src/app.
LIBRARIES = ("<", os.path.join(HERE, ""), *(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib")))
STARTS_THREADS = "begin_prepared"  # the simulator's frame, too, below all that the thread runs
STARTS_CHILD = ("/multiprocessing/process.py", "/multiprocess/process.py"), "_bootstrap"  # below it, in a child by fork, is the parent's stack
COMPUTE = os.path.join(HERE, "compute", "")  # its operations call those of the program: not a place in the program


def place_of(entry: dict) -> str:
    """"train.py:42 in step": the innermost line that is the program's own, not a library's."""
    frame = innermost_own(frames_of(entry))
    if frame is None:
        return "outside Python code (for example, a backward pass)"
    return place_of_frame(frame["filename"], frame["line"], frame["name"])


def frames_of(entry: dict) -> list[dict]:
    """Returns the call stack of an allocation, the innermost frame first, without the simulator's own frames that called the
    operation, and without those of the parent in a child by fork."""
    frames = in_this_process(entry.get("frames", []))
    ours = [i for i, frame in enumerate(frames) if frame["filename"].startswith(COMPUTE) and frame["name"] != STARTS_THREADS]
    return frames[ours[-1] + 1 :] if ours else frames


def in_this_process(frames: list[dict]) -> list[dict]:
    """Returns the frames, innermost first, that a process of multiprocessing has called: all in a process of another kind."""
    for i, frame in enumerate(frames):
        if is_start_of_child(frame["name"], frame["filename"]):
            return frames[:i]
    return frames


def is_start_of_child(name: str, path: str) -> bool:
    files, function = STARTS_CHILD
    return name == function and path.endswith(files)


def starts_child(code: CodeType) -> bool:
    """Returns whether a frame of this code is the outermost of a process of multiprocessing."""
    return is_start_of_child(code.co_name, code.co_filename)


def place_of_frame(path: str, line: int, name: str) -> str:
    return f"{short_path(path)}:{line} in {name}"


def innermost_own(frames: list[dict]) -> dict | None:
    """The first of the frames, innermost first, that is not a library's. There is none in a process or thread that a library runs, as
    a server does: then the first of an installed package other than torch; then the outermost that is not Python's own; then the
    outermost, if there is one."""
    own = [frame for frame in frames if not is_library(frame["filename"])]
    installed = [frame for frame in frames if is_installed(frame["filename"])]
    packages = [frame for frame in installed if origin_of(frame["filename"]) == "library"]
    outer = (installed or frames)[-1:]
    return next(iter(own or packages or outer), None)


def origin_of(path: str) -> str:
    """"own", of the program; "torch"; or "library", any other."""
    return "own" if not is_library(path) else "torch" if "-packages/torch/" in path else "library"


def short_path(path: str) -> str:
    """From the working directory, where the file is below it; of an installed package from its name on."""
    installed = path.rpartition("-packages/")[2]
    if installed != path:
        return installed
    relative = os.path.relpath(os.path.join(START, path), START)
    return path if relative.startswith(os.pardir) else relative


def is_library(path: str) -> bool:
    return path.startswith(LIBRARIES) or is_installed(path)


def is_installed(path: str) -> bool:
    return ("site-packages" in path or "dist-packages" in path) and not path.startswith(LIBRARIES[1])
