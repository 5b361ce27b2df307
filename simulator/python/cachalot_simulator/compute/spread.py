"""Finds the unknown elements of a result where the arguments are known in part: a sum beside its count, padded rows.

Element by element operations spread what is unknown to the elements that they compute from it. Those that move elements tell
where they go when they are done with marks in place of values. For all others the whole result is unknown, or known.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cachalot_simulator.compute import device_memory
from cachalot_simulator.compute.host import Reader, are_known, unknown_elements
from cachalot_simulator.compute.operators import Signature, is_on_device, is_whole, tensors_in

MOVES = {f"aten::{name}" for name in (
    "cat", "stack", "clone", "copy_", "_to_copy", "index", "index_select", "gather", "take", "embedding", "flip", "roll", "repeat",
    "constant_pad_nd", "slice_scatter", "select_scatter", "slice_backward", "select_backward", "scatter", "scatter_", "index_put",
    "index_put_", "_index_put_impl_", "index_copy", "index_copy_", "index_fill", "index_fill_", "tril", "triu", "diag_embed",
)}
# Operations that choose between two values for each element: the positions of the mask and of these values.
SELECTS = {"aten::where": (0, 1, 2), "aten::masked_fill": (1, 2, 0), "aten::masked_fill_": (1, 2, 0)}
PLACES = ("index", "indices")  # names of arguments that say where elements go
CONSTANTS = ("value", "fill_value")


class Spread:
    """The way in which one operation spreads unknown elements."""

    def __init__(self, function: Any, signature: Signature) -> None:
        self.function = function
        self.moves = signature.name in MOVES
        self.is_by_elements = torch.Tag.pointwise in function.tags
        self.selects = SELECTS.get(signature.name)
        self.overwrites = signature.overwrites
        self.names = [argument.name for argument in function._schema.arguments]

    def unknown(self, reader: Reader, args: tuple, kwargs: dict, value: Tensor) -> Tensor | None:
        """Returns a mask of the unknown elements of the only result, whose values are given; None if they cannot be found."""
        if not (self.moves or self.is_by_elements) or not self.is_part_known(args, kwargs):
            return None
        if self.moves:
            return self.moved(reader, args, kwargs)
        if self.selects and len(args) > max(self.selects):
            return self.selected(reader, args).expand(value.size())
        marks = torch.zeros(value.size(), dtype=torch.bool, device="cpu")
        for tensor in tensors_in(args[1:] if self.overwrites else args, tuple(kwargs.values())):
            marks |= unknown_elements(tensor)
        return marks

    def selected(self, reader: Reader, args: tuple) -> Tensor:
        """Returns the marks of the selected values: of the two values only the selected one matters."""
        mask, one, other = (args[position] for position in self.selects or ())
        return torch.where(reader.argument(mask), marks_of(one), marks_of(other)) | marks_of(mask)

    def is_part_known(self, args: tuple, kwargs: dict) -> bool:
        values = (args, tuple(kwargs.values()))
        return are_whole(values) and any(device_memory.kinds_in(one) & device_memory.KNOWN for one in tensors_in(*values))

    def moved(self, reader: Reader, args: tuple, kwargs: dict) -> Tensor | None:
        """The operation with marks in place of values."""
        marker = Marker(reader)
        marked = [marker.mark(name, one) for name, one in zip(self.names, args)]
        named = {name: marker.mark(name, one) for name, one in kwargs.items()}
        if not marker.places_are_known:
            return None
        try:
            return self.function(*marked, **named).bool()
        except (RuntimeError, IndexError, ValueError, TypeError):
            return None


def marks_of(value: Any) -> Tensor:
    """Returns a mask of the unknown elements; of a number, or of a tensor of the CPU, none."""
    return unknown_elements(value) if isinstance(value, Tensor) and is_on_device(value) else torch.zeros((), dtype=torch.bool, device="cpu")


def are_whole(value: Any) -> bool:
    """Returns whether no tensor in a value consists of others."""
    if isinstance(value, (list, tuple)):
        return all(map(are_whole, value))
    return not isinstance(value, Tensor) or is_whole(value)


class Marker(Reader):
    """Makes an operation's arguments ones in which unknown elements are True and all others False."""

    def __init__(self, reader: Reader) -> None:
        super().__init__()
        self.reader = reader
        self.places_are_known = True

    def mark(self, name: str, value: Any) -> Any:
        if name in CONSTANTS and not isinstance(value, Tensor):
            return 0
        if name not in PLACES:
            return self.argument(value)
        self.places_are_known = self.places_are_known and are_known(value)
        return self.reader.argument(value)

    def tensor(self, tensor: Tensor) -> Tensor:
        return unknown_elements(tensor)
