"""cachalot as PyTorch's GPU memory allocator.

    import torch
    import cachalot

    cachalot.enable()  # before the first CUDA tensor, stream or device query

Everything in torch.cuda.memory then works on cachalot and means what it means without: statistics, snapshots, history,
limits, MemPool, CUDA graphs. What PyTorch has no figure for is `cachalot.fragmentation()`.

On the page heap (CACHALOT_CONF=heap:pages) memory can sleep, and wake at the same addresses:

    with cachalot.region("weights"):
        model = Model().cuda()
    cachalot.release_physical("weights", save=True)  # the memory goes back to the GPU; tensors stay
    cachalot.restore_physical("weights")

Tensors of one kind are reused without an allocation (pool/README.md):

    pool = cachalot.TensorPool((1024, 1024), dtype=torch.float16)
    with pool.acquire() as tensor:
        ...

Memory that a loop does not give back is found by where it was allocated (docs/leaks.md):

    detector = cachalot.watch_leaks()  # then, after some iterations
    print(detector.report())

With CACHALOT_CONF=guard:True who writes where he should not is found: `cachalot.check_memory()`. With CACHALOT_DEBUG=1 so
is who frees what he should not, with stacks.

`python -m cachalot script.py` runs a script that knows nothing of this.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Union

from . import _adapter, _config, _fallback, _leaks
from ._errors import EnableError
from ._leaks import AllocationSite, Leak, LeakDetector, LeakReport, Suspect, TrackReport, leaks, track, watch_leaks
from ._plug import LIBRARY, NATIVE, Plug

if TYPE_CHECKING:
    import torch

    from ._lease import Lease
    from ._pool_set import PoolSet
    from ._pools import PoolStats, TensorPool
    from ._saved_tensors import SavedOnHost

    Device = Union[torch.device, str, int, None]
    Sleeper = Union[str, torch.cuda.MemPool]

__all__ = [
    "AllocationSite",
    "EnableError",
    "Fragmentation",
    "Leak",
    "LeakDetector",
    "LeakReport",
    "Lease",
    "MemoryCall",
    "MemoryFinding",
    "MemoryReport",
    "PoolSet",
    "PoolStats",
    "SavedOnHost",
    "Suspect",
    "TensorPool",
    "TrackReport",
    "check_memory",
    "contiguous",
    "enable",
    "enabled_mode",
    "fragmentation",
    "include_path",
    "is_enabled",
    "leaks",
    "library_path",
    "region",
    "release_physical",
    "restore_physical",
    "stats",
    "track",
    "watch_leaks",
]

# Imported when first asked for: they import torch.
_IMPORTED_LATER = {
    "Lease": "_lease",
    "PoolSet": "_pool_set",
    "PoolStats": "_pools",
    "SavedOnHost": "_saved_tensors",
    "TensorPool": "_pools",
}


def __getattr__(name: str) -> Any:
    if name not in _IMPORTED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_IMPORTED_LATER[name]}", __name__), name)


Mode = Literal["auto", "full", "plug"]
_MODES = ("auto", "full", "plug")


@dataclasses.dataclass(frozen=True)
class Fragmentation:
    """How well one device's memory is used, now. Each ratio is computed from the byte counts beside it."""

    requested_bytes: int = 0  # asked for by live allocations (those waiting for other streams included)
    allocated_bytes: int = 0  # of the blocks that serve them
    reserved_bytes: int = 0  # held from the device
    free_bytes: int = 0  # cached: in free blocks
    largest_free_bytes: int = 0  # of the largest free block
    free_blocks: int = 0
    peak_requested_bytes: int = 0
    peak_reserved_bytes: int = 0
    internal: float = 0.0  # 1 - requested/allocated; 0 when nothing is allocated
    external: float = 0.0  # 1 - largest_free/free; 0 when nothing is cached
    reserved_ratio: float = 0.0  # reserved/allocated; 0 when nothing is allocated
    peak_ratio: float = 0.0  # peak reserved/peak requested; 0 when nothing was requested
    free_block_histogram: tuple[int, ...] = ()  # entry i: blocks of [512 << i, 1024 << i) bytes; the last: and more


MemoryFinding = Literal[
    "front_canary",  # somebody wrote before a block
    "back_canary",  # somebody wrote behind it
    "write_after_free",  # somebody wrote to it, or beside it, when it was freed
    # With debug:True or CACHALOT_DEBUG=1, mistakes of a caller:
    "double_free",  # a free of a block that was freed already
    "invalid_free",  # a free of an address where no block begins: within one, or where none was
    "wrong_size",  # a free that said another size than the allocation
    "wrong_device",  # a free that said another device than the allocation
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
    """A block, where it was written to by somebody whose it was not or what was done with it, and its history."""

    kind: MemoryFinding
    device: int  # -1: of an address that no device knows
    address: int  # of the block: the storage's data_ptr; where no block is known, of the mistake
    requested_bytes: int  # of the block; 0: none is known
    offset: int  # from `address`, of the first byte that was overwritten, or of the pointer that was passed
    stream: int  # that it was allocated for
    recorded: tuple[int, ...]  # others that it was used on, as record_stream said
    allocated: MemoryCall | None  # None: no block is known
    freed: MemoryCall | None  # None: it is live; of a pool: its last user's release
    mistake: MemoryCall | None  # the call that was wrong; None: somebody wrote, and who is not known
    message: str  # of a mistake: what was wrong with it


@dataclasses.dataclass(frozen=True)
class _Enabled:
    mode: Literal["full", "plug"]
    config: str | None
    plug: Plug


_lock = threading.Lock()
_enabled: _Enabled | None = None


def enable(config: str | None = None, *, late: bool = False, mode: Mode = "auto") -> None:
    """Makes cachalot the allocator of this process's PyTorch.

    Call it before the first CUDA tensor, stream or device query. A second call that asks for what is so already does
    nothing; one that asks for something else is refused.

    Args:
        config: options such as "max_split_size_mb:64,garbage_collection_threshold:0.8", on top of what PyTorch read
            from PYTORCH_CUDA_ALLOC_CONF and of CACHALOT_CONF. Only the keys it names change.
        late: take over although CUDA is in use. Tensors that exist stay with PyTorch's allocator until they die.
        mode: "full", the whole allocator, compiled for the PyTorch found; "plug", two functions and eight hooks that
            work with any PyTorch but serve less; "auto", full where it can be had, else plug with a warning.

    Raises:
        ValueError: `config`, CACHALOT_CONF, CACHALOT_DEBUG, CACHALOT_LEAK_REPORT or `mode` is bad; the message names key,
            value and rule.
        EnableError: it cannot be done; the message says why. Nothing was changed.
    """
    global _enabled
    if mode not in _MODES:
        raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(map(repr, _MODES))}")
    with _lock:
        if _enabled is not None:
            _require_no_change(_enabled, config, mode)
            return
        _require_torch_can(late)
        late = late and _cuda_use() is not None
        report_leaks = _leaks.asked_by_environment()
        plug = Plug()
        adapter = _load_adapter(mode, late)
        with _all_or_nothing(plug):
            _config.clean_environment()
            plug.configure(config or "")
            _enabled = _Enabled(_install(plug, adapter, mode, late), config, plug)
    if report_leaks:
        _leaks.watch_once_in_use()


def is_enabled() -> bool:
    """Whether cachalot is PyTorch's allocator."""
    return _enabled is not None


def enabled_mode() -> Literal["full", "plug"] | None:
    """How cachalot is PyTorch's allocator; None when it is not."""
    return _enabled.mode if _enabled else None


def stats(device: Device = None) -> dict[str, int]:
    """What torch.cuda.memory_stats says, of the current device by default. Empty before CUDA is in use."""
    import torch

    plug = _require_enabled().plug
    return plug.json("stats", _index(device)) if torch.cuda.is_initialized() else {}


def fragmentation(device: Device = None) -> Fragmentation:
    """How well the device's memory is used; of the current device by default. All 0 before CUDA is in use."""
    import torch

    plug = _require_enabled().plug
    if not torch.cuda.is_initialized():
        return Fragmentation()
    figures = plug.json("fragmentation", _index(device))
    figures["free_block_histogram"] = tuple(figures["free_block_histogram"])
    return Fragmentation(**figures)


def check_memory() -> list[MemoryReport]:
    """Looks at all memory under guard (guard:True in CACHALOT_CONF or enable's config) after the work queued so far.

    Returns what was found since the last call, by it, by frees and when freed memory was used again, and with
    CACHALOT_DEBUG=1 or debug:True what callers did wrong (the newest 1,000 reports). Each report was on stderr as soon as it
    was found.

    Raises:
        RuntimeError: the guard is off, a graph is being captured, or a CUDA call failed.
    """
    import torch

    plug = _require_enabled().plug
    torch.cuda.init()
    return [_memory_report(report) for report in plug.check_memory()]


@contextlib.contextmanager
def region(tag: str) -> Iterator[None]:
    """What this thread allocates within belongs to `tag`: it can sleep, all of it together.

    Regions nest, and several threads may be in regions of one tag. What other threads allocate meanwhile (those that run
    backward passes, say) does not belong to it.

    Raises:
        RuntimeError: `tag` is empty.
    """
    import torch

    plug = _require_enabled().plug
    torch.cuda.init()
    plug.begin_tagged(tag)
    try:
        yield
    finally:
        plug.end_tagged(tag)


def release_physical(of: Sleeper, *, save: bool = False) -> None:
    """Waits for the devices, then gives all memory of a tag (or of a torch.cuda.MemPool) back to them.

    Tensors stay, with their addresses, and may be dropped; they must not be used, and nothing is allocated from the tag,
    until `restore_physical`. memory_reserved falls, memory_allocated does not. A tag that is asleep stays so.

    Args:
        of: the tag or pool.
        save: keep what live tensors hold in pinned host memory; otherwise it is lost.

    Raises:
        RuntimeError: the tag was never used, the heap is not 'pages', a graph is being captured, or a CUDA call failed:
            then a part may be asleep, and calling again goes on.
        torch.OutOfMemoryError: the host has too little memory to save to; the device is as it was, those before it sleep.
    """
    _require_enabled().plug.release_physical(_sleeper(of), save)


def restore_physical(of: Sleeper) -> None:
    """Memory again for a tag or pool that sleeps, at the same addresses, with what was saved.

    Raises:
        RuntimeError: as from release_physical.
        torch.OutOfMemoryError: a device has too little, although what was cached there was given back; it still sleeps,
            those before it are awake.
    """
    _require_enabled().plug.restore_physical(_sleeper(of))


@contextlib.contextmanager
def contiguous() -> Iterator[None]:
    """Within it, what this thread allocates lies in one physical handle each, on the page heap, too.

    For tensors that a network card is to register (GPUDirect RDMA), or that are handed to what knows one handle only.
    Tensors shared by torch.multiprocessing do not need it, unless the receiver is PyTorch's own allocator.

    Raises:
        EnableError: cachalot is not enabled.
    """
    plug = _require_enabled().plug
    before = plug.set_contiguous(True)
    try:
        yield
    finally:
        plug.set_contiguous(before)


def library_path() -> Path:
    """libcachalot_torch.so, for torch.cuda.memory.CUDAPluggableAllocator(path, "cachalot_malloc", "cachalot_free")."""
    return LIBRARY


def include_path() -> Path:
    """The folder of the C++ headers, which are cachalot/….h."""
    return NATIVE / "include"


def _require_no_change(enabled: _Enabled, config: str | None, mode: Mode) -> None:
    if config is not None and config != enabled.config:
        raise EnableError(
            f"cachalot is enabled already, with config {enabled.config!r}; it cannot be enabled again with {config!r}"
        )
    if mode not in ("auto", enabled.mode):
        raise EnableError(f"cachalot is enabled already, in mode {enabled.mode!r}; it cannot change to {mode!r}")


def _require_enabled() -> _Enabled:
    if _enabled is None:
        raise EnableError("cachalot is not enabled: call cachalot.enable() first")
    return _enabled


def _require_torch_can(late: bool) -> None:
    try:
        import torch
    except ImportError as error:
        raise EnableError(f"PyTorch cannot be imported: {error}") from None
    if torch.version.cuda is None:
        raise EnableError(f"this PyTorch ({torch.__version__}) is built without CUDA: there is nothing to allocate for")
    backend = torch.cuda.memory.get_allocator_backend()
    if backend == "cudaMallocAsync":
        raise EnableError("PYTORCH_CUDA_ALLOC_CONF asks for backend:cudaMallocAsync; remove it to use cachalot")
    if backend != "native":
        raise EnableError(
            f"PyTorch's allocator has been changed already (it is '{backend}'), and PyTorch allows one change"
        )
    use = _cuda_use()
    if use is not None and not late:
        raise EnableError(
            f"CUDA is in use already: {use}. Call cachalot.enable() right after 'import torch', or enable(late=True) "
            "to take over from here on"
        )


def _cuda_use() -> str | None:
    """What shows that PyTorch has begun to use CUDA; None when it has not. Asking does not begin it."""
    import torch

    if torch.cuda.is_initialized():
        held = torch.cuda.memory_reserved()
        return f"a CUDA tensor, stream or device query came first, and PyTorch's allocator holds {held} bytes"
    # New in PyTorch 2.9.
    is_initialized = getattr(torch._C, "_accelerator_isAllocatorInitialized", torch.cuda.is_initialized)
    if is_initialized():
        return "a C++ library has initialized PyTorch's allocator"
    return None


def _load_adapter(mode: Mode, late: bool) -> _adapter.Adapter | None:
    """The adapter for this PyTorch; None where there is none and the mode does without."""
    if late and mode == "plug":
        raise EnableError(
            "late=True needs mode 'full': PyTorch takes a function-pointer plug only before CUDA is in use"
        )
    try:
        return _adapter.load()
    except _adapter.AdapterError as error:
        if mode == "full" or late:
            raise EnableError(str(error)) from None
        if mode == "auto":
            warnings.warn(
                f"cachalot serves PyTorch in mode 'plug', because {error}. Not served: {_fallback.MISSING}",
                stacklevel=3,
            )
        return None


@contextlib.contextmanager
def _all_or_nothing(plug: Plug) -> Iterator[None]:
    """What goes wrong within leaves the environment and cachalot's options as they were."""
    environment = os.environ.copy()
    try:
        yield
    except BaseException:
        _config.restore_environment(environment)
        with contextlib.suppress(ValueError):  # of a bad CACHALOT_CONF, with which there was nothing to undo
            plug.configure("")
        raise


def _install(plug: Plug, adapter: _adapter.Adapter | None, mode: Mode, late: bool) -> Literal["full", "plug"]:
    try:
        if adapter is not None and mode != "plug":
            adapter.install(late)
            _filter_settings()
            return "full"
        if adapter is not None:
            adapter.set_out_of_memory()
        _fallback.install(plug)
        _filter_settings(plug)
        return "plug"
    except (ValueError, RuntimeError):
        if not late:  # PyTorch has long accepted its settings
            _config.require_good_environment(plug)
        raise


def _filter_settings(plug: Plug | None = None) -> None:
    """Settings that a program changes as it runs lose unknown ones as well; the plug takes over what PyTorch accepted.

    The full allocator hears of them by itself.
    """
    import torch

    for name in _config.SETTERS:
        if hasattr(torch._C, name):
            setattr(torch._C, name, _filtered(getattr(torch._C, name), plug))


def _filtered(torch_sets: Callable[[str], None], plug: Plug | None) -> Callable[[str], None]:
    @functools.wraps(torch_sets)
    def set_allocator_settings(text: str) -> None:
        text = _config.without_unknown(text)
        torch_sets(text if plug is None else _config.without_backend(text))
        if plug is not None:
            plug.settings(text)

    return set_allocator_settings


def _sleeper(of: Sleeper) -> str | tuple[int, int]:
    """As the plug takes it: a tag, or a pool's id."""
    if isinstance(of, str):
        return of
    try:
        first, second = of.id
    except (AttributeError, TypeError):
        raise TypeError(f"{of!r} is neither a tag nor a torch.cuda.MemPool") from None
    return first, second


def _memory_report(report: dict[str, Any]) -> MemoryReport:
    calls = {name: _memory_call(report[name]) for name in ("allocated", "freed", "mistake")}
    return MemoryReport(**{**report, "recorded": tuple(report["recorded"]), **calls})


def _memory_call(call: dict[str, Any] | None) -> MemoryCall | None:
    return None if call is None else MemoryCall(**{**call, "stack": tuple(call["stack"])})


def _index(device: Device) -> int:
    from torch.cuda._utils import _get_device_index

    return _get_device_index(device, optional=True)
