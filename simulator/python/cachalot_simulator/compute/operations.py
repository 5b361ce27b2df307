"""Sees each operation, and what it does with operations of each kind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._library.custom_ops import OPDEFS  # operations that are written in Python: what they consist of is seen

from cachalot_simulator.compute import choices, device_memory, result_sizes, whole_numbers
from cachalot_simulator.compute.device_memory import make_one_unknown, make_unknown
from cachalot_simulator.compute.exports import see_exports
from cachalot_simulator.compute.host import (Reader, Sampler, are_known, generator_for, have_content, random_state,
                                             read, write)
from cachalot_simulator.compute.operators import (DECOMPOSED, LIKE, UNINITIALIZED, Signature, function_of, gives_no_tensor, has_wrappers,
                                                  is_little_work, is_on_device, is_view, is_whole, parts_of, room_left,
                                                  tensors_in, wrapped_in)
from cachalot_simulator.compute.races import Races
from cachalot_simulator.compute.reads import UnknownReads
from cachalot_simulator.compute.replacements import REPLACEMENTS
from cachalot_simulator.compute.spread import Spread
from cachalot_simulator.compute.triton_kernels import see_triton_kernels

if TYPE_CHECKING:
    from cachalot_simulator.ending import Ending

# PyTorch reserves this key, between autograd and the devices, for libraries outside of it, and registers nothing there. A
# dispatch mode sees the same operations, but where there is one PyTorch adds up gradients in new memory.
KEY_NAME = "Fake"
KEY = torch._C._dispatch_key_parse(KEY_NAME)
_exclude = torch._C._dispatch_tls_set_dispatch_key_excluded
_function_modes, _dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
_without_functions, _without_modes = torch._C.DisableTorchFunction, torch._C._DisableTorchDispatch
_is_real = Tensor.is_floating_point
_is_capturing = torch._C._cuda_isCurrentStreamCapturing


def see_this_thread() -> None:
    torch._C._dispatch_tls_set_dispatch_key_included(KEY, True)


def prepare_threads(prepare: Callable[[], None]) -> None:
    """Calls a function at the beginning of each thread that is started from now on."""
    begin = threading.Thread._bootstrap_inner

    def begin_prepared(thread: threading.Thread) -> None:
        prepare()
        begin(thread)

    threading.Thread._bootstrap_inner = begin_prepared


@dataclass
class Policy:
    """The limits of computing: the bytes and work of an operation; and the value of a size that depends on unknown values."""

    most_bytes: float
    most_work: float
    unknown: str  # "zero", "expected" or "max"


class Computing:
    """Follows each operation on simulated devices: its result is computed, or is unknown from then on."""

    def __init__(self, policy: Policy, ending: Ending, races: Races | None) -> None:
        self.policy = policy
        self.reads = UnknownReads(ending)
        self.races = races
        self.computed = 0
        self.is_compiled = False  # code of torch.compile or of Triton has run
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
        see_triton_kernels(self.note_launch)
        see_exports(self.note_use)
        prepare_threads(see_this_thread)
        see_this_thread()

    def note_launch(self, arguments: tuple) -> None:
        """A kernel of Triton was launched."""
        self.is_compiled = True
        self.note_use(*arguments)

    def note_use(self, *values: Any) -> None:
        """Notes that work which no operation launched uses the tensors in some values."""
        if self.races is not None:
            self.races.note(self.races.place(), *values)

    def _see_compiled_code(self) -> None:
        """Code of torch.compile makes its tensors by this function, past the dispatcher. Nothing computes them."""
        guards = torch._C._dynamo.guards
        make = guards._empty_strided_cuda

        def make_unknown_tensor(*arguments: Any) -> Tensor:
            tensor = make(*arguments)
            make_one_unknown(tensor)
            self.is_compiled = True
            return tensor

        guards._empty_strided_cuda = make_unknown_tensor

    def register(self) -> None:
        """Sees the operations defined so far. Views pass unseen: they write nothing. Operations that give no tensor, such as
        allclose, pass unseen too: the operations they consist of are seen.

        A fallback for all would not do: PyTorch calls none that is written in Python while a dispatch mode is active.
        """
        for name in torch._C._dispatch_get_all_op_names():
            if name not in self._registered and is_defined(name):
                self._registered.add(name)
                namespace = name.partition("::")[0]
                if namespace not in self._libraries:
                    self._libraries[namespace] = torch.library.Library(namespace, "IMPL")
                kernel = torch.library.fallthrough_kernel if is_unseen(name) else self._kernel(name)
                self._libraries[namespace].impl(name, kernel, KEY_NAME)

    def _kernel(self, name: str) -> Any:
        """Returns the function that is called for an operation. It is one frame of Python, because each allocation walks the
        stack."""
        run = follow = None

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal run, follow
            if run is None:
                operator = self._make_operator(function_of(name))
                follow = operator.follow
                run = operator.run if self.races is None else noted(operator, self.races)  # another thread may look at it meanwhile
            _exclude(KEY, True)
            try:
                result = run(*args, **kwargs)
                if _function_modes() or _dispatch_modes():
                    with _without_modes(), _without_functions():
                        follow(args, kwargs, result)
                else:
                    follow(args, kwargs, result)
                return result
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
        if result_sizes.depends_on_values(function):
            return Sized(self, function, signature)
        if name.startswith(("aten::linalg_", "aten::_linalg_")) or name in CHECKING:
            return Checking(self, function, signature)
        if name == "aten::mode":
            return Searching(self, function, signature)
        if not signature.writes_anything:
            return Unfollowed(self, function, signature)
        if signature.returns_one and signature.new_results and not signature.writes_arguments:
            return Function(self, function, signature)
        return Operator(self, function, signature)


CUDA_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
SPARSE_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCUDA)
COMPRESSED_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.SparseCsrCUDA)
KEYS = dict.fromkeys((torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc), COMPRESSED_KEYS)
# Collectives, whose values the simulated NCCL moves between processes, and marks of the profiler.
UNSEEN = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "symm_mem", "profiler"}
COPIES = {"aten::copy_", "aten::_to_copy", "aten::clone"}
# Beside those of linear algebra.
CHECKING = {"aten::cholesky", "aten::segment_reduce", "aten::normal"}
# Operations that a guess decides: selections, and scales, which programs check to be positive: of zeros they are not zero.
DECIDE_BY_GUESS = {"aten::where", "aten::exp", "aten::softplus"}
READS = {"aten::_local_scalar_dense", "aten::item", "aten::equal", "aten::is_nonzero"}


def is_defined(name: str) -> bool:
    """Returns whether there is an operation of a name. A library may give one a kernel before it is defined."""
    packet, _, overload = name.partition(".")
    try:
        torch._C._get_schema(packet, overload)
    except RuntimeError:
        return False
    return True


def is_composite(name: str) -> bool:
    """Returns whether an operation consists of others, on every device. Without autograd, as in inference mode, they reach the
    key."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return has(name, "CompositeImplicitAutograd") and not has(name, "CUDA")


def is_unseen(name: str) -> bool:
    """Returns whether an operation needs no handling, by its name with the overload."""
    if name.partition("::")[0] in UNSEEN or name in DECOMPOSED or name in OPDEFS or is_composite(name) or is_view(name):
        return True
    return gives_no_tensor(name) and name.partition(".")[0] not in READS


class Operator:
    """An operation of the usual kind: `run` runs it, and `follow` computes its results or makes them unknown."""

    def __init__(self, computing: Computing, function: Any, signature: Signature) -> None:
        self.run: Any = function._op  # without a frame of Python's
        self.computing = computing
        self.function = function
        self.signature = signature
        self.on_cpu = REPLACEMENTS.get(signature.name, function)
        self.is_computable = True
        self.most_bytes = computing.policy.most_bytes
        self.spread = Spread(function, signature)
        self.decides_by_guess = signature.name in DECIDE_BY_GUESS
        self.draws = signature.name == "aten::rand"
        self.choice = function.name() if function.name() in choices.DIMENSIONS else None

    def follow(self, args: tuple, kwargs: dict, result: Any) -> None:
        """Gives the memory that a call has written its values."""
        written = self.signature.written(args, kwargs, result)
        if not written or self.choice and choices.choose(self.choice, args, kwargs, written, self.most_bytes):
            return
        may_be_worth_it = written[0].nbytes <= self.most_bytes or not _is_real(written[0]) or self.draws
        if may_be_worth_it and self.is_worth_it(args, kwargs, written):
            self.compute(args, kwargs, result, written)
        elif not (self.signature.is_predicate and self.guess(args, kwargs, written)):
            make_unknown(written)

    def redispatch(self, keys: Any, args: tuple, kwargs: dict) -> Any:
        """Runs the operation, and sees those that it consists of."""
        _exclude(KEY, False)
        try:
            return self.function.redispatch(keys, *args, **kwargs)
        finally:
            _exclude(KEY, True)

    def compute(self, args: tuple, kwargs: dict, result: Any, written: list[Tensor]) -> None:
        """Computes what a call has written, or makes it unknown if that is impossible."""
        reader = Reader(written[0].device.index)
        value, is_done = self.evaluate(reader, args, kwargs)
        self.computing.computed += is_done
        if is_done and not reader.is_known:
            for position in self.signature.success:
                value[position].zero_()
        unknown = self.unknown(reader, args, kwargs, written) if is_done and not reader.is_known else None
        put_values(written, self.values_of(args, result, value, reader.host) if is_done else {}, reader.is_known, unknown)

    def unknown(self, reader: Reader, args: tuple, kwargs: dict, written: list[Tensor]) -> Tensor | None:
        """Returns a mask of the unknown elements of the only tensor that a call has written; None if all of them may be."""
        return self.spread.unknown(reader, args, kwargs, written[0]) if len(written) == 1 else None

    def guess(self, args: tuple, kwargs: dict, written: list[Tensor]) -> bool:
        """Guesses one value for all of a large result: true or false. Returns False if there is none."""
        if len(written) != 1 or written[0].dtype != torch.bool or not written[0].is_contiguous():
            return False
        value, is_done = self.evaluate(Sampler(), args, kwargs)
        if not is_done or not isinstance(value, Tensor) or value.numel() != 1:
            return False
        device_memory.guess(written[0], bool(value))
        return True

    def values_of(self, args: tuple, result: Any, value: Any, host: dict[int, Tensor]) -> dict[int, Tensor]:
        """The values of tensors of the device that a call has written, by the tensors' ids, or by the addresses of parts."""
        values = dict(host)
        add_values(self.signature.new(result), self.signature.new(value), values)
        for one in (args[i] for i in self.signature.written_positions if i < len(args)):
            if isinstance(one, Tensor) and not is_whole(one):
                add_values(one, host[id(one)], values)
        return values

    def is_worth_it(self, args: tuple, kwargs: dict, written: list[Tensor]) -> bool:
        """Returns whether a call that has run should be computed."""
        if not (self.is_worth_it_as_small(args, kwargs, written) or self.handles_whole_numbers(args, kwargs, written)):
            return False
        is_whole_call = not has_wrappers((args, tuple(kwargs.values()))) and not self.writes_host(args)
        return self.is_computable and is_whole_call and not _is_capturing()

    def is_worth_it_as_small(self, args: tuple, kwargs: dict, written: list[Tensor]) -> bool:
        if written[0].nbytes > self.most_bytes:
            return False
        # A real number of which nothing is known is as well zero. Operations that decide by it are computed, and those selected
        # by a guess.
        if all(map(_is_real, written)) and not self.decides_by_guess and not self.reads_content(args, kwargs):
            return False
        return self.is_small(args, kwargs, written)

    def handles_whole_numbers(self, args: tuple, kwargs: dict, written: list[Tensor]) -> bool:
        if self.draws:
            return whole_numbers.are_worth_drawing(written[0])
        if whole_numbers.flushes_cache(self.signature.name, written[0]):
            return False
        return not _is_real(written[0]) and whole_numbers.are_worth_it(self.read(args, kwargs), written)

    def writes_host(self, args: tuple) -> bool:
        """Returns whether a call has written tensors of the CPU as well, which would be written twice."""
        lists = (args[i] for i in self.signature.written_positions if i < len(args) and isinstance(args[i], list))
        return any(not one.is_cuda for each in lists for one in each if isinstance(one, Tensor))

    def is_small(self, args: tuple, kwargs: dict, written: list[Tensor]) -> bool:
        room = room_left((written, args, tuple(kwargs.values())), self.most_bytes)
        return room >= 0 and is_little_work(self.signature.name, args, written, self.computing.policy.most_work)

    def reads_content(self, args: tuple, kwargs: dict) -> bool:
        """Returns whether a call reads known or guessed content, or no tensor at all."""
        return have_content(self.read(args, kwargs))

    def read(self, args: tuple, kwargs: dict) -> list[Tensor]:
        """The tensors of the device of which a call reads values."""
        named = [one for name, one in kwargs.items() if name not in self.signature.written_names]
        return tensors_in(*(args[1:] if self.signature.overwrites else args), *named)

    def evaluate(self, reader: Reader, args: tuple, kwargs: dict) -> tuple[Any, bool]:
        """The value on the CPU, and whether there is one."""
        signature = self.signature
        is_read = any(one is args[0] for one in args[1:])  # as in x.copy_(x)
        unread = signature.unread - {0} if is_read else signature.unread
        host_args = [reader.unread(one) if i in unread else reader.argument(one) for i, one in enumerate(args)]
        host_kwargs = {
            name: reader.unread(one) if name in signature.written_names and one is not None else reader.argument(one)
            for name, one in kwargs.items()
        }
        try:
            if not signature.is_random:
                return self.on_cpu(*host_args, **host_kwargs), True
            if signature.takes_generator:
                host_kwargs["generator"] = generator_for(kwargs.get("generator"), reader.device)
                return self.on_cpu(*host_args, **host_kwargs), True
            with random_state(reader.device):
                return self.on_cpu(*host_args, **host_kwargs), True
        except NotImplementedError:
            self.is_computable = False
            self.computing.not_computable.add(signature.name)
        except Exception:  # of values that are unknown, or on a GPU an assert
            if reader.is_known:
                self.computing.not_computable.add(signature.name)
        return None, False


def noted(operator: Operator, races: Races) -> Any:
    """Returns a function that runs an operation, and notes the memory that its kernels use."""
    run = operator.run
    name = operator.signature.name
    if name in UNINITIALIZED:  # no kernel
        return run
    first = int(name in LIKE)
    waits = isinstance(operator, (Copy, HostRead)) or name in result_sizes.DISTINCT  # at its end, perhaps: its kernels are done then

    def run_and_note(*args: Any, **kwargs: Any) -> Any:
        place = races.place()
        if waits:
            with _without_modes(), _without_functions():
                races.note(place, *args[first:], *kwargs.values())
        result = run(*args, **kwargs)
        with _without_modes(), _without_functions():
            if waits:
                races.note(place, result)
            else:
                races.note(place, *args[first:], *kwargs.values(), result)
        return result

    return run_and_note


class Function(Operator):
    """An operation with one result, which is new memory. Most calls in a training are of such, with large results."""

    def follow(self, args: tuple, kwargs: dict, result: Any) -> None:
        # A compiler's tensors of no device may have symbolic sizes, and so no number of bytes.
        is_large = type(result) is Tensor and result.is_cuda and is_whole(result) and result.nbytes > self.most_bytes
        if is_large and _is_real(result) and not self.draws:
            make_one_unknown(result)
        else:
            super().follow(args, kwargs, result)


class Uninitialized(Operator):
    """An operation whose result has no values yet."""

    def follow(self, args: tuple, kwargs: dict, result: Any) -> None:
        make_unknown(tensors_in(result))


class Unfollowed(Operator):
    """An operation that writes no memory."""

    def follow(self, args: tuple, kwargs: dict, result: Any) -> None:
        pass


class Copy(Operator):
    """A copy. CUDA's runtime moves the bytes, and what is known of them, where they are contiguous and of one type."""

    def __init__(self, computing: Computing, function: Any, signature: Signature) -> None:
        super().__init__(computing, function, signature)
        self.is_in_place = signature.name == "aten::copy_"

    def follow(self, args: tuple, kwargs: dict, result: Any) -> None:
        to, source = (args[0], args[1]) if self.is_in_place else (result, args[0])
        if not isinstance(source, torch.Tensor):  # PyTorch takes a number as well
            source = torch.tensor(source)
        blocks = not (args[2] if self.is_in_place and len(args) > 2 else kwargs.get("non_blocking"))
        if to.is_meta:  # no values arrive
            return
        if has_wrappers((to, source)):
            self.follow_wrapped(to, source)
        elif not is_whole(to) or not is_whole(source):
            self.follow_sparse(to, source)
        elif not is_on_device(to):
            if is_on_device(source):
                self.follow_to_host(to, source)
        elif is_moved_by_runtime(to, source, blocks):
            self.follow_from_host(to, source)
        elif _is_real(to) and is_on_device(source) and device_memory.kinds_in(source) == device_memory.UNKNOWN:  # most are
            make_one_unknown(to)
        else:
            super().follow(args, kwargs, result)

    def follow_wrapped(self, to: Tensor, source: Tensor) -> None:
        """A kernel converts between types, in memory that is wrapped."""
        if to.dtype != source.dtype:
            make_unknown(tensors_in(to))
        if not to.is_cuda and not are_known(wrapped_in(source)):
            self.computing.reads.note("value")

    def follow_sparse(self, to: Tensor, source: Tensor) -> None:
        """The runtime moves the bytes of the parts."""
        if not is_on_device(to) and is_on_device(source) and not are_known(source):
            self.computing.reads.note("value")

    def follow_from_host(self, to: Tensor, source: Tensor) -> None:
        """The runtime moves no large memory from the host."""
        if (to.nbytes > result_sizes.MOST_BYTES and not is_on_device(source) and whole_numbers.are_worth_copying(to)
                and not _is_capturing()):
            write(to, source.expand(to.size()), True)

    def follow_to_host(self, to: Tensor, source: Tensor) -> None:
        """A kernel packs a tensor that is not contiguous before it is copied. Unknown memory arrives as zeros."""
        is_copied = (device_memory.extent(source) <= result_sizes.most_copied(self.most_bytes)
                     or whole_numbers.are_worth_it([source], []))
        is_moved = source.is_contiguous() and has_same_bytes(to, source)  # by the runtime, however large
        is_read_by_program = getattr(self.computing.expected, "count", None) is None
        if is_read_by_program and not ((is_copied or is_moved) and device_memory.is_known(source)):
            self.computing.reads.note("value")
        if is_copied and not is_moved:
            to.copy_(read(source)[0])


def has_same_bytes(to: Tensor, source: Tensor) -> bool:
    """Returns whether elements are moved as they are: a kernel converts, conjugates and negates."""
    return source.dtype == to.dtype and source.is_conj() == to.is_conj() and source.is_neg() == to.is_neg()


def is_moved_by_runtime(to: Tensor, source: Tensor, blocks: bool) -> bool:
    """The CPU does what is to be done with the elements of a copy from there that blocks."""
    if not is_on_device(source):
        return to.is_contiguous() and (blocks or has_same_bytes(to, source))
    return has_same_bytes(to, source) and to.is_contiguous() and source.is_contiguous() and source.size() == to.size()


class HostRead(Unfollowed):
    """An operation whose result is a number on the host."""

    def __init__(self, computing: Computing, function: Any, signature: Signature) -> None:
        super().__init__(computing, function, signature)
        self.run_unseen = self.run
        self.run = self.read_number

    def read_number(self, *args: Any, **kwargs: Any) -> Any:
        result = self.run_unseen(*args, **kwargs)
        if has_wrappers(args):
            if not are_known(tensors_in(*args)):
                self.computing.reads.note("value")
            return result
        if not is_on_device(args[0]):
            return result
        is_small = room_left(args, result_sizes.most_copied(self.most_bytes)) >= 0
        reader = Reader() if is_small or whole_numbers.are_worth_it(tensors_in(args), []) else Sampler()
        if type(reader) is Sampler and args[0].size() != args[-1].size():
            return result
        with _without_modes(), _without_functions():
            value, is_done = self.evaluate(reader, args, kwargs)
        if reader.is_known:
            return value if is_done else result
        count = getattr(self.computing.expected, "count", None)
        if count is None:
            self.computing.reads.note("value")
        elif count != result_sizes.Selection.AS_READ and args[0].dtype is not torch.bool:  # an operation reads how much it has selected
            return count
        return value if is_done else result


class Checking(Operator):
    """An operation that reads what it computes, such as whether it has succeeded: the operations that it consists of are seen."""

    def __init__(self, computing: Computing, function: Any, signature: Signature) -> None:
        super().__init__(computing, function, signature)
        self.run = self.run_seen

    def run_seen(self, *args: Any, **kwargs: Any) -> Any:
        if not tensors_in(args) or has_wrappers(args):
            return self.function(*args, **kwargs)
        return self.redispatch(CUDA_KEYS, args, kwargs)


class Searching(Operator):
    """An operation that sorts rows, counts, and reads where it has found what it searches: for the mode of more than 2,048 elements.

    It learns that it has found the second of two distinct elements, so that its memory is as for few. Its result is computed
    as others are.
    """

    def __init__(self, computing: Computing, function: Any, signature: Signature) -> None:
        super().__init__(computing, function, signature)
        self.run_unseen = self.run
        self.run = self.search

    def search(self, *args: Any, **kwargs: Any) -> Any:
        device_memory.answer(1)
        try:
            return self.run_unseen(*args, **kwargs)
        finally:
            device_memory.answer(-1)


class Sized(Unfollowed):
    """An operation the size of whose result depends on values.

    It is computed first. Then it runs, and learns the size where it reads a count of the device. The operations that it
    consists of are seen, because they may read values as well.
    """

    def __init__(self, computing: Computing, function: Any, signature: Signature) -> None:
        super().__init__(computing, function, signature)
        self.run = self.select

    def select(self, *args: Any, **kwargs: Any) -> Any:
        if not tensors_in(args) or has_wrappers(args) or not result_sizes.selects(self.signature.name, args):
            result = self.function(*args, **kwargs)
            Operator.follow(self, args, kwargs, result)
            return result
        with _without_modes(), _without_functions():
            selection = result_sizes.Selection(self, args, kwargs)
        outer = getattr(self.computing.expected, "count", None)
        if outer is None and not selection.is_size_known and not result_sizes.is_of_others(self.signature.name):
            self.computing.reads.note("size")
        self.computing.expected.count = count = selection.count if outer is None else outer
        device_memory.answer(-1 if count is None else count)
        try:
            result = self.redispatch(KEYS.get(args[0].layout, SPARSE_KEYS if not is_whole(args[0]) else CUDA_KEYS), args, kwargs)
        finally:
            self.computing.expected.count = outer
            device_memory.answer(-1 if outer is None else outer)
        with _without_modes(), _without_functions():
            self.put(selection, args, kwargs, result)
        return result

    def put(self, selection: result_sizes.Selection, args: tuple, kwargs: dict, result: Any) -> None:
        """Gives the result its values."""
        written = self.signature.written(args, kwargs, result)
        values = self.values_of(args, result, selection.value, selection.reader.host) if selection.is_done else {}
        if written and self.signature.name == "aten::_coalesce":
            put_values(written[:1], values, selection.is_size_known)
            del written[0]
        put_values(written, values, selection.reader.is_known)


def put_values(written: list[Tensor], values: dict[int, Tensor], is_known: bool, unknown: Tensor | None = None) -> None:
    """Writes to each tensor of the device its value. A tensor without one, or with one of another shape, becomes unknown."""
    for tensor in written:
        value = values.get(id(tensor), values.get(tensor.data_ptr()))
        if value is None or not write(tensor, value, is_known, unknown):
            make_one_unknown(tensor)


def add_values(result: Any, value: Any, found: dict[int, Tensor]) -> None:
    """Adds for each tensor of the device in a result, or part of one, the one on the CPU that has its values."""
    if isinstance(result, Tensor):
        if not is_on_device(result) or not isinstance(value, Tensor):
            return
        if is_whole(result):
            found[id(result)] = value
        elif value.layout is result.layout:
            found.update((part.data_ptr(), other) for part, other in zip(parts_of(result), parts_of(value)))
    elif isinstance(result, (list, tuple)):
        for one, other in zip(result, value):
            add_values(one, other, found)
