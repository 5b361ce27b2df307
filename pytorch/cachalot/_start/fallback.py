"""cachalot through torch.cuda.memory.CUDAPluggableAllocator: two functions and eight hooks, with any PyTorch.

That class serves memory, streams, limits and graph pools. Calls of Python that it answers with "does not yet support"
(statistics, snapshots, history) are answered here instead. The rest needs the full allocator.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .._bindings.plug import ALL_DEVICES, Plug
from . import config

# The features that PyTorch uses from C++, where no Python function can stand in.
MISSING = (
    "MemPool, torch.compile's CUDA graph trees, sharing CUDA tensors between processes, cuDNN's benchmark mode, "
    "torch.OutOfMemoryError (memory that runs out is a RuntimeError), out-of-memory observers, stacks in memory "
    "history and snapshots, memory events of the profiler"
)

# Hook of libcachalot_torch.so -> what sets it on PyTorch's object.
_HOOKS = {
    "cachalot_init": "set_init_fn",
    "cachalot_reset": "set_reset_fn",
    "cachalot_set_memory_fraction_hook": "set_memory_fraction_fn",
    "cachalot_base_alloc": "set_base_alloc_fn",
    "cachalot_record_stream_hook": "set_record_stream_fn",
    "cachalot_begin_allocate_to_pool": "set_begin_allocate_to_pool",
    "cachalot_end_allocate_to_pool": "set_end_allocate_to_pool_fn",
    "cachalot_release_pool": "set_release_pool",
}


def install(plug: Plug) -> None:
    """Makes the plug PyTorch's current allocator, before CUDA is in use."""
    import torch

    # PyTorch reads its settings once, late, and would take "backend:native" for a contradiction of the plug: it reads them now.
    config.give_environment(plug)
    plugged = torch.cuda.memory.CUDAPluggableAllocator(str(plug.path), "cachalot_malloc", "cachalot_free")
    for hook, setter in _HOOKS.items():
        getattr(plugged.allocator(), setter)(plug.address(hook))
    torch.cuda.memory.change_current_allocator(plugged)
    for name, function in _replacements(plug).items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)


def _replacements(plug: Plug) -> dict[str, Callable[..., Any]]:
    """torch.cuda.memory and torch.accelerator.memory look these up at each call."""
    import torch

    history = _History(plug)

    def memory_stats(device: int) -> dict[str, Any]:
        return nested(plug.stats(device))

    def memory_snapshot(filter_by: tuple[int, int, bool] | None = None) -> dict[str, Any]:
        return _filtered(plug.json("snapshot_json"), filter_by)

    return {
        "_cuda_memoryStats": memory_stats,
        "_cuda_resetPeakMemoryStats": plug.reset_peak,
        "_cuda_resetAccumulatedMemoryStats": plug.reset_accumulated,
        "_cuda_memorySnapshot": memory_snapshot,
        "_cuda_record_memory_history": history.record,
        "_cuda_record_memory_history_legacy": history.record_legacy,
        "_cuda_isHistoryEnabled": lambda: history.enabled,
        "_cuda_getMemoryFraction": plug.memory_fraction,
        "_accelerator_isAllocatorInitialized": torch.cuda.is_initialized,
        "_accelerator_emptyCache": lambda: plug.empty_cache(ALL_DEVICES),
        "_accelerator_getDeviceStats": memory_stats,
        "_accelerator_resetPeakStats": plug.reset_peak,
        "_accelerator_resetAccumulatedStats": plug.reset_accumulated,
    }


def nested(flat: dict[str, int]) -> dict[str, Any]:
    """{"a.b": 1} as {"a": {"b": 1}}, the form in which torch._C gives statistics."""
    result: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, leaf = key.split(".")
        level = result
        for parent in parents:
            level = level.setdefault(parent, {})
        level[leaf] = value
    return result


def _filtered(snapshot: dict[str, Any], filter_by: tuple[int, int, bool] | None) -> dict[str, Any]:
    """Filters a snapshot as torch._C does: all, or the segments of one pool ((0, 0): of every pool), with traces or without."""
    for segment in snapshot["segments"]:
        segment["segment_pool_id"] = tuple(segment["segment_pool_id"])  # JSON has no tuples
    if filter_by is None:
        return snapshot
    *pool, include_traces = filter_by
    if any(pool):
        snapshot["segments"] = [s for s in snapshot["segments"] if s["segment_pool_id"] == tuple(pool)]
    if not include_traces:
        snapshot["device_traces"] = []
    return snapshot


class _History:
    """torch.cuda.memory._record_memory_history, without stacks."""

    def __init__(self, plug: Plug) -> None:
        self._plug = plug
        self.enabled = False

    def record(
        self,
        enabled: str | None,
        context: str | None = "all",
        stacks: str = "all",
        max_entries: int = sys.maxsize,
        *others: Any,
    ) -> None:
        if enabled not in (None, "state", "all"):
            raise RuntimeError(f"expected state of recording to be None, 'state' or 'all', not '{enabled}'")
        # "state" is about memory in use, not about the past: PyTorch keeps one entry.
        self._set(enabled is not None, max_entries if enabled == "all" else 1)

    def record_legacy(self, enabled: bool, record_context: bool = True, trace_alloc_max_entries: int = 1, *others: Any) -> None:
        self._set(enabled, trace_alloc_max_entries)

    def _set(self, enabled: bool, max_entries: int) -> None:
        self._plug.call("plug_record_history", int(enabled), max_entries)
        self.enabled = enabled
