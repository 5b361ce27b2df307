"""The free memory of integrated GPUs, whose memory is the machine's (GB10, Jetson): torch.cuda.mem_get_info and
torch.accelerator.get_memory_info say what the allocator can take. cudaMemGetInfo leaves out memory that the system would give up at
once, such as its cache of files. Other GPUs are asked as before."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from .._bindings.plug import Plug
from .._heap.enabled import index_of


def tell_of_integrated_gpus(plug: Plug) -> None:
    """Replaces PyTorch's functions."""
    import torch

    def replace(modules: tuple[Any, ...], name: str) -> None:
        if function := getattr(modules[0], name, None):  # PyTorch 2.10 has no get_memory_info
            for module in modules:
                setattr(module, name, _answering(function, plug))

    replace((torch.cuda.memory, torch.cuda), "mem_get_info")
    replace((torch.accelerator.memory, torch.accelerator), "get_memory_info")


def _answering(function: Callable[..., tuple[int, int]], plug: Plug) -> Callable[..., tuple[int, int]]:
    @functools.wraps(function)
    def answer(device: Any = None) -> tuple[int, int]:
        import torch

        index = index_of(device)
        cuda: Any = torch.cuda
        if not cuda.get_device_properties(index).is_integrated:
            return function(device)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        plug.call("plug_memory_info", index, free, total)
        return free.value, total.value

    return answer
