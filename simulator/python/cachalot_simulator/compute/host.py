"""Moves tensors between the simulated device and the CPU, where PyTorch's CPU kernels compute, and has random numbers there in place of
the GPU's: the same in each run, as the program's seed says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from cachalot_simulator.compute import device_memory
from cachalot_simulator.compute.operators import is_on_device, is_whole, join_parts, parts_of, tensors_in

# Types with few operations on the CPU, by types that hold their values.
COMPUTABLE = {torch.complex32: torch.complex64} | {
    getattr(torch, name): torch.float32 for name in dir(torch) if name.startswith("float8_")}
MOST_ROWS = 4096  # of a strided tensor that are written one by one


class Reader:
    """Makes an operation's arguments ones for the CPU, and knows whether all values they hold are known."""

    def __init__(self, device: int | None = None) -> None:
        self.device = torch.cuda.current_device() if device is None else device  # the device whose random numbers are drawn
        self.is_known = True
        self.host: dict[int, Tensor] = {}  # by the id of the tensor on the device

    def argument(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self.tensor(value) if is_on_device(value) else value
        if isinstance(value, (list, tuple)):
            return type(value)([self.argument(one) for one in value])
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.Generator):
            return None
        return value

    def tensor(self, tensor: Tensor) -> Tensor:
        known = self.host.get(id(tensor))
        if known is not None:
            return known
        copy, is_known = read(tensor) if is_whole(tensor) else read_parts(tensor)
        self.host[id(tensor)] = copy
        self.is_known = self.is_known and is_known
        return copy

    def unread(self, tensor: Any) -> Any:
        """Returns a stand-in on the host for an argument of which the operation reads no value."""
        if not isinstance(tensor, Tensor) or not is_on_device(tensor):
            return tensor
        if not is_whole(tensor):
            return self.tensor(tensor)
        copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
        self.host[id(tensor)] = copy
        return copy


class Sampler(Reader):
    """Takes the first element of each tensor for all of it: right for tensors of unknown values, which are zero throughout."""

    def tensor(self, tensor: Tensor) -> Tensor:
        sample = torch.zeros((1,) * tensor.dim(), dtype=tensor.dtype, device="cpu")
        self.is_known = False
        if tensor.numel() and is_whole(tensor):
            device_memory.get(sample.data_ptr(), tensor.data_ptr(), tensor.element_size())
        return sample


def are_known(value: Any) -> bool:
    """Returns whether all tensors of the device in a value are known."""
    if isinstance(value, Tensor):
        return not is_on_device(value) or all(map(device_memory.is_known, parts_of(value)))
    if isinstance(value, (list, tuple)):
        return all(are_known(one) for one in value)
    return True


def have_content(value: Any) -> bool:
    """Returns whether something in a value is known or guessed, or nothing in it is of the device."""
    tensors = tensors_in(value)
    return not tensors or any(device_memory.kinds_in(one) != device_memory.UNKNOWN for one in tensors)


def unknown_elements(tensor: Tensor) -> Tensor:
    """Returns a mask of the elements of a device's tensor that are guessed or unknown."""
    size, item = device_memory.extent(tensor), tensor.element_size()
    kinds = torch.empty(size, dtype=torch.uint8, device="cpu")
    device_memory.get_kinds(kinds.data_ptr(), tensor.data_ptr(), size)
    if size == 0:
        return torch.zeros(tensor.size(), dtype=torch.bool, device="cpu")
    shape, strides = (*tensor.size(), item), (*(stride * item for stride in tensor.stride()), 1)
    return (kinds.as_strided(shape, strides) != device_memory.OF_BYTE[device_memory.KNOWN]).any(-1)


def read(tensor: Tensor) -> tuple[Tensor, bool]:
    """A copy on the CPU, with the same strides, and whether all of it is known."""
    copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    size = device_memory.extent(tensor)
    is_known = size == 0 or device_memory.get(copy.data_ptr(), tensor.data_ptr(), size)
    return as_stored(tensor, copy), is_known


def as_stored(tensor: Tensor, value: Tensor) -> Tensor:
    """A value with the conjugation and the sign that a tensor has beside its memory."""
    if tensor.is_conj():
        value = value.conj()
    return torch._neg_view(value) if tensor.is_neg() else value


def read_parts(tensor: Tensor) -> tuple[Tensor, bool]:
    """Reads a sparse tensor."""
    parts = [read(part) for part in parts_of(tensor)]
    return join_parts(tensor, [copy for copy, _ in parts]), all(is_known for _, is_known in parts)


def write(tensor: Tensor, value: Tensor, is_known: bool, unknown: Tensor | None = None) -> bool:
    """Puts a tensor of the CPU into one of the device. Returns False if they differ in shape or it has too many rows.

    `unknown` marks those elements that are guesses; without it all are, or none.
    """
    if tensor.size() != value.size():
        return False
    if not is_known and (value.is_floating_point() or value.is_complex()):
        value = value.to(COMPUTABLE.get(value.dtype, value.dtype))
        finite = torch.nan_to_num(value, 0, 0, 0)
        value = finite if unknown is None else torch.where(unknown, finite, value)
    rows = dense_rows(tensor)
    if len(rows) > MOST_ROWS:
        return False
    laid_out = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")
    laid_out.copy_(as_stored(tensor, value))
    to, source = tensor.data_ptr(), laid_out.data_ptr()
    if unknown is not None and not is_known:
        kinds = kinds_of_bytes(tensor, unknown)
        for offset, size in rows:
            device_memory.put_kinds(to + offset, source + offset, size, kinds.data_ptr() + offset)
        return True
    for offset, size in rows:
        device_memory.put(to + offset, source + offset, size, is_known)
    return True


def kinds_of_bytes(tensor: Tensor, unknown: Tensor) -> Tensor:
    """The kind of each byte of a tensor's memory whose unknown elements are guesses."""
    guessed, known = (device_memory.OF_BYTE[kind] for kind in (device_memory.GUESSED, device_memory.KNOWN))
    kinds = torch.empty_strided(tensor.size(), tensor.stride(), dtype=torch.uint8, device="cpu")
    kinds.copy_(torch.where(unknown, guessed, known))
    return kinds.as_strided((device_memory.extent(tensor) // tensor.element_size(),), (1,)).repeat_interleave(tensor.element_size())


def dense_rows(tensor: Tensor) -> list[tuple[int, int]]:
    """Offsets and sizes, in bytes, of the stretches without gaps that a tensor consists of."""
    item = tensor.element_size()
    if tensor.numel() == 0:
        return []
    length, rows = 1, [0]
    dimensions = sorted((stride, size) for size, stride in zip(tensor.size(), tensor.stride()) if size > 1 and stride > 0)
    for stride, size in dimensions:
        if stride == length and len(rows) == 1:
            length *= size
        elif len(rows) * size > MOST_ROWS:
            return [(0, 0)] * (MOST_ROWS + 1)
        else:
            rows = [start + i * stride for start in rows for i in range(size)]
    return [(start * item, length * item) for start in rows]


_generator = torch.Generator()


def generator_for(on_device: torch.Generator | None, index: int) -> torch.Generator:
    """A generator in a state that follows from the state of the device's: the program's, or that of the device `index`."""
    device = on_device or torch.cuda.default_generators[index]
    _generator.manual_seed((device.initial_seed() + 0x9E3779B97F4A7C15 * (device.get_offset() + 1)) % 2**63)
    return _generator


@contextmanager
def random_state(index: int) -> Iterator[None]:
    """The CPU's own generator in such a state, for operations that take none; afterwards as it was."""
    state = torch.get_rng_state()
    try:
        torch.set_rng_state(generator_for(None, index).get_state())
        yield
    finally:
        torch.set_rng_state(state)
