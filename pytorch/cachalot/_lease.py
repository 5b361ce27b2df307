"""A tensor that is out of its pool, for torch and for whoever takes DLPack."""

from __future__ import annotations

import threading
import types
from typing import Literal

import torch
from torch.utils.dlpack import from_dlpack

from . import _pool_calls
from ._pool_calls import PoolCalls

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
            self._calls.record(self._held("record_stream"), _pool_calls.stream_of(stream, self._device))

    def __enter__(self) -> torch.Tensor:
        return self.tensor

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        """A tensor that outlives the block is no error where the block ends by one."""
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
        """A capsule for one consumer, whose work on `stream` comes after what is queued on the tensor's stream by now.

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
    """Of a stream as DLPack's Python protocol names it."""
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
