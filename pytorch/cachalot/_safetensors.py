"""The header of a safetensors file: 8 bytes with the length of a JSON object, the object, then the data of all tensors.

The format is described at https://huggingface.co/docs/safetensors: each member of the object is a tensor's name, with its dtype,
shape and data_offsets, which count from the end of the header; `__metadata__` is none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ._stage_sources import Extent

_MOST_HEADER_BYTES = 100_000_000  # the format's own limit
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64", "C64": "complex64",
}


def extents(path: Path, names: Iterable[str] | None) -> dict[str, Extent]:
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
