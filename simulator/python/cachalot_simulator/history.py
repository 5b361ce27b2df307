"""torch's memory history: what it allocates and frees, and from where.

A program that records a history itself keeps its own: the report then says so, and has the figures alone, no places and
no trace.
"""

from __future__ import annotations

import functools
import gzip
import inspect
import os
import sys
from typing import Any

from cachalot_simulator.settings import setting

# Entries of torch's history a device; one takes about 200 bytes and a share of its stack.
MAX_ENTRIES = sys.maxsize if setting("trace") else 2_000_000
# The function in entries since PyTorch 2.15 for memory in front of an address that the program asked for, handed out and freed at
# once.
NOT_ASKED_FOR = "mallocWithAddress"
TRACES_ONLY = setting("traces_only") == "1"


class History:
    """torch's memory history: ours, from CUDA's initialization on, until the program records one itself."""

    def __init__(self, torch: Any) -> None:
        self.is_the_programs = False
        self._torch = torch
        self._record = torch.cuda.memory._record_memory_history

        @functools.wraps(self._record)
        def record_for_the_program(*arguments: Any, **options: Any) -> Any:
            self.is_the_programs = True
            return self._record(*arguments, **options)

        torch.cuda.memory._record_memory_history = record_for_the_program

    def start(self) -> None:
        try:
            self.is_the_programs = self._torch._C._cuda_isHistoryEnabled()
            if not self.is_the_programs:
                # Stacks of frees are not needed, and recording them clears the exception that Python is raising
                # (PyTorch 2.11): the one that ends the recomputation of an activation checkpoint, for example.
                marks = {"global_record_annotations": not TRACES_ONLY} if can_choose_annotations(self._record) else {}
                self._record(context=None if TRACES_ONLY else "alloc", max_entries=MAX_ENTRIES, stacks="python", **marks)
        except RuntimeError:  # the program's own allocator has no history
            pass

    def snapshot(self) -> dict:
        """torch's snapshot; of what happened on each device nothing is in it when the history is the program's. Added
        are "unfiltered_traces", which also have memory that the program did not ask for."""
        snapshot = self._torch.cuda.memory._snapshot()
        snapshot.setdefault("external_annotations", [])
        if self.is_the_programs:
            snapshot["device_traces"] = [[] for _ in snapshot["device_traces"]]
            snapshot["external_annotations"] = []
        snapshot["unfiltered_traces"] = snapshot["device_traces"]
        snapshot["device_traces"] = [[entry for entry in trace if entry.get("internal_metadata") != NOT_ASKED_FOR]
                                     for trace in snapshot["device_traces"]]
        return snapshot


def can_choose_annotations(record: Any) -> bool:
    """Older versions of PyTorch, such as 2.5, have annotations in every history."""
    return "global_record_annotations" in inspect.signature(record).parameters


def path_for(path: str, device: int) -> str:
    """The path itself for device 0; for device n with ".n" before its endings."""
    if device == 0:
        return path
    folder, name = os.path.split(path)
    stem, dot, endings = name.partition(".")
    return os.path.join(folder, f"{stem}.{device}{dot}{endings}")


def write_trace(path: str, trace: list[dict]) -> None:
    """Writes a history as a trace, in the format of data/traces. Compressed with gzip if the path ends in .gz."""
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
