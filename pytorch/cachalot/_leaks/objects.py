"""Python's objects, tensors and graphs, read without the program's code: for the search of the holders of memory (suspects.py).

What is found is asked for its type (isinstance would ask a proxy for __class__) and read by the methods of dict and torch.Tensor,
whatever their subclasses have.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import gc
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .frames import is_of_library

_MOST_FUNCTIONS = 500_000  # nodes of autograd graphs looked at for one holder
CONTAINERS = (list, tuple, dict, set, frozenset)
GENERATORS = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_DICT: type[dict[Any, Any]] = dict
_PLAIN = (str, bytes, int, float, bool, type(None))  # keys that are shown as they are written


def is_kind(candidate: Any, kind: type | tuple[type, ...]) -> bool:
    return issubclass(type(candidate), kind)  # isinstance would ask proxies for __class__


def is_tensor(candidate: Any) -> bool:
    import torch

    return is_kind(candidate, torch.Tensor)


def cuda_tensors() -> Iterator[tuple[Any, int]]:
    """Every CUDA tensor that Python knows, with the address of its block."""
    for candidate in gc.get_objects():
        if is_tensor(candidate) and (address := cuda_address(candidate)):
            yield candidate, address


def unseen_references() -> Iterator[tuple[Any, Any]]:
    """Yields the references that gc.get_referrers() does not report: an object, and its referrer.

    These are the objects in NumPy's arrays of objects, the holders of such an array behind a dict of arrays alone, as the garbage
    collector does not track it, and the results of asyncio's tasks, since TaskObj_traverse drops the answer of its base.
    """
    array: Any = getattr(sys.modules.get("numpy"), "ndarray", None)
    for owner in gc.get_objects():
        if type(owner).__module__ == "_asyncio":
            result = (held for held in gc.get_referents(owner) if not is_kind(held, contextvars.Context))
            yield from ((held, owner) for held in result)
        for held in gc.get_referents(owner) if array is not None else ():
            is_untracked = is_kind(held, dict) and not gc.is_tracked(held)
            inside: list[Any] = [value for _, value in items(held)] if is_untracked else [held]
            for one in inside:
                if type(one) is array and one.dtype == object:
                    yield from ((value, one) for value in one.flat)
                    yield one, owner


def cuda_address(tensor: Any) -> int:
    """Returns the address of the tensor's block; 0 if it has none on a GPU. The storage is asked: a tensor's device may be code
    of the program's."""
    try:
        storage = storage_of(tensor)
        return storage.data_ptr() if storage.device.type == "cuda" else 0
    except Exception:  # a tensor without memory of its own: fake, functional, sparse
        return 0


def storage_of(tensor: Any) -> Any:
    import torch

    return torch.Tensor.untyped_storage(tensor)


def bytes_used(tensor: Any) -> int:
    """Returns the bytes that the tensor uses of its block, by its elements: fewer than the block's where it is a view of a
    part."""
    import torch

    return torch.Tensor.numel(tensor) * torch.Tensor.element_size(tensor)


def attribute_of(tensor: Any, name: str) -> Any:
    """An attribute as torch.Tensor has it, whatever a subclass has; None, too, where autograd does not tell."""
    import torch

    try:
        return getattr(torch.Tensor, name).__get__(tensor)
    except Exception:  # of a view, say, that was changed in place where that is forbidden
        return None


def has_graph(tensor: Any) -> bool:
    return attribute_of(tensor, "grad_fn") is not None


def output_of(tensor: Any) -> tuple[Any, int]:
    """The function at the end of the tensor's graph, and which of its outputs the tensor is."""
    return attribute_of(tensor, "grad_fn"), attribute_of(tensor, "output_nr")


def graph_of_gradient(tensor: Any) -> Any:
    is_parameter = attribute_of(tensor, "is_leaf") and attribute_of(tensor, "requires_grad")
    gradient = attribute_of(tensor, "grad") if is_parameter else None
    return None if gradient is None else attribute_of(gradient, "grad_fn")


class Graph(NamedTuple):
    """The autograd graphs that end in some functions."""

    functions: int  # that they have
    blocks: set[int]  # that these keep
    inputs: set[tuple[Any, int]]  # of these: functions and the numbers of their outputs


def graph_of(ends: Iterable[Any], checkpoints: dict[int, Any]) -> Graph:
    seen: set[Any] = set()
    blocks: set[int] = set()
    inputs: set[tuple[Any, int]] = set()
    waiting = [end for end in ends if end is not None]  # a thread may have released a graph
    while waiting and len(seen) < _MOST_FUNCTIONS:
        function = waiting.pop()
        if function in seen:
            continue
        seen.add(function)
        saved = list(saved_by(function))
        blocks.update(address for held in saved if is_tensor(held) and (address := cuda_address(held)))
        inputs.update(function.next_functions)
        before = [checkpoints.get(id(held)) for held in saved] + [before for before, _ in function.next_functions]
        waiting += [function for function in before if function is not None and function not in seen]
    return Graph(len(seen), blocks, inputs)


def checkpoints() -> dict[int, Any]:
    """The functions that keep the arguments of checkpoints without reentry, by the ids of what autograd saves instead of tensors.

    C++ alone refers to a checkpoint: it has the hook that unpacks. Saved tensors do not refer to it.
    """
    kind: Any = getattr(sys.modules.get("torch.utils.checkpoint"), "_CheckpointFrame", None)
    functions: dict[int, Any] = {}
    for frame in gc.get_objects() if kind is not None else ():
        if type(frame) is kind and is_tensor(frame.input_saver):
            keeps = attribute_of(frame.input_saver, "grad_fn")
            functions.update((id(saved()), keeps) for saved in frame.weak_holders if saved() is not None)
    return functions


def saved_by(function: Any) -> Iterator[Any]:
    """Yields the objects that a function of an autograd graph keeps for its backward pass, in no order: tensors, and the results
    of hooks."""
    import torch

    attributes = instance_attributes(function) if is_kind(function, torch._C._FunctionBase) else None
    kept = [held for _, held in items(attributes or {})]
    if function.__class__.__name__ == "AccumulateGrad":  # no backward pass frees it
        kept += [function.variable, attribute_of(function.variable, "grad")]
    kept += [part for held in kept if is_kind(held, CONTAINERS) for part in gc.get_referents(held)]
    yield from kept
    for attribute in saved_attributes(function.__class__):
        try:
            value: Any = getattr(function, attribute)
            all_saved: Iterable[Any] = value if type(value) in (list, tuple) else [value]
            data: list[Any] = [saved.data for saved in all_saved if saved is not None]  # as it is saved: hooks are not called
        except Exception:  # freed by a backward pass
            continue
        yield from data


@functools.cache
def saved_attributes(function_type: type) -> tuple[str, ...]:
    return tuple(name for name in dir(function_type) if name.startswith("_raw_saved_"))


def uncaught() -> list[BaseException]:
    """The exceptions by which the program ends, and those from which they were raised: nothing of the program's keeps them."""
    found: list[BaseException] = []
    waiting: list[Any] = [getattr(sys, name, None) for name in ("last_exc", "last_value")]
    while waiting:
        exception = waiting.pop()
        if is_kind(exception, BaseException) and all(exception is not known for known in found):
            found.append(exception)
            waiting += [of_exception(exception, name) for name in ("__cause__", "__context__")]
    return found


def of_exception(exception: BaseException, name: str) -> Any:
    return getattr(BaseException, name).__get__(exception)


def tracebacks(exception: BaseException) -> Iterator[types.TracebackType]:
    traceback = of_exception(exception, "__traceback__")
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def frames_of(exception: BaseException) -> Iterator[types.FrameType]:
    """Yields the frames that the exception has left, as if they still ran; the outermost first."""
    return (traceback.tb_frame for traceback in tracebacks(exception))


def is_waiting_generator(held: Any) -> bool:
    """Returns whether it is a generator or coroutine of the program's that waits: one that has ended has no frame."""
    frame = frame_of(held) if is_kind(held, GENERATORS) else None
    return frame is not None and not is_of_library(frame.f_code.co_filename)


def frame_of(generator: Any) -> types.FrameType | None:
    attributes = ("gi_frame", "cr_frame", "ag_frame")
    return next((getattr(generator, name) for name in attributes if hasattr(generator, name)), None)


def module_of(namespace: dict[Any, Any]) -> str | None:
    name = _DICT.get(namespace, "__name__")
    if type(name) is not str:
        return None
    if instance_attributes(sys.modules.get(name)) is namespace:
        return name
    return name if _DICT.__contains__(namespace, "__builtins__") else None  # of exec and runpy


def is_of_library_module(name: str) -> bool:
    file = (instance_attributes(sys.modules.get(name)) or {}).get("__file__")
    return name in sys.builtin_module_names or (type(file) is str and is_of_library(file))


def items(mapping: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Returns the items of one moment: another thread may add some."""
    if type(mapping) is dict:
        return list(mapping.copy().items())  # in one step, as the list is not before Python 3.12
    try:
        return list(_DICT.items(mapping))  # copy asks a subclass for its keys
    except RuntimeError:  # it has changed meanwhile
        return []


def key_of(mapping: dict[Any, Any], value: Any) -> Any:
    for key, held in items(mapping):
        if held is value or key is value:
            return key
    return "?"


def has_attributes(owner: Any, mapping: dict[Any, Any]) -> bool:
    """Returns whether the dict, which the owner refers to, has its attributes: a class shows them by a proxy."""
    return is_kind(owner, type) or (not is_kind(owner, CONTAINERS) and instance_attributes(owner) is mapping)


def instance_attributes(owner: Any) -> dict[Any, Any] | None:
    """Returns Python's own dict of the object; None where its class means something else by __dict__, as proxies do."""
    meanings = (vars(kind)["__dict__"] for kind in type(owner).__mro__ if "__dict__" in vars(kind))
    meaning: Any = next(meanings, None)
    if not is_kind(meaning, (types.GetSetDescriptorType, types.MemberDescriptorType)):
        return None
    try:
        attributes = meaning.__get__(owner)
    except Exception:  # a proxy's, written in C
        return None
    return attributes if is_kind(attributes, dict) else None


def slots(owner: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object whose class has __slots__."""
    for kind in type(owner).__mro__:
        for name, member in vars(kind).items() if "__slots__" in vars(kind) else ():
            if is_kind(member, types.MemberDescriptorType):
                with contextlib.suppress(Exception):  # one that is not set
                    yield name, member.__get__(owner)


def function_name(function: Any) -> str:
    if is_kind(function, types.MethodType):
        function = function.__func__
    is_named = is_kind(function, (types.FunctionType, types.BuiltinFunctionType, type))
    return f"{function.__qualname__ if is_named else type(function).__name__}()"


def shown_key(key: Any) -> str:
    text = repr(key) if is_plain(key) else type(key).__name__
    return text if len(text) <= 40 else text[:39] + "…"


def is_plain(key: Any) -> bool:
    return type(key) in _PLAIN or (type(key) in (tuple,) and all(map(is_plain, key)))
