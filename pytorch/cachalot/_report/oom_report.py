"""Makes the report of a failure. The process writes a snapshot with what it alone knows of itself; the cause, the remedies and the
text are those of the command `cachalot explain`, which reads the file as a user would.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from .._base import environment
from .._base.log import logger
from .._base.text import bytes_text
from .._base.whole_file import write_whole
from .._leaks.frames import is_of_library
from .._programs import command
from .memory_report import memory_report
from .oom_owners import add_owners

if TYPE_CHECKING:
    from .._bindings.plug import Plug

MOST_LINES = 40
OWNER_SECONDS = 5.0  # for the search for modules
EXPLAIN_SECONDS = 20.0  # for the command; other threads wait 30 s for this report

_Part = TypeVar("_Part")


@dataclasses.dataclass(frozen=True)
class OutOfMemoryReport:
    """Why a request failed for want of memory, and what holds the memory. Its str() has at most 40 lines."""

    device: int
    requested_bytes: int
    cause: str  # of `cachalot explain`: "fragmentation", "other_stream", "limit", …; "unknown" where the command did not answer
    recommendation: str
    files: tuple[Path, ...]  # that were written: the text and the snapshot
    full_text: str = dataclasses.field(repr=False)  # every line of the report
    _text: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return self._text


def made(plug: Plug, failure: Any, number: int, folder: Path | None) -> OutOfMemoryReport:
    """Returns the report of the process's failure `number` (_Failure), with files in `folder` if it is given."""
    facts = _facts(plug, failure, number)
    snapshot = _snapshot(plug, failure, facts["free_bytes"])
    facts["failing"]["knows_owners"] = _part(lambda: add_owners(snapshot["segments"], failure.device, OWNER_SECONDS), False)
    snapshot["cachalot"] = {"facts": [facts]}
    head = f"cachalot: out of memory on cuda:{failure.device}, {facts['failing']['who']}\n"
    files: tuple[Path, ...] = ()
    try:
        files = _written(folder, number, snapshot)
        cause, recommendation, text = _explained(*files, failure.device)
    except (command.CommandError, OSError, MemoryError) as error:
        cause = "unknown"
        recommendation = f"cachalot explain {files[1]}" if files else "CACHALOT_ON_OOM=snapshot:DIR, with a DIR on a disk with room"
        text = _raw_figures(failure.requested_bytes, facts, snapshot, f"{cause}: {error}", recommendation)
        _part(lambda: files and files[0].write_text(head + text, errors="replace"), None)
    else:
        if folder is None:
            shutil.rmtree(files[1].parent, ignore_errors=True)
            files = ()
    short = _shortened(head + text, _tail(files))
    return OutOfMemoryReport(failure.device, failure.requested_bytes, cause, recommendation, files, head + text, short)


def _part(make: Callable[[], _Part], otherwise: _Part) -> _Part:
    """Returns a part of the report; `otherwise` if it cannot be made, so that the others are."""
    try:
        return make()
    except Exception as error:
        logger().warning("cachalot: a part of the out-of-memory report is missing: %s: %s", type(error).__name__, error)
        return otherwise


# The facts that the process alone knows. docs/tools/explain.md has the keys.


def _facts(plug: Plug, failure: Any, number: int) -> dict[str, Any]:
    """Returns the facts of the device, under the keys that `cachalot explain` reads."""
    free, total = failure.device_free_bytes, failure.device_total_bytes
    if failure.is_refusal:
        free, total = _part(lambda: _free_and_total(failure.device), (0, failure.allowed_bytes))
    failing = {
        "who": ", ".join(filter(None, (rank_text(), f"process {os.getpid()}", f"failure {number}"))),
        "segment_bytes": failure.segment_bytes,
        "has_pages": bool(failure.has_pages),
        "is_refused": bool(failure.is_refusal),
        "tags": _part(lambda: _tags(plug, failure.device), list[dict[str, Any]]()),
    }
    facts = {"device": failure.device, "total_bytes": total, "free_bytes": free, "failing": failing}
    if failure.allowed_bytes < total:
        facts["limit_bytes"] = failure.allowed_bytes
    _part(lambda: _add_others(facts), None)
    return facts


def _free_and_total(device: int) -> tuple[int, int]:
    import torch

    return torch.cuda.mem_get_info(device)


def _tags(plug: Plug, device: int) -> list[dict[str, Any]]:
    tags = plug.json("tags_json")
    return [{"pool_id": tuple(tag["pool"]), "name": tag["tag"]} for tag in tags if tag["device"] == device]


def _add_others(facts: dict[str, Any]) -> None:
    """Adds the memory of other libraries and processes, as memory_report() has it."""
    report = memory_report(facts["device"])
    others = report.row("others")
    facts["name"] = report.device_name
    facts["processes"] = [{"pid": int(part.key), "bytes": part.bytes} for part in others.parts if part.bytes]
    if report.context_bytes is not None:  # the driver tells this process's memory
        own = [row.bytes or 0 for row in report.rows if row.key not in ("others", "unexplained")]
        facts["process_bytes"] = sum(own)
    facts["failing"]["has_nccl"] = report.nccl_bytes != 0
    if report.nccl_bytes:
        facts["nccl_bytes"] = report.nccl_bytes
    libraries = {name: size for name, size in report.libraries.items() if size}
    if libraries.keys() - {"torch"}:
        facts["failing"]["libraries"] = [{"name": name, "bytes": size} for name, size in libraries.items()]


def _snapshot(plug: Plug, failure: Any, free_bytes: int) -> dict[str, Any]:
    """Returns PyTorch's own snapshot, with stacks and history, where the program records them, or else the heap's. The last event
    of the device that is a failure is this one."""
    snapshot: dict[str, Any] = plug.json("plug_segments_json")
    recorded = _part(_recorded_snapshot, None)
    if recorded is not None:  # it does not tell the memory that is asleep
        asleep = {segment["address"]: segment["asleep_size"] for segment in snapshot["segments"] if "asleep_size" in segment}
        snapshot = recorded
        for segment in snapshot["segments"]:
            if segment["address"] in asleep:
                segment["asleep_size"] = asleep[segment["address"]]
    for segment in snapshot["segments"]:
        segment["segment_pool_id"] = tuple(segment["segment_pool_id"])  # as PyTorch has it
    device: int = failure.device
    traces: list[list[dict[str, Any]]] = snapshot["device_traces"]
    traces.extend(list[dict[str, Any]]() for _ in range(len(traces), device + 1))
    failures = [event for event in traces[device] if event["action"] == "oom"]
    if not failures or failure.is_refusal:  # a refusal is not in the history
        failures.append({"action": "oom", "time_us": time.time_ns() // 1000, "frames": _frames()})
        traces[device].append(failures[-1])
    failures[-1].update(
        device_free=free_bytes,
        size=failure.requested_bytes,
        stream=failure.stream or 0,
        pool_id=(failure.pool_first, failure.pool_second),
    )
    return snapshot


def _recorded_snapshot() -> dict[str, Any] | None:
    import torch

    snapshot: Any = torch.cuda.memory._snapshot() if torch._C._cuda_isHistoryEnabled() else None
    return None if snapshot is None else dict(snapshot)


def _frames() -> list[dict[str, Any]]:
    """Returns the calls that asked for memory, the program's own newest one first."""
    frame: FrameType | None = sys._getframe(1)
    frames: list[dict[str, Any]] = []
    while frame is not None:
        if frames or not is_of_library(frame.f_code.co_filename):
            frames.append({"filename": frame.f_code.co_filename, "name": frame.f_code.co_name, "line": frame.f_lineno})
        frame = frame.f_back
    return frames


# The files of a failure, and the answer of the command.

_RANKS = (("RANK", "rank"), ("LOCAL_RANK", "localrank"))  # as torchrun sets them


def rank_text() -> str:
    """Returns "rank3" by RANK, "localrank3" by LOCAL_RANK, or "" if neither is a number."""
    for variable, name in _RANKS:
        number = environment.number(variable)
        if number is not None:
            return f"{name}{number}"
    return ""


def _written(folder: Path | None, number: int, snapshot: dict[str, Any]) -> tuple[Path, Path]:
    """Writes the snapshot in the folder, which may be new; in one for temporary files where none is given, or it cannot be written.
    Protocol 4 is the newest that PyTorch's memory viewer reads.

    Returns:
        the file for the text, and that of the snapshot.
    """
    name = ".".join(filter(None, ("oom", rank_text(), f"pid{os.getpid()}", str(number), "pickle")))
    content = pickle.dumps(snapshot, protocol=4)
    path = None if folder is None else _part(lambda: _write(folder, name, content), None)
    path = path or _write(Path(tempfile.mkdtemp(prefix="cachalot-oom-")), name, content)
    return path.with_suffix(".txt"), path


def _write(folder: Path, name: str, content: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / name, content)
    return folder / name


def _explained(text_file: Path, snapshot: Path, device: int) -> tuple[str, str, str]:
    """Returns the cause, the recommendation and the text. Raises CommandError if the command does not answer."""
    words = ["explain", str(snapshot), "--device", str(device), "--top", "0", "--json", "--text", str(text_file)]
    answer = command.answer(words, EXPLAIN_SECONDS)
    try:
        verdict = json.loads(answer)["devices"][0]["verdict"]
        text = text_file.read_text(errors="replace")
        return verdict["cause"], verdict["recommendation"], text[text.index("\n  ") + 1 :]  # without the names of file and device
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise command.CommandError(f"`cachalot explain` gave no answer: {error!r}") from None


def _raw_figures(requested: int, facts: dict[str, Any], snapshot: dict[str, Any], cause: str, recommendation: str) -> str:
    """Returns the report without the command: figures alone."""
    segments = [each for each in snapshot["segments"] if each["device"] == facts["device"] and not each.get("asleep_size")]
    rows = {
        "cause": cause,
        "recommendation": recommendation,
        "asked for": bytes_text(requested),
        "device": f"{bytes_text(facts['total_bytes'])}, {bytes_text(facts['free_bytes'])} free",
        "reserved": bytes_text(sum(segment["total_size"] for segment in segments)),
        "allocated": bytes_text(sum(segment["allocated_size"] for segment in segments)),
    }
    if "limit_bytes" in facts:
        rows["limit of this process"] = bytes_text(facts["limit_bytes"])
    return "".join(f"  {label:<24} {text}\n" for label, text in rows.items())


def _shortened(text: str, tail: list[str]) -> str:
    """Returns at most MOST_LINES lines, with the tail: rows of the longest tables are left out."""
    tables = [table.split("\n") for table in text.rstrip("\n").split("\n\n")]
    shown = [len(table) for table in tables]
    while sum(shown) + len(tail) > MOST_LINES and max(shown[1:], default=0) > 2:
        shown[shown.index(max(shown[1:]), 1)] -= 1
    lines: list[str] = []
    for table, count in zip(tables, shown):
        more = len(table) - count
        lines += [*table[: count - 1], f"  … and {more + 1:,} more"] if more else table
    return "\n".join([*lines, *tail][:MOST_LINES])


def _tail(files: tuple[Path, ...]) -> list[str]:
    if not files:
        return []
    text, snapshot = files
    size = bytes_text(snapshot.stat().st_size)
    return [f"all of it: {text}", f"snapshot:  {snapshot} ({size}; cachalot explain reads it)"]
