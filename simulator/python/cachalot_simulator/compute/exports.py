"""Tensors that the program gives to other libraries, such as CuPy and Numba.

Their kernels are not seen. The values that such a tensor holds stay, but are a guess from then on; and the stream that is
current then uses its memory, as far as races go.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cachalot_simulator.compute import device_memory
from cachalot_simulator.compute.host import read, write
from cachalot_simulator.compute.operators import is_on_device, is_whole


def see_exports(note: Callable[[Tensor], None]) -> None:
    """Sees the ways to another library: DLPack and __cuda_array_interface__. Calls a function with each tensor that goes there."""
    Tensor.__dlpack__ = giving(Tensor.__dlpack__, note)  # type: ignore[method-assign]
    get = giving(Tensor.__cuda_array_interface__.fget, note)
    Tensor.__cuda_array_interface__ = property(get)  # type: ignore[assignment]
    to_dlpack = giving(torch.utils.dlpack.to_dlpack, note)
    torch.utils.dlpack.to_dlpack = torch.to_dlpack = to_dlpack  # type: ignore[assignment]


def giving(function: Callable[..., Any], note: Callable[[Tensor], None]) -> Callable[..., Any]:
    @functools.wraps(function)
    def called(tensor: Any, *arguments: Any, **options: Any) -> Any:
        result = function(tensor, *arguments, **options)
        if isinstance(tensor, Tensor) and is_on_device(tensor) and is_whole(tensor):
            make_a_guess(tensor)
            note(tensor)
        return result

    return called


def make_a_guess(tensor: Tensor) -> None:
    if device_memory.kinds_in(tensor) & device_memory.KNOWN and not write(tensor, read(tensor)[0], False):
        device_memory.make_one_unknown(tensor)
