"""The memory of captures that fail. PyTorch ends and releases a graph's memory pool only where the driver ended the capture well, so
that a failure kept the pool's memory to the end of the process (pytorch#190348). Here the failure gives the pool back."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._bindings.adapter import Adapter


def give_back_after_failures(adapter: Adapter) -> None:
    """Lets torch.cuda.CUDAGraph release its pool where capture_end() fails."""
    import torch

    graph: Any = torch.cuda.CUDAGraph
    begin, end = graph.capture_begin, graph.capture_end

    @functools.wraps(begin)
    def capture_begin(self: Any, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        self._cachalot_capture = torch.cuda.current_stream(), adapter.newest_pool()

    @functools.wraps(end)
    def capture_end(self: Any) -> None:
        stream, pool = getattr(self, "_cachalot_capture", (None, (0, 0)))
        try:
            end(self)
        except BaseException:
            if stream is not None and stream == torch.cuda.current_stream():  # otherwise the capture goes on
                _give_back(stream.device_index, pool)
            raise

    graph.capture_begin, graph.capture_end = capture_begin, capture_end


def _give_back(device: int, pool: tuple[int, int]) -> None:
    import torch

    try:
        torch._C._cuda_endAllocateToPool(device, pool)
    except RuntimeError:
        return  # the capture ended well, and something behind it failed
    torch._C._cuda_releasePool(device, pool)
