"""cachalot.distributed_report(): the memory of all ranks of a job, over torch.distributed's store."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import rank_files
from .rank_report import DistributedReport, RankReport, names_of, own_report, report_of

if TYPE_CHECKING:
    import torch.distributed

_LOOK_SECONDS = 0.02  # between two looks for the other ranks' reports
_FAILED = b"failed: "  # begins what the first rank tells the others instead of a report

_calls: dict[tuple[int, ...], int] = {}  # of distributed_report, by group: all of its ranks count alike


def distributed_report(
    group: torch.distributed.ProcessGroup | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    timeout: float = 60.0,
    most: int = 5,
) -> DistributedReport:
    """Returns the memory of all ranks of a job, the same report on each rank. All ranks of the group must call it.

        report = cachalot.distributed_report()
        if torch.distributed.get_rank() == 0:
            print(report)

    The figures go through the store of torch.distributed, with any backend, and take no GPU memory. Ranks without CUDA and
    ranks on PyTorch's own allocator are in the report, too. Without torch.distributed there is this process alone.

    Args:
        group: the ranks to ask; by default all.
        folder: read the files that CACHALOT_REPORT_DIR left there, instead of asking ranks.
        timeout: how many seconds the slowest rank may take to call this.
        most: how many lines of the program each rank reports.

    Raises:
        TimeoutError: a rank has not called this in time; the message names it. Every rank that waits raises it.
        ConnectionError: the process that keeps torch.distributed's store has died.
        ValueError: `timeout` or `most` is not positive, `folder` has no reports, or this process is not in the group.
    """
    if timeout <= 0 or most < 1:
        raise ValueError(f"timeout is {timeout} and most is {most}; timeout must be above 0 and most at least 1")
    if folder is not None:
        return rank_files.read(Path(folder))
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return report_of([own_report(0, most)], 1)
    members = tuple(dist.get_process_group_ranks(group))
    if dist.get_rank() not in members:
        raise ValueError(f"rank {dist.get_rank()} is not in the group, which has {names_of(members)}: it must not call this")
    own = own_report(dist.get_rank(), most)
    if _are_others_absent():
        return report_of([own], len(members))
    from torch._C._distributed_c10d import PrefixStore

    call = _calls[members] = _calls.get(members, 0) + 1
    prefix = f"cachalot/report/{zlib.crc32(repr(members).encode())}/{call}"
    store = PrefixStore(prefix, dist.distributed_c10d._get_default_store())
    try:
        store.set(str(own.rank), own.to_json())
        return _led(store, members, timeout) if own.rank == members[0] else _followed(store, members, own.rank, timeout)
    except RuntimeError as error:  # torch's, of a connection that is gone
        first_line = str(error).partition("\n")[0]
        raise ConnectionError(
            f"torch.distributed's store does not answer; the process that keeps it may have died: {first_line}"
        ) from None


def _are_others_absent() -> bool:
    """Returns whether the process is one rank of a simulated job, by itself."""
    setting = getattr(ctypes.CDLL(None), "cachalot_sim_setting", None)
    if setting is None:
        return False
    setting.restype = ctypes.c_char_p
    return bool(setting(b"absent_ranks") == b"1")


def _led(store: Any, members: tuple[int, ...], timeout: float) -> DistributedReport:
    """The group's first rank reads the reports that all ranks leave in the store, and leaves the whole there."""
    keys = [str(rank) for rank in members]
    if not _await(store, keys, timeout):
        late = tuple(rank for rank, key in zip(members, keys) if not store.check([key]))
        message = _has_not_called(late, timeout)
        store.set("all", _FAILED + message.encode())
        raise TimeoutError(message)
    ranks = [RankReport.from_json(store.get(key)) for key in keys]
    worst = max(ranks, key=lambda rank: rank.peak_reserved)
    shown = tuple(rank if rank is worst else dataclasses.replace(rank, sites=None) for rank in ranks)
    report = DistributedReport(shown, len(ranks))
    store.set("all", report.to_json())
    done = [f"{key}/done" for key in keys[1:]]
    _await(store, done, timeout)  # this process may be the one that keeps the store
    for key in [*keys, *done, "all"]:
        store.delete_key(key)
    return report


def _followed(store: Any, members: tuple[int, ...], rank: int | None, timeout: float) -> DistributedReport:
    """Another rank reads the whole. The first rank waits for the others as long as this one would, and then tells."""
    if not _await(store, ["all"], 2 * timeout):
        raise TimeoutError(_has_not_called((members[0],), 2 * timeout))
    told: bytes = store.get("all")
    store.set(f"{rank}/done", "")
    if told.startswith(_FAILED):
        raise TimeoutError(told.removeprefix(_FAILED).decode())
    return DistributedReport.from_json(told)


def _await(store: Any, keys: list[str], seconds: float) -> bool:
    """Returns whether all keys are in the store before the time is over."""
    deadline = time.monotonic() + seconds
    for key in keys:
        while not store.check([key]):
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
    return True


def _has_not_called(ranks: tuple[int, ...], seconds: float) -> str:
    verb = "has" if len(ranks) == 1 else "have"
    return (f"{names_of(ranks)} {verb} not called cachalot.distributed_report() within {seconds:g} s: all ranks of the group must "
            f"call it, and a rank that died cannot (CACHALOT_REPORT_DIR keeps reports of ranks that die)")
