"""What each operation of PyTorch reads and writes, from its schema."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# In-place operations whose result does not depend on what was there.
OVERWRITING = {
    "aten::copy_", "aten::fill_", "aten::zero_", "aten::uniform_", "aten::normal_", "aten::random_", "aten::bernoulli_",
    "aten::exponential_", "aten::log_normal_", "aten::geometric_", "aten::cauchy_",
}
# Their results share memory, which their schemas do not say.
OTHER_VIEWS = {"aten::_unsafe_view", "aten::_conj", "aten::_neg_view"}
UNINITIALIZED = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided"}


def function_of(name: str) -> Any:
    """The operation of a name such as "aten::add.Tensor"."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def is_view(name: str) -> bool:
    """Whether an operation, by its name with the overload, writes nothing, and its results share memory."""
    if name in OTHER_VIEWS:
        return True
    packet, _, overload = name.partition(".")
    schema = torch._C._get_schema(packet, overload)
    aliases = [result.alias_info for result in schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


class Signature:
    """Which arguments an operation writes, and which of its results are new memory."""

    def __init__(self, function: Any) -> None:
        schema = function._schema
        self.name = schema.name
        self.written_positions: list[int] = []
        self.written_names: list[str] = []  # keyword arguments for results, of which no value is read
        for position, argument in enumerate(schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            if argument.kwarg_only:
                self.written_names.append(argument.name)
            else:
                self.written_positions.append(position)
        self.overwrites = self.name in OVERWRITING
        self.new_results = [i for i, result in enumerate(schema.returns) if result.alias_info is None]
        self.is_predicate = torch.Tag.pointwise in function.tags or self.name in ("aten::all", "aten::any")
        self.is_random = torch.Tag.nondeterministic_seeded in function.tags
        self.takes_generator = any(argument.name == "generator" for argument in schema.arguments)
        self.returns_one = len(schema.returns) == 1
        self.writes_anything = bool(self.written_positions or self.written_names or self.new_results)

    def new(self, result: Any) -> list[Any]:
        """Those parts of a result that are new memory."""
        if self.returns_one:
            return [result] if self.new_results else []
        return [result[i] for i in self.new_results if i < len(result)]

    def written(self, arguments: tuple, named: dict, result: Any) -> list[Tensor]:
        """The tensors of the device that a call writes: arguments first, then new results."""
        values = [arguments[i] for i in self.written_positions if i < len(arguments)]
        values += [named.get(name) for name in self.written_names]
        return tensors_in(*values, *self.new(result))


class _OnDevice(dict):
    """Whether tensors of a type have memory of their own. Those that wrap others, such as FakeTensor, have none."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = kind.__torch_dispatch__ is Tensor.__torch_dispatch__
        return self[kind]


_has_memory = _OnDevice()


def is_on_device(tensor: Tensor) -> bool:
    """Whether a tensor has memory of a simulated device."""
    return tensor.is_cuda and _has_memory[type(tensor)]


def tensors_in(*values: Any) -> list[Tensor]:
    """The tensors of simulated devices in some values, in their order."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            if is_on_device(value):
                found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(*value)
    return found


def room_left(value: Any, room: int) -> int:
    """What of `room` bytes the tensors in a value leave; negative if they are larger."""
    if isinstance(value, Tensor):
        return room - value.nbytes
    if isinstance(value, (list, tuple)):
        for one in value:
            room = room_left(one, room)
            if room < 0:
                break
    return room
