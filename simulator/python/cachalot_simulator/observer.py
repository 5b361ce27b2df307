"""Writes what a process did with PyTorch's memory, at its end, as JSON into the folder that CACHALOT_SIM_OBSERVE names.

For each device the file has the peaks, where in the program they were, and where memory ran out. With CACHALOT_SIM_TRACE
every allocation and free is written as well. A program that brings an allocator which tells nothing, as torch's
CUDAPluggableAllocator does, has no torch part in the report.
"""

from __future__ import annotations

import atexit
import json
import os
from typing import Any

from cachalot_simulator.compute import start_computing
from cachalot_simulator.history import MAX_ENTRIES, History
from cachalot_simulator.peaks import peak_of, sites_of
from cachalot_simulator.places import place_of
from cachalot_simulator.trace_file import write_trace

FOLDER = os.environ.get("CACHALOT_SIM_OBSERVE", ".")
TRACE = os.environ.get("CACHALOT_SIM_TRACE")


def watch(torch: Any) -> None:
    if not torch.cuda.is_available():
        return
    history = History(torch)
    torch.cuda._lazy_call(history.start)
    computing = start_computing()
    process = os.getpid()

    def write_if_used() -> None:
        if os.getpid() == process and torch.cuda.is_initialized():
            try:
                write(torch, history, computing)
            except RuntimeError:  # the program's own allocator tells nothing
                pass

    atexit.register(write_if_used)


def write(torch: Any, history: History, computing: Any) -> None:
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
        json.dump({"torch": torch.__version__, "devices": devices, "values": values(computing)}, file)


def values(computing: Any) -> dict[str, Any] | None:
    """How much was computed, and where the program read unknown values; None if nothing was computed."""
    if computing is None:
        return None
    return {"computed": computing.computed, "unknown_reads": computing.reads.report(),
            "compiled": computing.is_compiled, "not_computable": sorted(computing.not_computable)}


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
