"""Finds blocks of PyTorch's allocator whose memory is used again while work on another stream may still use it.

PyTorch gives a freed block to the next request of the same stream, in the order of that stream alone. A block that another
stream used must therefore be recorded there (`Tensor.record_stream`), or the stream must wait for it. The simulator knows the order
of all streams (simulator/state/reuse_races.h); this module tells it which blocks PyTorch allocates and frees, and which memory each
operation and each launch of Triton uses, on which stream and at which line of the program.
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from cachalot_simulator.compute.device_memory import extent
from cachalot_simulator.compute.operators import tensors_in
from cachalot_simulator.places import origin_of, place_of_frame

_library = ctypes.PyDLL(None)  # these calls are short: they keep the GIL
_allocated = _library.cachalot_sim_block_allocated
_allocated.argtypes = (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32)
_freed = _library.cachalot_sim_block_freed
_freed.argtypes = (ctypes.c_uint64, ctypes.c_uint32)
_used = _library.cachalot_sim_blocks_used
_used.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32)
_used.restype = ctypes.c_int64
_take = _library.cachalot_sim_take_race
_stream_of = torch._C._cuda_getCurrentRawStream
_current_device = torch._C._cuda_getDevice

NCCL = 0xFFFFFFFF  # the place of a use by NCCL, as the simulator numbers it
OUTSIDE = "outside Python code (for example, a backward pass)"


class Race(ctypes.Structure):
    """A cachalot_sim_race, as cachalot/simulator.h describes it."""

    _fields_ = [("bytes", ctypes.c_uint64), *((name, ctypes.c_void_p) for name in ("allocated_for", "used_on", "reused_on")),
                *((name, ctypes.c_uint32) for name in ("allocated_at", "used_at", "freed_at", "reallocated_at", "reused_at"))]


_take.argtypes = (ctypes.POINTER(Race),)


class Places:
    """Numbers lines of the program from 1 on; 0 stands for no line."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[CodeType, int], int] = {}
        self._lines: list[tuple[CodeType, int] | None] = [None]
        self._origins: dict[CodeType, str] = {}

    def number(self) -> int:
        """Returns the number of the line that the thread runs: the innermost of the program's own; without one the innermost of a
        package other than torch; else the outermost."""
        frame: Any = sys._getframe(1)
        package = outermost = None
        while frame is not None:
            code = frame.f_code
            origin = self._origins.get(code) or self._origins.setdefault(code, origin_of(code.co_filename))
            if origin == "own":
                return self._number_of(code, frame.f_lineno)
            outermost = code, frame.f_lineno
            if package is None and origin == "library" and "-packages/" in code.co_filename:
                package = outermost
            frame = frame.f_back
        found = package or outermost
        return 0 if found is None or self._is_ours(found[0]) else self._number_of(*found)

    def _is_ours(self, code: CodeType) -> bool:
        return "cachalot_simulator" in code.co_filename  # a thread of autograd: the simulator's frame alone

    def _number_of(self, code: CodeType, line: int) -> int:
        number = self._numbers.get((code, line))
        if number is None:
            number = self._numbers[code, line] = len(self._lines)
            self._lines.append((code, line))
        return number

    def text(self, number: int) -> str:
        """Returns "train.py:42 in step" for a number."""
        if number == NCCL:
            return "NCCL"
        line = self._lines[number]
        return OUTSIDE if line is None else place_of_frame(line[0].co_filename, line[1], line[0].co_name)


class Races:
    """The races that the program has run into."""

    def __init__(self) -> None:
        self._places = Places()
        self._streams: dict[int, str] = {}
        self._found: dict[tuple, dict[str, Any]] = {}

    def start(self) -> None:
        """From now on, the simulator learns of PyTorch's blocks."""
        from torch.cuda import _gpu_trace

        torch._C._activate_gpu_trace()
        _gpu_trace.register_callback_for_memory_allocation(self._note_allocation)
        _gpu_trace.register_callback_for_memory_deallocation(self._note_free)

    def _note_allocation(self, address: int) -> None:
        _allocated(address, _stream_of(_current_device()), self._places.number())

    def _note_free(self, address: int) -> None:
        _freed(address, self._places.number())

    def place(self) -> int:
        """Returns the number of the line of the program that runs."""
        return self._places.number()

    def note(self, place: int, *values: Any) -> None:
        """Notes that work which the current streams got last, or get next, uses the tensors in some values."""
        tensors = tensors_in(*values)
        devices = {tensor.get_device() for tensor in tensors}
        for device in devices:
            on_device = tensors if len(devices) == 1 else [one for one in tensors if one.get_device() == device]
            firsts = [tensor.data_ptr() for tensor in on_device]
            ranges = array("Q", [first - tensor.storage_offset() * tensor.element_size() if first else 0
                                 for first, tensor in zip(firsts, on_device)])
            ranges.extend(firsts)
            ranges.extend(map(extent, on_device))
            if _used(ranges.buffer_info()[0], len(firsts), _stream_of(device), place) > 0:
                self._take()

    def _take(self) -> None:
        race = Race()
        while _take(ctypes.byref(race)) == 1:
            told = self._describe(race)
            key = tuple(value for name, value in told.items() if name != "bytes")
            known = self._found.setdefault(key, told | {"times": 0})
            known["times"] += 1
            known["bytes"] = max(known["bytes"], race.bytes)

    def _describe(self, race: Race) -> dict[str, Any]:
        places = {name: self._places.text(getattr(race, name)) for name, _ in Race._fields_ if name.endswith("_at")}
        streams = {name: self._name_of(getattr(race, name) or 0) for name in ("allocated_for", "used_on", "reused_on")}
        missing = "wait" if race.used_on == race.allocated_for else "record_stream"
        return {"bytes": race.bytes, "missing": missing} | places | streams

    def _name_of(self, stream: int) -> str:
        if stream == 0:
            return "the default stream"
        return self._streams.setdefault(stream, f"stream {len(self._streams) + 1}")

    def report(self) -> list[dict[str, Any]]:
        """The races, in the order in which they were found."""
        return list(self._found.values())
