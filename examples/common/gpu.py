"""The surroundings of an example: PyTorch's allocator or cachalot, a GPU or a simulated one, and the flow of time there."""

from __future__ import annotations

import argparse
import ctypes
import functools
import gc
import os
import sys
import time
from collections.abc import Callable

import torch

MiB = 1 << 20


def at_least(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number of `least` or more."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"is {text!r}; it must be a whole number of {least} or more")
        return int(text)

    return parse


def add_native_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--native", action="store_true", help="on PyTorch's own allocator in place of cachalot")


def start(native: bool = False, config: str | None = None) -> str:
    """Makes cachalot the allocator unless `native`; says on what this process runs, for its first line.

    Comes before anything else that asks for CUDA. Ends the process with one line where there is no GPU, or where
    cachalot cannot be enabled.
    """
    if not native:
        _enable(config)
    if not torch.cuda.is_available():
        sys.exit("no GPU is found; `cachalot simulate python …` runs this on a simulated one")
    kind = "simulated, kernels compute nothing" if simulator() else "a GPU"
    options = " ".join(filter(None, [os.environ.get("CACHALOT_CONF"), config]))
    allocator = "PyTorch's own allocator" if native else f"cachalot {options}".rstrip()
    return f"on {torch.cuda.get_device_name()} ({kind}), {allocator}, PyTorch {torch.__version__}"


def _enable(config: str | None) -> None:
    try:
        import cachalot

        cachalot.enable(config)
    except ImportError:
        sys.exit("cachalot is not installed: `pip install .` in its repository, or give --native")
    except (cachalot.EnableError, ValueError) as error:
        sys.exit(f"cachalot: {error}")


@functools.cache
def simulator() -> ctypes.CDLL | None:
    """The simulated CUDA runtime, where this process runs on one (cachalot/simulator.h has its functions)."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "cachalot_sim_clock_ns"):
        return None
    library.cachalot_sim_clock_ns.restype = ctypes.c_int64
    library.cachalot_sim_calls.restype = ctypes.c_int64
    return library


def now_ms() -> float:
    """The host's time once the GPU is done: of the simulated clock, or of the wall's."""
    torch.cuda.synchronize()
    library = simulator()
    return library.cachalot_sim_clock_ns() / 1e6 if library else time.perf_counter() * 1e3


def cached_bytes() -> int:
    """Held from the device and in no tensor: what empty_cache could give back, at most."""
    return torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def begin_anew() -> None:
    """Dead tensors go, the cache is empty, and peaks begin here."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
