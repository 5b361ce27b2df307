"""The processors that wheels are built for, and the compilers' programs for each."""

from __future__ import annotations

import platform
from typing import NamedTuple

MACHINE = platform.machine()  # this one's, for which the system's own compiler makes code


class Processor(NamedTuple):
    """The differences between wheels for one processor and another."""

    name_in_files: str  # as readelf says it
    dynamic_linker: str
    without_cuda: tuple[str, ...] = ()  # versions of PyTorch whose wheel of PyPI has no CUDA


PROCESSORS = {
    "x86_64": Processor("Advanced Micro Devices X86-64", "ld-linux-x86-64.so.2"),
    "aarch64": Processor("AArch64", "ld-linux-aarch64.so.1", without_cuda=("2.10.0",)),
}


def tool(name: str, arch: str) -> str:
    """Returns the program of GCC or of binutils for a processor: Debian's cross compiler where it is not this machine's."""
    return name if arch == MACHINE else f"{arch}-linux-gnu-{name}"
