"""What is known of a failure, and what is said of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ._oom_outside import Outside
from ._oom_state import PAGE_BYTES, Failure, PoolId, State


@dataclasses.dataclass(frozen=True)
class Facts:
    failure: Failure
    state: State
    outside: Outside
    tags: Mapping[PoolId, str]
    awake_tags: Mapping[str, int]  # tags with reserved memory, and their bytes, the largest first
    asleep_tags: Mapping[str, int]  # tags that are asleep, and their bytes

    @property
    def is_limited(self) -> bool:
        return self.failure.allowed_bytes < self.failure.device_total_bytes

    @property
    def room(self) -> int:
        """Bytes that the device would still give this process."""
        limit = max(0, self.failure.allowed_bytes - self.state.reserved_bytes)
        return min(limit, self.failure.device_free_bytes)

    @property
    def page_bytes(self) -> int:
        """Bytes that the page heap could map together for the request: whole free pages, of any stream, and new ones."""
        free = sum(c.page_bytes for c in self.state.of("fragmentation", "small", "stream"))
        return free + self.room // PAGE_BYTES * PAGE_BYTES

    @property
    def serves_pages(self) -> bool:
        needed = -(-self.failure.requested_bytes // PAGE_BYTES) * PAGE_BYTES
        return not self.failure.has_pages and self.page_bytes >= needed

    @property
    def served_bytes(self) -> int:
        """The largest request that would have been served instead."""
        usable = max((c.largest for c in self.state.of("fragmentation")), default=0)
        return max(usable, self.room // PAGE_BYTES * PAGE_BYTES)

    def of_device(self) -> dict[str, Any]:
        """Returns what a snapshot does not tell of the device, in bytes, under the keys that `cachalot explain` reads."""
        facts: dict[str, Any] = {
            "device": self.failure.device,
            "total_bytes": self.failure.device_total_bytes,
            "free_bytes": self.failure.device_free_bytes,
            "processes": [{"pid": pid, "bytes": size} for pid, size in self.outside.processes],
        }
        if self.is_limited:
            facts["limit_bytes"] = self.failure.allowed_bytes
        if self.outside.own_bytes is not None:
            facts["process_bytes"] = self.state.reserved_bytes + self.outside.own_bytes
        return facts


@dataclasses.dataclass(frozen=True)
class Verdict:
    cause: str  # "fragmentation", "stream", …: docs/guides/out-of-memory.md lists them
    finding: str
    recommendation: str
