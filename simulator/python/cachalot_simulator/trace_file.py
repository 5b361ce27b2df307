"""Writes a history as a trace, in the format of data/traces."""

from __future__ import annotations

import gzip
import os


def write_trace(path: str, device: int, trace: list[dict]) -> None:
    """Of device 0 into `path`, of device n into `path` with ".n" before its endings."""
    if device > 0:
        folder, name = os.path.split(path)
        stem, dot, endings = name.partition(".")
        path = os.path.join(folder, f"{stem}.{device}{dot}{endings}")
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
