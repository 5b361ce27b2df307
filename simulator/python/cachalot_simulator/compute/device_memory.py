"""Reads and writes the memory of simulated devices: no call of CUDA's, in no simulated time."""

from __future__ import annotations

import ctypes

from torch import Tensor

_library = ctypes.PyDLL(None)  # these calls are short: they keep the GIL
_put = _library.cachalot_sim_put
_put.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int)
_get = _library.cachalot_sim_get
_get.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
_make_unknown = _library.cachalot_sim_make_unknown
_make_unknown.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
_guess = _library.cachalot_sim_guess
_guess.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int)
_answer = _library.cachalot_sim_answer
_answer.argtypes = (ctypes.c_int64,)
_answer.restype = None


def put(to: int, source: int, size: int, is_known: bool) -> None:
    """Writes host memory at `source` to device memory at `to`, as known values or as a guess."""
    _put(to, source, size, not is_known)


def get(to: int, source: int, size: int) -> bool:
    """Reads device memory. Returns True if all of it is known; what is unknown reads as zeros."""
    return _get(to, source, size) == 1


def is_known(tensor: Tensor) -> bool:
    """Whether all memory between a tensor's first and last element is known."""
    size = extent(tensor)
    return size == 0 or _get(None, tensor.data_ptr(), size) == 1


def make_unknown(tensor: Tensor) -> None:
    """Makes all memory between a tensor's first and last element unknown."""
    size = extent(tensor)
    if size:
        _make_unknown(tensor.data_ptr(), size)


def guess(tensor: Tensor, value: bool) -> None:
    """Sets a dense tensor of booleans, however large, to one value, as a guess."""
    _guess(tensor.data_ptr(), tensor.nbytes, value)


def extent(tensor: Tensor) -> int:
    """The bytes from a tensor's first to behind its last element."""
    if tensor.is_contiguous():
        return tensor.nbytes
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))
    return (last + 1) * tensor.element_size()


def answer(count: int) -> None:
    """Sets what copies of a number from unknown memory to the host return in this thread; negative: nothing more."""
    _answer(count)
