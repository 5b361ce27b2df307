"""Where the bytes of a tensor lie in a file."""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch


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
        """Yields the extent in parts of so many rows; the last part may be smaller."""
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
# shape and data_offsets, which count from the end of the header; `__metadata__` is none.

_MOST_HEADER_BYTES = 100_000_000  # the format's own limit
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
}


def extents_of_safetensors(path: Path, names: Iterable[str] | None) -> dict[str, Extent]:
    """Returns where the tensors of a file lie, in the order of the header, or of `names`.

    Raises:
        ValueError: the file is no whole safetensors file, has no tensor of a name, or one of a dtype that torch does not have.
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
