"""Where the bytes of a tensor lie in a file."""

from __future__ import annotations

import dataclasses
import math
import mmap
from collections.abc import Callable, Iterator
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
