"""Pools of tensors, as torch allocates tensors and for all that take DLPack: of one kind (pool/include/cachalot/tensor_pool.h), and
of many kinds within one budget (pool_set.h).
"""

from __future__ import annotations

import dataclasses
import math
import threading
import types
import weakref
from collections.abc import Iterable
from typing import Literal

import torch
from torch.utils.dlpack import from_dlpack

from . import pool_calls
from .pool_calls import PoolCalls
from .saved_tensors import SavedOnHost

Outlive = Literal["hand_over", "error"]
OUTLIVE = ("hand_over", "error")

# Handles of streams in DLPack's Python protocol.
_LEGACY_DEFAULT = 1
_PER_THREAD_DEFAULT = 2
_NO_ORDER = -1

_kDLCUDA = 2


class Lease:
    """A tensor of a pool in use: a torch tensor (`tensor`, or `with lease as tensor:`), or a DLPack capsule.

    The lease holds the memory until release(), the end of the `with` block, or its own end. Torch's storage with its views, and
    each consumer of DLPack, hold it as well. The memory returns to its pool with the last of them, in any thread.

    Thread-safe; the objects made from it are as safe as their libraries make them.
    """

    __slots__ = ("__weakref__", "_calls", "_device", "_handle", "_lock", "_outlive", "_tensor")

    def __init__(self, calls: PoolCalls, handle: int, device: int, outlive: Outlive) -> None:
        """A pool's business."""
        self._handle: int | None = handle
        self._calls = calls
        self._device = device
        self._outlive = outlive
        self._tensor: torch.Tensor | None = None
        self._lock = threading.RLock()

    @property
    def tensor(self) -> torch.Tensor:
        """Returns the torch tensor, for work on the stream that it was acquired for; the same object each time.

        Raises:
            RuntimeError: the lease was released.
        """
        with self._lock:
            handle = self._held("tensor")
            if self._tensor is None:
                self._tensor = _from_capsule(self._calls.capsule(handle, True))
            return self._tensor

    def release(self) -> None:
        """Releases the lease's hold on the tensor.

        With outlive="error", `tensor` is emptied in place first. If autograd has saved that tensor, the backward pass reports it.

        Raises:
            RuntimeError: the lease was released already; or, with outlive="error", something else still holds the memory, which
                stays valid and returns to the pool with its last holder.
        """
        with self._lock:
            self._held("release")
            self._end(complain=True)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Declares that work on `stream` uses the tensor, as torch.Tensor.record_stream. Later users wait for that work.

        Raises:
            RuntimeError: the lease was released.
            ValueError: the stream belongs to another device.
        """
        with self._lock:
            self._calls.record(self._held("record_stream"), pool_calls.stream_of(stream, self._device))

    def __enter__(self) -> torch.Tensor:
        return self.tensor

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        """A tensor that outlives the block is not an error where the block ends by one."""
        with self._lock:
            if self._handle is not None:
                self._end(complain=kind is None)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            self._calls.drop(handle)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _kDLCUDA, self._device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule for one consumer, whose work on `stream` comes after the work queued on the tensor's stream by now.

        Args:
            stream: a handle; 1 or None for the legacy default stream; -1 for no order, where the consumer then says
                what stream it uses (record_stream), or uses the tensor's own.
            max_version: of DLPack that the consumer knows; from (1, 0) on the capsule is "dltensor_versioned".
            dl_device: where it shall be: there only.
            copy: True is refused: pools lend memory.

        Raises:
            RuntimeError: the lease was released.
            BufferError: it cannot be had as asked for.
            ValueError: `stream` is 0, which could mean either default stream.
        """
        if copy:
            raise BufferError("copy is True; a pooled tensor is lent without a copy: clone its tensor instead")
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"dl_device is {dl_device}; the tensor is on {self.__dlpack_device__()} and is not copied")
        with self._lock:
            handle = self._held("__dlpack__")
            if stream != _NO_ORDER:
                self._calls.share(handle, _handle_of(stream))
            return self._calls.capsule(handle, max_version is not None and max_version[0] >= 1)

    def _held(self, what: str) -> int:
        if self._handle is None:
            raise RuntimeError(f"{what} of a lease that was released already: its tensor went back to the pool")
        return self._handle

    def _end(self, complain: bool) -> None:
        handle, self._handle = self._held("release"), None
        tensor, self._tensor = self._tensor, None
        others = 0
        try:
            if self._outlive == "error":
                if tensor is not None:
                    with torch.no_grad():
                        tensor.set_()  # type: ignore[call-overload]  # PyTorch's own types forget this form
                others = self._calls.others(handle)
        finally:
            self._calls.drop(handle)
        if others and complain:
            raise RuntimeError(
                "the tensor outlives its lease (outlive='error'): a view or a consumer of DLPack still holds its memory, "
                "which goes back to the pool when they are gone"
            )


def _from_capsule(capsule: object) -> torch.Tensor:
    """Never an inference tensor, which could not be emptied outside of inference mode."""
    if not torch.is_inference_mode_enabled():
        return from_dlpack(capsule)
    with torch.inference_mode(False):
        return from_dlpack(capsule)


def _handle_of(stream: object) -> int:
    """Returns the handle of a stream as DLPack's Python protocol names it."""
    if stream is None or stream == _LEGACY_DEFAULT:
        return 0
    if not isinstance(stream, int):
        raise TypeError(f"stream is {stream!r}; it must be an int or None")
    if stream == 0:
        raise ValueError("stream is 0, which could be either default stream; the legacy one is 1")
    if stream == _PER_THREAD_DEFAULT:
        raise BufferError("stream is 2; a pool cannot wait for a thread's default stream later: use another stream")
    if stream < 0:
        raise ValueError(f"stream is {stream}; it must be a stream's handle, 1 or -1")
    return stream


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
            high_water: memory beyond this number of free tensors goes back to the allocator; None: only trim() does that.
            alignment: of each tensor, in bytes, a power of two.
            outlive: what a tensor does that is used after its lease ended: "hand_over", it stays valid as long as
                anything refers to it, and its memory goes back then; "error", `tensor` is emptied in place, and where
                something else still refers to its memory RuntimeError says so.

        Raises:
            EnableError: cachalot is not enabled.
            ValueError, TypeError: an argument is bad; the message names value and rule.
            torch.OutOfMemoryError: there is no memory for the initial tensors.
        """
        self._calls = pool_calls.calls()
        self._device = pool_calls.device_index(device)
        spec = pool_calls.make_spec(shape, dtype, self._device)
        pool_calls.choice("outlive", outlive, OUTLIVE)
        options = pool_calls.make_options(
            initial_slots=initial_slots,
            max_slots=max_slots,
            growth_step=growth_step,
            when_empty=when_empty,
            other_stream=other_stream,
            on_reuse=on_reuse,
            high_water=high_water,
            alignment=alignment,
            stream=pool_calls.stream_of(None, self._device),
        )
        self._handle = self._calls.create_pool(spec, options)
        self._finalizer = weakref.finalize(self, self._calls.destroy_pool, self._handle)
        self._finalizer.atexit = False  # tensors may be out still
        self._shape = pool_calls.extents_of(shape)
        self._dtype = dtype
        self._when_empty = when_empty
        self._outlive: Outlive = outlive
        self._lock = threading.Lock()
        self._looks = 0  # waits that only went on with an earlier one
        pool_calls.add_pool_in_use(self)

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
        handle = pool_calls.stream_of(stream, self._device)
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
        lease = self._acquire(pool_calls.stream_of(stream, self._device), 0.0)
        return None if lease is None else self._lease(lease)

    def trim(self, keep: int = 0) -> int:
        """Returns memory without a tensor in use to the allocator, while more than `keep` tensors are free.

        Does not wait. Returns the number of bytes. A pool that never grows keeps its memory.
        """
        return self._calls.trim(self._handle, pool_calls.whole_number("keep", keep))

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
        self._calls = pool_calls.calls()
        self._device = pool_calls.device_index(device)
        pool_calls.choice("outlive", outlive, OUTLIVE)
        options = pool_calls.make_options(
            growth_step=growth_step,
            other_stream=other_stream,
            on_reuse=on_reuse,
            high_water=high_water,
            alignment=alignment,
        )
        self._byte_budget = pool_calls.whole_number("byte_budget", byte_budget, 1)
        self._outlive: Outlive = outlive
        self._handle = self._calls.create_pool_set(byte_budget, options)
        self._finalizer = weakref.finalize(self, self._calls.destroy_pool_set, self._handle)
        self._finalizer.atexit = False  # tensors may be out still
        pool_calls.add_pool_in_use(self)

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
        return SavedOnHost(self, pool_calls.whole_number("min_bytes", min_bytes), keep)

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
        index = self._device if device is None else pool_calls.device_index(device)
        spec = pool_calls.make_spec(shape, dtype or torch.get_default_dtype(), index)
        handle = self._calls.acquire_of_set(self._handle, spec, pool_calls.stream_of(stream, index), only_try)
        return None if handle is None else Lease(self._calls, handle, index, self._outlive)
