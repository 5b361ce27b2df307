"""Memory of tags that gives way when other memory runs short, and comes back when it is ensured."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._bindings.plug import ALL_DEVICES
from .enabled import index_of, require_enabled
from .limits import size_text
from .regions import Save, keep_of, lost_tags

if TYPE_CHECKING:
    from types import TracebackType

    from .enabled import Device

# One lock for all tags: a refill may ensure other tags.
_ensuring = threading.RLock()
_refills: dict[str, Callable[[], None]] = {}
_MOST_PRIORITY = 2**31 - 1
_NOT_HELD = -1  # the library sets `is_lost` to 0 or 1


def _unlock() -> None:
    """In a forked child, which lacks the thread that may have had the lock."""
    global _ensuring
    _ensuring = threading.RLock()


os.register_at_fork(after_in_child=_unlock)


class Hold:
    """A hold on the memory of a tag: until `release`, or the end of a with statement, the tag does not give way.

    `is_lost` is true if its content was lost and no `refill` has made it again: the holder does.
    """

    def __init__(self, tag: str, is_lost: bool) -> None:
        self.tag = tag
        self.is_lost = is_lost
        # The entry ends the hold: of two threads that release it, one gets it. As the interpreter ends, this module's names are gone.
        self._ends = [functools.partial(require_enabled().plug.call, "let_go", tag.encode(), ALL_DEVICES)]

    def release(self) -> None:
        """Ends the hold. Work that uses the memory need not be done: an eviction waits for it. A second call does nothing."""
        try:
            end = self._ends.pop()
        except IndexError:
            return
        end()

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


def make_evictable(
    tag: str,
    *,
    priority: int = 0,
    save: Save = "pinned",
    folder: str | os.PathLike[str] | None = None,
    refill: Callable[[], None] | None = None,
) -> None:
    """Makes a tag's memory give way, before an allocation or a restore_physical raises torch.OutOfMemoryError, and to give_way.

    The tag stays while a Hold of it exists, while a thread is in a region of it, and while a graph is captured. Its tensors may be used
    only under a Hold (see ensure). May be called from any thread; a second call replaces the first.

    Args:
        tag: its name; the tag need not exist yet.
        priority: the tag with the lowest gives way first; of several the tag that was ensured longest ago.
        save: where the content is meanwhile, as in release_physical; with False it is lost. A tag that cannot be saved stays.
        folder: of the file, for save="file" alone.
        refill: makes the content of all the tag's tensors again; `ensure` calls it after a loss. For save=False alone.

    Raises:
        ValueError: `save` is something else, `folder` or `refill` does not fit it, or `priority` is not a whole number of at most 31
            bits; nothing was done.
        RuntimeError: the tag is empty, the heap is not 'pages', or no file can be made in `folder`; nothing was done.
        EnableError: cachalot is not enabled.
    """
    keep, path = keep_of(save, folder)
    if refill is not None and keep != 0:
        raise ValueError(f"save is {save!r}; with a refill it must be False: content that is kept need not be made again")
    number: Any = priority
    if not isinstance(number, int) or abs(number) > _MOST_PRIORITY:
        raise ValueError(f"priority is {priority!r}; it must be a whole number from -{_MOST_PRIORITY} to {_MOST_PRIORITY}")
    plug = require_enabled().plug
    with _ensuring:
        plug.call("make_evictable", tag.encode(), priority, keep, path, ALL_DEVICES)
        _refills.pop(tag, None)
        if refill is not None:
            _refills[tag] = refill


def make_resident(tag: str) -> None:
    """Takes make_evictable back. A tag that is asleep stays so until ensure or restore_physical.

    Raises:
        RuntimeError: the tag does not exist.
        EnableError: cachalot is not enabled.
    """
    require_enabled().plug.call("make_resident", tag.encode(), ALL_DEVICES)
    with _ensuring:
        _refills.pop(tag, None)


def ensure(tag: str) -> Hold:
    """Brings a tag's memory back if it is asleep, and holds it.

        with cachalot.ensure("adapter"):
            output = model(batch)           # uses tensors of the region "adapter"

    Work that uses the tensors is to be launched while the Hold exists. Other evictable tags give way, up to this tag's own priority,
    if there is too little memory. May be called from any thread; calls wait for each other.

    Raises:
        torch.OutOfMemoryError: a device has too little memory.
        RuntimeError: the tag does not exist, the heap is not 'pages', it is asleep while a graph is being captured, or a CUDA call failed.
        EnableError: cachalot is not enabled.
        Exception: what `refill` raises; the tag is then not held, and the next call calls it again.
    """
    plug = require_enabled().plug
    is_lost = ctypes.c_int(_NOT_HELD)
    with _ensuring:
        hold = Hold(tag, is_lost=False)
        try:
            plug.call("ensure", tag.encode(), ALL_DEVICES, is_lost)
            hold.is_lost = _is_still_lost(tag, is_lost.value != 0)
        except BaseException:  # of the refill, or an interrupt, which may also come just after the call
            if is_lost.value == _NOT_HELD:
                hold._ends.clear()
            elif is_lost.value != 0:
                lost_tags.add(tag)
            hold.release()
            raise
    return hold


def _is_still_lost(tag: str, is_lost: bool) -> bool:
    """Has lost content made again, also that of an earlier call whose refill failed. Returns True if there is no refill for it."""
    is_lost = is_lost or tag in lost_tags
    lost_tags.discard(tag)  # now: a refill may ensure its own tag
    refill = _refills.get(tag)
    if not is_lost or refill is None:
        return is_lost
    try:
        refill()
    except BaseException:
        lost_tags.add(tag)
        raise
    return False


def give_way(size: str | int, device: Device = None) -> int:
    """Gives at least `size` back to the device, as far as possible: cached memory as by trim, then evictable tags, the least
    important first. It is for memory that other processes need. May be called from any thread.

    Args:
        size: bytes, or a size such as "2GiB".
        device: by default the current device.

    Returns:
        The bytes given back.

    Raises:
        ValueError: `size` is not a size.
        RuntimeError: a CUDA call failed; a part may have been given back.
        EnableError: cachalot is not enabled.
    """
    plug = require_enabled().plug
    index = index_of(device)
    return plug.give_way(plug.bytes_of(size_text(size)), index)
