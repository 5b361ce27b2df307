"""Tensors that consist of others: sparse ones of indices and values, nested ones of the values of all their tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)


def is_whole(tensor: Tensor) -> bool:
    """Whether a tensor does not consist of others."""
    return tensor.layout is torch.strided and not tensor.is_nested


def parts_of(tensor: Tensor) -> list[Tensor]:
    """The tensors with memory that a tensor consists of: itself, or new objects."""
    if is_whole(tensor):
        return [tensor]
    if tensor.is_nested:
        return [tensor.values()]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in BY_ROWS:
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]


def join_parts(tensor: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """A tensor like another one, of other parts."""
    if tensor.is_nested:
        shape = tensor._nested_tensor_size(), tensor._nested_tensor_strides(), tensor._nested_tensor_storage_offsets()
        return torch._nested_view_from_buffer(*parts, *shape)
    if tensor.layout is torch.sparse_coo:
        return torch.ops.aten._sparse_coo_tensor_unsafe(*parts, tensor.size(), is_coalesced=tensor.is_coalesced())
    return torch.ops.aten._sparse_compressed_tensor_unsafe(*parts, tensor.size(), layout=tensor.layout, dtype=tensor.dtype)
