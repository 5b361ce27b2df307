"""cachalot.stage(): from files to the GPU through a ring of pinned buffers. Reads, copies and the program's kernels overlap."""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Union, overload

import torch

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]
    File = Union[str, os.PathLike[str]]
    Device = Union[torch.device, str, int, None]


@dataclasses.dataclass(frozen=True)
class Extent:
    """The bytes of one tensor, contiguous in a file."""

    path: Path
    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size(self) -> int:
        """Returns the size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def in_rows(self, rows: int) -> Iterator[Extent]:
        """Yields the extent in parts of `rows` rows; the last part may be smaller."""
        row = math.prod(self.shape[1:]) * self.dtype.itemsize
        for first in range(0, self.shape[0], rows):
            shape = (min(rows, self.shape[0] - first), *self.shape[1:])
            yield Extent(self.path, self.offset + first * row, shape, self.dtype)


def extent_of_array(array: Any) -> Extent:
    """Returns where an array lies that numpy has mapped. Raises ValueError for others, and for parts that are not contiguous."""
    mapping = getattr(array, "_mmap", None)
    path = getattr(array, "filename", None)
    if not isinstance(mapping, mmap.mmap) or path is None:
        raise ValueError(
            f"source is a {type(array).__name__} that is not mapped from a file; it must be a numpy.memmap (numpy.load with "
            "mmap_mode='r' makes one) or the path of a .safetensors file; other arrays: torch.from_numpy(array).to(device)"
        )
    if not array.flags.c_contiguous:
        raise ValueError(f"the part of {path} with shape {array.shape} is not C-contiguous; take a range of the first dimension")
    # numpy maps from the page on in which its offset lies, and a part of an array keeps the offset of the whole.
    mapped_from = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    return Extent(Path(path), mapped_from + _address(array) - _address_of(mapping), tuple(array.shape), _dtype_of(array, path))


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _address_of(mapping: mmap.mmap) -> int:
    import numpy

    return _address(numpy.frombuffer(mapping, dtype=numpy.uint8))


def _dtype_of(array: Any, path: object) -> torch.dtype:
    import numpy

    try:
        from_numpy: Callable[[Any], torch.Tensor] = torch.from_numpy  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        return from_numpy(numpy.empty(0, array.dtype)).dtype
    except (TypeError, ValueError):
        raise ValueError(f"{path} has elements of the numpy type {array.dtype}, which torch does not have") from None


# The header of a safetensors file: 8 bytes with the length of a JSON object, the object, then the data of all tensors.
#
# The format is described at https://huggingface.co/docs/safetensors: each member of the object is a tensor's name, with its dtype,
# shape and data_offsets, which count from the end of the header; `__metadata__` does not name one.

_MOST_HEADER_BYTES = 100_000_000  # the format's own limit
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
}


def extents_of_safetensors(path: Path, names: Iterable[str] | None) -> dict[str, Extent]:
    """Returns where the tensors of a file lie, in the order of the header, or of `names`.

    Raises:
        ValueError: the file is not a whole safetensors file, has no tensor of a name, or one of a dtype that torch does not have.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > _MOST_HEADER_BYTES:
            raise ValueError(f"{path} is no safetensors file: its first 8 bytes are not the length of a header")
        if 8 + length > size:
            raise ValueError(f"{path} is truncated: its header has {length} bytes, and the file {size}")
        header = _parsed(path, file.read(length))
    wanted = header if names is None else list(names)
    absent = [name for name in wanted if name not in header]
    if absent:
        raise ValueError(f"{path} has no tensor {absent[0]!r}; it has {len(header)} tensors, such as {', '.join(list(header)[:3])}")
    return {name: _extent(path, name, header[name], 8 + length, size) for name in wanted}


def _parsed(path: Path, text: bytes) -> dict[str, Any]:
    try:
        header: Any = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path} is no safetensors file: its header is no JSON ({error})") from None
    if not text.lstrip().startswith(b"{"):
        raise ValueError(f"{path} is no safetensors file: its header is no JSON object")
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def _extent(path: Path, name: str, tensor: Any, data: int, file_size: int) -> Extent:
    try:
        begin, end = map(int, tensor["data_offsets"])
        shape = tuple(map(int, tensor["shape"]))
        dtype_name = str(tensor["dtype"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: the header does not describe the tensor {name!r}: {error!r}") from None
    dtype = getattr(torch, _DTYPES.get(dtype_name, ""), None)
    if dtype is None:
        raise ValueError(f"{path}: the tensor {name!r} has the dtype {dtype_name!r}, which this torch does not have")
    extent = Extent(path, data + begin, shape, dtype)
    if begin < 0 or min(shape, default=0) < 0 or extent.size != end - begin:
        raise ValueError(f"{path}: the tensor {name!r} of shape {list(shape)} and {dtype_name} has the offsets {begin} to {end}")
    if data + end > file_size:
        raise ValueError(f"{path} is truncated: the tensor {name!r} ends at byte {data + end}, and the file at {file_size}")
    return extent


# A ring of pinned buffers: threads read a file into some while others are copied to the device.

_GAP_BYTES = 4096  # between two tensors of a file, that is read rather than left out


class _Piece(NamedTuple):
    """A read, and where parts of it go: each at (offset in the read, bytes on the device)."""

    path: Path
    offset: int
    size: int
    parts: list[tuple[int, torch.Tensor]]


class Target(NamedTuple):
    """Tensors whose pieces are under way."""

    tensors: list[torch.Tensor]
    last_piece: int  # the number of their last piece


class _Slot:
    """A pinned buffer, and the event after which it can be written again."""

    def __init__(self, size: int) -> None:
        self.buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        self.bytes = memoryview((ctypes.c_ubyte * size).from_address(self.buffer.data_ptr())).cast("B")
        self.copied: torch.Event | torch.cuda.Event | None = None


class Ring:
    """Brings extents of files to tensors. A context manager: its end stops what is under way. For one thread at a time."""

    def __init__(self, device: torch.device, chunk_bytes: int, slots: int, *, drop_cached: bool) -> None:
        """Nothing is allocated before the first extent."""
        self._device = device
        self._chunk_bytes = chunk_bytes
        self._count = slots
        self._drop_cached = drop_cached
        self._files = _Files()
        self._all_slots: list[_Slot] = []
        self._slots: deque[_Slot] = deque()  # that no read has
        self._waiting: deque[_Piece] = deque()  # for a slot
        self._reads: deque[tuple[_Slot, _Piece, Future[None]]] = deque()  # under way, in order
        self._begun = self._issued = 0  # pieces so far: given to begin, and copies given to the stream

    def __enter__(self) -> Ring:
        self._readers = ThreadPoolExecutor(self._count, "cachalot-stage")
        return self

    def __exit__(self, *exception: object) -> None:
        self._waiting.clear()
        for _, _, read in self._reads:
            read.cancel()
        self._readers.shutdown()
        self._files.close()
        if self._all_slots:
            # Also after an error: tensors that are freed now are used again after these copies alone.
            torch.cuda.current_stream(self._device).wait_stream(self._stream)
            for slot in self._all_slots:
                if slot.copied is not None:
                    slot.copied.synchronize()  # the buffer goes back to PyTorch, which does not know of the copies

    def bring(self, extents: list[Extent]) -> list[torch.Tensor]:
        """Returns the tensors, for the current stream."""
        return self.finish(self.begin(extents))

    def begin(self, extents: list[Extent]) -> Target:
        """Allocates the tensors, and starts as many reads as there are free buffers."""
        with torch.cuda.device(self._device):
            self._allocate_slots(sum(extent.size for extent in extents))
            tensors = [torch.empty(extent.shape, dtype=extent.dtype, device=self._device) for extent in extents]
            # The memory may have just been released by the current stream.
            self._stream.wait_stream(torch.cuda.current_stream())
        pieces = list(_pieces(extents, tensors, self._chunk_bytes))
        self._begun += len(pieces)
        self._waiting.extend(pieces)
        self._start_reads()
        return Target(tensors, self._begun)

    def finish(self, target: Target) -> list[torch.Tensor]:
        """Waits for the reads of these tensors, and has the current stream wait for their copies."""
        while self._issued < target.last_piece:
            slot, piece, read = self._reads.popleft()
            read.result()
            with torch.cuda.stream(self._stream):
                for offset, part in piece.parts:
                    part.copy_(slot.buffer[offset : offset + part.numel()], non_blocking=True)
                slot.copied = self._stream.record_event()
            self._slots.append(slot)
            self._issued += 1
            self._start_reads()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        return target.tensors

    def _allocate_slots(self, total: int) -> None:
        """At the first call, which has the largest tensors."""
        if self._all_slots:
            return
        self._stream = torch.cuda.Stream(self._device)
        self._chunk_bytes = max(1, min(self._chunk_bytes, total))
        count = min(self._count, max(2, -(-total // self._chunk_bytes)))
        self._all_slots = [_Slot(self._chunk_bytes) for _ in range(count)]
        self._slots = deque(self._all_slots)

    def _start_reads(self) -> None:
        while self._waiting and self._slots:
            slot, piece = self._slots.popleft(), self._waiting.popleft()
            descriptor = self._files.descriptor_of(piece.path)
            self._reads.append((slot, piece, self._readers.submit(self._read, slot, piece, descriptor)))

    def _read(self, slot: _Slot, piece: _Piece, descriptor: int) -> None:
        """Runs in a thread of the pool, without Python's lock while it waits and reads."""
        if slot.copied is not None:
            slot.copied.synchronize()
        done = 0
        while done < piece.size:
            count = os.preadv(descriptor, [slot.bytes[done : piece.size]], piece.offset + done)
            if count == 0:
                raise ValueError(f"{piece.path} is truncated: it ends at byte {piece.offset + done}, and the tensors at "
                                 f"{piece.offset + piece.size} or later")
            done += count
        if self._drop_cached:
            os.posix_fadvise(descriptor, piece.offset, piece.size, os.POSIX_FADV_DONTNEED)


class _Files:
    """Open files, by path."""

    def __init__(self) -> None:
        self._descriptors: dict[Path, int] = {}

    def descriptor_of(self, path: Path) -> int:
        """Returns the descriptor of a file that is opened at its first use. Raises OSError."""
        if path not in self._descriptors:
            self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        return self._descriptors[path]

    def close(self) -> None:
        """Closes all."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def _pieces(extents: list[Extent], tensors: list[torch.Tensor], most: int) -> Iterator[_Piece]:
    """Yields the reads of at most `most` bytes, in the order of the files; neighbours are read together."""
    piece: _Piece | None = None
    for extent, tensor in sorted(zip(extents, tensors), key=lambda pair: (pair[0].path, pair[0].offset)):
        done = 0
        while done < extent.size:
            start = extent.offset + done
            if piece is None or not _goes_on(piece, extent.path, start, most):
                if piece is not None:
                    yield piece
                piece = _Piece(extent.path, start, 0, [])
            used = start - piece.offset
            count = min(extent.size - done, most - used)
            piece.parts.append((used, tensor.view(-1).view(torch.uint8)[done : done + count]))
            piece = piece._replace(size=used + count)
            done += count
    if piece is not None:
        yield piece


def _goes_on(piece: _Piece, path: Path, start: int, most: int) -> bool:
    """Returns whether bytes from `start` on can be read with the piece."""
    end = piece.offset + piece.size
    return piece.path == path and end <= start <= end + _GAP_BYTES and start - piece.offset < most


_CHUNK_BYTES = 16 << 20  # of a read: PyTorch rounds pinned memory up to a power of two
_SLOTS = 4


@overload
def stage(source: Array, device: Device = None, *, chunk_bytes: int = ..., slots: int = ..., drop_cached: bool = ...) -> torch.Tensor: ...


@overload
def stage(
    source: File,
    device: Device = None,
    *,
    names: Iterable[str] | None = ...,
    chunk_bytes: int = ...,
    slots: int = ...,
    drop_cached: bool = ...,
) -> dict[str, torch.Tensor]: ...


def stage(
    source: Array | File,
    device: Device = None,
    *,
    names: Iterable[str] | None = None,
    chunk_bytes: int = _CHUNK_BYTES,
    slots: int = _SLOTS,
    drop_cached: bool = False,
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Copies a memory-mapped array or a safetensors file to the GPU, with bounded memory on the host.

        weights = cachalot.stage("model.safetensors")                        # a dict of tensors
        table = cachalot.stage(numpy.load("table.npy", mmap_mode="r"))       # a tensor
        rows = cachalot.stage(numpy.memmap("rows.bin", "float32", shape=(n, 64))[1000:2000])

    Threads read the file into pinned buffers while earlier buffers are copied on a stream of their own. The current stream waits
    for the last copy, the host only for the reads: the tensors can be used at once. Dtypes and shapes are those of the source. The
    mapping itself is not touched, so the host needs `slots` times `chunk_bytes`, whatever the size of the file.

    Args:
        source: a numpy.memmap, or a C-contiguous part of one such as `array[a:b]`; or the path of a .safetensors file.
        device: a CUDA device; by default the current one.
        names: the tensors of a safetensors file to copy; by default all.
        chunk_bytes: the size of a pinned buffer, at least 4096.
        slots: how many buffers there are, at least 2; as many reads are under way at a time.
        drop_cached: removes the read bytes from the system's page cache, for files that are read once and larger than the memory.

    Returns:
        A tensor for an array, a dict of tensors by name for a file. They belong to the current stream.

    Raises:
        ValueError: an argument is out of range, the array is not mapped or not contiguous, or the file is truncated or no
            safetensors file; the message names the file.
        OSError: the file cannot be read.
        torch.OutOfMemoryError: the tensors do not fit on the device.
    """
    on = _device_of(device)
    ring_options = _checked(chunk_bytes, slots)
    if isinstance(source, (str, os.PathLike)):
        found = extents_of_safetensors(Path(source), names)
        with Ring(on, *ring_options, drop_cached=drop_cached) as ring:
            return dict(zip(found, ring.bring(list(found.values()))))
    if names is not None:
        raise ValueError("names is given with an array: it selects tensors of a safetensors file")
    with Ring(on, *ring_options, drop_cached=drop_cached) as ring:
        (tensor,) = ring.bring([extent_of_array(source)])
        return tensor


def stage_chunks(
    source: Array,
    rows: int,
    device: Device = None,
    *,
    chunk_bytes: int = _CHUNK_BYTES,
    slots: int = _SLOTS,
    drop_cached: bool = False,
) -> Iterator[torch.Tensor]:
    """Yields a memory-mapped array in parts of `rows` rows; the next part is read while the program uses this one.

        for part in cachalot.stage_chunks(numpy.load("table.npy", mmap_mode="r"), rows=65536):
            total += part.sum()

    The device holds two parts at a time, if the program keeps none. The arguments are those of `stage`; the last part may be smaller.
    Close the iterator, or let it go, to stop early.

    Raises:
        ValueError: `rows` is below 1, the array has no dimensions, or as for `stage`.
    """
    if rows < 1:
        raise ValueError(f"rows is {rows}; it must be at least 1")
    whole = extent_of_array(source)
    if not whole.shape:
        raise ValueError("the array has no dimensions, so it has no rows; use cachalot.stage")
    on = _device_of(device)
    return _parts(whole.in_rows(rows), Ring(on, *_checked(chunk_bytes, slots), drop_cached=drop_cached))


def _parts(extents: Iterator[Extent], ring: Ring) -> Iterator[torch.Tensor]:
    with ring:
        ahead: list[Target] = []
        for extent in extents:
            ahead.append(ring.begin([extent]))
            if len(ahead) == 2:
                yield ring.finish(ahead.pop(0))[0]
        for target in ahead:
            yield ring.finish(target)[0]


def _device_of(device: Device) -> torch.device:
    try:
        on = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}; it must be a CUDA device such as 'cuda:0': {str(error).splitlines()[0]}") from None
    if on.type != "cuda":
        raise ValueError(f"device is {device!r}; stage copies to CUDA devices, such as 'cuda:0'")
    given: Any = on.index  # None without a number
    index = torch.cuda.current_device() if given is None else given
    if index >= torch.cuda.device_count():
        raise ValueError(f"device is {device!r}, and there are {torch.cuda.device_count()} CUDA devices")
    return torch.device("cuda", index)


def _checked(chunk_bytes: int, slots: int) -> tuple[int, int]:
    if chunk_bytes < 4096:
        raise ValueError(f"chunk_bytes is {chunk_bytes}; it must be at least 4096")
    if slots < 2:
        raise ValueError(f"slots is {slots}; it must be at least 2, so that reads and copies overlap")
    return chunk_bytes, slots
