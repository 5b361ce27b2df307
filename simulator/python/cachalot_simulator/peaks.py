"""When most memory was asked for, and by which lines of the program."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from cachalot_simulator.places import frames_of, origin_of, place_of, place_of_frame

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
