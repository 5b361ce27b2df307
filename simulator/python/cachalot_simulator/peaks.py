"""When most memory was asked for, and by which lines of the program."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from cachalot_simulator.places import place_of

SITES = 5  # told of the peak


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
