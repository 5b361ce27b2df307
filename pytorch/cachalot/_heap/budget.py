"""The budget of a GPU between the processes that use it: join_budget() and budget()."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .._base.text import bytes_text
from .._bindings.plug import process_plug
from .enabled import index_of, require_enabled

if TYPE_CHECKING:
    from types import TracebackType

    from .enabled import Device


@dataclasses.dataclass(frozen=True)
class BudgetMember:
    """A process that has joined a budget, at one moment."""

    name: str
    process_id: int  # in the process's own namespace of process ids
    share: float  # of what the floors leave, beside the shares of the others
    floor_bytes: int  # the least that its part has
    part_bytes: int  # beyond it, the process gives memory back
    held_bytes: int  # of the device, in use or cached; at most 0.2 s old
    live_bytes: int  # in use
    given_back_bytes: int  # memory given back for the budget, in all
    written_ns: int  # when the figures were written, nanoseconds of Unix time
    cpu_ns: int  # processor time of its membership until then


@dataclasses.dataclass(frozen=True)
class Budget:
    """The total of a budget and its members, at one moment. Its text is a table."""

    path: Path
    gpu: str  # name of the GPU; "" before a process has joined
    uuid: str  # of the GPU; "" if unknown
    total_bytes: int  # the memory that is divided
    members: tuple[BudgetMember, ...]

    def __str__(self) -> str:
        lines = [f"{self.path}: {bytes_text(self.total_bytes)}, members: {len(self.members)}"]
        figures = "{:>8} {:>8} {:>11} {:>11} {:>11} {:>11}  {}"
        lines.append(figures.format("process", "share", "floor", "part", "held", "live", "name"))
        for member in self.members:
            sizes = (member.floor_bytes, member.part_bytes, member.held_bytes, member.live_bytes)
            lines.append(figures.format(member.process_id, f"{member.share:g}", *map(bytes_text, sizes), member.name))
        return "\n".join(lines)


class BudgetMembership:
    """A BudgetMembership is this process's place in the budget of one device, until `leave` or the end of a `with` block.

    Every method may be called from any thread.
    """

    def __init__(self, path: Path, device: int) -> None:
        self.path = path  # the file of the budget
        self.device = device
        self._is_member = True

    def leave(self) -> None:
        """Leaves the budget: this process has no part of it any more. Does nothing after the first call."""
        if self._is_member:
            self._is_member = False
            process_plug().call("leave_budget", self.device)

    def __enter__(self) -> BudgetMembership:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"BudgetMembership(path={str(self.path)!r}, device={self.device}{'' if self._is_member else ', left'})"


def join_budget(
    share: float = 1,
    floor: str | int = 0,
    name: str | None = None,
    path: str | os.PathLike[str] | None = None,
    device: Device = None,
    *,
    keep_free: str | int = 0,
    tells: bool = False,
) -> BudgetMembership:
    """Joins the budget of a device, by which the processes of one user divide its memory.

    This process's part is its floor, and of the total less all floors what its share is of all shares. While it holds more than
    that, in use and cached, it gives memory back as by `give_way`, within a second; other tensors are not touched, and allocations are
    not refused. The part changes when another process joins, leaves or ends, and by `cachalot budget set`. A thread without the GIL
    looks five times a second; allocations do nothing for it. The membership ends with the process; a forked child is not a member.

    Args:
        share: from 0.001 to 1,000,000.
        floor: the least that the part has, in bytes, or a size such as "2GiB".
        name: for `cachalot budget`, of at most 39 bytes; None: the script's name.
        path: the file of the budget, which is made if it is not there; containers that share its folder share the budget. None: the
            GPU's own in the folder that CACHALOT_PUBLISH_DIR names, or in /dev/shm.
        device: by default the current device.
        keep_free: memory that is to stay free on the device for programs outside of the budget, as `floor`: while less is free, this
            process gives memory back.
        tells: writes a line to stderr when this process begins to give memory back.

    Raises:
        ValueError: an argument breaks its rule, the other floors leave less than `floor`, the file is another user's, another
            GPU's or not a budget, the budget has 31 members, or this process is a member for the device. The message names the value and
            the rule; nothing has changed.
        EnableError: cachalot is not enabled.
    """
    plug = require_enabled().plug
    index = index_of(device)
    sizes = [plug.bytes_of(str(size).encode()) for size in (floor, keep_free)]
    its_name, its_path = _encoded("name", name), _encoded("path", path)
    plug.call("join_budget", float(share), *sizes, its_name, its_path, int(tells), index, bad_input=ValueError)
    try:
        return BudgetMembership(budget(device=index).path, index)
    except BaseException:  # the file has gone meanwhile
        plug.call("leave_budget", index)
        raise


def budget(path: str | os.PathLike[str] | None = None, device: Device = None) -> Budget:
    """Returns a budget's total and its members that live.

    May be called from any thread. With a path cachalot need not be enabled, nor the process be a member.

    Args:
        path: the file of the budget; None: the budget of `device` that this process has joined, or would join without a path.
        device: by default the current device.

    Raises:
        ValueError: there is no budget of this user; the message says why.
        EnableError: cachalot is not enabled, and `path` is None; or the library cannot be loaded.
    """
    if path is None:
        plug, index = require_enabled().plug, index_of(device)
    else:
        plug, index = process_plug(), 0
    figures = plug.json("budget_json", _encoded("path", path), index, bad_input=ValueError)
    members = tuple(BudgetMember(**member) for member in figures.pop("members"))
    return Budget(path=Path(figures.pop("path")), members=members, **figures)


def _encoded(what: str, text: str | os.PathLike[str] | None) -> bytes | None:
    if text is None:
        return None
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:  # half of a surrogate pair
        encoded = b"\0"
    if b"\0" in encoded or not encoded:
        raise ValueError(f"{what} is {text!r}; it must be a text without a character 0")
    return encoded
