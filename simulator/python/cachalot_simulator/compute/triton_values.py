"""Computes launches of Triton's kernels that handle whole numbers alone: numbers of sampled tokens, positions, tables of blocks.

Programs take such numbers back and decide by them: a server that reads that no token was sampled asks for it without end. Triton's own
interpreter runs the kernel, on the memory of the simulated device instead of copies of its arguments.
"""

from __future__ import annotations

import ctypes
import math
import threading
from typing import Any

from torch import Tensor

from cachalot_simulator.compute import device_memory

MOST_INSTANCES = 256  # of a launch: each takes some milliseconds
MOST_SPAN = 1 << 20  # bytes between the first and last address of an access that is made as one

lock = threading.RLock()  # the interpreter changes Triton's language while it runs; compilation must wait


class NotInterpreted(Exception):
    """The launch does what is not computed here."""


class Memory:
    """The memory of devices, and pinned memory of the host, in the place of the interpreter's own access by addresses."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.is_known = True  # everything that the instance has loaded

    def __getattr__(self, name: str) -> Any:
        if name.startswith("atomic"):
            raise NotInterpreted(name)
        return getattr(self._real, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        """Returns the elements at addresses, and `other` where the mask is false."""
        import numpy

        values = numpy.broadcast_to(other, pointers.shape).astype(dtype)
        addresses = pointers[mask]
        if addresses.size:
            values[mask] = self._read(addresses, numpy.dtype(dtype))
        return values

    def store(self, pointers: Any, values: Any, mask: Any) -> None:
        """Writes elements to addresses where the mask is true: as known ones, or as a guess."""
        for address, value in zip(pointers[mask].tolist(), values[mask]):
            content = value.tobytes()
            if not device_memory.put_bytes(address, content, self.is_known):
                require_pinned(address, len(content))
                ctypes.memmove(address, content, len(content))

    def _read(self, addresses: Any, dtype: Any) -> Any:
        import numpy

        first, size = int(addresses.min()), int(addresses.max() - addresses.min()) + dtype.itemsize
        if size > MOST_SPAN:
            return numpy.concatenate([self._read(addresses[i : i + 1], dtype) for i in range(addresses.size)])
        content, kinds = numpy.zeros(size, numpy.uint8), numpy.full(size, device_memory.OF_BYTE[device_memory.KNOWN], numpy.uint8)
        if device_memory.get_if_on_device(content.ctypes.data, first, size):
            device_memory.get_kinds(kinds.ctypes.data, first, size)
        else:
            require_pinned(first, size)
            ctypes.memmove(content.ctypes.data, first, size)
        places = (addresses - addresses.min()).astype(numpy.int64)[:, None] + numpy.arange(dtype.itemsize)
        self.is_known &= bool((kinds[places] == device_memory.OF_BYTE[device_memory.KNOWN]).all())
        return content[places].view(dtype)[:, 0]


def require_pinned(address: int, size: int) -> None:
    """Raises NotInterpreted for memory of the host that a kernel would not reach."""
    if not device_memory.is_pinned(address, size):
        raise NotInterpreted("an address that is neither the device's nor pinned")


def handles_whole_numbers(values: list[Any]) -> bool:
    """Returns whether the arguments are such that the kernel can be computed."""
    tensors = [value for value in values if hasattr(value, "data_ptr")]
    plain = all(type(one) is Tensor and not one.dtype.is_floating_point and not one.dtype.is_complex for one in tensors)
    return bool(tensors) and plain and not any(isinstance(value, (float, tuple, list)) for value in values)


def compute(function: Any, grid: Any, args: tuple, kwargs: dict) -> bool:
    """Runs a kernel's launch. Returns False if it cannot be computed: what it writes may be half written then."""
    values = [*args, *(value for name, value in kwargs.items() if name in function.arg_names)]
    if not handles_whole_numbers(values):
        return False
    grid = grid(dict(zip(function.arg_names, args)) | kwargs) if callable(grid) else grid
    if math.prod(grid) > MOST_INSTANCES:
        return False
    import numpy
    from triton.runtime import interpreter

    class Grid(interpreter.GridExecutor):
        def _init_args_hst(self, args_dev: Any, kwargs: Any) -> Any:
            return args_dev, kwargs

        def _restore_args_dev(self, *_: Any) -> None:
            pass

    memory = Memory(interpreter._interpreter)
    call, set_index = type(function).__call__, interpreter.interpreter_builder.set_grid_idx

    def begin_instance(*index: int) -> None:
        memory.is_known = True
        interpreter.tl.tensor.__index__ = lambda number: number.handle.data.item()  # its own fails for arrays of one element
        set_index(*index)

    with lock, numpy.errstate(all="ignore"):  # as on a GPU, where rows without data divide by zero
        interpreter._interpreter = memory
        interpreter.interpreter_builder.set_grid_idx = begin_instance
        type(function).__call__ = lambda inner, *args, **kwargs: _call_inner(interpreter, inner, args, kwargs)
        try:
            Grid(_rewritten(interpreter, function), function.arg_names, tuple(grid))(*args, **kwargs)
        except Exception:  # of the interpreter or of this memory, which do not know everything
            return False
        finally:
            interpreter._interpreter = memory._real
            del interpreter.interpreter_builder.set_grid_idx
            type(function).__call__ = call
    return True


def _call_inner(interpreter: Any, function: Any, args: tuple, kwargs: dict) -> Any:
    """Calls a function that a kernel calls. It sees the language by a module of its own."""
    scope = interpreter._patch_lang(function.fn)
    try:
        return _rewritten(interpreter, function)(*args, **kwargs)
    finally:
        scope.restore()


def _rewritten(interpreter: Any, function: Any) -> Any:
    """The kernel's own code, in the form that the interpreter runs."""
    return interpreter.InterpretedFunction(function.fn).rewrite()
