"""Which line of the program a call stack belongs to."""

from __future__ import annotations

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
COMPUTE = os.path.join(HERE, "compute", "")  # its operations call those of the program: not a place in the program


def place_of(entry: dict) -> str:
    """"train.py:42 in step": the innermost line that is the program's own, not a library's."""
    frames = entry.get("frames", [])
    ours = [i for i, frame in enumerate(frames) if frame["filename"].startswith(COMPUTE)]
    frames = frames[ours[-1] + 1 :] if ours else frames
    own = [frame for frame in frames if not is_library(frame["filename"])]
    if not frames:
        return "outside Python code (for example, a backward pass)"
    frame = own[0] if own else frames[-1]
    return f"{short_path(frame['filename'])}:{frame['line']} in {frame['name']}"


def short_path(path: str) -> str:
    """From the working directory, where the file is below it."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def is_library(path: str) -> bool:
    return path.startswith(("<", HERE, sys.base_prefix)) or "site-packages" in path or "dist-packages" in path
