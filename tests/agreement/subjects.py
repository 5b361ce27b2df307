"""The files that the commands are asked about: shipped snapshots and traces, logs of real GPUs, and snapshots of made programs."""

from __future__ import annotations

import gzip
import json
import pathlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import generated_programs
from commands import Commands
from questions import Subject

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "data"
CONTEXT = 120 << 20  # of data/snapshots/record.py
MADE = 64  # seeds
TRACES = 26  # of data/traces/programs: those with fewest events
Make = Callable[[pathlib.Path, pathlib.Path], Subject]  # the command, a folder of its own


def shipped() -> Iterator[tuple[str, Make]]:
    """Yields name and maker of each snapshot in data/snapshots."""
    yield "layers", lambda command, folder: Subject("layers", Commands(command, DATA / "snapshots" / "layers.pickle", folder))
    for version in ("torch-2.11", "torch-2.15"):
        contents = json.loads((DATA / "snapshots" / version / "contents.json").read_text())["snapshots"]
        for name, content in sorted(contents.items()):
            yield f"{version}/{name}", recorded(f"{version}/{name}", content)


def recorded(name: str, content: dict[str, Any]) -> Make:
    def make(command: pathlib.Path, folder: pathlib.Path) -> Subject:
        path = DATA / "snapshots" / f"{name}.pickle.gz"
        peaks = {one["number"]: one["peaks"] for one in content["devices"]} if content["is_whole"] else {}
        message = message_of(pickle.loads(gzip.decompress(path.read_bytes())), memory_of(content["memory"]))
        return Subject(name, Commands(command, path, folder), peaks=peaks, message=message, settings=content["settings"])

    return make


def memory_of(text: str) -> int:
    assert text.endswith("GiB")
    return int(text[:-3]) << 30


def message_of(snapshot: dict[str, Any], device_bytes: int) -> str | None:
    """Returns PyTorch's message of a program that ended with a failure on device 0; None for other programs."""
    trace = snapshot["device_traces"][0]
    if not trace or trace[-1]["action"] != "oom":
        return None
    failure, size_text = trace[-1], generated_programs.size_text
    segments = [one for one in snapshot["segments"] if one["device"] == 0]
    reserved, live = (sum(one[key] for one in segments) for key in ("total_size", "active_size"))
    private = sum(one["total_size"] - one["active_size"] for one in segments if tuple(one["segment_pool_id"]) != (0, 0))
    free = failure["device_free"]
    is_limited = free + reserved + CONTEXT < device_bytes or free >= failure["size"] + (2 << 20)
    allowed = f"{size_text(device_bytes // 4)} allowed; " if is_limited else ""
    in_pools = f"with {size_text(private)} allocated in private pools (e.g., CUDA Graphs), " if private else ""
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size_text(failure['size'])}. GPU 0 has a total capacity of "
        f"{size_text(device_bytes)} of which {size_text(free)} is free. Including non-PyTorch memory, this process has "
        f"{size_text(device_bytes - free)} memory in use. {allowed}Of the allocated memory {size_text(live + private)} is allocated by PyTorch, "
        f"{in_pools}and {size_text(reserved - live - private)} is reserved by PyTorch but unallocated.\n"
    )


def gpu_logs() -> Iterator[tuple[str, Make]]:
    """Yields the histories of real GPUs, as snapshots."""
    for path in sorted((DATA / "gpu_traces").glob("*.csv.gz")):
        yield f"gpu/{path.name.split('.')[0]}", snapshot_maker(f"gpu/{path.name.split('.')[0]}", path)


def snapshot_maker(name: str, path: pathlib.Path) -> Make:
    def make(command: pathlib.Path, folder: pathlib.Path) -> Subject:
        out = folder / "snapshot.pickle"
        out.write_bytes(pickle.dumps(snapshot_of_log(gzip.decompress(path.read_bytes()).decode())))
        return Subject(name, Commands(command, out, folder), settings="")

    return make


def snapshot_of_log(text: str) -> dict[str, Any]:
    """Returns the snapshot that a file of data/gpu_traces has without its call stacks."""
    segments: list[dict[str, Any]] = []
    events = []
    for line in text.splitlines():
        kind, *fields = line.split(",")
        if kind == "EV":
            action, address, bytes_, stream, time = fields
            place = "device_free" if action == "oom" else "addr"
            event = {"action": action, place: int(address, 0), "size": int(bytes_), "stream": int(stream, 0), "time_us": int(time), "frames": []}
            events.append(event)
        elif kind == "END" and fields[0] == "seg":
            _, address, bytes_, stream, size, is_expandable = fields
            place = {"device": 0, "address": int(address, 0), "total_size": int(bytes_), "stream": int(stream, 0), "segment_type": size}
            segments.append(place | {"segment_pool_id": (0, 0), "is_expandable": is_expandable == "True", "frames": [], "blocks": []})
        elif kind == "END":
            _, address, bytes_, requested, state = fields
            block = {"address": int(address, 0), "size": int(bytes_), "requested_size": int(requested), "state": state, "frames": []}
            segments[-1]["blocks"].append(block)
    return {"segments": segments, "device_traces": [events], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": ""}, "external_annotations": []}


def made() -> Iterator[tuple[str, Make]]:
    """Yields the snapshots of made programs."""
    for seed in range(MADE):
        yield f"made/{seed}", made_maker(seed)


def made_maker(seed: int) -> Make:
    def make(command: pathlib.Path, folder: pathlib.Path) -> Subject:
        one = generated_programs.make(seed)
        out = folder / f"{one.name}.pickle"
        out.write_bytes(pickle.dumps(one.snapshot))
        peaks = {i: peaks for i, peaks in enumerate(one.peaks) if peaks["reserved_bytes"]} if one.is_whole else {}
        settings = one.snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"]
        return Subject(f"made/{seed}", Commands(command, out, folder), peaks=peaks, message=one.message, settings=settings)

    return make


def traces() -> Iterator[tuple[str, Make]]:
    """Yields recorded traces: all of data/traces but the longest, and the shortest of programs."""
    paths = [path for path in sorted((DATA / "traces").glob("*.csv.gz")) if not path.name.startswith("serve_kv")]
    paths += sorted(sorted((DATA / "traces" / "programs").glob("*.csv.gz")), key=lambda path: path.stat().st_size)[:TRACES]
    for path in paths:
        name = f"{path.parent.name}/{path.name.split('.')[0]}"
        yield name, trace_maker(name, path)


def trace_maker(name: str, path: pathlib.Path) -> Make:
    return lambda command, folder: Subject(name, Commands(command, path, folder), is_trace=True)


def all_files() -> dict[str, Make]:
    return dict([*shipped(), *gpu_logs(), *made(), *traces()])
