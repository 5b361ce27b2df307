"""The report of a failure as text: at most 40 lines for a reader of the program's output, and all of it for the file."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterable, Sequence

from ._oom_cause import what_would_serve
from ._oom_facts import Facts, Verdict
from ._oom_owners import KINDS, Owner, Owners
from ._oom_state import pool_name, stream_name
from ._text import bytes_text

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
