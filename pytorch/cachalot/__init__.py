"""cachalot as PyTorch's GPU memory allocator.

    import torch
    import cachalot

    cachalot.enable()  # before the first CUDA tensor

All functions of torch.cuda.memory then work on cachalot as they do on PyTorch's own allocator: statistics, snapshots,
history, limits, MemPool, CUDA graphs. `cachalot.fragmentation()` has figures that PyTorch does not have.

On the page heap (CACHALOT_CONF=heap:pages) memory can sleep, and wake at the same addresses:

    with cachalot.region("weights"):
        model = Model().cuda()
    cachalot.release_physical("weights", save=True)  # the memory returns to the GPU; tensors keep their addresses
    cachalot.restore_physical("weights")
    print(cachalot.awake_report())  # what is still on the device, and what would free it

Held memory has bounds, which may change at run time (docs/guides/limits.md):

    cachalot.set_limit("80%")
    cachalot.trim(keep="2GiB")

Processes divide the memory of a GPU (docs/guides/limits.md#budget):

    cachalot.join_budget(share=2, floor="10GiB")

Pools reuse tensors of one shape and type without an allocation (pool/README.md):

    pool = cachalot.TensorPool((1024, 1024), dtype=torch.float16)
    with pool.acquire() as tensor:
        ...

The leak detector finds the lines whose memory grows with the iterations (docs/leaks.md):

    detector = cachalot.watch_leaks()  # then, after some iterations
    print(detector.report())

The largest batch size with which a program fits, for each GPU, without a GPU (docs/tools/fit.md):

    cachalot.fit(["train.py", "--batch", "{batch}"], vary={"batch": range(1, 257)}, gpus=["t4", "l4"], max_steps=2)

The memory that a program or a model takes, likewise (docs/tools/simulate.md):

    cachalot.estimate(["train.py"], max_steps=2).fits("l4")
    cachalot.estimate_memory(model, sample_input, torch.optim.AdamW).total_mb

Files go to the GPU with bounded memory on the host (docs/guides/stage.md):

    weights = cachalot.stage("model.safetensors")

Other programs see the memory of this one, live (docs/tools/top.md): `cachalot top` and Prometheus; and its own log has it:

    cachalot.publish()
    cachalot.on_statistics(lambda figures, step: print(step, figures["cachalot/0/reserved_bytes"]), interval_s=10)

What the ranks of a job hold, and which line of the worst one (docs/guides/ranks.md):

    print(cachalot.distributed_report())

CACHALOT_ON_OOM=report explains an out-of-memory failure before its exception reaches the program
(docs/guides/out-of-memory.md).

CACHALOT_CONF=guard:True detects writes outside of tensors and to freed memory: `cachalot.check_memory()`. CACHALOT_DEBUG=1
also detects invalid frees and uses, and adds call stacks.

`python -m cachalot run script.py` runs an unmodified script on cachalot. The package logs to logging.getLogger("cachalot").
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from ._base.errors import EnableError
    from ._bindings.plug import include_path, library_path
    from ._heap.budget import Budget, BudgetMember, BudgetMembership, budget, join_budget
    from ._heap.enabled import enabled_mode, is_enabled
    from ._heap.evictable import Hold, ensure, give_way, make_evictable, make_resident
    from ._heap.guard import MemoryCall, MemoryFinding, MemoryReport, check_memory
    from ._heap.libraries import LibraryError, LibraryUsage, library_usage
    from ._heap.limits import Limits, SoftLimit, limits, reserve, set_limit, set_soft_limit, trim
    from ._heap.regions import (
        Region,
        contiguous,
        make_plain,
        plain,
        region,
        regions,
        release_physical,
        restore_physical,
    )
    from ._heap.statistics import (
        Fragmentation, StatisticsLog, fragmentation, log_statistics, on_statistics, publish, stats, stop_publishing,
    )
    from ._tensors.pinned import is_pinned_enabled, pinned_stats, set_pinned_limit
    from ._tensors.pools import Lease, PoolSet, PoolStats, TensorPool
    from ._tensors.saved_tensors import SavedOnHost
    from ._tensors.stage import stage, stage_chunks
    from ._leaks.leaks import AllocationSite, Leak, LeakDetector, LeakReport, TrackReport, leaks, track, watch_leaks
    from ._leaks.suspects import Suspect
    from ._programs.simulation import Estimate, EstimateError, Fit, FitError, estimate, estimate_memory, fit
    from ._report.awake import AwakeReport, AwakeRow, awake_report
    from ._report.memory_report import DeviceMemoryReport, MemoryRow, memory_report
    from ._report.oom_report import OutOfMemoryReport
    from ._report.out_of_memory import on_out_of_memory
    from ._report.rank_report import DistributedReport, RankReport
    from ._report.ranks import distributed_report
    from ._start.enable import Mode, enable
    from ._start.enable_libraries import (
        EnabledLibraries, enable_all, enable_cuda_core, enable_cupy, enable_cupy_pinned, enable_numba, enable_rmm, enable_warp, onnxruntime_options,
    )

# fmt: off
__all__ = [
    "AllocationSite", "AwakeReport", "AwakeRow", "Budget", "BudgetMember", "BudgetMembership", "DeviceMemoryReport",
    "DistributedReport", "EnableError", "EnabledLibraries", "Estimate", "EstimateError", "Fit", "FitError",
    "Fragmentation", "Hold", "Leak", "LeakDetector", "LeakReport", "Lease", "LibraryError", "LibraryUsage", "Limits",
    "MemoryCall", "MemoryFinding", "MemoryReport", "MemoryRow", "Mode", "OutOfMemoryReport", "PoolSet",
    "PoolStats", "RankReport", "Region", "SavedOnHost", "SoftLimit", "StatisticsLog", "Suspect", "TensorPool",
    "TrackReport", "__version__", "awake_report", "budget", "check_memory", "contiguous", "distributed_report",
    "enable", "enable_all", "enable_cuda_core", "enable_cupy", "enable_cupy_pinned", "enable_numba", "enable_rmm",
    "enable_warp", "enabled_mode", "ensure", "estimate", "estimate_memory", "fit", "fragmentation", "give_way",
    "include_path", "is_enabled", "is_pinned_enabled", "join_budget", "leaks", "library_path", "library_usage",
    "limits", "log_statistics", "make_evictable", "make_plain", "make_resident", "memory_report", "on_out_of_memory",
    "on_statistics", "onnxruntime_options", "pinned_stats", "plain", "publish", "region", "regions", "release_physical",
    "reserve", "restore_physical", "set_limit", "set_pinned_limit", "set_soft_limit", "stage", "stage_chunks", "stats",
    "stop_publishing", "track", "trim", "watch_leaks",
]
# fmt: on

# Each name is imported when it is first asked for, so that `import cachalot` takes no time; some of these import torch.
_MODULES = {
    "_base.errors": ("EnableError",),
    "_bindings.plug": ("include_path", "library_path"),
    "_heap.budget": ("Budget", "BudgetMember", "BudgetMembership", "budget", "join_budget"),
    "_heap.enabled": ("enabled_mode", "is_enabled"),
    "_heap.evictable": ("Hold", "ensure", "give_way", "make_evictable", "make_resident"),
    "_heap.guard": ("MemoryCall", "MemoryFinding", "MemoryReport", "check_memory"),
    "_heap.libraries": ("LibraryError", "LibraryUsage", "library_usage"),
    "_heap.limits": ("Limits", "SoftLimit", "limits", "reserve", "set_limit", "set_soft_limit", "trim"),
    "_heap.regions": (
        "Region", "contiguous", "make_plain", "plain", "region", "regions", "release_physical", "restore_physical",
    ),
    "_heap.statistics": (
        *("Fragmentation", "StatisticsLog", "fragmentation", "log_statistics", "on_statistics", "publish", "stats"),
        "stop_publishing",
    ),
    "_tensors.pinned": ("is_pinned_enabled", "pinned_stats", "set_pinned_limit"),
    "_tensors.pools": ("Lease", "PoolSet", "PoolStats", "TensorPool"),
    "_tensors.saved_tensors": ("SavedOnHost",),
    "_tensors.stage": ("stage", "stage_chunks"),
    "_leaks.leaks": (
        *("AllocationSite", "Leak", "LeakDetector", "LeakReport", "TrackReport"),
        *("leaks", "track", "watch_leaks"),
    ),
    "_leaks.suspects": ("Suspect",),
    "_programs.simulation": ("Estimate", "EstimateError", "Fit", "FitError", "estimate", "estimate_memory", "fit"),
    "_report.awake": ("AwakeReport", "AwakeRow", "awake_report"),
    "_report.memory_report": ("DeviceMemoryReport", "MemoryRow", "memory_report"),
    "_report.oom_report": ("OutOfMemoryReport",),
    "_report.out_of_memory": ("on_out_of_memory",),
    "_report.rank_report": ("DistributedReport", "RankReport"),
    "_report.ranks": ("distributed_report",),
    "_start.enable": ("Mode", "enable"),
    "_start.enable_libraries": (
        *("EnabledLibraries", "enable_all", "enable_cuda_core", "enable_cupy", "enable_cupy_pinned", "enable_numba", "enable_rmm", "enable_warp"),
        "onnxruntime_options",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
