#!/usr/bin/env python3
"""Runs the programs of programs.py and keeps the memory snapshot of each, with a list of their content.

    data/snapshots/record.py FOLDER [NAME...]    by a Python that has torch, on the simulated CUDA runtime (LD_PRELOAD)

Each program has a process of its own, forked from this one, under PyTorch's own allocator. FOLDER gets NAME.pickle.gz and contents.json,
which has what PyTorch itself counted, and what plain Python finds in the pickle: with it a test compares what the tools read.
"""

import datetime
import gzip
import json
import os
import pickle
import platform
import re
import subprocess
import sys
import tempfile
import traceback
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.utils.checkpoint  # noqa: F401  forked processes need not import it again

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent))
import programs  # noqa: E402

Dict = dict[str, Any]
CONTEXT = "120MiB"  # of the device's memory, for the CUDA context


# ---- a program and its snapshot


def portable(file: str) -> str:
    """Returns the file's name without the folders of this machine."""
    if file == programs.__file__:
        return "programs.py"
    file = re.sub(r"^/.*(?=/lib/python3[.\d]*/)", "/usr", file)
    file = re.sub(r"^/.*(?=/(bin/python|lib/libpython)[^/]*$)", "/usr", file)
    return re.sub(r"^/.*/(?=Python-3[.\d]*/)", "", file)


def frame_lists(snapshot: Dict) -> Iterator[list[Any]]:
    for segment in snapshot["segments"] + snapshot.get("host_segments", []):
        for part in [segment, *segment["blocks"]]:
            yield part.get("frames", [])
            yield part.get("forward_frames", [])
    for trace in [*snapshot["device_traces"], snapshot.get("host_traces", [])]:
        for entry in trace:
            yield entry.get("frames", [])
            yield entry.get("forward_frames", [])


def without_own_frames(frames: list[Any]) -> None:
    """Leaves out the calls of this file, and what is of this machine."""
    for i in reversed(range(len(frames))):
        frame = frames[i]
        if isinstance(frame, str):  # '  File "model.py", line 3, in forward\n    return …\n'
            file = frame.split('"')[1]
            frames[i] = frame.replace(f'"{file}"', f'"{portable(file)}"', 1)
        else:
            file = frame["filename"]
            frame["filename"] = portable(file)
            if "fx_original_trace" in frame:
                frame["fx_original_trace"] = re.sub(r'(?<=File ")[^"]*', lambda found: portable(found[0]), frame["fx_original_trace"])
        if file == __file__:
            del frames[i]


def figures(devices: int) -> list[Dict]:
    """Returns what PyTorch's allocator counted on each device."""
    stats = [torch.cuda.memory_stats(device) for device in range(devices)]
    names = ("allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")
    return [{name: of_device[f"{name}.all.peak"] for name in names} for of_device in stats]


def keep(one: programs.Program, out: Path) -> None:
    out.with_suffix(".json").write_text(json.dumps(figures(one.devices)))
    snapshot = torch.cuda.memory._snapshot(**one.dump)
    seen = set()
    for frames in frame_lists(snapshot):
        if id(frames) not in seen:
            seen.add(id(frames))
            without_own_frames(frames)
    with out.open("wb") as file:
        pickle.dump(snapshot, file)  # as torch.cuda.memory._dump_snapshot does


def run(one: programs.Program, out: Path) -> None:
    torch.cuda.memory._record_memory_history(**one.history)
    try:
        one.run()
    except torch.OutOfMemoryError:
        if not one.runs_out:
            raise
        return keep(one, out)  # while the traceback keeps what the program had
    if one.runs_out:
        raise SystemExit("there was enough memory")
    keep(one, out)


def forked(name: str, one: programs.Program, out: Path) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.environ["CACHALOT_SIM"] = f"memory:{one.memory},devices:{one.devices},context:{CONTEXT}"
            os.environ["PYTORCH_CUDA_ALLOC_CONF"] = one.settings
            run(one, out)
            status = 0
        except SystemExit as end:
            print(f"{name}: {end}", file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    if os.waitpid(child, 0)[1] != 0:
        raise SystemExit(f"{name} failed")


# ---- the content of a snapshot


def frame_text(frame: Any) -> str:
    """Returns the frame as file|line|function|node;"""
    if isinstance(frame, str):
        file, line, function = re.match(r'\s*File "(.*)", line (\d+), in (.*)', frame).groups()  # type: ignore[union-attr]
        return f"{file}|{line}|{function}|;"
    line = frame["line"]
    return f"{frame['filename']}|{0 if line >= 1 << 63 else line}|{frame['name']}|{frame.get('fx_node_name', '')};"


def stack_text(frames: list[Any]) -> str:
    if frames and isinstance(frames[0], str):  # the newest call is the last
        frames = frames[::-1]
    return "[" + "".join(frame_text(frame) for frame in frames) + "]"


def details_text(part: Dict) -> str:
    context = part.get("compile_context", "")
    return " ".join(
        [stack_text(part.get("forward_frames", [])), "" if context == "N/A" else context, part.get("user_metadata", ""), part.get("internal_metadata", "")]
    )


def unsigned(number: int) -> int:
    return number % (1 << 64)


def pools_of_events(trace: list[Dict], segments: list[Dict]) -> list[tuple[int, int]]:
    """Returns the pool of each event. Before PyTorch 2.12 it is that of the segment at its address, if this is still there at the end."""
    if any("pool_id" in entry for entry in trace):
        return [tuple(entry["pool_id"]) for entry in trace]
    there = [(one["address"], one["address"] + one["total_size"], tuple(one["segment_pool_id"])) for one in segments]
    pools = []
    for entry in reversed(trace):
        found = [one for one in there if one[0] <= entry.get("addr", -1) < one[1]]
        pools.append(found[0][2] if found else (0, 0))
        if entry["action"] == "segment_alloc" and found:
            there.remove(found[0])
    return pools[::-1]


def lines_of_device(what: str, number: int, trace: list[Dict], segments: list[Dict]) -> Iterator[str]:
    """Yields a line for each event, segment and block, with all that it has."""
    yield f"{what} {number}"
    living: dict[int, Dict] = {}  # by address: an annotation stands beside what the allocation had
    for entry, pool in zip(trace, pools_of_events(trace, segments), strict=True):
        action = entry["action"]
        address = entry["device_free" if action == "oom" else "addr"]
        shown = entry
        if action == "alloc":
            living[address] = entry
        elif action.startswith("free_"):
            living.pop(address, None)
        elif action == "annotate":
            before = living.get(address, {})
            kept = {key: before[key] for key in ("forward_frames", "compile_context", "internal_metadata") if before.get(key)}
            shown = living[address] = entry | kept
        yield (
            f"{action} {unsigned(address)} {entry['size']} {entry['time_us']} {stack_text(entry.get('frames', []))} {unsigned(entry['stream'])} "
            f"{pool} {details_text(shown)}"
        )
    for segment in segments:
        flags = ["false", "true"][segment["segment_type"] == "small"], ["false", "true"][segment["is_expandable"]]
        yield (
            f"segment {segment['address']} {segment['total_size']} {stack_text(segment.get('frames', []))} {unsigned(segment['stream'])} "
            f"{tuple(segment['segment_pool_id'])} {' '.join(flags)}"
        )
        for block in segment["blocks"]:
            state = ["active_allocated", "active_pending_free", "inactive"].index(block["state"])
            yield (
                f"block {block['address']} {block['size']} {block['requested_size']} {stack_text(block.get('frames', []))} {state} {details_text(block)}"
            )


def contents_of_device(what: str, number: int, trace: list[Dict], segments: list[Dict]) -> Dict:
    blocks = [block for segment in segments for block in segment["blocks"]]
    with_key = Counter(
        key
        for entry in trace
        for key in ("frames", "forward_frames", "compile_context", "user_metadata", "internal_metadata", "pool_id")
        if entry.get(key) not in (None, "", [], "N/A", (0, 0))
    )
    text = "\n".join(lines_of_device(what, number, trace, segments))
    return {
        "number": number,
        "events": Counter(entry["action"] for entry in trace),
        "events_with": with_key,
        "segments": len(segments),
        "segment_bytes": sum(segment["total_size"] for segment in segments),
        "blocks": Counter(block["state"] for block in blocks),
        "block_bytes": sum(block["size"] for block in blocks),
        "crc32": zlib.crc32(text.encode()),
    }


def is_of_empty_cache(entry: Dict) -> bool:
    return entry["action"] == "segment_free" and any(frame["name"] == "empty_cache" for frame in entry.get("frames", []))


def contents(snapshot: Dict) -> Dict:
    devices = []
    for number, trace in enumerate(snapshot["device_traces"]):
        segments = [segment for segment in snapshot["segments"] if segment["device"] == number]
        if trace or segments:
            devices.append(contents_of_device("device", number, trace, segments))
    host = snapshot.get("host_traces", []), snapshot.get("host_segments", [])
    ooms = [entry for trace in snapshot["device_traces"] for entry in trace if entry["action"] == "oom"]
    return {
        "settings": snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"],
        "stages": len(snapshot["external_annotations"]),
        "nodes": len({frame["fx_node_name"] for frames in frame_lists(snapshot) for frame in frames if "fx_node_name" in frame}),
        "failed_bytes": ooms[-1]["size"] if ooms else None,
        "empties_cache": any(is_of_empty_cache(entry) for trace in snapshot["device_traces"] for entry in trace),
        "devices": devices,
        "host": contents_of_device("host", 0, *host) if any(host) else None,
    }


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    list_file = folder / "contents.json"
    all_contents = json.loads(list_file.read_text())["snapshots"] if list_file.exists() else {}
    about = {"torch": torch.__version__, "python": platform.python_version(), "date": datetime.date.today().isoformat()}
    names = sys.argv[2:] or [name for name, one in programs.PROGRAMS.items() if programs.NEWER or not one.since]
    with tempfile.TemporaryDirectory() as scratch:
        if programs.NEWER:
            os.environ["CACHALOT_PLACE_LIBRARY"] = place_library(Path(scratch))
        for name in names:
            one, out = programs.PROGRAMS[name], Path(scratch) / f"{name}.pickle"
            forked(name, one, out)
            packed = gzip.compress(out.read_bytes(), mtime=0)
            (folder / f"{name}.pickle.gz").write_bytes(packed)
            found = contents(pickle.loads(gzip.decompress(packed)))
            for device, counted in zip(found["devices"], json.loads(out.with_suffix(".json").read_text()), strict=True):
                device["peaks"] = counted
            all_contents[name] = {"is_whole": one.is_whole, "memory": one.memory} | found
            events = [sum(device["events"].values()) for device in found["devices"]]
            list_file.write_text(json.dumps(about | {"snapshots": all_contents}, indent=1) + "\n")
            print(f"{name:<22} {sum(events):>6} events  {len(packed):>7,} bytes", flush=True)
    return 0


def place_library(folder: Path) -> str:
    """Compiles place.cpp against the headers of this PyTorch."""
    library, packages = folder / "place.so", Path(torch.__file__).parents[1]
    headers = [str(Path(torch.__file__).parent / "include"), *map(str, packages.glob("nvidia/cu1*/include"))]
    command = ["g++", "-std=c++20", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("place.cpp"))]
    command += [f"-I{header}" for header in headers] + [str(Path(torch.__file__).parent / "lib" / f"lib{name}.so") for name in ("c10_cuda", "c10")]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run(command, check=True, env=environment)
    return str(library)


if __name__ == "__main__":
    sys.exit(main())
