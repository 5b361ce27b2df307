"""The owners of tensors in live blocks: parameters, gradients, buffers and optimizer state of modules, and other tensors.

The search walks the objects that the garbage collector knows and reads them by _leaks/objects.py: no code of the program's runs, no
tensor is made on a device, and what cannot be read is passed over. It ends at a deadline; memory whose owner it has not found by
then counts as unknown.
"""

from __future__ import annotations

import bisect
import gc
import time
from collections.abc import Iterable, Iterator
from typing import Any

from .._leaks.objects import attribute_of, cuda_address, is_kind, is_tensor, items

PARAMETERS, GRADIENTS, BUFFERS, OPTIMIZER = "parameters", "gradients", "buffers", "optimizer state"
TENSORS = "other tensors that Python holds"
_CHECKED = 4096  # objects between two looks at the clock


class Late(Exception):
    """The deadline has passed."""


def add_owners(segments: Iterable[dict[str, Any]], device: int, seconds: float) -> bool:
    """Gives the live blocks of a snapshot's segments, on one device, their "owner" and "owner_kind", as far as they are found.

    Returns:
        whether the search ended by itself; it takes at most about `seconds`.
    """
    import torch

    awake = [segment for segment in segments if segment["device"] == device and not segment.get("asleep_size")]
    blocks = [block for segment in awake for block in segment["blocks"] if block["state"] == "active_allocated"]
    search = _Search(blocks, time.monotonic() + seconds)
    try:
        with torch._C.DisableTorchFunction():
            search.run()
    except Late:
        return False
    return True


class _Search:
    def __init__(self, blocks: list[dict[str, Any]], deadline: float) -> None:
        self._blocks = sorted(blocks, key=lambda block: int(block["address"]))
        self._addresses: list[int] = [block["address"] for block in self._blocks]
        self._deadline = deadline
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
            if attribute_of(parameter, "is_leaf"):
                self._add(attribute_of(parameter, "grad"), name, GRADIENTS)
        for buffer in _values(module, "_buffers"):
            self._add(buffer, name, BUFFERS)

    def _add_optimizer(self, optimizer: Any) -> None:
        state: Any = getattr(optimizer, "state", None)
        for parameter, entries in items(state) if is_kind(state, dict) else ():
            name = self._module_of.get(id(parameter), type(optimizer).__name__)
            for tensor in _tensors_in(entries):
                self._add(tensor, name, OPTIMIZER)

    def _add(self, tensor: Any, name: str, kind: str) -> None:
        address = address_of(tensor)
        at = bisect.bisect_right(self._addresses, address) - 1
        if at < 0 or address >= self._addresses[at] + self._blocks[at]["size"] or "owner" in self._blocks[at]:
            return
        self._blocks[at]["owner"] = name
        if kind:
            self._blocks[at]["owner_kind"] = kind


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
        entries = reversed(_entries(module, "_modules"))
        stack += [(child, f"{name}.{key}") for key, child in entries if child is not None]


def _entries(module: Any, name: str) -> list[tuple[Any, Any]]:
    found: Any = module.__dict__.get(name)  # None: its __init__ has not run
    return items(found) if is_kind(found, dict) else []


def _values(module: Any, name: str) -> list[Any]:
    return [value for _, value in _entries(module, name) if value is not None]


def _tensors_in(entries: Any) -> Iterator[Any]:
    """The values of an optimizer's state of one parameter; LBFGS has lists of tensors."""
    for _, value in items(entries) if is_kind(entries, dict) else ():
        yield from value if is_kind(value, (list, tuple)) else (value,)


def address_of(tensor: Any) -> int:
    """Returns the address of the tensor's memory on a GPU: of a wrapper such as DTensor, that of the tensor inside; 0: it has none."""
    if not is_tensor(tensor):
        return 0
    local = tensor.__dict__.get("_local_tensor") if hasattr(tensor, "__dict__") else None
    return cuda_address(tensor) or (0 if local is tensor else address_of(local))
