"""How much work an operation is, beside its bytes."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

MULTIPLIES = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0}


def is_little_work(name: str, args: tuple, written: list[Tensor], most: float) -> bool:
    """Whether an operation takes at most so many multiplications: of a matrix product or a convolution."""
    first = MULTIPLIES.get(name)
    if first is not None:
        return written[0].numel() * args[first].size(-1) <= most
    if name in ("aten::convolution", "aten::convolution_backward"):
        weight: Any = args[1] if name == "aten::convolution" else args[2]
        positions = written[0].numel() if name == "aten::convolution" else args[0].numel()
        return positions * math.prod(weight.size()[1:]) <= most
    return True
