"""The reads, the writes and the work of each operation of PyTorch, from its schema; and tensors that consist of others: sparse ones
of indices and values, nested ones of the values of all their tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

BY_ROWS = (torch.sparse_csr, torch.sparse_bsr)


def is_whole(tensor: Tensor) -> bool:
    """Returns whether a tensor does not consist of others."""
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


# In-place operations whose result does not depend on the old values.
OVERWRITING = {
    "aten::copy_", "aten::fill_", "aten::zero_", "aten::uniform_", "aten::normal_", "aten::random_", "aten::bernoulli_",
    "aten::exponential_", "aten::log_normal_", "aten::geometric_", "aten::cauchy_",
}
# They read of their first argument, a tensor, only what it looks like.
LIKE = {f"aten::{name}" for name in ("zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
                                     "new_zeros", "new_ones", "new_full")}
# Arguments for the random numbers of a dropout, which is not computed. In PyTorch 2.15 all of them are on the device.
SEEDS = {"philox_seed", "philox_offset", "rng_state"}
# Their results share memory, which their schemas do not say.
OTHER_VIEWS = {"aten::_unsafe_view", "aten::_conj", "aten::_neg_view", "aten::_sparse_coo_tensor_with_dims_and_tensors",
               "aten::_sparse_compressed_tensor_unsafe", "aten::_coalesced_"}
# They consist of operations that are seen, and the parts of their sparse results share the memory of arguments.
DECOMPOSED = {f"aten::{name}" for name in ("embedding_backward", "embedding_sparse_backward", "_embedding_bag_backward",
                                           "_embedding_bag_sparse_backward", "_sparse_coo_tensor_unsafe")}
# It writes nothing, although its schema says so: it tells the allocator that another stream uses the memory.
MARKING = {"aten::record_stream"}
UNINITIALIZED = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided", "aten::empty_permuted"}
# They update running statistics in place where they train, which their schemas do not say.
UPDATING = {"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::batch_norm", "aten::instance_norm"}
STATISTICS, TRAINS = [3, 4], 5  # the positions of their arguments
# Matrix products: the position of the argument whose last size is how many products each element sums.
MULTIPLIES = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::_scaled_mm": 0}


def function_of(name: str) -> Any:
    """The operation of a name such as "aten::add.Tensor"."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def is_view(name: str) -> bool:
    """Returns whether an operation, by its name with the overload, writes no memory: its result, or argument, is another view of
    it."""
    packet, _, overload = name.partition(".")
    if name in OTHER_VIEWS or torch.Tag.inplace_view in function_of(name).tags:
        return True
    schema = torch._C._get_schema(packet, overload)
    aliases = [result.alias_info for result in schema.returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def gives_no_tensor(name: str) -> bool:
    """Returns whether an operation, by its name with the overload, writes no tensor and returns none."""
    packet, _, overload = name.partition(".")
    schema = torch._C._get_schema(packet, overload)
    writes = name not in MARKING and any(argument.alias_info is not None and argument.alias_info.is_write for argument in schema.arguments)
    return not writes and not any("Tensor" in str(result.type) for result in schema.returns)


class Signature:
    """The arguments that an operation writes, and its results that are new memory."""

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
        self.overwrites = self.name in OVERWRITING or self.name in LIKE  # reads no value of its first argument
        self.unread = {position for position, argument in enumerate(schema.arguments) if argument.name in SEEDS}
        if self.overwrites:
            self.unread.add(0)
        self.new_results = [i for i, result in enumerate(schema.returns) if result.alias_info is None]
        self.is_predicate = torch.Tag.pointwise in function.tags or self.name in ("aten::all", "aten::any")
        self.is_random = torch.Tag.nondeterministic_seeded in function.tags
        self.takes_generator = any(argument.name == "generator" for argument in schema.arguments)
        self.success = [i for i, result in enumerate(schema.returns) if result.name == "info"]  # 0 where an operation succeeded
        self.returns_one = len(schema.returns) == 1
        self.updates = self.name in UPDATING
        self.writes_arguments = bool(self.written_positions or self.written_names or self.updates)
        self.writes_anything = bool(self.writes_arguments or self.new_results)

    def new(self, result: Any) -> list[Any]:
        """Returns those parts of a result that are new memory."""
        if self.returns_one:
            return [result] if self.new_results else []
        return [result[i] for i in self.new_results if i < len(result)]

    def written(self, arguments: tuple, named: dict, result: Any) -> list[Tensor]:
        """The tensors of the device that a call writes: arguments first, then new results."""
        if not self.writes_arguments:
            return tensors_in(result) if self.returns_one else tensors_in(*self.new(result))
        values = [arguments[i] for i in self.written_positions if i < len(arguments)]
        if self.updates and arguments[TRAINS]:
            values += [arguments[i] for i in STATISTICS]
        values += [named.get(name) for name in self.written_names]
        return tensors_in(*values, *self.new(result))


class _OnDevice(dict):
    """Tells whether tensors of a type have memory of their own. Types that wrap others, such as FakeTensor, have none."""

    def __missing__(self, kind: type) -> bool:
        self[kind] = kind.__torch_dispatch__ is Tensor.__torch_dispatch__
        return self[kind]


_has_memory = _OnDevice()
_is_cuda, _layout, _is_nested = Tensor.is_cuda.__get__, Tensor.layout.__get__, Tensor.is_nested.__get__


def is_on_device(tensor: Tensor) -> bool:
    """Returns whether a tensor has memory of a simulated device, or its parts have."""
    return tensor.is_cuda and _has_memory[type(tensor)]


def tensors_in(*values: Any) -> list[Tensor]:
    """The tensors of simulated devices in some values, in their order: of sparse ones their parts."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            if is_on_device(value):
                found += [value] if is_whole(value) else parts_of(value)
            elif value.is_cuda:
                found += wrapped_in(value)
        elif isinstance(value, (list, tuple)):
            found += value if are_on_device(value) else tensors_in(*value)
    return found


def wrapped_in(tensor: Tensor) -> list[Tensor]:
    """The tensors with memory that another one wraps, as a DTensor does its part."""
    names = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else []
    return tensors_in(*(getattr(tensor, name) for name in names))


def has_wrappers(value: Any) -> bool:
    """Returns whether a value contains a tensor on a device that has no memory of its own."""
    if isinstance(value, (list, tuple)):
        return any(map(has_wrappers, value))
    return isinstance(value, Tensor) and value.is_cuda and not is_on_device(value)


def are_on_device(values: list | tuple) -> bool:
    """Returns whether all values are whole tensors with memory of simulated devices. It is meant for hundreds of them."""
    return (all(issubclass(kind, Tensor) and _has_memory[kind] for kind in set(map(type, values)))
            and all(map(_is_cuda, values)) and set(map(_layout, values)) <= {torch.strided} and not any(map(_is_nested, values)))


def room_left(value: Any, room: int) -> int:
    """Returns the rest of `room` bytes after the tensors in a value; negative if they are larger."""
    if isinstance(value, Tensor):
        return room - (value.nbytes if is_whole(value) else sum(part.nbytes for part in parts_of(value)))
    if isinstance(value, (list, tuple)):
        for one in value:
            room = room_left(one, room)
            if room < 0:
                break
    return room


def is_little_work(name: str, args: tuple, written: list[Tensor], most: float) -> bool:
    """Returns whether an operation, a matrix product or a convolution, takes at most `most` multiplications."""
    first = MULTIPLIES.get(name)
    if first is not None:
        return written[0].numel() * args[first].size(-1) <= most
    if name in ("aten::convolution", "aten::convolution_backward"):
        weight: Any = args[1] if name == "aten::convolution" else args[2]
        positions = written[0].numel() if name == "aten::convolution" else args[0].numel()
        return positions * math.prod(weight.size()[1:]) <= most
    return True
