"""PyTorch's own settings (PYTORCH_CUDA_ALLOC_CONF and its kin), which must suit the PyTorch and the cachalot found.

PyTorch parses its settings itself, and cachalot takes over what it read. Only two things are left out, with a warning
each: keys that newer versions know and the installed one would die of, and expandable segments, which cachalot has not.
"""

from __future__ import annotations

import functools
import os
import re
import warnings
from pathlib import Path

# PyTorch reads each of them somewhere; the first one that is set wins.
ENVIRONMENT = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# Keys that came after PyTorch 2.9, the oldest version served.
_LATER_KEYS = frozenset(
    {
        "expandable_segments_reserve",
        "expandable_segments_reserve_by_class",
        "graph_capture_record_stream_reuse",
        "large_segment_size_mb",
        "per_process_memory_fraction",
        "pinned_free_catch_all",
        "pinned_reserve_segment_size_mb",
        "throw_on_cudamalloc_oom",
    }
)

# The headers in which PyTorch lists the keys that its parser takes.
_KEY_LISTS = ("c10/core/AllocatorConfig.h", "c10/cuda/CUDAAllocatorConfig.h")

# A setting, up to the comma that ends it; commas inside [...] belong to it.
_SETTING = re.compile(r"(?:\[[^\]]*\]|[^,\[])+")


def without_unknown(text: str) -> str:
    """`text` without the settings that PyTorch or cachalot does not know; warns of each."""
    settings = _SETTING.findall(text)
    kept = [setting for setting in settings if not _is_unknown(setting)]
    return ",".join(kept) if len(kept) < len(settings) else text


def clean_environment() -> None:
    """Applies without_unknown to the variables that PyTorch will parse at its first use of CUDA."""
    for name in ENVIRONMENT:
        if name in os.environ:
            # Stays set when nothing is left: an unset variable would give way to the next one.
            os.environ[name] = without_unknown(os.environ[name])


def environment_settings() -> str:
    """The settings in force, as the CUDA allocator of PyTorch finds them; "" when there are none."""
    return next((os.environ[name] for name in ENVIRONMENT if name in os.environ), "")


def _is_unknown(setting: str) -> bool:
    setting = "".join(setting.split())  # PyTorch ignores all spaces
    key = setting.partition(":")[0]
    if key in _unknown_keys():
        reason = f"{key} is a setting of newer versions of PyTorch"
    elif setting == "expandable_segments:True":
        reason = "cachalot has no expandable segments"
    else:
        return False
    warnings.warn(f"cachalot: '{setting}' is ignored: {reason}", stacklevel=2)
    return True


@functools.cache
def _unknown_keys() -> frozenset[str]:
    import torch

    include = Path(torch.__file__).parent / "include"
    lists = [include / name for name in _KEY_LISTS if (include / name).is_file()]
    known = "".join(path.read_text() for path in lists)
    # A PyTorch without its headers does not say what it knows: it is left to judge for itself.
    return frozenset(key for key in _LATER_KEYS if f'"{key}"' not in known) if known else frozenset()
