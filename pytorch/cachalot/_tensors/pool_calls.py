"""The functions of libcachalot_torch.so for tensor pools (pool_hooks.h), through ctypes."""

from __future__ import annotations

import ctypes
import functools
import threading
import weakref
from typing import Any, Protocol

import torch

from .._bindings.plug import Functions, Plug
from .._heap.enabled import index_of, require_enabled

# The types of pool_hooks.h.
_Handle = ctypes.c_void_p
_HandleOut = ctypes.POINTER(ctypes.c_void_p)
_Stream = ctypes.c_void_p

MOST = (1 << 63) - 1  # that a size or an extent may be


class Spec(ctypes.Structure):
    """CachalotTensorSpec."""

    _fields_ = (
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("dimensions", ctypes.c_int),
        ("dtype", ctypes.c_int),
        ("device", ctypes.c_int),
    )


class Options(ctypes.Structure):
    """CachalotPoolOptions."""

    _fields_ = (
        ("initial_slots", ctypes.c_size_t),
        ("max_slots", ctypes.c_size_t),
        ("growth_step", ctypes.c_size_t),
        ("when_empty", ctypes.c_int),
        ("other_stream", ctypes.c_int),
        ("on_reuse", ctypes.c_int),
        ("high_water", ctypes.c_int64),
        ("alignment", ctypes.c_size_t),
        ("stream", _Stream),
    )


_FUNCTIONS: Functions = {
    "plug_dtype": (ctypes.c_char_p, ctypes.POINTER(ctypes.c_int)),
    "plug_pool_create": (ctypes.POINTER(Spec), ctypes.POINTER(Options), _HandleOut),
    "plug_pool_acquire": (_Handle, _Stream, ctypes.c_double, _HandleOut),
    "plug_pool_trim": (_Handle, ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)),
    "plug_pool_set_create": (ctypes.c_size_t, ctypes.POINTER(Options), _HandleOut),
    "plug_pool_set_acquire": (_Handle, ctypes.POINTER(Spec), _Stream, ctypes.c_int, _HandleOut),
    "plug_pool_set_trim": (_Handle, ctypes.POINTER(ctypes.c_size_t)),
    "plug_lease_share": (_Handle, _Stream),
    "plug_lease_record": (_Handle, _Stream),
    "plug_pool_json": (_Handle,),
    "plug_pool_set_json": (_Handle,),
}


class PoolCalls:
    """The library's functions for pools. Handles are ints; thread-safe, but a handle given back is not to be used."""

    def __init__(self, plug: Plug) -> None:
        self._plug = plug
        plug.declare(_FUNCTIONS)
        self.destroy_pool = plug.function("plug_pool_destroy", None, _Handle)
        self.destroy_pool_set = plug.function("plug_pool_set_destroy", None, _Handle)
        self.others = plug.function("plug_lease_others", ctypes.c_long, _Handle)
        self.drop = plug.function("plug_lease_drop", None, _Handle)
        # Makes a Python object, and so keeps Python's lock.
        prototype = ctypes.PYFUNCTYPE(ctypes.py_object, _Handle, ctypes.c_int)
        self._capsule = prototype(plug.address("cachalot_plug_lease_capsule"))
        python = ctypes.pythonapi
        used = (python.PyCapsule_New, python.PyCapsule_IsValid, python.PyCapsule_GetPointer, python.PyErr_NoMemory)
        plug.function("plug_use_python", None, *[ctypes.c_void_p] * len(used))(
            *(ctypes.cast(function, ctypes.c_void_p) for function in used)
        )

    def dtype(self, name: str) -> int:
        number = ctypes.c_int()
        self._plug.call("plug_dtype", name.encode(), number, bad_input=ValueError)
        return number.value

    def create_pool(self, spec: Spec, options: Options) -> int:
        pool = self._handle("plug_pool_create", spec, options)
        assert pool is not None
        return pool

    def create_pool_set(self, byte_budget: int, options: Options) -> int:
        pools = self._handle("plug_pool_set_create", byte_budget, options)
        assert pools is not None
        return pools

    def acquire(self, pool: int, stream: int, seconds: float) -> int | None:
        """A lease; after waiting so long none, or, with less than 0, as the pool's options say."""
        return self._handle("plug_pool_acquire", pool, stream, seconds)

    def acquire_of_set(self, pools: int, spec: Spec, stream: int, only_try: bool) -> int | None:
        return self._handle("plug_pool_set_acquire", pools, spec, stream, only_try)

    def trim(self, pool: int, keep: int) -> int:
        return self._bytes("plug_pool_trim", pool, keep)

    def trim_set(self, pools: int) -> int:
        return self._bytes("plug_pool_set_trim", pools)

    def stats(self, pool: int) -> dict[str, int]:
        figures: dict[str, int] = self._plug.json("plug_pool_json", pool)
        return figures

    def stats_of_set(self, pools: int) -> dict[str, Any]:
        figures: dict[str, Any] = self._plug.json("plug_pool_set_json", pools)
        return figures

    def capsule(self, lease: int, versioned: bool) -> object:
        return self._capsule(lease, versioned)

    def share(self, lease: int, stream: int) -> None:
        self._plug.call("plug_lease_share", lease, stream)

    def record(self, lease: int, stream: int) -> None:
        self._plug.call("plug_lease_record", lease, stream)

    def _handle(self, name: str, *arguments: Any) -> int | None:
        handle = ctypes.c_void_p()
        self._plug.call(name, *arguments, handle, bad_input=ValueError)
        return handle.value

    def _bytes(self, name: str, *arguments: Any) -> int:
        count = ctypes.c_size_t()
        self._plug.call(name, *arguments, count, bad_input=ValueError)
        return count.value


@functools.cache
def _calls_of(plug: Plug) -> PoolCalls:
    return PoolCalls(plug)


def calls() -> PoolCalls:
    """Returns the calls of the library that serves PyTorch; raises EnableError where cachalot is not enabled."""
    return _calls_of(require_enabled().plug)


class _Pool(Protocol):
    def bytes_on(self, device: int) -> int: ...


_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()
_pools_lock = threading.Lock()


def add_pool_in_use(pool: _Pool) -> None:
    """Keeps a pool in pools_in_use as long as it lives."""
    with _pools_lock:
        _pools.add(pool)


def pools_in_use() -> list[_Pool]:
    """Returns the pools and sets that live, of every device."""
    with _pools_lock:
        return list(_pools)


def require_dtype(dtype: object) -> torch.dtype:
    """Raises TypeError for an object that is not a dtype."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is {dtype!r}; it must be a torch.dtype")
    return dtype


@functools.cache
def dtype_number(dtype: torch.dtype) -> int:
    """Returns the library's number of the type; raises ValueError for one that pools do not have."""
    return calls().dtype(str(dtype).removeprefix("torch."))


def device_index(device: torch.device | str | int | None) -> int:
    """Returns the index of a CUDA device, the current one where no index is given; raises ValueError for any other. CUDA is in
    use afterwards."""
    torch.cuda.init()
    index, count = index_of(device), torch.cuda.device_count()
    if not 0 <= index < count:
        raise ValueError(f"device is {device!r}; there are cuda:0 to cuda:{count - 1}")
    return index


def make_spec(shape: object, dtype: torch.dtype, device: int) -> Spec:
    """A copy of what makes tensors alike; extents below 1 are the library's to refuse."""
    extents = extents_of(shape)
    return Spec((ctypes.c_int64 * len(extents))(*extents), len(extents), dtype_number(require_dtype(dtype)), device)


def extents_of(shape: object) -> tuple[int, ...]:
    """Returns the extents of a shape as torch takes it: ints, or one int."""
    given: Any = (shape,) if isinstance(shape, int) else shape
    try:
        extents: tuple[int, ...] = tuple(extent.__index__() for extent in given)
    except (AttributeError, TypeError):
        raise TypeError(f"shape is {shape!r}; it must be of ints") from None
    for extent in extents:
        if not -MOST <= extent <= MOST:
            raise ValueError(f"the shape {list(extents)} has an extent of {extent}: each is at most 2^63 - 1")
    return extents


def whole_number(name: str, value: object, least: int = 0) -> int:
    """A count or a size of `least` or more."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be an int")
    if not least <= value <= MOST:
        raise ValueError(f"{name} is {value}; it must be at least {least} and at most 2^63 - 1")
    return value


def choice(name: str, value: str, choices: tuple[str, ...]) -> int:
    """The number of a choice, as the library counts them."""
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, choices))}")
    return choices.index(value)


def make_options(
    *,
    initial_slots: int = 0,
    max_slots: int | None = None,
    growth_step: int = 1,
    when_empty: str = "grow",
    other_stream: str = "wait",
    on_reuse: str = "keep",
    high_water: int | None = None,
    alignment: int = 512,
    stream: int = 0,
) -> Options:
    """TensorPoolOptions under Python's names. The library refuses values that only the pool can judge."""
    return Options(
        initial_slots=whole_number("initial_slots", initial_slots),
        max_slots=0 if max_slots is None else whole_number("max_slots", max_slots, 1),
        growth_step=whole_number("growth_step", growth_step, 1),
        when_empty=choice("when_empty", when_empty, ("grow", "wait", "fail")),
        other_stream=choice("other_stream", other_stream, ("wait", "other_slot")),
        on_reuse=choice("on_reuse", on_reuse, ("keep", "zero", "poison")),
        high_water=-1 if high_water is None else whole_number("high_water", high_water),
        alignment=whole_number("alignment", alignment, 1),
        stream=stream,
    )


def stream_of(stream: torch.cuda.Stream | None, device: int) -> int:
    """A stream's handle; of torch's current one where none is given."""
    if stream is None:
        return torch._C._cuda_getCurrentRawStream(device)  # a sixth of what torch.cuda.current_stream takes
    if stream.device.index != device:
        raise ValueError(f"the stream is of {stream.device}; the tensor is on cuda:{device}")
    return stream.cuda_stream
