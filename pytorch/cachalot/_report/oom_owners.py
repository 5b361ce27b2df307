"""The owners of tensors in live blocks: parameters, gradients, buffers and optimizer states of modules, and other tensors.

The search walks the objects that the garbage collector knows and reads them by the methods of their base classes, as
_leaks/suspects.py does: no code of the program's runs, no tensor is made on a device, and what cannot be read is passed over. It
ends at a deadline; memory whose owner it has not found by then counts as unknown.
"""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Iterator
from typing import Any

from .oom_facts import Blocks

PARAMETERS, GRADIENTS, BUFFERS, OPTIMIZER = "parameters", "gradients", "buffers", "optimizer states"
KINDS = (PARAMETERS, GRADIENTS, BUFFERS, OPTIMIZER)
TENSORS = "other tensors that Python holds"
UNKNOWN = "activations, temporaries and memory of C++ code"
_CHECKED = 4096  # objects between two looks at the clock


@dataclasses.dataclass
class Owner:
    """The live memory of one module, or of what belongs to none."""

    name: str  # "GPT.blocks.3", or TENSORS or UNKNOWN
    bytes: int = 0
    blocks: int = 0
    kinds: dict[str, int] = dataclasses.field(default_factory=dict[str, int])  # bytes

    def add(self, kind: str, size: int) -> None:
        self.bytes += size
        self.blocks += 1
        if kind:
            self.kinds[kind] = self.kinds.get(kind, 0) + size


@dataclasses.dataclass
class Owners:
    all: list[Owner]  # the largest first; their sum is all live memory
    names: dict[int, str]  # of blocks, by number: "GPT.blocks.3 parameters"
    is_complete: bool


class Late(Exception):
    """The deadline has passed."""


def owners_of(blocks: Blocks, seconds: float) -> Owners:
    """Returns the owners of all blocks; takes at most about `seconds`."""
    import torch

    search = _Search(blocks, time.monotonic() + seconds)
    is_complete = True
    try:
        with torch._C.DisableTorchFunction():
            search.run()
    except Late:
        is_complete = False
    return search.owners(is_complete)


class _Search:
    def __init__(self, blocks: Blocks, deadline: float) -> None:
        self._blocks = blocks
        self._deadline = deadline
        self._found: dict[int, tuple[str, str]] = {}  # block number: module and kind
        self._module_of: dict[int, str] = {}  # id of a parameter: its module

    def run(self) -> None:
        modules, optimizers, tensors = self._objects()
        for module, name in _named(modules):
            self._look_at_time()
            self._add_module(module, name)
        for optimizer in optimizers:
            self._look_at_time()
            self._add_optimizer(optimizer)
        for count, tensor in enumerate(tensors):
            if count % _CHECKED == 0:
                self._look_at_time()
            self._add(tensor, TENSORS, "")

    def owners(self, is_complete: bool) -> Owners:
        owners: dict[str, Owner] = {}
        names: dict[int, str] = {}
        for number, size in enumerate(self._blocks.sizes):
            name, kind = self._found.get(number, (UNKNOWN, ""))
            owners.setdefault(name, Owner(name)).add(kind, size)
            if name != UNKNOWN:
                names[number] = f"{name} {kind}" if kind else "a tensor that Python holds"
        ordered = sorted(owners.values(), key=lambda owner: -owner.bytes)
        return Owners(ordered, names, is_complete)

    def _look_at_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise Late

    def _objects(self) -> tuple[list[Any], list[Any], list[Any]]:
        """Modules, optimizers and tensors. Types are asked once each: there may be millions of objects."""
        import torch

        wanted = (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)
        found: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
        places: dict[type[Any], int] = {}
        objects: list[object] = gc.get_objects()
        for count, candidate in enumerate(objects):
            if count % _CHECKED == 0:
                self._look_at_time()
            kind: type[Any] = type(candidate)
            place = places.get(kind)
            if place is None:
                place = places[kind] = next((i for i, base in enumerate(wanted) if issubclass(kind, base)), -1)
            if place >= 0:
                found[place].append(candidate)
        return found

    def _add_module(self, module: Any, name: str) -> None:
        for parameter in _values(module, "_parameters"):
            self._module_of.setdefault(id(parameter), name)
            self._add(parameter, name, PARAMETERS)
            self._add(_gradient(parameter), name, GRADIENTS)
        for buffer in _values(module, "_buffers"):
            self._add(buffer, name, BUFFERS)

    def _add_optimizer(self, optimizer: Any) -> None:
        state: Any = getattr(optimizer, "state", None)
        if not issubclass(type(state), dict):
            return
        for parameter, entries in list(dict[Any, Any].items(state)):
            name = self._module_of.get(id(parameter), type(optimizer).__name__)
            for tensor in _tensors_in(entries):
                self._add(tensor, name, OPTIMIZER)

    def _add(self, tensor: Any, name: str, kind: str) -> None:
        for address in _addresses(tensor):
            number = self._blocks.find(address)
            if number >= 0:
                self._found.setdefault(number, (name, kind))


def _named(modules: list[Any]) -> Iterator[tuple[Any, str]]:
    """Each module with its name, which begins with the class of the module that no other contains."""
    children = {id(child) for module in modules for child in _values(module, "_modules")}
    seen: set[int] = set()
    stack = [(module, type(module).__name__) for module in reversed(modules) if id(module) not in children]
    while stack:
        module, name = stack.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield module, name
        entries = _dictionary(module, "_modules")
        stack += [(child, f"{name}.{key}") for key, child in reversed(list(entries.items())) if child is not None]


def _dictionary(module: Any, name: str) -> dict[str, Any]:
    entries: Any = module.__dict__.get(name)  # None: its __init__ has not run
    return entries if issubclass(type(entries), dict) else {}


def _values(module: Any, name: str) -> list[Any]:
    return [value for value in _dictionary(module, name).values() if value is not None]


def _tensors_in(entries: Any) -> Iterator[Any]:
    """The values of an optimizer's state of one parameter; LBFGS has lists of tensors."""
    values: list[Any] = list(dict[Any, Any].values(entries)) if issubclass(type(entries), dict) else []
    for value in values:
        yield from value if issubclass(type(value), (list, tuple)) else (value,)


def _gradient(parameter: Any) -> Any:
    import torch

    try:
        grad: Any = torch.Tensor.grad  # of the base class, whatever a subclass has
        return grad.__get__(parameter) if parameter.is_leaf else None
    except Exception:  # a parameter without autograd, or not yet materialized
        return None


def _addresses(tensor: Any) -> Iterator[int]:
    """Yields the addresses of the tensor's memory on GPUs: of a wrapper such as DTensor, those of the tensors inside."""
    import torch

    if tensor is None or not issubclass(type(tensor), torch.Tensor):
        return
    try:
        storage = torch.Tensor.untyped_storage(tensor)
        if storage.device.type == "cuda" and (address := storage.data_ptr()):
            yield address
            return
    except Exception:  # no memory of its own: fake, functional, sparse
        pass
    local = tensor.__dict__.get("_local_tensor") if hasattr(tensor, "__dict__") else None
    if local is not None and local is not tensor:
        yield from _addresses(local)
