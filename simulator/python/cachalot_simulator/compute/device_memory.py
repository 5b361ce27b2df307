"""Reads and writes the memory of simulated devices: no call of CUDA's, in no simulated time."""

from __future__ import annotations

import ctypes
from array import array

from torch import Tensor

_library = ctypes.PyDLL(None)  # these calls are short: they keep the GIL
_put = _library.cachalot_sim_put
_put.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int)
_get = _library.cachalot_sim_get
_get.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
_is_pinned = _library.cachalot_sim_is_pinned
_is_pinned.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
_put_kinds = _library.cachalot_sim_put_kinds
_put_kinds.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)
_get_kinds = _library.cachalot_sim_get_kinds
_get_kinds.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)
_kinds_in = _library.cachalot_sim_kinds_in
_kinds_in.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
_make_unknown = _library.cachalot_sim_make_unknown
_make_unknown.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
_make_all_unknown = _library.cachalot_sim_make_all_unknown
_make_all_unknown.argtypes = (ctypes.c_void_p, ctypes.c_uint64)
_guess = _library.cachalot_sim_guess
_guess.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int)
_answer = _library.cachalot_sim_answer
_answer.argtypes = (ctypes.c_int64,)
_answer.restype = None
FEW = 8  # tensors
# For calls of map(), which take a third of the time of a loop.
_address, _bytes, _is_contiguous = Tensor.data_ptr, Tensor.nbytes.__get__, Tensor.is_contiguous


UNKNOWN, GUESSED, KNOWN = 1, 2, 4  # as a sum, the kinds of bytes in a range
OF_BYTE = {UNKNOWN: 0, GUESSED: 1, KNOWN: 2}  # the kind of one byte


def put(to: int, source: int, size: int, is_known: bool) -> None:
    """Writes host memory at `source` to device memory at `to`, as known values or as a guess."""
    _put(to, source, size, not is_known)


def get(to: int, source: int, size: int) -> bool:
    """Reads device memory. Returns True if all of it is known; unknown bytes read as zeros."""
    return _get(to, source, size) == 1


def get_if_on_device(to: int, source: int, size: int) -> bool:
    """Reads device memory. Returns False if the addresses are not the device's."""
    return _get(to, source, size) >= 0


def is_pinned(start: int, size: int) -> bool:
    """Returns whether memory of the host is pinned, so that kernels reach it by its address."""
    return _is_pinned(start, size) == 1


def put_bytes(to: int, content: bytes, is_known: bool) -> bool:
    """Writes bytes to device memory. Returns False if the address is not the device's."""
    return _put(to, content, len(content), not is_known) == 0


def put_kinds(to: int, source: int, size: int, kinds: int) -> None:
    """Writes host memory to device memory. `kinds` is the address of a kind for each byte."""
    _put_kinds(to, source, size, kinds)


def get_kinds(to: int, source: int, size: int) -> None:
    """Reads the kind of each byte of device memory."""
    _get_kinds(to, source, size)


def kinds_in(tensor: Tensor) -> int:
    """The kinds of bytes between a tensor's first and last element."""
    size = extent(tensor)
    return _kinds_in(tensor.data_ptr(), size) if size else KNOWN


def is_known(tensor: Tensor) -> bool:
    """Returns whether all memory between a tensor's first and last element is known."""
    size = extent(tensor)
    return size == 0 or _get(None, tensor.data_ptr(), size) == 1


def make_one_unknown(tensor: Tensor) -> None:
    """Makes all memory between a tensor's first and last element unknown."""
    _make_unknown(tensor.data_ptr(), tensor.nbytes if tensor.is_contiguous() else extent(tensor))


def make_unknown(tensors: list[Tensor]) -> None:
    """Makes the memory of several tensors unknown."""
    if len(tensors) < FEW:
        for tensor in tensors:
            make_one_unknown(tensor)
    else:
        ranges = array("Q", map(_address, tensors))
        ranges.extend(map(_bytes if all(map(_is_contiguous, tensors)) else extent, tensors))
        _make_all_unknown(ranges.buffer_info()[0], len(tensors))



def guess(tensor: Tensor, value: bool) -> None:
    """Sets a dense tensor of booleans, however large, to one value, as a guess."""
    _guess(tensor.data_ptr(), tensor.nbytes, value)


def extent(tensor: Tensor) -> int:
    """The bytes from a tensor's first to behind its last element."""
    if tensor.is_contiguous():
        return tensor.nbytes
    if tensor.numel() == 0:
        return 0
    elements = 1
    for size, stride in zip(tensor.size(), tensor.stride()):
        elements += (size - 1) * stride
    return elements * tensor.element_size()


def answer(count: int) -> None:
    """Sets what copies of a number from unknown memory to the host return in this thread; negative: nothing more."""
    _answer(count)
