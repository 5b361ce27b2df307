"""Counts the steps of a program through global hooks of torch, which leave its modules and optimizers as they are."""

from __future__ import annotations

import functools
import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from cachalot_simulator.after_import import after_import

# Optimizers of DeepSpeed's, by their modules: their step is several of torch's optimizer, each of a group of the parameters.
STEPPING_BY_GROUPS = {"deepspeed.runtime.zero.stage3": "DeepSpeedZeroOptimizer_Stage3",
                      "deepspeed.runtime.zero.stage_1_and_2": "DeepSpeedZeroOptimizer"}


class StepCounter:
    """The optimizer steps of a program; of one without optimizers the forward calls of its outermost modules.

    Of several optimizers the one with most steps counts: their steps are parts of the same step of a training. Steps within
    the step of one of STEPPING_BY_GROUPS count as one, after it. `stop` is called after `most` steps, if there is such a number, and `stepped` after each step of an optimizer: with the optimizer, and
    the number of the step if none was as far before.
    """

    def __init__(self, most: int | None, stop: Callable[[], None],
                 stepped: Callable[[Any, int | None], None] | None) -> None:
        self.optimizer_steps = 0
        self.forward_calls = 0
        self._most = most
        self._counts_forward, self._process = True, os.getpid()
        self._stop, self._on_step = stop, stepped
        self._steps_of: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._depth = threading.local()
        self._groups = threading.local()  # .stepped: the optimizers that have stepped within a step by groups
        for module, kind in STEPPING_BY_GROUPS.items():
            after_import(module, functools.partial(self._see_groups, kind))
        optimizers.register_optimizer_step_post_hook(self._stepped)
        # They stay: torch.compile would compile code again that has seen other hooks.
        modules.register_module_forward_pre_hook(self._entered)
        modules.register_module_forward_hook(self._left, always_call=True)
        os.register_at_fork(after_in_child=self._begin_child)

    def _begin_child(self) -> None:
        """Counts anew in a child by fork, unless it cannot use a GPU because its parent does: such a child loads data."""
        if not torch.cuda._is_in_bad_fork():
            self._process = os.getpid()
            self.optimizer_steps = self.forward_calls = 0
            self._steps_of, self._depth = weakref.WeakKeyDictionary(), threading.local()

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        if os.getpid() != self._process:
            return
        self._counts_forward = False
        stepped = getattr(self._groups, "stepped", None)
        if stepped is None:
            self._count(optimizer)
            return
        stepped.append(optimizer)
        if self._on_step is not None:
            self._on_step(optimizer, None)

    def _see_groups(self, kind: str, module: Any) -> None:
        """Counts the steps of a class, in a module, instead of those that they consist of."""
        optimizer_class = getattr(module, kind)
        step = optimizer_class.step

        @functools.wraps(step)
        def step_once(*arguments: Any, **options: Any) -> Any:
            self._groups.stepped = stepped = []
            try:
                result = step(*arguments, **options)
            finally:
                self._groups.stepped = None
            if stepped:  # none where gradients overflowed
                self._count(stepped[-1])
            return result

        optimizer_class.step = step_once

    def _count(self, optimizer: Any) -> None:
        steps = self._steps_of.get(optimizer, 0) + 1
        self._steps_of[optimizer] = steps
        is_next = steps > self.optimizer_steps
        self.optimizer_steps = max(self.optimizer_steps, steps)
        if self._on_step is not None:
            self._on_step(optimizer, steps if is_next else None)
        if self.optimizer_steps == self._most:
            self._stop()

    def _entered(self, module: Any, *_: Any) -> None:
        if not torch.compiler.is_compiling() and not is_replica(module):
            self._depth.value = getattr(self._depth, "value", 0) + 1

    def _left(self, module: Any, *_: Any) -> None:
        if torch.compiler.is_compiling() or is_replica(module):
            return
        self._depth.value = getattr(self._depth, "value", 1) - 1
        if self._depth.value > 0 or not self._counts_forward or not self._is_in_question():
            return
        self.forward_calls += 1
        if self.forward_calls == self._most:
            if has_optimizer():  # its steps are the ones that count
                self._counts_forward = False
            else:
                self._stop()

    def _is_in_question(self) -> bool:
        """Not in children by fork of a process that uses a GPU, nor before this one does."""
        return os.getpid() == self._process and torch.cuda.is_initialized()


def is_replica(module: Any) -> bool:
    """Returns whether it is a copy of a module that DataParallel has made for one call on one device."""
    return getattr(module, "_is_replica", False)


def has_optimizer() -> bool:
    return any(issubclass(type(thing), optimizers.Optimizer) for thing in gc.get_objects())
