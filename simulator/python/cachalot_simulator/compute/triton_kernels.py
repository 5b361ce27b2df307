"""Kernels of Triton: what they write is unknown, except for launches that are computed (triton_values.py).

Which arguments a kernel writes is read from Triton's intermediate code, where each store names a pointer, and pointers are
made of arguments. A kernel whose code is not understood may write all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from cachalot_simulator.after_import import after_import
from cachalot_simulator.compute import triton_values
from cachalot_simulator.compute.device_memory import make_one_unknown
from cachalot_simulator.compute.operators import tensors_in

_is_capturing = torch._C._cuda_isCurrentStreamCapturing
_LINE = re.compile(r'^\s*(?:(%[\w$.-]+)(?::\d+)? = )?"?([\w.]+)"?')
_NAME = re.compile(r"%[\w$.-]+(?:#\d+)?")
_STORES = re.compile(r"tt\.(store|atomic_\w+|(experimental_)?descriptor_(store|reduce|scatter)\w*)")
_NOT_UNDERSTOOD = re.compile(r"tt\.call|tt\.elementwise_inline_asm|tt\.extern_elementwise|scf\.while")
_CHOOSES = re.compile(r"cf\.|scf\.if")  # between codes, and perhaps between pointers
_HAS_POINTERS = re.compile(r"!tt\.(ptr|tensordesc)")


def see_triton_kernels(note: Callable[[tuple], None]) -> None:
    """From now on, what Triton's kernels write is unknown. Calls a function with the arguments of each launch."""

    def see_launches(jit: Any) -> None:
        run = jit.JITFunction.run

        def run_and_follow(function: Any, *args: Any, **kwargs: Any) -> Any:
            with triton_values.lock:
                kernel = run(function, *args, **kwargs)
            if not kwargs.get("warmup"):
                note((*args, *kwargs.values()))
                if _is_capturing() or not triton_values.compute(function, kwargs.get("grid"), args, kwargs):
                    follow(function.arg_names, kernel, args, kwargs)
            return kernel

        jit.JITFunction.run = run_and_follow

    def see_compiled(heuristics: Any) -> None:
        run = heuristics.CachingAutotuner.run

        def run_and_follow(tuner: Any, *args: Any, **kwargs: Any) -> Any:
            result = run(tuner, *args, **kwargs)
            note(args)
            for name, value in zip(tuner.fn.arg_names, args):
                if name in tuner.mutated_arg_names and isinstance(value, Tensor):
                    make_one_unknown(value)
            return result

        heuristics.CachingAutotuner.run = run_and_follow

    after_import("triton.runtime.jit", see_launches)
    after_import("torch._inductor.runtime.triton_heuristics", see_compiled)


_written: dict[Any, set[str] | None] = {}  # by the kernel's hash


def follow(names: list[str], kernel: Any, args: tuple, kwargs: dict) -> None:
    """Makes what a launch has written unknown."""
    identity = getattr(kernel, "hash", None)
    if identity not in _written or identity is None:
        _written[identity] = written_arguments(getattr(kernel, "asm", {}).get("ttir", ""))
    written = _written[identity]
    arguments = dict(zip(names, args)) | kwargs
    if written is None or not written <= set(names):
        written = set(arguments)
    for tensor in tensors_in(*(value for name, value in arguments.items() if name in written)):
        make_one_unknown(tensor)


def written_arguments(code: str) -> set[str] | None:
    """Names of the arguments that a kernel's code stores to; None if the code is not understood."""
    if code.count("tt.func ") != 1:
        return None
    origins: dict[str, set[str]] = {}  # of each value: the arguments that it is a pointer into
    written: set[str] = set()
    for line in code.splitlines():
        if "tt.func " in line:
            origins = {name: {name[1:]} for name in re.findall(r"(%[\w$.-]+): !tt\.(?:ptr|tensordesc)", line)}
            continue
        match = _LINE.match(line)
        if match is None:
            continue
        result, operation = match.groups()
        operands = _NAME.findall(line[match.end():])
        from_operands = set().union(*(origins.get(name, set()) for name in operands))
        if _NOT_UNDERSTOOD.match(operation) or _CHOOSES.match(operation) and _HAS_POINTERS.search(line):
            return None
        if _STORES.match(operation):
            written |= origins.get(operands[0], set())
        elif operation == "scf.for":
            origins.update(loop_values(result, line, origins))
        elif result and from_operands and not operation.endswith("load"):
            origins[result] = from_operands
    return written


def loop_values(result: str | None, line: str, origins: dict[str, set[str]]) -> Iterator[tuple[str, set[str]]]:
    """The values that a loop carries on, by their names within and behind it."""
    for i, (inside, start) in enumerate(re.findall(rf"({_NAME.pattern}) = ({_NAME.pattern})", line.partition("iter_args(")[2])):
        yield inside, origins.get(start, set())
        yield f"{result}#{i}", origins.get(start, set())
        if i == 0:
            yield str(result), origins.get(start, set())
