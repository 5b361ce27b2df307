"""Tells which large calls are computed as well: those that handle whole numbers alone, such as the edges of a graph.

Sizes and places follow from whole numbers, and their operations take the CPU little time for each of them. Real numbers, of
which there are most in a model, are not looked at, except for rows of random ones, by which programs choose edges and rows.
Bytes are left out: they are images, or weights that are compressed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cachalot_simulator.compute.device_memory import GUESSED, KNOWN, kinds_in

TYPES = {torch.bool, torch.int16, torch.int32, torch.int64}
FROM_HOST = {torch.bool, torch.int64}  # other types may be weights
MOST_KNOWN = 12 << 20  # elements of all tensors of a call, all of which have known ones
MOST_IN_TABLES = 512 << 10  # where some have many rows and columns, as masks of attention, which are made in each step
FEW_ROWS = 8
MOST_GUESSED = 128 << 10  # where some have guesses alone: a size that follows from guesses is not worth as much time


def are_worth_it(read: Sequence[Tensor], written: Sequence[Tensor]) -> bool:
    """Returns whether a call should be computed that reads and writes these tensors of the device. Nothing need be known of
    those that it has changed in place."""
    if not all(one.dtype in TYPES for one in written) or not all(one.dtype in TYPES or one.dim() <= 1 for one in read):
        return False
    elements = sum(one.numel() for one in (*read, *written))
    if elements > MOST_IN_TABLES and (elements > MOST_KNOWN or any(map(is_table, written)) or any(map(is_table, read))):
        return False
    changed = set(map(id, written))
    kinds = [kinds_in(one) for one in read if id(one) not in changed]
    if elements > MOST_GUESSED:
        return all(of_one & KNOWN for of_one in kinds)
    return all(of_one & (KNOWN | GUESSED) for of_one in kinds)


def flushes_cache(name: str, tensor: Tensor) -> bool:
    """Returns whether a call clears memory as large as the GPU's cache: torch.compile does, hundreds of times for each kernel that it
    measures, and reads none of it."""
    return (name == "aten::zero_" and tensor.dtype == torch.int32 and tensor.dim() == 1
            and tensor.nbytes == torch.cuda.get_device_properties(tensor.device).L2_cache_size)


def is_table(tensor: Tensor) -> bool:
    """Returns whether a tensor has many rows and many columns; the edges of a graph have two rows or two columns."""
    return tensor.dim() > 1 and sorted(tensor.size())[-2] > FEW_ROWS


def are_worth_drawing(row: Tensor) -> bool:
    """Returns whether random numbers should be drawn into a large tensor."""
    return row.dim() == 1 and row.numel() <= MOST_KNOWN


def are_worth_copying(to: Tensor) -> bool:
    """Returns whether the numbers of a large tensor should reach the device from the host."""
    return to.dtype in FROM_HOST and to.numel() <= (MOST_IN_TABLES if is_table(to) else MOST_KNOWN)
