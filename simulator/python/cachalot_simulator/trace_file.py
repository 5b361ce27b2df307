"""Writes a history as a trace, in the format of data/traces."""

from __future__ import annotations

import gzip
import os


def path_for(path: str, device: int) -> str:
    """The path itself for device 0; for device n with ".n" before its endings."""
    if device == 0:
        return path
    folder, name = os.path.split(path)
    stem, dot, endings = name.partition(".")
    return os.path.join(folder, f"{stem}.{device}{dot}{endings}")


def write_trace(path: str, trace: list[dict]) -> None:
    """Compressed with gzip if the path ends in .gz."""
    ids: dict[int, int] = {}
    streams: dict[int, int] = {}
    opened = gzip.open(path, "wt") if path.endswith(".gz") else open(path, "w", encoding="utf-8")
    with opened as file:
        made = 0
        for entry in trace:
            if entry["action"] == "alloc":
                ids[entry["addr"]] = made
                stream = streams.setdefault(entry["stream"], len(streams))
                file.write(f"a,{made},{entry['size']},{stream}\n")
                made += 1
            elif entry["action"] == "free_requested" and entry["addr"] in ids:
                file.write(f"f,{ids.pop(entry['addr'])}\n")
