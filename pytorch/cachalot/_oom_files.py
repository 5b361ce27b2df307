"""Files of a failure: the whole report as text, and beside it a snapshot in PyTorch's form."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from ._whole_file import write_whole

_RANKS = (("RANK", "rank"), ("LOCAL_RANK", "localrank"))  # as torchrun sets them


def rank_text() -> str:
    """Returns "rank3" by RANK, "localrank3" by LOCAL_RANK, or "" if neither is a number."""
    for variable, name in _RANKS:
        value = os.environ.get(variable, "")
        if value.isascii() and value.isdigit():
            return f"{name}{int(value)}"
    return ""


def stem_of(folder: Path, number: int) -> Path:
    """Returns the path of the process's failure `number` without its suffix: "oom.rank3.pid4242.1"."""
    parts = ["oom", rank_text(), f"pid{os.getpid()}", str(number)]
    return folder / ".".join(part for part in parts if part)


def write_text(stem: Path, text: str) -> Path:
    return _write(stem, ".txt", text.encode(errors="replace"))


def write_snapshot(stem: Path, snapshot: dict[str, Any]) -> Path:
    """Writes protocol 4, the newest that PyTorch's memory viewer reads."""
    return _write(stem, ".pickle", pickle.dumps(snapshot, protocol=4))


def snapshot_of(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a snapshot of the library's JSON as torch.cuda.memory._snapshot would have it: pools are tuples."""
    for segment in document["segments"]:
        segment["segment_pool_id"] = tuple(segment["segment_pool_id"])
    return document


def _write(stem: Path, suffix: str, content: bytes) -> Path:
    """Writes the file in its folder, which may be new."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    path = stem.with_name(stem.name + suffix)
    write_whole(path, content)
    return path
