"""cachalot.stage(): from files to the GPU through a ring of pinned buffers. Reads, copies and the program's kernels overlap."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, overload

import torch

from . import _safetensors
from ._stage_ring import Ring, Target
from ._stage_sources import Extent, extent_of_array

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]
    File = Union[str, os.PathLike[str]]
    Device = Union[torch.device, str, int, None]

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
        drop_cached: removes what was read from the system's page cache, for files that are read once and larger than the memory.

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
        found = _safetensors.extents(Path(source), names)
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
