"""Choices among unknown real numbers, as by argmax: of numbers that are equal any place would do, and one in the middle is taken.

The first and the last places are often special: the token that ends a text is among them in most vocabularies. If it were
taken, each text would end at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cachalot_simulator.compute import device_memory
from cachalot_simulator.compute.host import read, write

# By the operation: the position of the dimension among the arguments (None: it is the last one), and its default.
DIMENSIONS: dict[str, tuple[int | None, int | None]] = {
    "aten::argmax": (1, None), "aten::argmin": (1, None), "aten::max.dim": (1, -1), "aten::min.dim": (1, -1),
    "aten::topk": (2, -1), "aten::multinomial": (None, -1),
}
COUNTED = {"aten::topk", "aten::multinomial"}  # their second argument is how many are chosen
PLACE = 0.382  # of the length: not a simple fraction, which would be the first place of a row where several rows are joined


def choose(name: str, args: tuple, kwargs: dict, written: list[Tensor], most_bytes: float) -> bool:
    """Writes a choice, and the numbers that are chosen, as guesses. Returns False where the choice follows from the numbers."""
    numbers, places = args[0], written[-1]
    if not numbers.is_floating_point() or places.dtype != torch.int64 or numbers.numel() == 0 or device_memory.is_known(numbers):
        return False
    values = read_different(numbers, most_bytes)
    if values is not None and name == "aten::multinomial":
        return False
    shape, axis, count = extent_of_choice(name, args, kwargs)
    if values is None:
        chosen = in_the_middle(shape, axis, count)
    else:
        takes_least = "min" in name or (args[3] if len(args) > 3 else kwargs.get("largest", True)) is False
        values = values.reshape(shape)
        chosen = extremes(values, axis, count, takes_least)
    for tensor in written[:-1]:
        if values is None or not write(tensor, values.gather(axis, chosen).reshape(tensor.size()), False):
            device_memory.make_one_unknown(tensor)
    return write(places, chosen.reshape(places.size()), False)


def read_different(numbers: Tensor, most_bytes: float) -> Tensor | None:
    """Returns the known or guessed values of some numbers; None if they are all zero, as unknown ones are, or too large to find
    out."""
    if device_memory.extent(numbers) > most_bytes:
        return None
    values, _ = read(numbers)
    return values if bool(values.any()) else None


def extent_of_choice(name: str, args: tuple, kwargs: dict) -> tuple[list[int], int, int]:
    """The shape of the numbers as they are compared, the axis along which they are, and how many are chosen."""
    position, dimension = DIMENSIONS[name]
    if position is not None:
        dimension = args[position] if len(args) > position else kwargs.get("dim", dimension)
    count = (args[1] if len(args) > 1 else kwargs.get("k", kwargs.get("num_samples"))) if name in COUNTED else 1
    numbers = args[0]
    if dimension is None or numbers.dim() == 0:
        return [numbers.numel()], 0, count
    return list(numbers.size()), dimension % numbers.dim(), count


def in_the_middle(shape: list[int], axis: int, count: int) -> Tensor:
    """Returns `count` places in a row along an axis of equal numbers; some of them twice if there are not as many."""
    row = (first_place(shape[axis], count) + torch.arange(count, device="cpu")) % shape[axis]
    return row.view([count if i == axis else 1 for i in range(len(shape))]).expand([*shape[:axis], count, *shape[axis + 1 :]])


def extremes(values: Tensor, axis: int, count: int, takes_least: bool) -> Tensor:
    """The places of the largest or the least values along an axis; of equal ones those in the middle."""
    length = values.size(axis)
    first = first_place(length, count)
    order = values.roll(-first, axis).sort(dim=axis, descending=not takes_least, stable=True).indices
    return (order.narrow(axis, 0, count) + first) % length


def first_place(length: int, count: int) -> int:
    return max(0, min(int(length * PLACE), length - count))
