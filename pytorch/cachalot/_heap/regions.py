"""Memory by its tag: which there is, and how it sleeps and wakes at the same addresses."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, Literal, Union

from .._bindings.plug import ALL_DEVICES, process_plug
from .enabled import require_enabled

if TYPE_CHECKING:
    import torch

    Sleeper = Union[str, tuple[int, int], torch.cuda.MemPool]

Save = Union[bool, Literal["pinned", "file"]]

# Evictable tags whose content is lost although `ensure` has brought them back: the refill has failed.
lost_tags: set[str] = set()


@dataclasses.dataclass(frozen=True)
class Region:
    """The memory of a tag on one device."""

    tag: str
    device: int
    is_asleep: bool  # nothing can be allocated from it, nor used, until restore_physical
    allocated_bytes: int  # of its live tensors' blocks, asleep or not
    reserved_bytes: int  # held from the device
    asleep_bytes: int  # given back to the device until restore_physical
    requested_bytes: int = 0  # asked for by its live tensors, asleep or not
    is_evictable: bool = False  # it gives way when memory runs short (make_evictable)
    priority: int = 0  # of an evictable tag: the lowest gives way first
    holds: int = 0  # while there are any, it does not give way (ensure)


@contextlib.contextmanager
def region(tag: str) -> Generator[None, None, None]:
    """Assigns the memory that this thread allocates within the block to `tag`, which can sleep as a whole.

    Regions nest, and several threads may be in regions of one tag. Memory that other threads allocate meanwhile (for example
    in backward passes) does not belong to it.

    Raises:
        RuntimeError: `tag` is empty.
    """
    import torch

    plug = require_enabled().plug
    torch.cuda.init()
    plug.call("begin_tagged", tag.encode(), ALL_DEVICES)
    try:
        yield
    finally:
        plug.call("end_tagged", tag.encode(), ALL_DEVICES)


def regions() -> tuple[Region, ...]:
    """Returns the memory of each tag on each device, sorted by tag and device, without devices where a tag has none.

    A tag exists from its first region to the end of the process.
    """
    import torch

    plug = require_enabled().plug
    if not torch.cuda.is_initialized():
        return ()
    names = [field.name for field in dataclasses.fields(Region)]
    return tuple(Region(**{name: region[name] for name in names}) for region in plug.json("tags_json"))


def release_physical(of: Sleeper | Iterable[Sleeper], *, save: Save = False, folder: str | os.PathLike[str] | None = None) -> None:
    """Waits for the devices, then returns all memory of a tag (or of a torch.cuda.MemPool, or of a graph) to them.

    Tensors keep their addresses and may be deleted. Until `restore_physical` they must not be used, and nothing can be allocated
    from the tag. memory_reserved falls, memory_allocated does not. A tag that is asleep stays asleep. May be called from any
    thread.

    Args:
        of: a tag, a pool, or a pool's id such as `graph.pool()`; or several, which go to sleep one after the other.
        save: "pinned" or True: the content of live tensors is kept in pinned host memory. "file": it is kept in a file, which
            loses its name as soon as it is made, so that nothing is left of it when the process ends. False, the default: the content
            is lost.
        folder: the existing folder of the file, for save="file" alone. Its disk must have as many free bytes as the live tensors.

    Raises:
        ValueError: `save` is something else, or `folder` does not fit it; nothing was done.
        RuntimeError: the tag was never used, the heap is not 'pages', a graph is being captured, no file can be made in `folder`,
            or a CUDA call failed: then a part may be asleep, and calling again continues.
        torch.OutOfMemoryError: the host has too little memory, or the folder's disk too little room, to save to. The device is
            unchanged; devices before it sleep.
        TypeError: `of` is neither a tag nor a pool nor several of them; nothing was done.
    """
    plug = require_enabled().plug
    keep, path = keep_of(save, folder)
    for sleeper in _sleepers(of):
        plug.call("plug_release_physical", *sleeper, keep, path)


def restore_physical(of: Sleeper | Iterable[Sleeper]) -> None:
    """Gives a sleeping tag or pool memory again, at the same addresses, with the saved content. May be called from any thread.

    Args:
        of: as in release_physical; several wake one after the other.

    Raises:
        RuntimeError: as from release_physical.
        torch.OutOfMemoryError: a device has too little memory, although its cache was returned. It still sleeps; devices
            before it are awake.
        TypeError: as from release_physical.
    """
    plug = require_enabled().plug
    for tag, first, second in _sleepers(of):
        if tag is not None:
            plug.call("restore_physical", tag, ALL_DEVICES)
            lost_tags.discard(tag.decode())  # the program makes it itself
        else:
            plug.call("plug_restore_pool_physical", first, second)


def read_saved(address: int, to: int, size: int) -> bool:
    """Copies content that sleeping memory keeps to the host. Returns False unless all of it is kept. May be called from any thread.

    Args:
        address: where it begins on the device, in live tensors.
        to: the address of `size` bytes of the host.
        size: in bytes.
    """
    is_kept = ctypes.c_int()
    require_enabled().plug.call("read_saved", address, to, size, is_kept)
    return is_kept.value != 0


# Flags of cachalot_malloc_with_flags.
_CONTIGUOUS = 1
_PLAIN = 2


def contiguous() -> contextlib.AbstractContextManager[None]:
    """Puts each allocation of this thread within the block into one physical handle, on the page heap as well.

    It is for importers that open only one handle: PyTorch's own allocator in another process, and RDMA through DMA-BUF. Memory for
    cudaIpcGetMemHandle, or for a driver that registers addresses, has to be plain().

    Raises:
        EnableError: cachalot is not enabled.
    """
    return _placed(_CONTIGUOUS)


def plain() -> contextlib.AbstractContextManager[None]:
    """Takes each allocation of this thread within the block from a segment of cudaMalloc, on the page heap as well.

    For tensors that go to cudaIpcGetMemHandle (custom all-reduce, weights sent by legacy IPC) or to a registration by address (RDMA):
    their physical memory never changes, also while it is cached. Such memory cannot sleep.

    Raises:
        EnableError: cachalot is not enabled.
    """
    return _placed(_PLAIN)


def make_plain(pool: torch.cuda.MemPool) -> None:
    """Takes all memory of the pool from segments of cudaMalloc from now on, as plain(), on each GPU that has the pool.

    Raises:
        EnableError: cachalot is not enabled.
        RuntimeError: no GPU has the pool.
        TypeError: `pool` is not a torch.cuda.MemPool.
    """
    try:
        first, second = pool.id
    except (AttributeError, TypeError, ValueError):
        raise TypeError(f"pool is {pool!r}; it must be a torch.cuda.MemPool") from None
    require_enabled().plug.call("plug_set_plain", first, second)


@contextlib.contextmanager
def _placed(flag: int) -> Generator[None, None, None]:
    plug = require_enabled().plug
    before = ctypes.c_uint()
    plug.call("plug_place", 0, before)
    plug.call("plug_place", before.value | flag, ctypes.c_uint())
    try:
        yield
    finally:
        plug.call("plug_place", before, ctypes.c_uint())


def pools() -> list[dict[str, Any]]:
    """Returns the memory of each pool on each device: "device", "first" and "second" (its id), "tag" ("" without one), and in bytes
    "live", "waiting" (freed, and other streams may use it), "cached" and "asleep". Works without enable(). May be called from any
    thread."""
    found: list[dict[str, Any]] = process_plug().json("plug_pool_memory_json")
    return found


def keep_of(save: Save, folder: str | os.PathLike[str] | None) -> tuple[int, bytes | None]:
    """Returns what the library takes: a Keep, and the folder of Keep::file."""
    if save is not True and save is not False and save not in ("pinned", "file"):
        raise ValueError(f"save is {save!r}; it must be True, False, 'pinned' or 'file'")
    if save != "file":
        if folder is not None:
            raise ValueError(f"folder is {os.fspath(folder)!r}; only save='file' has one")
        return int(save is not False), None
    if folder is None:
        raise ValueError("save is 'file', and folder is None; it must be an existing folder for the file")
    return 2, os.fsencode(folder)


def _sleepers(of: Sleeper | Iterable[Sleeper]) -> list[tuple[bytes | None, int, int]]:
    """Returns the sleepers as the library takes them: a tag, or none and a pool's id."""
    if isinstance(of, str) or hasattr(of, "id") or not isinstance(of, Iterable) or _is_id(of):
        return [_sleeper(of)]
    return [_sleeper(each) for each in of]


def _is_id(of: Any) -> bool:
    numbers = of
    return isinstance(of, tuple) and [type(number) for number in numbers] == [int, int]


def _sleeper(of: object) -> tuple[bytes | None, int, int]:
    if isinstance(of, str):
        return of.encode(), 0, 0
    pool: Any = of
    try:
        first, second = pool if _is_id(of) else pool.id
    except (AttributeError, TypeError):
        raise TypeError(
            f"{of!r} is neither a tag nor a torch.cuda.MemPool, nor several of them, such as ['weights', 'kv']"
        ) from None
    return None, first, second
