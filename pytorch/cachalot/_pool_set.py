"""Pools for tensors of many kinds, within one budget (pool/include/cachalot/pool_set.h), as torch allocates tensors."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch

from . import _pool_calls
from ._lease import OUTLIVE, Lease, Outlive
from ._pools import OnReuse, OtherStream, PoolStats
from ._saved_tensors import SavedOnHost


class PoolSet:
    """Pools for each shape, type and device that is requested, all within `byte_budget`.

        pools = cachalot.PoolSet(2 << 30)
        hidden = pools.empty((batch, 4096), dtype=torch.float16)  # returns to its pool when the last reference to it dies

    If a pool must grow and the budget has no room, free memory of the least recently used pools returns to the allocator.
    Every method may be called from any thread.
    """

    def __init__(
        self,
        byte_budget: int,
        device: torch.device | str | int | None = "cuda",
        *,
        growth_step: int = 1,
        other_stream: OtherStream = "wait",
        on_reuse: OnReuse = "keep",
        high_water: int | None = None,
        alignment: int = 512,
        outlive: Outlive = "hand_over",
    ) -> None:
        """Makes a set without pools. `device` is for tensors that name none; the other options are TensorPool's.

        Raises:
            EnableError: cachalot is not enabled.
            ValueError, TypeError: an argument is bad; the message names value and rule.
        """
        self._calls = _pool_calls.calls()
        self._device = _pool_calls.device_index(device)
        _pool_calls.choice("outlive", outlive, OUTLIVE)
        options = _pool_calls.make_options(
            growth_step=growth_step,
            other_stream=other_stream,
            on_reuse=on_reuse,
            high_water=high_water,
            alignment=alignment,
        )
        self._byte_budget = _pool_calls.whole_number("byte_budget", byte_budget, 1)
        self._outlive: Outlive = outlive
        self._handle = self._calls.create_pool_set(byte_budget, options)
        self._finalizer = weakref.finalize(self, self._calls.destroy_pool_set, self._handle)
        self._finalizer.atexit = False  # tensors may be out still
        _pool_calls.add_pool_in_use(self)

    @property
    def byte_budget(self) -> int:
        """The limit on the memory of all pools together."""
        return self._byte_budget

    def acquire(
        self,
        shape: int | tuple[int, ...],
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
        *,
        stream: torch.cuda.Stream | None = None,
    ) -> Lease:
        """Returns a tensor of this shape, type and device, as TensorPool.acquire. The default type is torch's.

        Raises:
            torch.OutOfMemoryError: the budget has no room after all free memory was returned, or the allocator has none.
            ValueError, TypeError: an argument is invalid.
        """
        lease = self._acquire(shape, dtype, device, stream, only_try=False)
        assert lease is not None
        return lease

    def try_acquire(
        self,
        shape: int | tuple[int, ...],
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
        *,
        stream: torch.cuda.Stream | None = None,
    ) -> Lease | None:
        """Returns a tensor as `acquire` does, or None if its pool must not grow."""
        return self._acquire(shape, dtype, device, stream, only_try=True)

    def empty(
        self,
        shape: int | tuple[int, ...],
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> torch.Tensor:
        """Returns a tensor for torch's current stream, as torch.empty. Its memory returns when its storage is freed."""
        return self.acquire(shape, dtype, device).tensor

    def zeros(
        self,
        shape: int | tuple[int, ...],
        dtype: torch.dtype | None = None,
        device: torch.device | str | int | None = None,
    ) -> torch.Tensor:
        """Returns a tensor of zeros, as torch.zeros."""
        return self.empty(shape, dtype, device).zero_()

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the shape, type and device of `tensor`, in row-major order whatever its strides are."""
        return self.empty(tuple(tensor.shape), tensor.dtype, tensor.device)

    def saved_tensors_on_host(self, *, min_bytes: int = 1 << 20, keep: Iterable[torch.Tensor] = ()) -> SavedOnHost:
        """Returns a context in which autograd saves in pinned host memory, and copies back into tensors of the set.

            with pools.saved_tensors_on_host() as saved:
                loss = model(batch).sum()
            loss.backward()
            print(saved.bytes)

        Gradients are equal, bit by bit, to those without it. The budget limits the bytes that are back on the device at once.

        Args:
            min_bytes: smaller tensors stay on the device.
            keep: tensors whose memory stays on the device. Parameters, and views of them, always stay.
        """
        return SavedOnHost(self, _pool_calls.whole_number("min_bytes", min_bytes), keep)

    def trim(self) -> int:
        """Returns memory without a tensor in use to the allocator, in all pools; returns the number of bytes."""
        return self._calls.trim_set(self._handle)

    def stats(self) -> PoolStats:
        """Returns sums over all pools. peak_bytes is exact; peak_live, the sum of the pools' peaks, is an upper bound."""
        return PoolStats(**self._calls.stats_of_set(self._handle)["all"])

    def stats_by_kind(self) -> dict[tuple[tuple[int, ...], torch.dtype, torch.device], PoolStats]:
        """Returns the statistics of each pool, by shape, type and device; the least recently used first."""
        return {
            (tuple(pool["shape"]), getattr(torch, pool["dtype"]), torch.device("cuda", pool["device"])): PoolStats(
                **pool["stats"]
            )
            for pool in self._calls.stats_of_set(self._handle)["by_spec"]
        }

    def bytes_on(self, device: int) -> int:
        """Returns the memory that all pools hold on a device."""
        pools = self._calls.stats_of_set(self._handle)["by_spec"]
        return sum(int(pool["stats"]["bytes"]) for pool in pools if pool["device"] == device)

    def __repr__(self) -> str:
        return f"PoolSet({self._byte_budget}, device='cuda:{self._device}')"

    def _acquire(
        self,
        shape: int | tuple[int, ...],
        dtype: torch.dtype | None,
        device: torch.device | str | int | None,
        stream: torch.cuda.Stream | None,
        only_try: bool,
    ) -> Lease | None:
        index = self._device if device is None else _pool_calls.device_index(device)
        spec = _pool_calls.make_spec(shape, dtype or torch.get_default_dtype(), index)
        handle = self._calls.acquire_of_set(self._handle, spec, _pool_calls.stream_of(stream, index), only_try)
        return None if handle is None else Lease(self._calls, handle, index, self._outlive)
