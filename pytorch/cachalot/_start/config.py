"""PyTorch's own settings (PYTORCH_CUDA_ALLOC_CONF and its kin), which must suit the PyTorch and the cachalot found.

PyTorch parses its settings itself, and cachalot takes over what it read. Only two kinds are left out, with a warning
each: keys that newer versions know and the installed one would die of, and what cachalot does not do.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .._base import environment
from .._base.log import logger

if TYPE_CHECKING:
    from .._bindings.plug import Plug

# PyTorch reads each of them somewhere; the first one that is set wins.
ENVIRONMENT = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# Functions that take settings as a program runs: in PyTorch 2.10 and later, and before, where mode "plug" serves.
SETTERS = ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings")

# Keys that came after PyTorch 2.9.
_LATER_KEYS = frozenset(
    {
        "expandable_segments_reserve",
        "expandable_segments_reserve_by_class",
        "graph_capture_record_stream_reuse",
        "large_segment_size_mb",
        "per_process_memory_fraction",
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "pinned_reserve_segment_size_mb",
        "throw_on_cudamalloc_oom",
    }
)

# Keys that cachalot does not serve, unless they say False.
_UNSERVED = {
    "expandable_segments_reserve": "cachalot reserves as many addresses as the device has memory",
    "expandable_segments_reserve_by_class": "cachalot reserves as many addresses as the device has memory",
    "graph_capture_record_stream_reuse": "cachalot reuses such memory after the capture only",
}

# The headers in which PyTorch lists the keys that its parser takes.
_KEY_LISTS = ("c10/core/AllocatorConfig.h", "c10/cuda/CUDAAllocatorConfig.h")

# A setting, up to the comma that ends it; commas inside [...] belong to it.
_SETTING = re.compile(r"(?:\[[^\]]*\]|[^,\[])+")


def without_unknown(text: str) -> str:
    """`text` without the settings that PyTorch or cachalot does not know; warns of each."""
    return _without(_is_unknown, text)


def clean_environment() -> None:
    """Applies without_unknown to the variables that PyTorch will parse at its first use of CUDA."""
    # They stay set when nothing is left: an unset variable would give way to the next one.
    environment.change({name: without_unknown(text) for name, text in environment.given(ENVIRONMENT).items()})


def tell_of_heap(has_pages: bool) -> None:
    """Has the variable that PyTorch reads say whether segments are expandable, for programs that look there and do not ask PyTorch.

    A variable that says so already, or says nothing of segments that are not expandable, stays as it is.
    """
    given = environment.given(ENVIRONMENT)
    variable = next(iter(given), ENVIRONMENT[0])
    said = [_without_spaces(setting) for setting in _SETTING.findall(given.get(variable, ""))]
    if ("expandable_segments:True" in said) == has_pages:
        return
    kept = [setting for setting in said if not setting.startswith("expandable_segments:")]
    environment.change({variable: ",".join([*kept, f"expandable_segments:{has_pages}"])})


def give_environment(plug: Plug) -> None:
    """Has the plug and PyTorch parse the settings in force. ValueError, which names the variable, where one of them refuses."""
    def give(text: str) -> None:
        try:
            plug.settings(text)  # names key, value and rule
            set_in_torch(text)
        except (ValueError, RuntimeError) as error:
            raise ValueError(str(error).splitlines()[0]) from None

    variable = next(iter(environment.given(ENVIRONMENT)), ENVIRONMENT[0])
    environment.parsed(variable, give, in_words=True)


def set_in_torch(text: str) -> None:
    """Has PyTorch parse settings, where its version can be told."""
    import torch

    for name in SETTERS:
        if hasattr(torch._C, name):
            getattr(torch._C, name)(text)
            return


def without_backend(text: str) -> str:
    """`text` without "backend:native", of which PyTorch says, once the plug is its allocator, that it is a bug."""
    return _without(lambda setting: _without_spaces(setting) == "backend:native", text)


def _without(is_left_out: Callable[[str], bool], text: str) -> str:
    settings = _SETTING.findall(text)
    kept = [setting for setting in settings if not is_left_out(setting)]
    return ",".join(kept) if len(kept) < len(settings) else text


def _without_spaces(setting: str) -> str:
    return "".join(setting.split())  # as PyTorch reads it


def _is_unknown(setting: str) -> bool:
    setting = _without_spaces(setting)
    key, _, value = setting.partition(":")
    if key in _unknown_keys():
        reason = f"{key} is a setting of newer versions of PyTorch"
    elif key in _UNSERVED and value != "False":
        reason = _UNSERVED[key]
    else:
        return False
    logger().warning("cachalot: '%s' is ignored: %s", setting, reason)
    return True


@functools.cache
def _unknown_keys() -> frozenset[str]:
    import torch

    include = Path(torch.__file__).parent / "include"
    lists = [include / name for name in _KEY_LISTS if (include / name).is_file()]
    known = "".join(path.read_text() for path in lists)
    # A PyTorch without its headers does not say what it knows: it is left to judge for itself.
    return frozenset(key for key in _LATER_KEYS if f'"{key}"' not in known) if known else frozenset()
