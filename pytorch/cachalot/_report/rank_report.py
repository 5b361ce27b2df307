"""The GPU memory that the ranks of a job hold: the figures of each, and the table over all."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

from .._base.text import bytes_text
from .._heap.enabled import is_enabled
from .._leaks.sites import HOW_TO_RECORD, MemorySite, live_sites

_MOST_ROWS = 32  # ranks in the table; the others are counted
_HIGHEST_RANK = 9_999_999  # that a file may have: those below it without a file are listed
# The values that members of a file have, by the annotation of a RankReport's.
_VALUES = {"int": (int,), "int | None": (int, type(None)), "float": (int, float), "str": (str,)}


@dataclasses.dataclass(frozen=True)
class RankReport:
    """The memory of one rank, on the device of which it holds most. Sizes are in bytes; peaks are since the last reset.

    Attributes:
        rank: the rank; None in files of processes that are not ranks.
        host: the name of the machine.
        process: the number of the process there.
        device: the number of the device; None where the rank has not used CUDA.
        device_name: the device's name, "" without a device.
        allocator: "cachalot" or "PyTorch"; "" without a device.
        total: the memory of the device.
        allocated, reserved, requested: as in torch.cuda.memory_stats, now.
        peak_allocated, peak_reserved, peak_requested: the most of each.
        out_of_memory: how often a request failed.
        sites: the lines with the most live memory; None where no call stacks are recorded.
        note: what is special about the rank, "" for nothing.
        ended: how the program ended: "exit", "SIGTERM" or an exception; "" where no end is known. Of files alone.
        time: when the figures were taken, in seconds since 1970.
    """

    rank: int | None
    host: str
    process: int
    device: int | None = None
    device_name: str = ""
    allocator: str = ""
    total: int = 0
    allocated: int = 0
    reserved: int = 0
    requested: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0
    peak_requested: int = 0
    out_of_memory: int = 0
    sites: tuple[MemorySite, ...] | None = None
    note: str = ""
    ended: str = ""
    time: float = 0.0

    @property
    def name(self) -> str:
        """Returns "rank 3", or "process 4711" where there is no rank."""
        return f"process {self.process}" if self.rank is None else f"rank {self.rank}"

    def to_json(self) -> str:
        """Returns the report as text in JSON; `from_json` reads it."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str | bytes) -> RankReport:
        """Reads what `to_json` wrote. Raises ValueError for other text; members of newer versions are left out."""
        return _rank_of(_parsed(text, "a rank"))


@dataclasses.dataclass(frozen=True)
class DistributedReport:
    """The memory of the ranks of a job; `print(report)` prints a table.

    Attributes:
        ranks: the reports, by rank.
        world_size: how many ranks there are.
        missing: ranks without a report.
    """

    ranks: tuple[RankReport, ...]
    world_size: int
    missing: tuple[int, ...] = ()

    @property
    def worst(self) -> RankReport | None:
        """Returns the rank with the highest peak of reserved memory; None where no rank holds memory."""
        worst = max(self.ranks, key=lambda rank: rank.peak_reserved, default=None)
        return worst if worst is not None and worst.peak_reserved else None

    @property
    def imbalance(self) -> float:
        """Returns the highest peak of reserved memory over the mean of the ranks with a device; 1 is perfectly balanced."""
        peaks = [rank.peak_reserved for rank in self.ranks if rank.device is not None]
        return max(peaks) * len(peaks) / sum(peaks) if any(peaks) else 1.0

    def to_json(self) -> str:
        """Returns the report as text in JSON, with the imbalance and the worst rank; `from_json` reads it."""
        worst = self.worst
        ranks = [dataclasses.asdict(rank) for rank in self.ranks]
        summary = {"imbalance": self.imbalance, "worst": None if worst is None else worst.rank}
        return json.dumps({"world_size": self.world_size, **summary, "missing": list(self.missing), "ranks": ranks})

    @staticmethod
    def from_json(text: str | bytes) -> DistributedReport:
        """Reads what `to_json` wrote. Raises ValueError for other text."""
        report = _parsed(text, "ranks")
        try:
            ranks = tuple(_rank_of(rank) for rank in report["ranks"])
            return DistributedReport(ranks, int(report["world_size"]), tuple(report["missing"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no report of ranks: {error!r}") from None

    def __str__(self) -> str:
        return "\n".join([self._headline(), *self._table(), *self._notes(), *self._sites()])

    def _headline(self) -> str:
        worst = self.worst
        several = f"{self.world_size:,} rank{'' if self.world_size == 1 else 's'}"
        if worst is None:
            return f"cachalot memory of {several}: no rank holds GPU memory"
        return (f"cachalot memory of {several}: {worst.name} has the highest peak of reserved memory, "
                f"{bytes_text(worst.peak_reserved)}, {self.imbalance:.2f} times the mean")

    def _table(self) -> list[str]:
        shown = [rank for rank in self.ranks if rank.device is not None]
        left_out = max(0, len(shown) - _MOST_ROWS)
        if left_out:
            shown = sorted(sorted(shown, key=lambda rank: -rank.peak_reserved)[:_MOST_ROWS], key=_by_rank)
        if not shown:
            return []
        several_hosts = len({rank.host for rank in shown}) > 1
        rows = [["rank", "device", *(title for title, _ in _COLUMNS)]]
        for rank in shown:
            number = "-" if rank.rank is None else str(rank.rank)
            device = f"{rank.host} cuda:{rank.device}" if several_hosts else f"cuda:{rank.device}"
            rows.append([number, device, *(text(rank) for _, text in _COLUMNS)])
        widths = [max(map(len, column)) for column in zip(*rows)]
        lines = ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
        return [*lines, f"  and {left_out:,} more ranks, with lower peaks"] if left_out else lines

    def _notes(self) -> list[str]:
        notes = [f"{rank.name}: {rank.note}" for rank in self.ranks if rank.note]
        notes += [f"{rank.name}: it ended with {rank.ended}" for rank in self.ranks if rank.ended not in ("", "exit")]
        if self.missing:
            notes.append(f"no report of {names_of(self.missing)}")
        return notes

    def _sites(self) -> list[str]:
        worst = self.worst
        if worst is None:
            return []
        if worst.sites is None:
            return [f"{worst.name}: {HOW_TO_RECORD}"]
        when = "live when it ended" if worst.ended else "live now"
        return [f"{worst.name}, by line, {when}:", *(f"  {site}" for site in worst.sites)]


def names_of(ranks: Iterable[int]) -> str:
    """Returns "rank 3" or "ranks 1, 2, 5"; of more than eight the number as well."""
    known = list(ranks)
    if len(known) == 1:
        return f"rank {known[0]}"
    return f"ranks {', '.join(map(str, known[:8]))}" + (f" and {len(known) - 8:,} more" if len(known) > 8 else "")


def _by_rank(rank: RankReport) -> tuple[bool, int]:
    return (rank.rank is None, rank.process if rank.rank is None else rank.rank)


def report_of(ranks: Iterable[RankReport], world_size: int) -> DistributedReport:
    """Returns a report of these ranks, in order; those of the world that are not among them are missing."""
    found = tuple(sorted(ranks, key=_by_rank))
    there = {rank.rank for rank in found}
    return DistributedReport(found, world_size, tuple(rank for rank in range(world_size) if rank not in there))


def _share(size: int, total: int) -> str:
    return f"{bytes_text(size)} ({100 * size / total:.0f} %)" if total else bytes_text(size)


_COLUMNS: tuple[tuple[str, Callable[[RankReport], str]], ...] = (
    ("memory", lambda rank: bytes_text(rank.total)),
    ("peak reserved", lambda rank: _share(rank.peak_reserved, rank.total)),
    ("allocated", lambda rank: bytes_text(rank.peak_allocated)),
    ("requested", lambda rank: bytes_text(rank.peak_requested)),
    ("now reserved", lambda rank: bytes_text(rank.reserved)),
    ("allocated", lambda rank: bytes_text(rank.allocated)),
    ("requested", lambda rank: bytes_text(rank.requested)),
)


def _parsed(text: str | bytes, whose: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is no report of {whose}: {error}") from None


def _rank_of(fields: Any) -> RankReport:
    try:
        fields_of_rank = dataclasses.fields(RankReport)
        given: dict[str, Any] = {field.name: fields[field.name] for field in fields_of_rank}
        for field in fields_of_rank:
            value = given[field.name]
            is_wrong = field.name != "sites" and type(value) not in _VALUES[str(field.type)]
            if is_wrong or (field.name == "rank" and value is not None and not 0 <= value <= _HIGHEST_RANK):
                raise TypeError(f"{field.name} is {value!r}")
        if given["sites"] is not None:
            given["sites"] = tuple(MemorySite(**site) for site in given["sites"])
        return RankReport(**given)
    except (KeyError, TypeError) as error:
        raise ValueError(f"this is no report of a rank: {error!r}") from None


def own_report(rank: int | None, most: int, *, sites: bool = True) -> RankReport:
    """Returns the report of this process. Call stacks are read with `sites` alone."""
    import torch

    common: dict[str, Any] = {"rank": rank, "host": socket.gethostname(), "process": os.getpid(), "time": time.time()}
    if not torch.cuda.is_initialized():
        absent = "there is no GPU" if not torch.cuda.is_available() else "CUDA has not been used"
        return RankReport(**common, note=absent)
    figures = [torch.cuda.memory_stats(device) for device in range(torch.cuda.device_count())]
    device = max(range(len(figures)), key=lambda one: (_peak_reserved(figures[one]), one == torch.cuda.current_device()))
    cuda: Any = torch.cuda
    properties = cuda.get_device_properties(device)
    here = figures[device]
    others = sum(one.get("reserved_bytes.all.current", 0) for one in figures) - here.get("reserved_bytes.all.current", 0)
    notes = [] if is_enabled() else ["cachalot is not enabled there; the figures are those of PyTorch's allocator"]
    notes += [f"it also holds {bytes_text(others)} on other devices"] if others else []
    return RankReport(
        **common,
        device=device,
        device_name=properties.name,
        allocator="cachalot" if is_enabled() else "PyTorch",
        total=properties.total_memory,
        **{f"{prefix}{kind}": here.get(f"{kind}_bytes.all.{when}", 0)
           for prefix, when in (("", "current"), ("peak_", "peak")) for kind in ("allocated", "reserved", "requested")},
        out_of_memory=here.get("num_ooms", 0),
        sites=live_sites(device, most) if sites else None,
        note="; ".join(notes),
    )


def _peak_reserved(figures: dict[str, int]) -> int:
    return figures.get("reserved_bytes.all.peak", 0)
