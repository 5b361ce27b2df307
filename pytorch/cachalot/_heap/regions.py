"""Memory by its tag: which there is, and how it sleeps and wakes at the same addresses."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, Union

from .._bindings.plug import ALL_DEVICES
from .enabled import require_enabled

if TYPE_CHECKING:
    import torch

    Sleeper = Union[str, torch.cuda.MemPool]


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


def release_physical(of: Sleeper | Iterable[Sleeper], *, save: bool = False) -> None:
    """Waits for the devices, then returns all memory of a tag (or of a torch.cuda.MemPool) to them.

    Tensors keep their addresses and may be deleted. Until `restore_physical` they must not be used, and nothing can be allocated
    from the tag. memory_reserved falls, memory_allocated does not. A tag that is asleep stays asleep.

    Args:
        of: a tag or a pool, or several, which go to sleep one after the other.
        save: keep the content of live tensors in pinned host memory; otherwise it is lost.

    Raises:
        RuntimeError: the tag was never used, the heap is not 'pages', a graph is being captured, or a CUDA call failed: then a
            part may be asleep, and calling again continues.
        torch.OutOfMemoryError: the host has too little memory to save to. The device is unchanged; devices before it sleep.
        TypeError: `of` is neither a tag nor a pool nor several of them; nothing was done.
    """
    plug = require_enabled().plug
    for sleeper in _sleepers(of):
        if isinstance(sleeper, bytes):
            plug.call("release_physical", sleeper, int(save), ALL_DEVICES)
        else:
            plug.call("plug_release_pool_physical", *sleeper, int(save))


def restore_physical(of: Sleeper | Iterable[Sleeper]) -> None:
    """Gives a sleeping tag or pool memory again, at the same addresses, with the saved content.

    Args:
        of: as in release_physical; several wake one after the other.

    Raises:
        RuntimeError: as from release_physical.
        torch.OutOfMemoryError: a device has too little memory, although its cache was returned. It still sleeps; devices
            before it are awake.
        TypeError: as from release_physical.
    """
    plug = require_enabled().plug
    for sleeper in _sleepers(of):
        if isinstance(sleeper, bytes):
            plug.call("restore_physical", sleeper, ALL_DEVICES)
        else:
            plug.call("plug_restore_pool_physical", *sleeper)


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
    sleeper = None if isinstance(pool, str) else _sleeper(pool)
    if not isinstance(sleeper, tuple):
        raise TypeError(f"{pool!r} is not a torch.cuda.MemPool")
    require_enabled().plug.call("plug_set_plain", *sleeper)


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


def _sleepers(of: Sleeper | Iterable[Sleeper]) -> list[bytes | tuple[int, int]]:
    """Returns the sleepers as the library takes them: a tag, or a pool's id."""
    if isinstance(of, str) or hasattr(of, "id") or not isinstance(of, Iterable):
        return [_sleeper(of)]
    return [_sleeper(each) for each in of]


def _sleeper(of: object) -> bytes | tuple[int, int]:
    if isinstance(of, str):
        return of.encode()
    pool: Any = of
    try:
        first, second = pool.id
    except (AttributeError, TypeError):
        raise TypeError(
            f"{of!r} is neither a tag nor a torch.cuda.MemPool, nor several of them, such as ['weights', 'kv']"
        ) from None
    return first, second
