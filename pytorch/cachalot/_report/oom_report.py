"""Makes the report of a failure: collects the facts, finds the cause, and writes the text, at most 40 lines for a reader of the
program's output and all of it for the file.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from .._base import environment
from .._base.log import logger
from .._base.text import bytes_text
from .._base.whole_file import write_whole
from .._heap.libraries import library_usage
from .._leaks.frames import is_of_library, shown
from .oom_cause import verdict_of, what_would_serve
from .oom_facts import Facts, Failure, Outside, PoolId, State, Verdict, outside_of, pool_name, state_of, stream_name
from .oom_owners import KINDS, UNKNOWN, Owner, Owners, owners_of

if TYPE_CHECKING:
    from .._bindings.plug import Plug

MOST_LINES = 40
_COLUMNS = 118
_LABEL = "  {:<15}"


@dataclasses.dataclass
class Section:
    title: str
    rows: list[str]
    shown: int = 0  # rows in the short form

    def lines(self, most: int) -> list[str]:
        if not self.rows:
            return []
        rest = len(self.rows) - most
        more = [f"  … and {rest:,} more"] if rest > 0 else []
        return [self.title, *("  " + row for row in self.rows[:most]), *more]


def short_text(head: Sequence[str], sections: Sequence[Section], tail: Sequence[str]) -> str:
    """Returns at most MOST_LINES lines: head and tail whole, of the sections what has room."""
    while len(_all_lines(head, sections, tail)) > MOST_LINES:
        longest = max(sections, key=lambda section: section.shown if section.rows else -1)
        if longest.shown <= 1:
            break
        longest.shown -= 1
    return "\n".join(_all_lines(head, sections, tail)[:MOST_LINES])


def full_text(head: Sequence[str], sections: Iterable[Section]) -> str:
    """Returns the head and every row of the sections."""
    lines = list(head)
    for section in sections:
        lines += ["", *section.lines(len(section.rows))] if section.rows else []
    return "\n".join(lines) + "\n"


def head_of(facts: Facts, verdict: Verdict, who: str) -> list[str]:
    """Returns the request, the cause and the one recommendation."""
    failure = facts.failure
    request = (
        f"{bytes_text(failure.requested_bytes)}{' by ' + failure.where if failure.where else ''}, on "
        f"{stream_name(failure.stream)}, from {pool_name(failure.pool, facts.tags)}"
    )
    return [
        f"cachalot: out of memory on cuda:{failure.device}, {who}",
        *_labelled("request", request),
        *_labelled("cause", f"{verdict.cause}: {verdict.finding}"),
        *_labelled("recommendation", verdict.recommendation),
    ]


def sections_of(
    facts: Facts, owners: Owners, lines: Sequence[tuple[str, int, int]], libraries: Sequence[tuple[str, int]]
) -> list[Section]:
    """Returns the sections of the report. `lines`: lines of the program with the bytes and blocks that they allocated."""
    late = "" if owners.is_complete else " (the search was ended: it took too long)"
    return [
        Section("memory of the device", _device_rows(facts), 8),
        Section(f"live memory by module{late}", [_owner_row(owner) for owner in owners.all], 8),
        Section("live memory by line of the program", [_row(size, blocks, where) for where, size, blocks in lines], 4),
        Section("memory by tag", _tag_rows(facts), 3),
        Section("live memory by library", [_row(size, None, name) for name, size in libraries], 4),
        Section("cached memory, and why it cannot serve the request", _cached_rows(facts), 4),
        Section("segments with most free memory, and the live blocks that keep them", _pinned_rows(facts, owners), 3),
        Section("what would have served the request", what_would_serve(facts), 4),
    ]


def _all_lines(head: Sequence[str], sections: Sequence[Section], tail: Sequence[str]) -> list[str]:
    return [*head, *(line for section in sections for line in section.lines(section.shown)), *tail]


def _labelled(label: str, text: str) -> list[str]:
    first, *others = textwrap.wrap(text, _COLUMNS - 17) or [""]
    return [_LABEL.format(label) + first, *(_LABEL.format("") + line for line in others)]


def _row(size: int, blocks: int | None, name: str) -> str:
    count = "" if blocks is None else f"{blocks:,}"
    return f"{bytes_text(size):>12}  {count:>8}  {name}"


def _device_rows(facts: Facts) -> list[str]:
    failure, state, outside = facts.failure, facts.state, facts.outside
    rows = [
        (state.live_bytes, len(state.blocks.addresses), "live blocks of this process"),
        (state.cached_bytes, sum(cached.blocks for cached in state.cached), "cached: free blocks of this process"),
        (state.waiting_bytes, None, "freed, waiting for work on other streams"),
        (outside.other_bytes or 0, None, "other processes"),
        (outside.own_bytes or 0, None, f"CUDA context{', NCCL' if outside.has_nccl else ''} and libraries of this process"),
        (_unexplained(facts), None, "other processes, the CUDA context and libraries"),
        (failure.device_free_bytes, None, f"free, of {bytes_text(failure.device_total_bytes)}"),
        (state.asleep_bytes, None, "asleep: on the host or dropped, not on the device"),
    ]
    if facts.is_limited:
        rows.append((failure.allowed_bytes, None, "limit of this process"))
    return [_row(*row) for row in rows if row[0]]


def _unexplained(facts: Facts) -> int:
    outside = facts.outside
    return max(0, outside.all_bytes - (outside.own_bytes or 0) - (outside.other_bytes or 0))


def _owner_row(owner: Owner) -> str:
    kinds = ", ".join(f"{kind} {bytes_text(owner.kinds[kind])}" for kind in KINDS if kind in owner.kinds)
    return _row(owner.bytes, owner.blocks, owner.name + (f": {kinds}" if kinds else ""))


def _tag_rows(facts: Facts) -> list[str]:
    awake = [_row(size, None, f"{tag!r}, awake") for tag, size in facts.awake_tags.items()]
    return awake + [_row(size, None, f"{tag!r}, asleep") for tag, size in facts.asleep_tags.items()]


_WHY = {
    "fragmentation": "no piece is large enough",
    "small": "the other size class: each serves requests of its own",
    "idle": "nothing is live there, but it is given back only with the pool",
    "stream": "serves that stream alone",
    "graph": "replays of its graphs may use it",
    "pool": "serves only allocations within use_mem_pool",
    "tag": "serves only allocations within its region",
    "default": "the request is for a private pool",
}


def _cached_rows(facts: Facts) -> list[str]:
    return [
        _row(c.bytes, c.blocks, f"{c.name}, at most {bytes_text(c.largest)} in one piece: {_WHY[c.kind]}") for c in facts.state.cached
    ]


def _pinned_rows(facts: Facts, owners: Owners) -> list[str]:
    rows: list[str] = []
    for pinned in facts.state.pinned:
        count = len(pinned.live_addresses)
        keeper = owners.names.get(facts.state.blocks.find(pinned.live_addresses[0]), "not known")
        rows.append(
            f"{bytes_text(pinned.bytes - pinned.live_bytes):>12}  of {bytes_text(pinned.bytes)} at {pinned.address:#x}: "
            f"{bytes_text(pinned.live_bytes)} in {count} live block{'' if count == 1 else 's'} ({keeper})"
        )
    return rows


# Files of a failure: the whole report as text, and beside it a snapshot in PyTorch's form.

_RANKS = (("RANK", "rank"), ("LOCAL_RANK", "localrank"))  # as torchrun sets them


def rank_text() -> str:
    """Returns "rank3" by RANK, "localrank3" by LOCAL_RANK, or "" if neither is a number."""
    for variable, name in _RANKS:
        number = environment.number(variable)
        if number is not None:
            return f"{name}{number}"
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


_Part = TypeVar("_Part")

_Line = tuple[str, int, int]  # a line of the program, bytes, blocks
_NO_FILES: tuple[Path, ...] = ()

OWNER_SECONDS = 5.0  # for the search for modules


@dataclasses.dataclass(frozen=True)
class OutOfMemoryReport:
    """Why a request failed for want of memory, and what holds the memory. Its str() has at most 40 lines."""

    device: int
    requested_bytes: int
    cause: str  # "fragmentation", "stream", "graph pool", "private pool", "waiting", "asleep", "limit", "another process", …
    recommendation: str
    files: tuple[Path, ...]  # that were written: the text and the snapshot
    full_text: str = dataclasses.field(repr=False)  # every line of the report
    _text: str = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return self._text


def made(plug: Plug, native: Any, number: int, folder: Path | None) -> OutOfMemoryReport:
    """Returns the report of the process's failure `number`, with files in `folder` if it is given."""
    document = plug.json("plug_segments_json")
    facts = _facts(plug, _failure(native), document["segments"])
    recorded = _part(_recorded_snapshot, None)
    verdict = verdict_of(facts)
    owners = _part(lambda: owners_of(facts.state.blocks, OWNER_SECONDS), _unknown(facts.state))
    lines: list[_Line] = _part(lambda: _lines(recorded, facts.failure.device), list[_Line]())
    libraries = _part(lambda: _libraries(facts.failure.device), list[tuple[str, int]]())
    sections = sections_of(facts, owners, lines, libraries)
    head = head_of(facts, verdict, _who(number))
    full = full_text(head, sections)
    snapshot = {**(recorded or document), "cachalot": {"facts": [facts.of_device()]}}
    files = _part(lambda: _written(folder, number, full, snapshot), _NO_FILES)
    text = short_text(head, sections, _tail(files))
    return _report(facts, verdict, files, full, text)


def _report(facts: Facts, verdict: Verdict, files: tuple[Path, ...], full: str, text: str) -> OutOfMemoryReport:
    failure = facts.failure
    return OutOfMemoryReport(
        failure.device, failure.requested_bytes, verdict.cause, verdict.recommendation, files, full, text
    )


def _part(make: Callable[[], _Part], otherwise: _Part) -> _Part:
    """Returns a part of the report; `otherwise` if it cannot be made, so that the others are."""
    try:
        return make()
    except Exception as error:
        logger().warning("cachalot: a part of the out-of-memory report is missing: %s: %s", type(error).__name__, error)
        return otherwise


def _who(number: int) -> str:
    rank = rank_text()
    return f"{rank + ', ' if rank else ''}process {os.getpid()}, failure {number}"


def _failure(native: Any) -> Failure:
    total = native.device_total_bytes
    free = native.device_free_bytes
    if native.is_refusal:
        free, total = _part(lambda: _memory_info(native.device), (0, native.allowed_bytes))
    return Failure(
        device=native.device,
        requested_bytes=native.requested_bytes,
        segment_bytes=native.segment_bytes,
        allowed_bytes=native.allowed_bytes,
        device_free_bytes=free,
        device_total_bytes=total,
        stream=native.stream or 0,
        pool=(native.pool_first, native.pool_second),
        is_refusal=bool(native.is_refusal),
        has_pages=bool(native.has_pages),
        where=_where(),
    )


def _memory_info(device: int) -> tuple[int, int]:
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return free, total


def _facts(plug: Plug, failure: Failure, segments: list[dict[str, Any]]) -> Facts:
    all_regions = _part(lambda: _regions(plug), list[dict[str, Any]]())
    regions = [region for region in all_regions if region["device"] == failure.device]
    tags: dict[PoolId, str] = {tuple(region["pool"]): region["tag"] for region in all_regions}
    state = state_of(segments, failure, tags)
    outside_bytes = max(0, failure.device_total_bytes - failure.device_free_bytes - state.reserved_bytes)
    return Facts(
        failure,
        state,
        _part(lambda: outside_of(failure.device, outside_bytes, state.reserved_bytes), Outside(outside_bytes)),
        tags,
        awake_tags=_sizes(regions, is_asleep=False, key="reserved_bytes"),
        asleep_tags=_sizes(regions, is_asleep=True, key="asleep_bytes"),
    )


def _sizes(regions: list[dict[str, Any]], *, is_asleep: bool, key: str) -> dict[str, int]:
    chosen = [(region["tag"], region[key]) for region in regions if region["is_asleep"] == is_asleep]
    return dict(sorted(chosen, key=lambda entry: -entry[1]))


def _regions(plug: Plug) -> list[dict[str, Any]]:
    regions: list[dict[str, Any]] = plug.json("tags_json")
    return regions


def _where() -> str:
    """The line of the program that asked for memory: of the innermost frame outside of PyTorch and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return ""
    return f"{shown(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def _recorded_snapshot() -> dict[str, Any] | None:
    """PyTorch's own snapshot, with stacks and history, where the program records them."""
    import torch

    snapshot: Any = torch.cuda.memory._snapshot() if torch._C._cuda_isHistoryEnabled() else None
    return None if snapshot is None else dict(snapshot)


def _lines(snapshot: Mapping[str, Any] | None, device: int) -> list[_Line]:
    """Lines of the program with the bytes and the number of live blocks that they allocated, if stacks were recorded."""
    sums: dict[str, tuple[int, int]] = {}
    for segment in snapshot["segments"] if snapshot else ():
        for block in segment["blocks"] if segment["device"] == device else ():
            frames = block.get("frames") if block["state"] == "active_allocated" else None
            if frames:
                size, count = sums.get(line := _line(frames), (0, 0))
                sums[line] = size + block["size"], count + 1
    return sorted(((line, *sum_) for line, sum_ in sums.items()), key=lambda entry: -entry[1])


def _line(frames: list[dict[str, Any]]) -> str:
    frame = next((frame for frame in frames if _is_of_program(frame["filename"])), frames[0])
    return f"{shown(frame['filename'])}:{frame['line']} in {frame['name']}"


def _is_of_program(file: str) -> bool:
    """Returns whether a frame is Python's (code from a text has a name as "<string>") and of the program."""
    return file.endswith((".py", ">")) and not is_of_library(file)


def _libraries(device: int) -> list[tuple[str, int]]:
    """Libraries with the live bytes of each, where others than PyTorch have memory."""
    found = [(row.library, row.live_bytes) for row in library_usage() if row.device == device and row.live_bytes]
    others = [name for name, _ in found if name != "torch"]
    return sorted(found, key=lambda row: -row[1]) if others else []


def _unknown(state: State) -> Owners:
    owner = Owner(UNKNOWN, state.live_bytes, len(state.blocks.addresses))
    return Owners([owner], {}, is_complete=False)


def _written(folder: Path | None, number: int, text: str, snapshot: dict[str, Any]) -> tuple[Path, ...]:
    if folder is None:
        return ()
    stem = stem_of(folder, number)
    return write_text(stem, text), write_snapshot(stem, snapshot_of(snapshot))


def _tail(files: tuple[Path, ...]) -> list[str]:
    if not files:
        return []
    size = bytes_text(files[-1].stat().st_size)
    return [f"all of it: {files[0]}", f"snapshot:  {files[-1]} ({size}; cachalot explain reads it)"]
