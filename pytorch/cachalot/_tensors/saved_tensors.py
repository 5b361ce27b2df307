"""Keeps the tensors that autograd saves for backward passes in pinned host memory meanwhile."""

from __future__ import annotations

import dataclasses
import threading
import types
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Union

import torch
from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    from .pools import PoolSet


class _HostCopy:
    """A storage's bytes on the host; and on the device again as long as a tensor that was unpacked is used.

    All of the storage: a tensor that autograd saved would have kept all of it on the device.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self._original = StorageWeakRef(storage)  # while it exists no other storage has the same address
        self._device = storage.device
        self._host = torch.empty(storage.nbytes(), dtype=torch.uint8, pin_memory=True)
        self._host.copy_(_tensor_of(storage, torch.uint8, 0, (storage.nbytes(),), (1,)), non_blocking=True)
        self._copied = torch.cuda.current_stream(self._device).record_event()
        self._lock = threading.Lock()
        self._back: _Back | None = None

    @property
    def nbytes(self) -> int:
        return self._host.nbytes

    def bring_back(self, pools: PoolSet) -> torch.UntypedStorage:
        """A storage of the set's with the bytes, for torch's current stream."""
        stream = torch.cuda.current_stream(self._device)
        with self._lock:
            storage = self._back.share(stream) if self._back else None
            if storage is None:
                stream.wait_event(self._copied)
                buffer = pools.empty(self.nbytes, torch.uint8, self._device)
                storage = buffer.copy_(self._host, non_blocking=True).untyped_storage()
                self._back = _Back(StorageWeakRef(storage), stream, stream.record_event())
            return storage


@dataclasses.dataclass(frozen=True)
class _Back:
    """The place of a storage's bytes on the device after their return."""

    storage: StorageWeakRef
    stream: torch.cuda.Stream  # that copied them, by the event
    copied: torch.Event | torch.cuda.Event

    def share(self, stream: torch.cuda.Stream) -> torch.UntypedStorage | None:
        """The storage for another tensor, if it lives still."""
        untyped: Any = torch.UntypedStorage
        reference: Any = self.storage
        storage: torch.UntypedStorage | None = untyped._new_with_weak_ptr(reference.cdata)
        if storage is not None and stream != self.stream:
            stream.wait_event(self.copied)
            _tensor_of(storage, torch.uint8, 0, (0,), (1,)).record_stream(stream)
        return storage


@dataclasses.dataclass(frozen=True)
class _Packed:
    """A saved tensor: where it lies in its storage."""

    copy: _HostCopy
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class SavedOnHost:
    """The context of PoolSet.saved_tensors_on_host. `tensors` were saved in it, from `storages` with `bytes` copied.

    A storage is copied once, however many of the tensors are in it, unless autograd's version counter says that it was written
    in between; writes through `.data` are not counted. Tensors that are not plain torch tensors (subclasses, sparse ones,
    conjugated views) stay on the device.
    """

    def __init__(self, pools: PoolSet, min_bytes: int, keep: Iterable[torch.Tensor]) -> None:
        """PoolSet's business."""
        self.tensors = 0
        self.storages = 0
        self.bytes = 0
        self._pools = pools
        self._min_bytes = min_bytes
        self._kept = [_storage_of(tensor) for tensor in keep]
        self._kept_addresses = {storage._cdata for storage in self._kept}
        self._copies: weakref.WeakValueDictionary[tuple[int, int], _HostCopy] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._hooks: list[torch.autograd.graph.saved_tensors_hooks] = []  # while within: they refer to this object

    def __enter__(self) -> SavedOnHost:
        self._hooks.append(torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack))
        self._hooks[-1].__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self._hooks.pop().__exit__(kind, error, trace)

    def _pack(self, tensor: torch.Tensor) -> Union[torch.Tensor, _Packed]:
        if self._stays(tensor):
            return tensor
        copy = self._copy_of(tensor)
        return _Packed(copy, tensor.dtype, int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride())

    def _unpack(self, packed: Union[torch.Tensor, _Packed]) -> torch.Tensor:
        if isinstance(packed, torch.Tensor):
            return packed
        storage = packed.copy.bring_back(self._pools)
        return _tensor_of(storage, packed.dtype, packed.offset, packed.shape, packed.strides)

    def _stays(self, tensor: torch.Tensor) -> bool:
        if type(tensor) is not torch.Tensor or not tensor.is_cuda or tensor.layout != torch.strided:
            return True
        if tensor.is_conj() or tensor.is_neg() or _is_parameter(tensor):
            return True
        storage = tensor.untyped_storage()
        return storage.nbytes() < max(self._min_bytes, 1) or storage._cdata in self._kept_addresses

    def _copy_of(self, tensor: torch.Tensor) -> _HostCopy:
        storage = tensor.untyped_storage()
        key = (storage._cdata, tensor._version)
        with self._lock:
            copy = self._copies.get(key)
            if copy is None:
                with torch.no_grad():
                    copy = self._copies[key] = _HostCopy(storage)
                self.storages += 1
                self.bytes += copy.nbytes
            self.tensors += 1
            return copy


def _storage_of(tensor: object) -> torch.UntypedStorage:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"keep has {tensor!r}; it must be of tensors")
    return tensor.untyped_storage()


def _is_parameter(tensor: torch.Tensor) -> bool:
    """Or a view of one, frozen ones included."""
    owner = tensor if tensor._base is None else tensor._base
    return isinstance(owner, torch.nn.Parameter) or (owner.is_leaf and owner.requires_grad)


def _tensor_of(
    storage: torch.UntypedStorage, dtype: torch.dtype, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, offset, shape, strides)
