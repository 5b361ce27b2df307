"""Writes what a process did with PyTorch's memory, at its end, as JSON into the folder that `observe` of CACHALOT_SIM names.

For each device the file has the peaks, where in the program they were, and where memory ran out. Beside it lies a trace of
every allocation and free, trace-<process>-<device>.csv, and with `trace` another one where that says. A program
that brings an allocator which tells nothing, as torch's CUDAPluggableAllocator does, has no torch part in the report.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections import defaultdict
from typing import Any

from cachalot_simulator.attribution import Attribution, by_kind, by_module, is_of_engine
from cachalot_simulator.compute import start_computing
from cachalot_simulator.ending import Ending, error_of_program
from cachalot_simulator.history import MAX_ENTRIES, TRACES_ONLY, History, path_for, write_trace
from cachalot_simulator.owners import Owners
from cachalot_simulator.peaks import Peaks
from cachalot_simulator.places import frames_of, origin_of, place_of, place_of_frame
from cachalot_simulator.process_end import ProcessEnd
from cachalot_simulator.settings import setting

FOLDER = setting("observe") or "."
TRACE = setting("trace")


def watch(torch: Any, end: ProcessEnd, ending: Ending) -> Owners | None:
    """Returns the watcher of memory's owners; None if that is not wanted."""
    if not torch.backends.cuda.is_built():
        return None
    history = History(torch)
    peaks = Peaks(torch)
    torch.cuda._lazy_call(history.start)
    watch_sizes(torch)
    owners = Owners()
    if not TRACES_ONLY:
        owners.watch()
    computing = start_computing(ending)

    def write_if_used() -> None:
        if torch.cuda.is_initialized():
            try:
                write(torch, history, peaks, owners, computing)
            except RuntimeError:  # the program's own allocator tells nothing
                pass

    end.add(write_if_used)
    return None if TRACES_ONLY else owners


SIZE_QUESTIONS: list[int] = []  # the times at which the program read how much memory a GPU has, since 1970, in microseconds
MOST_QUESTIONS = 4096


def watch_sizes(torch: Any) -> None:
    """Notes when the program, not PyTorch, reads `torch.cuda.get_device_properties(device).total_memory`."""
    properties = getattr(torch._C, "_CudaDeviceProperties", None)
    told = getattr(properties, "total_memory", None)
    if told is None:
        return

    def total_memory(self: Any) -> Any:
        if origin_of(sys._getframe(1).f_code.co_filename) != "torch" and len(SIZE_QUESTIONS) < MOST_QUESTIONS:
            SIZE_QUESTIONS.append(time.time_ns() // 1000)
        return told.__get__(self)

    properties.total_memory = property(total_memory)


def write(torch: Any, history: History, peaks: Peaks, owners: Owners, computing: Any) -> None:
    devices = []
    snapshot = history.snapshot()
    for device, trace in enumerate(snapshot["device_traces"]):
        stats = peaks.stats(device)
        if stats["allocation.all.allocated"] == stats["num_ooms"] == 0:
            continue
        told = {"events": len(trace), "cut": len(trace) >= MAX_ENTRIES}
        of_history = {"history": "program's own" if history.is_the_programs else told}
        devices.append(observe(device, stats) | of_history)
        event = peak_of(trace)
        marks = snapshot["external_annotations"]
        attribution = Attribution([] if TRACES_ONLY else trace, marks, owners, None if TRACES_ONLY else event)
        devices[-1] |= observe_history([], None, attribution) if TRACES_ONLY else observe_history(trace, event, attribution)
        live = [] if event is None else live_after(trace[: event + 1])
        devices[-1]["rows"] = rows_of(sizable(live, attribution), caches_of_engines(attribution))
        devices[-1]["size_questions"] = SIZE_QUESTIONS
        if not history.is_the_programs and not told["cut"]:
            write_trace(os.path.join(FOLDER, f"trace-{os.getpid()}-{device}.csv"), trace)
        if TRACE and not history.is_the_programs:
            write_trace(path_for(TRACE, device), trace)
    with open(os.path.join(FOLDER, f"torch-{os.getpid()}.json"), "w", encoding="utf-8") as file:
        json.dump({"torch": torch.__version__, "architectures": torch.cuda.get_arch_list(),
                   "allocator": allocator_of(torch, snapshot), "devices": devices, "values": values(computing),
                   "races": races(computing, snapshot["unfiltered_traces"]),
                   "ended_by": error_of_program()}, file)


def values(computing: Any) -> dict[str, Any] | None:
    """Returns the amount computed, and the places where the program read unknown values; None if nothing was computed."""
    if computing is None:
        return None
    return {"computed": computing.computed, "policy": computing.policy.unknown, "unknown_reads": computing.reads.report(),
            "compiled": computing.is_compiled, "not_computable": sorted(computing.not_computable)}


def races(computing: Any, traces: list[list[dict]]) -> list[dict[str, Any]] | None:
    """Returns the races of memory; None if they were not watched."""
    if computing is None or computing.races is None:
        return None
    return computing.races.report([trace if len(trace) < MAX_ENTRIES else [] for trace in traces])


def allocator_of(torch: Any, snapshot: dict) -> str:
    """"native", "expandable_segments", or what torch calls another allocator, such as "cachalot"."""
    backend = torch.cuda.get_allocator_backend()
    if backend == "native" and snapshot.get("allocator_settings", {}).get("expandable_segments"):
        return "expandable_segments"
    return backend


def observe(device: int, stats: dict[str, int]) -> dict[str, int]:
    return {
        "device": device,
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_requested_bytes": stats["requested_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "allocations": stats["allocation.all.allocated"],
        "retries": stats["num_alloc_retries"],
        "ooms": stats["num_ooms"],
    }


def observe_history(trace: list[dict], event: int | None, attribution: Attribution) -> dict[str, Any]:
    """Returns the peak, which is after the event, the place where memory ran out last, and the live memory after each step."""
    oom = next((entry for entry in reversed(trace) if entry["action"] == "oom"), None)  # a program may try again with less
    return {
        "peak": None if event is None else peak(trace, event, attribution),
        "last_oom": oom and {"at": place_of(oom), "bytes": oom["size"], "free_bytes": oom["device_free"]},
        "steps": attribution.steps,
    }


def peak(trace: list[dict], event: int, attribution: Attribution) -> dict[str, Any]:
    live = [block.entry for block in attribution.peak]
    return {"event": event, "at": place_of(trace[event]), "sites": sites_of(live), "kinds": by_kind(attribution.peak),
            "modules": by_module(attribution.peak), "stacks": stacks_of(live)}


SITES = 5  # told of the peak
STACKS = 200  # likewise, for trees of calls


def peak_of(trace: list[dict]) -> int | None:
    """The event after which most was asked for; None if nothing was."""
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
    return at


Made = tuple[int, dict]  # an allocation: its number among all that the trace allocates, and its entry
MOST_BLOCKS = 4096  # of all rows
SMALL = 64  # times smaller than the largest blocks: others between them
# Kinds of memory that follow from the model, and those that a training has of each pass.
FIXED = {"parameters", "gradients", "optimizer state"}
OF_A_STEP = {"activations", "temporaries", "kept", "communication"}
GIVEN_SIZES = ("kv_cache_memory_bytes", "num_gpu_blocks_override")  # of vLLM's CacheConfig


def live_after(trace: list[dict]) -> list[Made]:
    """Returns the blocks that are live after the trace, in the order of their allocations."""
    live: dict[int, Made] = {}
    made = 0
    for entry in trace:
        if entry["action"] == "alloc":
            live[entry["addr"]] = (made, entry)
            made += 1
        elif entry["action"] == "free_requested":
            live.pop(entry["addr"], None)
    return sorted(live.values(), key=lambda block: block[0])


def sizable(live: list[Made], attribution: Attribution) -> list[Made]:
    """Returns the blocks that the program may have sized to the GPU."""
    kinds = FIXED | OF_A_STEP if attribution.steps else FIXED
    if cache_has_given_size():
        kinds = kinds | {"caches"}
    fixed = {id(block.entry) for block in attribution.peak if block.kind in kinds}
    return [block for block in live if id(block[1]) not in fixed]


def caches_of_engines(attribution: Attribution) -> set[int]:
    """Returns the identities of the entries of such blocks."""
    return {id(block.entry) for block in attribution.peak if is_of_engine(block)}


def cache_has_given_size() -> bool:
    """Returns whether the program gives the size of vLLM's cache, which then does not depend on the GPU."""
    if "vllm.config.cache" not in sys.modules:
        return False
    kind = sys.modules["vllm.config.cache"].CacheConfig
    return any(getattr(one, name, None) is not None for one in gc.get_objects() if type(one) is kind for name in GIVEN_SIZES)


def rows_of(live: list[Made], caches: set[int]) -> list[dict[str, Any]]:
    """Returns the blocks that were allocated one after the other, a row for each change of their size or kind, without small ones, and
    without those of rare sizes where there are too many. `is_cache`: an engine's; `allocations`: their numbers; `times_us`: when they were
    made."""
    largest = max((entry["size"] for _, entry in live), default=0)
    sizes: dict[int, int] = defaultdict(int)
    for _, entry in live:
        sizes[entry["size"]] += 1
    counted, left = set(), MOST_BLOCKS
    for size, count in sorted(sizes.items(), key=lambda one: -one[0] * one[1]):
        if size * SMALL >= largest and count <= left:
            counted.add(size)
            left -= count
    rows: list[dict[str, Any]] = []
    for number, entry in live:
        if entry["size"] not in counted:
            continue
        is_cache = id(entry) in caches
        if not rows or (rows[-1]["block_bytes"], rows[-1]["is_cache"]) != (entry["size"], is_cache):
            rows.append({"at": place_of(entry), "block_bytes": entry["size"], "is_cache": is_cache, "allocations": [], "times_us": []})
        rows[-1]["allocations"].append(number)
        rows[-1]["times_us"].append(entry["time_us"])
    return rows


def sites_of(live: list[dict]) -> list[dict[str, Any]]:
    """The lines of the program that made most of it."""
    sites: dict[str, list[int]] = defaultdict(list)
    for entry in live:
        sites[place_of(entry)].append(entry["size"])
    largest = sorted(sites.items(), key=lambda site: -sum(site[1]))[:SITES]
    return [{"at": at, "bytes": sum(sizes), "allocations": len(sizes)} for at, sizes in largest]


def stacks_of(live: list[dict]) -> list[dict[str, Any]]:
    """The call stacks that made most of it: `bytes`, `allocations` and `frames`, the outermost first, with `at`
    and `origin`."""
    stacks: dict[tuple, list[int]] = defaultdict(list)
    for entry in live:
        frames = tuple((frame["filename"], frame["line"], frame["name"]) for frame in frames_of(entry))
        stacks[frames].append(entry["size"])
    largest = sorted(stacks.items(), key=lambda stack: -sum(stack[1]))[:STACKS]
    return [{"bytes": sum(sizes), "allocations": len(sizes),
             "frames": [{"at": place_of_frame(*frame), "origin": origin_of(frame[0])} for frame in reversed(frames)]}
            for frames, sizes in largest]
