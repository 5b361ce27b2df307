"""The peaks of PyTorch's statistics over the whole run, although a program sets them back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_PEAKS = ("allocated_bytes.all.peak", "requested_bytes.all.peak", "reserved_bytes.all.peak")
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


class Peaks:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._before: dict[int, dict[str, int]] = {}  # the program's last reset, by device
        for name in _RESETS:
            if hasattr(torch._C, name):
                setattr(torch._C, name, self._seen(getattr(torch._C, name)))

    def stats(self, device: int) -> dict[str, int]:
        """Returns torch.cuda.memory_stats(device), with the peaks since the beginning."""
        stats = dict(self._torch.cuda.memory_stats(device))
        before = self._before.get(device, {})
        return stats | {peak: max(stats.get(peak, 0), before.get(peak, 0)) for peak in _PEAKS}

    def _seen(self, reset: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(reset)
        def call(*arguments: Any) -> Any:
            if self._torch.cuda.is_initialized():
                self._before |= {device: self.stats(device) for device in range(self._torch.cuda.device_count())}
            return reset(*arguments)

        return call
