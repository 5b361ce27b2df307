"""Moves tensors between the simulated device and the CPU, where PyTorch's CPU kernels compute."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cachalot_simulator.compute import device_memory
from cachalot_simulator.compute.operators import is_on_device

MOST_ROWS = 4096  # of a strided tensor that are written one by one


class Reader:
    """Makes an operation's arguments ones for the CPU, and knows whether all values they hold are known."""

    def __init__(self) -> None:
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
        copy, is_known = read(tensor)
        self.host[id(tensor)] = copy
        self.is_known = self.is_known and is_known
        return copy

    def overwritten(self, tensor: Tensor) -> Tensor:
        """The same for a tensor of which the operation reads no value."""
        if not is_on_device(tensor):
            return tensor
        copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
        self.host[id(tensor)] = copy
        return copy


class Sampler(Reader):
    """Takes the first element of each tensor for all of it: right for tensors of unknown values, which are zero throughout."""

    def tensor(self, tensor: Tensor) -> Tensor:
        sample = torch.zeros((1,) * tensor.dim(), dtype=tensor.dtype)
        self.is_known = False
        if tensor.numel():
            device_memory.get(sample.data_ptr(), tensor.data_ptr(), tensor.element_size())
        return sample


def are_known(value: Any) -> bool:
    """Whether all tensors of the device in a value are known."""
    if isinstance(value, Tensor):
        return not is_on_device(value) or device_memory.is_known(value)
    if isinstance(value, (list, tuple)):
        return all(are_known(one) for one in value)
    return True


def read(tensor: Tensor) -> tuple[Tensor, bool]:
    """A copy on the CPU, with the same strides, and whether all of it is known."""
    copy = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    size = device_memory.extent(tensor)
    return copy, size == 0 or device_memory.get(copy.data_ptr(), tensor.data_ptr(), size)


def write(tensor: Tensor, value: Tensor, is_known: bool) -> bool:
    """Puts a tensor of the CPU into one of the device. Returns False if they differ in shape or it has too many rows."""
    if tensor.size() != value.size():
        return False
    if not is_known and (value.is_floating_point() or value.is_complex()):
        value = torch.nan_to_num(value, 0, 0, 0)
    rows = dense_rows(tensor)
    if len(rows) > MOST_ROWS:
        return False
    laid_out = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
    laid_out.copy_(value)
    to, source = tensor.data_ptr(), laid_out.data_ptr()
    for offset, size in rows:
        device_memory.put(to + offset, source + offset, size, is_known)
    return True


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
