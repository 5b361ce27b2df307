"""Operations the size of whose result depends on values: what they select, computed before they run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cachalot_simulator.compute import whole_numbers
from cachalot_simulator.compute.device_memory import extent, is_known
from cachalot_simulator.compute.host import Reader, are_known, write
from cachalot_simulator.compute.operators import is_on_device, is_whole, tensors_in

MOST_BYTES = 1 << 20  # of values that steer: as much as the simulator copies by default
OTHERS = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index",
          "aten::masked_scatter_backward", "aten::histc", "torchvision::nms", "torchvision::deform_conv2d", "aten::_coalesce",
          "aten::_to_sparse", "aten::_to_sparse_csr", "aten::_to_sparse_csc", "aten::_unique"}
STEERING = {"aten::masked_select": 1, "aten::bincount": 0}  # the argument that the size follows from, where it is not all of them
READ_BOUNDS = {"aten::bincount", "aten::histc"}  # they read the smallest and the largest value
# They select inside, by operations that are seen: unique, nonzero, a number that is read.
OF_OTHERS = {"aten::masked_scatter_backward", "aten::isin", "aten::linalg_matrix_exp", "aten::_nested_tensor_from_mask",
             "aten::_nested_tensor_from_mask_left_aligned"}
DISTINCT = {"aten::_unique", "aten::_unique2", "aten::unique_consecutive", "aten::unique_dim", "aten::unique_dim_consecutive"}
MASKS = (torch.bool, torch.uint8)


def most_copied(most_computed: float) -> float:
    """Returns the bytes up to which values reach the host, if operations up to `most_computed` bytes are computed."""
    return max(MOST_BYTES, most_computed)


def depends_on_values(function: Any) -> bool:
    return torch.Tag.dynamic_output_shape in function.tags or function._schema.name in OTHERS | OF_OTHERS


def selects(name: str, args: tuple) -> bool:
    """Returns whether this call selects: an index by positions does not."""
    return not is_index(name) or any(is_mask(one) for one in args[1])


def is_index(name: str) -> bool:
    return "index" in name


def is_of_others(name: str) -> bool:
    """Returns whether an operation selects by other operations, which are seen. An index does so by nonzero."""
    return is_index(name) or name in OF_OTHERS


def steers_by_known(name: str, args: tuple) -> bool:
    """Returns whether the size follows from one argument, or part of it, and this is known."""
    if name == "aten::_coalesce":  # where elements of a sparse tensor are does not depend on their values
        return are_known(args[0]._indices())
    return name in STEERING and are_known(args[STEERING[name]])


def is_mask(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in MASKS


class Selection:
    """The selection of a call.

    `count` is the size of the first result; None if the call finds it out by other operations, AS_READ if it reads values
    that are not a count.
    """

    AS_READ = -1

    def __init__(self, operator: Any, args: tuple, kwargs: dict) -> None:
        self.reader = Reader()
        self.value: Any = None
        self.is_done = False
        name, unknown = operator.signature.name, operator.computing.policy.unknown
        most = most_copied(operator.computing.policy.most_bytes)
        if unknown != "zero":
            settle_masks(args[1] if is_index(name) else args, unknown, most)
        tensors = tensors_in(args, *kwargs.values())
        if all(extent(one) <= most for one in tensors) or whole_numbers.are_worth_it(tensors, []):
            self.value, self.is_done = operator.evaluate(self.reader, args, kwargs)
        else:
            self.reader.is_known = False
        if name == "aten::nonzero" and not self.reader.is_known and not (self.is_done and (unknown == "zero" or is_mask(args[0]))):
            self.value, self.is_done = chosen(args[0], unknown), True
        self.count = self._count(operator.signature, dimension_of(name, args, kwargs) or 0)
        self.is_size_known = self.reader.is_known or steers_by_known(name, args)
        if unknown != "zero" and not self.is_size_known:
            self._take(most_selected(name, args, kwargs), unknown)

    def _take(self, most: int | None, unknown: str) -> None:
        """Sets the count to the number taken of at most `most` elements; the values are unknown. Changes nothing if `most` is
        None."""
        if most is not None:
            self.count = most if unknown == "max" else (most + 1) // 2
            self.value, self.is_done = None, False

    def _count(self, signature: Any, dimension: int) -> int | None:
        if signature.name in READ_BOUNDS:
            return self.AS_READ
        first = self.value[0] if isinstance(self.value, (list, tuple)) else self.value
        has_count = self.is_done and bool(signature.new_results) and not is_of_others(signature.name)
        return count_of(first, dimension) if has_count else None


def most_selected(name: str, args: tuple, kwargs: dict) -> int | None:
    """Returns the most elements that a call selects, if it selects distinct ones; the number that it repeats, each once, if it
    repeats."""
    if name == "aten::_coalesce":
        return args[0]._nnz()
    if name == "aten::repeat_interleave":
        return args[0].numel()
    if name not in DISTINCT:
        return None
    dimension = dimension_of(name, args, kwargs)
    return args[0].numel() if dimension is None else args[0].size(dimension)


def dimension_of(name: str, args: tuple, kwargs: dict) -> int | None:
    """Returns the dimension along which a call finds distinct parts; None if it finds distinct elements, or does other things."""
    if name not in DISTINCT:
        return None
    return kwargs.get("dim", args[1] if name.startswith("aten::unique_dim") else
                      args[3] if name == "aten::unique_consecutive" and len(args) > 3 else None)


def count_of(result: Any, dimension: int) -> int | None:
    """Returns the number of elements that a call with this result has selected, along a dimension."""
    if not isinstance(result, Tensor) or result.dim() == 0:
        return None
    return result.size(dimension) if is_whole(result) else result._nnz()


def settle_masks(args: Sequence[Any], unknown: str, most: float) -> None:
    """Gives unknown masks the elements that they are taken to have, so that all calls which select by one agree."""
    for one in args:
        if is_mask(one) and is_on_device(one) and extent(one) <= most and not is_known(one):
            write(one, pattern(one, unknown).to(one.dtype), False)


def pattern(mask: Tensor, unknown: str) -> Tensor:
    """The elements that an unknown mask is taken to have: none, each second one, or all."""
    part = torch.zeros(mask.numel(), dtype=torch.bool, device="cpu")
    if unknown != "zero":
        part[:: 2 if unknown == "expected" else 1] = True
    return part.view(mask.size())


def chosen(mask: Tensor, unknown: str) -> Tensor:
    """The places of these elements."""
    return torch.nonzero(pattern(mask, unknown))
