"""Tensors of one kind, reused: what pool/include/cachalot/tensor_pool.h has, for torch and for whoever takes DLPack."""

from __future__ import annotations

import dataclasses
import math
import threading
import weakref
from typing import Literal

import torch

from . import _pool_calls
from ._lease import OUTLIVE, Lease, Outlive

WhenEmpty = Literal["grow", "wait", "fail"]
OtherStream = Literal["wait", "other_slot"]
OnReuse = Literal["keep", "zero", "poison"]

# While a thread waits for a tensor it looks so often whether it was interrupted (Ctrl-C).
_LOOK_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class PoolStats:
    """The statistics of a pool at one moment."""

    acquires: int = 0  # tensors handed out
    hits: int = 0  # of them, those whose memory had been used before
    allocations: int = 0  # calls to the allocator for memory
    host_waits: int = 0  # acquires that waited for a tensor to come back
    stream_waits: int = 0  # waits of one stream for another, on the GPU
    live: int = 0  # tensors that are out
    peak_live: int = 0
    slots: int = 0  # live and free ones
    bytes: int = 0  # held from the allocator
    peak_bytes: int = 0

    @property
    def reuse_rate(self) -> float:
        """Returns hits / acquires; 0 before the first."""
        return self.hits / self.acquires if self.acquires else 0.0

    @property
    def allocations_avoided(self) -> int:
        """Returns the allocations saved, against one per tensor; negative while memory made in advance is unused."""
        return self.acquires - self.allocations


class TensorPool:
    """Tensors of one shape and type on one device, in memory that is allocated once.

        pool = cachalot.TensorPool((1024, 1024), dtype=torch.float16)
        with pool.acquire() as tensor:
            ...

    Every method may be called from any thread. Tensors stay valid after their pool is gone. If a tensor was last used on
    another stream, the GPU waits, not the host. A stream must outlive the free tensors that were last used on it; call trim()
    before.
    """

    def __init__(
        self,
        shape: int | tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | int | None = "cuda",
        *,
        initial_slots: int = 0,
        max_slots: int | None = None,
        growth_step: int = 1,
        when_empty: WhenEmpty = "grow",
        other_stream: OtherStream = "wait",
        on_reuse: OnReuse = "keep",
        high_water: int | None = None,
        alignment: int = 512,
        outlive: Outlive = "hand_over",
    ) -> None:
        """Makes the pool and its initial tensors' memory.

        Args:
            shape: of each tensor; every extent at least 1.
            dtype: any type of torch but quantized and packed ones.
            device: a CUDA device.
            initial_slots: tensors to have memory for at once.
            max_slots: tensors there may ever be; None for no limit.
            growth_step: tensors that one more allocation has room for.
            when_empty: "grow", up to `max_slots`, then torch.OutOfMemoryError; "wait", the same, then for a tensor to come
                back (without `max_slots` it never grows); "fail", never grow.
            other_stream: when all free tensors were last used on other streams: "wait" for one on the GPU, or take
                "other_slot" of new memory where that may be.
            on_reuse: what an acquired tensor holds: "keep", whatever is there; "zero"; "poison", NaN or absurd.
            high_water: memory beyond so many free tensors goes back to the allocator; None: only trim() does that.
            alignment: of each tensor, in bytes, a power of two.
            outlive: what a tensor does that is used after its lease ended: "hand_over", it stays valid as long as
                anything refers to it, and its memory goes back then; "error", `tensor` is emptied in place, and where
                something else still refers to its memory RuntimeError says so.

        Raises:
            EnableError: cachalot is not enabled.
            ValueError, TypeError: an argument is bad; the message names value and rule.
            torch.OutOfMemoryError: there is no memory for the initial tensors.
        """
        self._calls = _pool_calls.calls()
        self._device = _pool_calls.device_index(device)
        spec = _pool_calls.make_spec(shape, dtype, self._device)
        _pool_calls.choice("outlive", outlive, OUTLIVE)
        options = _pool_calls.make_options(
            initial_slots=initial_slots,
            max_slots=max_slots,
            growth_step=growth_step,
            when_empty=when_empty,
            other_stream=other_stream,
            on_reuse=on_reuse,
            high_water=high_water,
            alignment=alignment,
            stream=_pool_calls.stream_of(None, self._device),
        )
        self._handle = self._calls.create_pool(spec, options)
        self._finalizer = weakref.finalize(self, self._calls.destroy_pool, self._handle)
        self._finalizer.atexit = False  # tensors may be out still
        self._shape = _pool_calls.extents_of(shape)
        self._dtype = dtype
        self._when_empty = when_empty
        self._outlive: Outlive = outlive
        self._lock = threading.Lock()
        self._looks = 0  # waits that only went on with an earlier one
        _pool_calls.add_pool_in_use(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each tensor."""
        return self._shape

    @property
    def dtype(self) -> torch.dtype:
        """The type of each tensor."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return torch.device("cuda", self._device)

    def acquire(self, timeout: float | None = None, *, stream: torch.cuda.Stream | None = None) -> Lease:
        """Returns a tensor for work on `stream`, by default torch's current one.

        Args:
            timeout: seconds to wait for a tensor to be returned, whatever `when_empty` is; None: as `when_empty` says.
            stream: the stream of the first use.

        Raises:
            torch.OutOfMemoryError: no tensor is free and the pool must not grow, or the allocator has no memory.
            TimeoutError: no tensor was returned in time.
            ValueError: the timeout is negative or not a number.
        """
        handle = _pool_calls.stream_of(stream, self._device)
        if timeout is None:
            return self._wait(handle) if self._when_empty == "wait" else self._lease(self._acquire(handle, -1.0))
        if math.isnan(timeout) or timeout < 0:
            raise ValueError(f"timeout is {timeout}; it must be a number of seconds, at least 0")
        lease = self._acquire(handle, timeout)
        if lease is None:
            raise TimeoutError(f"no tensor of {self!r} came back within {timeout} s: all {self.stats().slots} are out")
        return self._lease(lease)

    def try_acquire(self, *, stream: torch.cuda.Stream | None = None) -> Lease | None:
        """Returns a tensor as `acquire` does, or None if it would wait or the pool must not grow."""
        lease = self._acquire(_pool_calls.stream_of(stream, self._device), 0.0)
        return None if lease is None else self._lease(lease)

    def trim(self, keep: int = 0) -> int:
        """Returns memory without a tensor in use to the allocator, while more than `keep` tensors are free.

        Does not wait. Returns the number of bytes. A pool that never grows keeps its memory.
        """
        return self._calls.trim(self._handle, _pool_calls.whole_number("keep", keep))

    def stats(self) -> PoolStats:
        """Returns the statistics of the pool."""
        with self._lock:
            stats = PoolStats(**self._calls.stats(self._handle))
            return dataclasses.replace(stats, host_waits=stats.host_waits - self._looks)

    def bytes_on(self, device: int) -> int:
        """Returns the memory that the pool holds on a device."""
        return self.stats().bytes if device == self._device else 0

    def __repr__(self) -> str:
        return f"TensorPool({self._shape}, dtype={self._dtype}, device='cuda:{self._device}')"

    def _acquire(self, stream: int, seconds: float) -> int | None:
        return self._calls.acquire(self._handle, stream, seconds)

    def _wait(self, stream: int) -> Lease:
        """Between the looks Python delivers signals."""
        while (lease := self._acquire(stream, _LOOK_SECONDS)) is None:
            with self._lock:
                self._looks += 1
        return self._lease(lease)

    def _lease(self, handle: int | None) -> Lease:
        assert handle is not None
        return Lease(self._calls, handle, self._device, self._outlive)
