"""Writes where no memory was given, and mistakes of callers: cachalot.check_memory() and what it returns."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from .enabled import require_enabled

MemoryFinding = Literal[
    "front_canary",  # a write before a block
    "back_canary",  # a write behind a block
    "write_after_free",  # a write to a block, or beside it, after its free
    # With debug:True or CACHALOT_DEBUG=1, mistakes of a caller:
    "double_free",  # a free of a block that was freed already
    "invalid_free",  # a free of an address where no block begins: within one, or where none was
    "wrong_size",  # a free with another size than the allocation's
    "wrong_device",  # a free with another device than the allocation's
    "use_after_free",  # another call (record_stream, …) with a block that was freed
    "invalid_use",  # another call with an address where no block begins
    "released_pool",  # use of a private pool that all its users have released
]


@dataclasses.dataclass(frozen=True)
class MemoryCall:
    """An allocation or a free."""

    number: int  # of the device's allocations and frees, from 1 on; of a mistake: the last one's before it
    thread: int  # the operating system's number of it, as threading.get_native_id says
    clock_us: int  # microseconds since 1970
    stack: tuple[str, ...]  # "step at train.py:41", innermost first, Python's frames before native ones; () without debug


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """A report of the guard: memory that was overwritten, or a mistake of a caller; with the history of the block."""

    kind: MemoryFinding
    device: int  # -1: of an address that no device knows
    address: int  # of the block: the storage's data_ptr; where no block is known, of the mistake
    requested_bytes: int  # of the block; 0: none is known
    offset: int  # from `address`, of the first byte that was overwritten, or of the pointer that was passed
    stream: int  # that it was allocated for
    recorded: tuple[int, ...]  # others that it was used on, as record_stream said
    allocated: MemoryCall | None  # None: no block is known
    freed: MemoryCall | None  # None: it is live; of a pool: its last user's release
    mistake: MemoryCall | None  # the call that was wrong; None for a write, of which the writer is not known
    message: str  # of a mistake: what was wrong with it

    def __repr__(self) -> str:
        """Returns the text that dataclasses write, with addresses as the messages have them."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        shown = {name: repr(value) for name, value in fields.items()}
        shown |= {name: f"{fields[name]:#x}" for name in ("address", "stream")}
        shown["recorded"] = f"({', '.join(f'{stream:#x}' for stream in self.recorded)})"
        return f"MemoryReport({', '.join(f'{name}={text}' for name, text in shown.items())})"


def check_memory() -> list[MemoryReport]:
    """Checks all memory under guard (guard:True in CACHALOT_CONF or `config`), after the work that is queued so far.

    Returns the reports since the last call (at most the newest 1,000): from this check, from frees, and from memory that was
    reused; with CACHALOT_DEBUG=1 or debug:True also mistakes of callers. Each report was also printed on stderr at once.

    Raises:
        RuntimeError: the guard is off, a graph is being captured, or a CUDA call failed.
    """
    import torch

    plug = require_enabled().plug
    torch.cuda.init()
    found: list[dict[str, Any]] = plug.json("check_guard_json")
    return [_memory_report(report) for report in found]


def _memory_report(report: dict[str, Any]) -> MemoryReport:
    calls: dict[str, Any] = {name: _memory_call(report[name]) for name in ("allocated", "freed", "mistake")}
    fields: dict[str, Any] = {**report, "recorded": tuple(report["recorded"]), **calls}
    return MemoryReport(**fields)


def _memory_call(call: dict[str, Any] | None) -> MemoryCall | None:
    if call is None:
        return None
    fields: dict[str, Any] = {**call, "stack": tuple(call["stack"])}
    return MemoryCall(**fields)
