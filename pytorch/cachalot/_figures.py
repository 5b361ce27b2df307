"""How much memory there is and how well it is used: cachalot.stats() and cachalot.fragmentation()."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ._enable import index_of, require_enabled

if TYPE_CHECKING:
    from ._enable import Device


@dataclasses.dataclass(frozen=True)
class Fragmentation:
    """The use of one device's memory at one moment. Each ratio is computed from the byte counts beside it."""

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


def stats(device: Device = None) -> dict[str, int]:
    """Returns the statistics of torch.cuda.memory_stats, by default of the current device. Empty before CUDA is in use."""
    import torch

    plug = require_enabled().plug
    return plug.json("stats", index_of(device)) if torch.cuda.is_initialized() else {}


def fragmentation(device: Device = None) -> Fragmentation:
    """Returns the fragmentation of a device, by default of the current one. All figures are 0 before CUDA is in use."""
    import torch

    plug = require_enabled().plug
    if not torch.cuda.is_initialized():
        return Fragmentation()
    figures = plug.json("fragmentation", index_of(device))
    figures["free_block_histogram"] = tuple(figures["free_block_histogram"])
    return Fragmentation(**figures)
