"""Operations the size of whose result depends on values: what they select, computed before they run."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cachalot_simulator.compute.device_memory import extent
from cachalot_simulator.compute.host import Reader
from cachalot_simulator.compute.operators import tensors_in

MOST_BYTES = 1 << 20  # of values that steer: as much as the simulator copies by default
OTHERS = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index",
          "aten::histc", "torchvision::nms", "torchvision::deform_conv2d"}
MASKS = (torch.bool, torch.uint8)


def depends_on_values(function: Any) -> bool:
    return torch.Tag.dynamic_output_shape in function.tags or function._schema.name in OTHERS


def selects(name: str, args: tuple) -> bool:
    """Whether this call does: an index by positions does not."""
    if "index" in name:
        return any(isinstance(one, Tensor) and one.dtype in MASKS for one in args[1])
    return True


class Selection:
    """What a call selects. `count`, the size of the first result, is None if the call finds it out by other operations."""

    def __init__(self, operator: Any, args: tuple, kwargs: dict) -> None:
        self.reader = Reader()
        self.value: Any = None
        self.is_done = False
        most = max(MOST_BYTES, operator.computing.policy.most_bytes)
        if all(extent(one) <= most for one in tensors_in(args, *kwargs.values())):
            self.value, self.is_done = operator.evaluate(self.reader, args, kwargs)
        else:
            self.reader.is_known = False
        unknown = operator.computing.policy.unknown
        if operator.signature.name == "aten::nonzero" and not self.reader.is_known and (unknown != "zero" or not self.is_done):
            self.value, self.is_done = chosen(args[0], unknown), True
        first = self.value[0] if isinstance(self.value, (list, tuple)) else self.value
        is_new = bool(operator.signature.new_results)
        self.count = first.size(0) if self.is_done and is_new and isinstance(first, Tensor) and first.dim() > 0 else None

    @property
    def is_known(self) -> bool:
        return self.reader.is_known


def chosen(mask: Tensor, unknown: str) -> Tensor:
    """The places of the elements that an unknown mask is taken to have: none, each second one, or all."""
    part = torch.zeros(mask.numel(), dtype=torch.bool)
    if unknown != "zero":
        part[:: 2 if unknown == "expected" else 1] = True
    return torch.nonzero(part.view(mask.size()))
