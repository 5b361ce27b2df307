"""Finds blocks of PyTorch's allocator whose memory is used again while work on another stream may still use it.

PyTorch gives a freed block to the next request of the same stream, in the order of that stream alone. A block that another
stream used must therefore be recorded there (`Tensor.record_stream`), or the stream must wait for it. The simulator knows the order
of all streams (simulator/state/reuse_races.h) and PyTorch's blocks (simulator/driver/pytorch_memory.cpp); this module tells it which
memory each operation, and each launch of Triton, uses, on which stream and at which line of the program.
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
from cachalot_simulator.places import is_installed, origin_of, place_of, place_of_frame, short_path, starts_child

_library = ctypes.PyDLL(None)  # these calls are short: they keep the GIL
_used = _library.cachalot_sim_blocks_used
_used.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_uint32)
_used.restype = ctypes.c_int64
_noted = _library.cachalot_sim_blocks_noted
_noted.restype = ctypes.c_int64
_take = _library.cachalot_sim_take_race
_stream_of = torch._C._cuda_getCurrentRawStream

OUTSIDE = "outside Python code (for example, a backward pass)"


class Race(ctypes.Structure):
    """A cachalot_sim_race, as cachalot/simulator.h describes it."""

    _fields_ = [("bytes", ctypes.c_uint64), ("allocation", ctypes.c_uint64), ("reallocation", ctypes.c_uint64),
                ("freed_at", ctypes.c_char_p), ("used_line", ctypes.c_char_p), ("reused_line", ctypes.c_char_p),
                ("used_on", ctypes.c_void_p), ("reused_on", ctypes.c_void_p),
                ("used_at", ctypes.c_uint32), ("reused_at", ctypes.c_uint32), ("device", ctypes.c_int32)]


_take.argtypes = (ctypes.POINTER(Race),)


def kind_of(path: str) -> str:
    """Returns "own" for a file of the program, "library" for one of a package, and "other" for those of torch, Triton and Python, and for
    code that torch.compile has written."""
    if "/inductor_cache/" in path or "/torchinductor_" in path or "-packages/triton/" in path:
        return "other"
    origin = origin_of(path)
    return "other" if origin == "torch" or origin == "library" and not is_installed(path) else origin


class Places:
    """Numbers lines of the program from 1 on; 0 stands for no line."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[CodeType, int], int] = {}
        self._lines: list[tuple[CodeType, int] | None] = [None]
        self._origins: dict[CodeType, str] = {}

    def number(self) -> int:
        """Returns the number of the line that the thread runs: the innermost of the program's own; without one the innermost of a
        package other than torch and Triton; else the outermost."""
        frame: Any = sys._getframe(1)
        package = outermost = None
        while frame is not None and not starts_child(frame.f_code):
            code = frame.f_code
            origin = self._origins.get(code) or self._origins.setdefault(code, kind_of(code.co_filename))
            if origin == "own":
                return self._number_of(code, frame.f_lineno)
            outermost = code, frame.f_lineno
            if package is None and origin == "library":
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
        line = self._lines[number]
        return OUTSIDE if line is None else place_of_frame(line[0].co_filename, line[1], line[0].co_name)


class Races:
    """The races that the program has run into."""

    def __init__(self) -> None:
        self._places = Places()
        self._found: dict[tuple, list] = {}  # by places and streams: the first race, the most bytes, and how often

    def place(self) -> int:
        """Returns the number of the line of the program that runs."""
        return self._places.number()

    def note(self, place: int, *values: Any) -> None:
        """Notes that work which the current streams got last, or get next, uses the tensors in some values."""
        tensors = tensors_in(*values)
        devices = {tensor.get_device() for tensor in tensors}
        for device in devices:
            on_device = tensors if len(devices) == 1 else [one for one in tensors if one.get_device() == device]
            ranges = array("Q", map(Tensor.data_ptr, on_device))
            ranges.extend(map(extent, on_device))
            if _used(ranges.buffer_info()[0], len(on_device), _stream_of(device), place) > 0:
                self._take()

    def _take(self) -> None:
        race = Race()
        while _take(ctypes.byref(race)) == 1:
            key = (race.device, race.used_at, race.used_line, race.freed_at, race.reused_at, race.reused_line, race.used_on,
                   race.reused_on)
            known = self._found.setdefault(key, [Race.from_buffer_copy(race), 0, 0])
            known[1] = max(known[1], race.bytes)
            known[2] += 1

    def report(self, traces: list[list[dict]]) -> list[dict[str, Any]] | None:
        """Returns the races, in the order in which they were found; None if PyTorch's allocator did not report its blocks. `traces` are
        the histories of the devices, each empty if it does not have all allocations."""
        if _noted() <= 0:
            return None
        self._take()
        allocations = [[entry for entry in trace if entry["action"] == "alloc"] for trace in traces]
        streams: dict[int, str] = {}
        told: dict[tuple, dict[str, Any]] = {}
        for race, most, times in self._found.values():
            described = self._describe(race, allocations[race.device], streams)
            first = told.setdefault(tuple(described.values()), described | {"bytes": 0, "times": 0})
            first["bytes"], first["times"] = max(first["bytes"], most), first["times"] + times
        return list(told.values())

    def _describe(self, race: Race, allocations: list[dict], streams: dict[int, str]) -> dict[str, Any]:
        """Returns a race for the report. `streams` has the names that were given so far."""

        def name_of(stream: int | None) -> str:
            return streams.setdefault(stream, f"stream {len(streams) + 1}") if stream else "the default stream"

        made, made_again = ((allocations[number] if number < len(allocations) else None)
                            for number in (race.allocation, race.reallocation))
        is_own = made is not None and made["stream"] == (race.used_on or 0)
        return {"missing": "wait" if is_own else "record_stream",
                "used_on": name_of(race.used_on), "reused_on": name_of(race.reused_on),
                "allocated_for": made and name_of(made["stream"]), "allocated_at": made and place_of(made),
                "used_at": shortened(race.used_line) or self._places.text(race.used_at),
                "freed_at": shortened(race.freed_at), "reallocated_at": made_again and place_of(made_again),
                "reused_at": shortened(race.reused_line) or self._places.text(race.reused_at)}


def shortened(line: bytes) -> str | None:
    """Returns "train.py:8 in step" for "/home/me/train.py:8 in step", and a name of a call as it is; None for a line that is not known."""
    path, colon, rest = line.decode().rpartition(":")
    return f"{short_path(path)}:{rest}" if colon else rest or None
