"""cachalot as PyTorch's GPU memory allocator.

    import torch
    import cachalot

    cachalot.enable()  # before the first CUDA tensor, stream or device query

Everything in torch.cuda.memory then works on cachalot and means what it means without: statistics, snapshots, history,
limits, MemPool, CUDA graphs. What PyTorch has no figure for is `cachalot.fragmentation()`.

`python -m cachalot script.py` runs a script that knows nothing of this.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Union

from . import _adapter, _config, _fallback
from ._errors import EnableError
from ._plug import LIBRARY, NATIVE, Plug

if TYPE_CHECKING:
    import torch

    Device = Union[torch.device, str, int, None]

__all__ = [
    "EnableError",
    "Fragmentation",
    "enable",
    "enabled_mode",
    "fragmentation",
    "include_path",
    "is_enabled",
    "library_path",
    "stats",
]

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
        ValueError: `config`, CACHALOT_CONF or `mode` is bad; the message names key, value and rule.
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
        _config.clean_environment()
        plug = Plug()
        plug.configure(config or "")
        _enabled = _Enabled(_install(plug, mode, late and _cuda_use() is not None), config, plug)


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
    if torch._C._accelerator_isAllocatorInitialized():
        return "a C++ library has initialized PyTorch's allocator"
    return None


def _install(plug: Plug, mode: Mode, late: bool) -> Literal["full", "plug"]:
    if mode != "plug":
        try:
            adapter = _adapter.load()
        except _adapter.AdapterError as error:
            if mode == "full" or late:
                raise EnableError(str(error)) from None
            warnings.warn(
                f"cachalot serves PyTorch in mode 'plug', because {error}. Not served: {_fallback.MISSING}",
                stacklevel=3,
            )
        else:
            adapter.install(late)
            _filter_settings()
            return "full"
    if late:
        raise EnableError(
            "late=True needs mode 'full': PyTorch takes a function-pointer plug only before CUDA is in use"
        )
    _fallback.install(plug)
    _filter_settings(plug.configure)
    return "plug"


def _filter_settings(also: Callable[[str], None] | None = None) -> None:
    """Settings that a program changes as it runs lose unknown ones as well; `also` sees what PyTorch accepted."""
    import torch

    torch_sets = torch._C._accelerator_setAllocatorSettings

    @functools.wraps(torch_sets)
    def set_allocator_settings(text: str) -> None:
        text = _config.without_unknown(text)
        torch_sets(text)
        if also is not None:
            also(text)

    torch._C._accelerator_setAllocatorSettings = set_allocator_settings  # type: ignore[assignment]


def _index(device: Device) -> int:
    import torch

    if isinstance(device, int):
        return device
    index = torch.device(device).index if device is not None else None
    return torch.cuda.current_device() if index is None else index
