"""Watches PyTorch's memory in the programs that `cachalot simulate` runs.

Python imports a module of this name by itself when it starts; this one waits for torch. What it saw it writes at the end,
a JSON file a process, into the folder that CACHALOT_SIM_OBSERVE names: for each device the peaks, where in the program
they were, and where memory ran out. With CACHALOT_SIM_TRACE it also writes every allocation and free, in the format of
cachalot's traces. simulator/README.md describes both.

Where and when is known from torch's memory history. A program that records one itself keeps its own: the report then
says so, and has the figures alone, no places and no trace. A program that brings an allocator which tells nothing, as
torch's CUDAPluggableAllocator does, has no torch part in the report.
"""

from __future__ import annotations

import atexit
import functools
import gzip
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections import defaultdict
from typing import Any

FOLDER = os.environ.get("CACHALOT_SIM_OBSERVE")
TRACE = os.environ.get("CACHALOT_SIM_TRACE")
# Entries of torch's history a device; one takes about 200 bytes and a share of its stack.
MAX_ENTRIES = sys.maxsize if TRACE else 2_000_000
SITES = 5  # told of the peak


def import_the_users_own() -> None:
    """Another sitecustomize, which this one would hide."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [folder for folder in sys.path if os.path.abspath(folder) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


class TorchFinder(importlib.abc.MetaPathFinder):
    """Finds torch as it would be found anyway, and begins to watch when it has been imported.

    It stays until then: a program may ask whether there is a torch, and import it later or not at all.
    """

    def __init__(self) -> None:
        self._is_asking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_watch(module: Any) -> None:
                load(module)
                sys.meta_path.remove(self)
                watch(module)

            spec.loader.exec_module = load_and_watch  # type: ignore[method-assign]
        return spec


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
                self._record(max_entries=MAX_ENTRIES, stacks="python")
        except RuntimeError:  # the program's own allocator has no history
            pass

    def traces(self) -> list[list[dict]]:
        """What happened on each device; nothing of it is ours when the history is the program's."""
        if self.is_the_programs:
            return [[] for _ in range(self._torch.cuda.device_count())]
        return self._torch.cuda.memory._snapshot()["device_traces"]


def watch(torch: Any) -> None:
    if not torch.cuda.is_available():
        return
    history = History(torch)
    torch.cuda._lazy_call(history.start)
    process = os.getpid()

    def write_if_used() -> None:
        if os.getpid() == process and torch.cuda.is_initialized():
            try:
                write(torch, history)
            except RuntimeError:  # the program's own allocator tells nothing
                pass

    atexit.register(write_if_used)


def write(torch: Any, history: History) -> None:
    devices = []
    for device, trace in enumerate(history.traces()):
        stats = torch.cuda.memory_stats(device)
        if stats["allocation.all.allocated"] == stats["num_ooms"] == 0:
            continue
        told = {"events": len(trace), "cut": len(trace) >= MAX_ENTRIES}
        devices.append(observe(device, stats, trace, "program's own" if history.is_the_programs else told))
        if TRACE and not history.is_the_programs:
            write_trace(TRACE, device, trace)
    with open(os.path.join(FOLDER, f"torch-{os.getpid()}.json"), "w", encoding="utf-8") as file:
        json.dump({"torch": torch.__version__, "devices": devices}, file)


def observe(device: int, stats: dict[str, int], trace: list[dict], history: dict[str, Any] | str) -> dict[str, Any]:
    event, live = peak_of(trace)
    ooms = [entry for entry in trace if entry["action"] == "oom"]
    return {
        "device": device,
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_requested_bytes": stats["requested_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "allocations": stats["allocation.all.allocated"],
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
        "history": history,
        "peak": None if event is None else {"event": event, "at": place_of(trace[event]), "sites": sites_of(live)},
        "first_oom": None if not ooms else {"at": place_of(ooms[0]), "bytes": ooms[0]["size"],
                                            "free_bytes": ooms[0]["device_free"]},
    }


def peak_of(trace: list[dict]) -> tuple[int | None, list[dict]]:
    """The event after which most was asked for, and the allocations that were live then."""
    sizes: dict[int, int] = {}
    total = best = 0
    at = None
    for i, entry in enumerate(trace):
        if entry["action"] == "alloc":
            sizes[entry["addr"]] = entry["size"]
            total += entry["size"]
            if total > best:
                best, at = total, i
        elif entry["action"] == "free_requested":
            total -= sizes.pop(entry["addr"], 0)
    live: dict[int, dict] = {}
    for entry in trace[: 0 if at is None else at + 1]:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry
        elif entry["action"] == "free_requested":
            live.pop(entry["addr"], None)
    return at, list(live.values())


def sites_of(live: list[dict]) -> list[dict[str, Any]]:
    """The lines of the program that made most of it."""
    sites: dict[str, list[int]] = defaultdict(list)
    for entry in live:
        sites[place_of(entry)].append(entry["size"])
    largest = sorted(sites.items(), key=lambda site: -sum(site[1]))[:SITES]
    return [{"at": at, "bytes": sum(sizes), "allocations": len(sizes)} for at, sizes in largest]


def place_of(entry: dict) -> str:
    """"train.py:42 in step": the innermost line that is the program's own, not a library's."""
    frames = entry.get("frames", [])
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
    return path.startswith("<") or "site-packages" in path or "dist-packages" in path or path.startswith(sys.base_prefix)


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


import_the_users_own()
if FOLDER:
    sys.meta_path.insert(0, TorchFinder())
