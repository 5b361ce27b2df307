"""Sees each operation, and what it does with operations of each kind."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cachalot_simulator.compute import device_memory, sizes
from cachalot_simulator.compute.device_memory import make_unknown
from cachalot_simulator.compute.host import Reader, Sampler, are_known, read, write
from cachalot_simulator.compute.operators import UNINITIALIZED, Signature, function_of, is_on_device, is_view, room_left, tensors_in
from cachalot_simulator.compute.randomness import generator_for, random_state
from cachalot_simulator.compute.reads import UnknownReads
from cachalot_simulator.compute.replacements import REPLACEMENTS
from cachalot_simulator.compute.work import is_little_work
from cachalot_simulator.threads import prepare_threads

# PyTorch reserves this key, between autograd and the devices, for libraries outside of it, and registers nothing there. A
# dispatch mode sees the same operations, but where there is one PyTorch adds up gradients in new memory.
KEY_NAME = "Fake"
KEY = torch._C._dispatch_key_parse(KEY_NAME)
_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded


def see_this_thread() -> None:
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, True)


@dataclass
class Policy:
    """What is computed: operations with at most so many bytes; and what a size is that depends on unknown values."""

    most_bytes: float
    most_work: float
    unknown: str  # "zero", "expected" or "max"


class Computing:
    """Follows each operation on simulated devices: its result is computed, or is unknown from then on."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.reads = UnknownReads()
        self.computed = 0
        self.is_compiled = False  # code of torch.compile has run
        self.not_computable: set[str] = set()  # operations that no CPU kernel computes
        self.expected = threading.local()  # .count: how many elements the operation selects that is under way
        self._libraries: dict[str, Any] = {}  # by namespace
        self._registered: set[str] = set()

    def start(self) -> None:
        """Begins to see the operations of this thread, of those that it starts from now on, and of autograd's. It does not end."""
        others = self._libraries["_"] = torch.library.Library("_", "IMPL")
        others.fallback(torch.library.fallthrough_kernel, KEY_NAME)  # operations that are defined later
        self.register()
        load_library = torch.ops.load_library

        def load_and_register(path: Any) -> None:
            load_library(path)
            self.register()

        torch.ops.load_library = load_and_register
        self._see_compiled_code()
        prepare_threads(see_this_thread)
        see_this_thread()

    def _see_compiled_code(self) -> None:
        """Code of torch.compile makes its tensors by this function, past the dispatcher. Nothing computes them."""
        guards = torch._C._dynamo.guards
        make = guards._empty_strided_cuda

        def make_unknown_tensor(*arguments: Any) -> Tensor:
            tensor = make(*arguments)
            make_unknown(tensor)
            self.is_compiled = True
            return tensor

        guards._empty_strided_cuda = make_unknown_tensor

    def register(self) -> None:
        """Sees the operations that there are by now. Views pass unseen: they write nothing.

        A fallback for all would not do: PyTorch calls none that is written in Python while a dispatch mode is active.
        """
        for name in torch._C._dispatch_get_all_op_names():
            if name not in self._registered:
                self._registered.add(name)
                namespace = name.partition("::")[0]
                if namespace not in self._libraries:
                    self._libraries[namespace] = torch.library.Library(namespace, "IMPL")
                is_unseen = namespace in UNSEEN or is_view(name)
                kernel = torch.library.fallthrough_kernel if is_unseen else self._kernel(name)
                self._libraries[namespace].impl(name, kernel, KEY_NAME)

    def _kernel(self, name: str) -> Any:
        operator = None

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal operator
            if operator is None:
                operator = self._make_operator(function_of(name))
            _exclude(KEY, True)
            try:
                return operator(args, kwargs)
            finally:
                _exclude(KEY, False)

        return call

    def _make_operator(self, function: Any) -> Any:
        signature = Signature(function)
        name = signature.name
        if name in UNINITIALIZED:
            return Uninitialized(self, function, signature)
        if name in COPIES:
            return Copy(self, function, signature)
        if name in READS:
            return HostRead(self, function, signature)
        if sizes.depends_on_values(function):
            return Sized(self, function, signature)
        if not signature.writes_anything:
            return lambda args, kwargs: function(*args, **kwargs)
        return Operator(self, function, signature)


CUDA_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
# Collectives, whose values the simulated NCCL moves between processes, and marks of the profiler.
UNSEEN = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "symm_mem", "profiler"}
COPIES = {"aten::copy_", "aten::_to_copy", "aten::clone"}
READS = {"aten::_local_scalar_dense", "aten::item", "aten::equal", "aten::is_nonzero"}


class Operator:
    """An operation of the usual kind: it runs, and then its results are computed or unknown."""

    def __init__(self, computing: Computing, function: Any, signature: Signature) -> None:
        self.computing = computing
        self.function = function
        self.signature = signature
        self.on_cpu = REPLACEMENTS.get(signature.name, function)
        self.is_computable = True

    def __call__(self, args: tuple, kwargs: dict) -> Any:
        result = self.function(*args, **kwargs)
        self.follow(args, kwargs, result)
        return result

    def follow(self, args: tuple, kwargs: dict, result: Any) -> None:
        """Gives the memory that a call has written its values."""
        written = self.signature.written(args, kwargs, result)
        if not written:
            return
        if self.is_worth_it(args, kwargs, written):
            self.compute(args, kwargs, result, written)
        elif not (self.signature.is_predicate and self.guess(args, kwargs, written)):
            for tensor in written:
                make_unknown(tensor)

    def compute(self, args: tuple, kwargs: dict, result: Any, written: list[Tensor]) -> None:
        """Computes what a call has written, or makes it unknown if that is impossible."""
        reader = Reader()
        value, is_done = self.evaluate(reader, args, kwargs)
        self.computing.computed += is_done
        put_values(written, self.values_of(result, value) | reader.host if is_done else {}, reader.is_known)

    def guess(self, args: tuple, kwargs: dict, written: list[Tensor]) -> bool:
        """Guesses one value for all of a large result: true or false. Returns False if there is none."""
        if len(written) != 1 or written[0].dtype != torch.bool or not written[0].is_contiguous():
            return False
        value, is_done = self.evaluate(Sampler(), args, kwargs)
        if not is_done or not isinstance(value, Tensor) or value.numel() != 1:
            return False
        device_memory.guess(written[0], bool(value))
        return True

    def values_of(self, result: Any, value: Any) -> dict[int, Tensor]:
        """The values of new tensors of the device, by the tensors' ids."""
        values: dict[int, Tensor] = {}
        add_values(self.signature.new(result), self.signature.new(value), values)
        return values

    def is_worth_it(self, args: tuple, kwargs: dict, written: list[Tensor]) -> bool:
        """Whether a call that has run should be computed."""
        if not self.is_computable or not self.is_small(args, kwargs, written) or torch._C._cuda_isCurrentStreamCapturing():
            return False
        # A real number of which nothing is known is as well zero. What decides on it is computed.
        return not all(one.is_floating_point() for one in written) or self.reads_known(args, kwargs)

    def is_small(self, args: tuple, kwargs: dict, written: list[Tensor]) -> bool:
        room = room_left((written, args, tuple(kwargs.values())), self.computing.policy.most_bytes)
        return room >= 0 and is_little_work(self.signature.name, args, written, self.computing.policy.most_work)

    def reads_known(self, args: tuple, kwargs: dict) -> bool:
        """Whether all values that a call reads are known."""
        if not are_known(args[1:] if self.signature.overwrites else args):
            return False
        return all(are_known(one) for name, one in kwargs.items() if name not in self.signature.written_names)

    def evaluate(self, reader: Reader, args: tuple, kwargs: dict) -> tuple[Any, bool]:
        """The value on the CPU, and whether there is one."""
        signature = self.signature
        host_args = [
            reader.overwritten(one) if i == 0 and signature.overwrites else reader.argument(one) for i, one in enumerate(args)
        ]
        host_kwargs = {
            name: reader.overwritten(one) if name in signature.written_names and one is not None else reader.argument(one)
            for name, one in kwargs.items()
        }
        try:
            if not signature.is_random:
                return self.on_cpu(*host_args, **host_kwargs), True
            if signature.takes_generator:
                host_kwargs["generator"] = generator_for(kwargs.get("generator"))
                return self.on_cpu(*host_args, **host_kwargs), True
            with random_state():
                return self.on_cpu(*host_args, **host_kwargs), True
        except NotImplementedError:
            self.is_computable = False
            self.computing.not_computable.add(signature.name)
        except (RuntimeError, IndexError, ValueError, TypeError):  # of values that are unknown, or on a GPU an assert
            if reader.is_known:
                self.computing.not_computable.add(signature.name)
        return None, False


class Uninitialized(Operator):
    """An operation whose result has no values yet."""

    def __call__(self, args: tuple, kwargs: dict) -> Any:
        result = self.function(*args, **kwargs)
        if is_on_device(result):
            make_unknown(result)
        return result


class Copy(Operator):
    """A copy. CUDA's runtime moves the bytes, and what is known of them, where they are contiguous and of one type."""

    def __call__(self, args: tuple, kwargs: dict) -> Any:
        result = self.function(*args, **kwargs)
        to, source = (args[0], args[1]) if self.signature.name == "aten::copy_" else (result, args[0])
        if not is_on_device(to):
            if is_on_device(source):
                self.follow_to_host(to, source)
        elif not is_moved_by_runtime(to, source):
            self.follow(args, kwargs, result)
        return result

    def follow_to_host(self, to: Tensor, source: Tensor) -> None:
        """A kernel packs what is not contiguous before it is copied."""
        if device_memory.extent(source) > sizes.MOST_BYTES:
            return
        value, is_known = read(source)
        if not is_known:
            self.computing.reads.note("value")
        if not source.is_contiguous():
            to.copy_(value)


def is_moved_by_runtime(to: Tensor, source: Tensor) -> bool:
    if not to.is_contiguous():
        return False
    return not is_on_device(source) or (source.is_contiguous() and source.dtype == to.dtype and source.size() == to.size())


class HostRead(Operator):
    """An operation whose result is a number on the host."""

    def __call__(self, args: tuple, kwargs: dict) -> Any:
        result = self.function(*args, **kwargs)
        if not is_on_device(args[0]):
            return result
        reader = Reader()
        value, is_done = self.evaluate(reader, args, kwargs)
        if reader.is_known:
            return value if is_done else result
        count = getattr(self.computing.expected, "count", None)
        if count is not None:  # an operation reads how much it has selected
            return count
        self.computing.reads.note("value")
        return value if is_done else result


class Sized(Operator):
    """An operation the size of whose result depends on values.

    It is computed first. Then it runs, and learns the size where it reads a count of the device. The operations that it
    consists of are seen, because they may read values as well.
    """

    def __call__(self, args: tuple, kwargs: dict) -> Any:
        if not tensors_in(args) or not sizes.selects(self.signature.name, args):
            return super().__call__(args, kwargs)
        selection = sizes.Selection(self, args, kwargs)
        if not selection.is_known:
            self.computing.reads.note("size")
        outer = getattr(self.computing.expected, "count", None)
        self.computing.expected.count = count = selection.count if outer is None else outer
        device_memory.answer(-1 if count is None else count)
        _exclude(KEY, False)
        try:
            result = self.function.redispatch(CUDA_KEYS, *args, **kwargs)
        finally:
            _exclude(KEY, True)
            self.computing.expected.count = outer
            device_memory.answer(-1 if outer is None else outer)
        written = self.signature.written(args, kwargs, result)
        values = self.values_of(result, selection.value) | selection.reader.host if selection.is_done else {}
        put_values(written, values, selection.is_known)
        return result


def put_values(written: list[Tensor], values: dict[int, Tensor], is_known: bool) -> None:
    """Writes to each tensor of the device its value. A tensor without one, or with one of another shape, becomes unknown."""
    for tensor in written:
        value = values.get(id(tensor))
        if value is None or not write(tensor, value, is_known):
            make_unknown(tensor)


def add_values(result: Any, value: Any, found: dict[int, Tensor]) -> None:
    """Adds for each tensor of the device in a result the one on the CPU that has its values."""
    if isinstance(result, Tensor):
        if is_on_device(result) and isinstance(value, Tensor):
            found[id(result)] = value
    elif isinstance(result, (list, tuple)):
        for one, other in zip(result, value):
            add_values(one, other, found)
