"""Marks in torch's history which module runs, and which tensors are parameters, gradients and so on.

Global hooks of torch see modules, optimizers and backward passes; the program is not changed. A mark is an annotation of the
history (`record_function`), so that it has a place among the allocations. attribution reads the marks.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.autograd import _record_function_with_args_enter as begin_mark, _record_function_with_args_exit as end_mark
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from cachalot_simulator.steps import is_replica

PREFIX = "cachalot:"
MODULE, BACKWARD, OWNED = "module ", "backward", "owned "
CREATE_GRAPH = 3  # the position of this argument of autograd's engine

# The owner of a tensor: its kind and the path of the module that has it.
Owner = tuple[str, str]


class Owners:
    """The hooks, and what they found out: `found` has for each mark OWNED whose memory the addresses were then.

    `steps` has the number of the optimizer step that ended with a mark.
    """

    def __init__(self) -> None:
        self.found: list[dict[int, Owner]] = []
        self.steps: dict[int, int] = {}
        self._process = os.getpid()
        self._paths = Names()
        self._trains_halves = False  # a module has parameters of 16 bits that are trained
        self._last_found: dict[tuple[str, int], dict[int, Owner]] = {}
        self._names = Names()
        self._open = threading.local()
        os.register_at_fork(after_in_child=self._begin_child)

    def _begin_child(self) -> None:
        """Forgets what runs in the parent. A child of a process that uses a GPU cannot use one: nothing is marked in it."""
        if not torch.cuda._is_in_bad_fork():
            self._process = os.getpid()
            self._open = threading.local()

    def watch(self) -> None:
        """Registers the hooks."""
        modules.register_module_forward_pre_hook(self._entered)
        modules.register_module_forward_hook(self._left, always_call=True)
        optimizers.register_optimizer_step_pre_hook(self._will_step)
        run = self._marked_backward(torch.autograd.graph._engine_run_backward)
        torch.autograd.graph._engine_run_backward = torch.autograd._engine_run_backward = run

    def _is_ours(self, module: Any) -> bool:
        """Not in a child by fork that cannot use the GPU, such as a worker that loads data, and no copy that DataParallel made for
        another thread."""
        return os.getpid() == self._process and not is_replica(module)

    def _entered(self, module: Any, *_: Any) -> None:
        if torch.compiler.is_compiling() or not self._is_ours(module):
            return
        stack = self._stack()
        if not stack and not self._paths.of(module):
            self._learn(module)
        stack.append(begin_mark(PREFIX + MODULE + (self._paths.of(module) or type(module).__name__)))

    def _left(self, module: Any, *_: Any) -> None:
        if torch.compiler.is_compiling() or not self._is_ours(module):
            return
        stack = self._stack()
        if stack:
            end_mark(stack.pop())

    def _stack(self) -> list[Any]:
        if not hasattr(self._open, "stack"):
            self._open.stack = []
        return self._open.stack

    def _learn(self, model: Any) -> None:
        """The paths and names in a module that no other module has called; with its class, where they begin with a number."""
        root = type(model).__name__

        def full(name: str) -> str:
            return f"{root}.{name}" if name[:1].isdigit() else name

        self._paths.add(model, root)
        try:
            parts = list(model.named_modules())
        except TypeError:  # torch collects modules in a set, and one of these has no hash
            return
        for path, part in parts:
            self._paths.add(part, full(path) or root)
        for name, tensor in model.named_parameters():
            self._names.add(tensor, full(name))
            self._trains_halves |= tensor.requires_grad and tensor.dtype.is_floating_point and tensor.dtype.itemsize == 2
        self._mark("parameters", model, ((full(name), tensor) for name, tensor in model.named_parameters()))
        self._mark("buffers", model, ((full(name), tensor) for name, tensor in model.named_buffers()))

    def _will_step(self, optimizer: Any, *_: Any) -> None:
        parameters = list(parameters_of(optimizer))
        kind = "optimizer state" if self._has_masters(parameters) else "parameters"
        self._mark(kind, optimizer, ((self._names.of(one), one) for one in parameters), "masters")
        self._mark("gradients", optimizer,
                   ((self._names.of(one), one.grad) for one in parameters if one.grad is not None))

    def _has_masters(self, parameters: list[Any]) -> bool:
        """Returns whether an optimizer steps copies of the parameters, in 32 bits, which no module has: those of DeepSpeed, of Apex
        and the like are flat, and parts of several parameters each."""
        return self._trains_halves and all(one.dtype.itemsize == 4 and not self._names.of(one) for one in parameters)

    def stepped(self, optimizer: Any, number: int | None) -> None:
        """Marks the end of a step of an optimizer: as StepCounter calls it."""
        self._mark("optimizer state", optimizer,
                   ((self._names.of(parameter), tensor)
                    for parameter, state in optimizer.state.items() if isinstance(state, dict)
                    for tensor in tensors_of(state.values())))
        if number is not None:
            self.steps[len(self.found) - 1] = number

    def _marked_backward(self, run: Callable) -> Callable:
        """Marks passes of autograd's engine, except those that make a graph of their own: they are part of a forward pass."""

        @functools.wraps(run)
        def run_marked(*arguments: Any, **options: Any) -> Any:
            makes_graph = len(arguments) > CREATE_GRAPH and arguments[CREATE_GRAPH]
            if makes_graph or os.getpid() != self._process:
                return run(*arguments, **options)
            mark = begin_mark(PREFIX + BACKWARD)
            try:
                return run(*arguments, **options)
            finally:
                end_mark(mark)

        return run_marked

    def _mark(self, kind: str, source: Any, tensors: Iterable[tuple[str, Any]], part: str = "") -> None:
        """Marks whose the tensors of a model or an optimizer are. Mostly they are where they were. `part` names those among the
        source's tensors of a kind that are marked by themselves."""
        if os.getpid() != self._process:
            return
        found = {address: (kind, name.rpartition(".")[0])
                 for name, tensor in tensors for address in addresses_of(tensor)}
        last = self._last_found.get((kind + part, id(source)))
        self.found.append(last if found == last else found)
        self._last_found[kind + part, id(source)] = self.found[-1]
        end_mark(begin_mark(f"{PREFIX}{OWNED}{len(self.found) - 1}"))


class Names:
    """The names of modules or parameters, by identity: some cannot be compared or have no hash."""

    def __init__(self) -> None:
        self._names: dict[int, tuple[weakref.ref, str]] = {}

    def add(self, named: Any, name: str) -> None:
        self._names[id(named)] = (weakref.ref(named), name)

    def of(self, named: Any) -> str:
        """Returns "" for one that is in no module that ran."""
        alive, name = self._names.get(id(named), (None, ""))
        return name if alive is not None and alive() is named else ""


def tensors_of(values: Iterable[Any]) -> Iterable[Any]:
    """Also those in lists, tuples and dicts, as LBFGS and others keep them."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_of(value)
        elif isinstance(value, dict):
            yield from tensors_of(value.values())


def parameters_of(optimizer: Any) -> Iterable[Any]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def addresses_of(tensor: Any) -> list[int]:
    """Returns the addresses of the storages on the GPU: of a tensor that wraps others, such as a shard (DTensor) or one that is
    quantized (torchao), those of its parts; of a parameter that DeepSpeed has taken apart, that of the part which stays."""
    tensor = getattr(tensor, "ds_tensor", tensor)
    if not isinstance(tensor, torch.Tensor) or not tensor.is_cuda:
        return []
    if hasattr(tensor, "__tensor_flatten__"):
        return [address for name in tensor.__tensor_flatten__()[0] for address in addresses_of(getattr(tensor, name))]
    if tensor.layout != torch.strided:
        return []
    try:
        address = tensor.untyped_storage().data_ptr()
    except (RuntimeError, ValueError):  # without a storage: fake, functional, not initialized and the like
        return []
    return [address] if address else []
