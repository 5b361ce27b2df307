"""Computes for real what kernels would, where that is cheap, so that values steer the program as on a GPU.

A fallback sees each operation of PyTorch below autograd, also in autograd's threads. The operation runs as always: its
memory is that of the CUDA path. Where all of its tensors are small it is then computed once more by PyTorch's own CPU
kernels, and the result is put into the simulated memory. Other results are unknown and read as zeros. What is computed from
unknown values is a guess: finite, deterministic, and reported where the program reads it.

device_memory reads and writes simulated memory, host moves tensors between it and the CPU, operators knows what each operation
writes, sizes has the operations whose results' sizes depend on values, replacements those without a CPU kernel, reads
counts what the program reads of unknown values, and operations joins them.
"""

from __future__ import annotations

import os
from typing import Any


def start_computing() -> Any:
    """Starts to compute what CACHALOT_SIM_COMPUTE and CACHALOT_SIM_UNKNOWN ask for; None: nothing is computed."""
    which = os.environ.get("CACHALOT_SIM_COMPUTE", "none")
    if which == "none":
        return None
    from cachalot_simulator.compute.operations import Computing, Policy

    most = float("inf") if which == "all" else None
    policy = Policy(most or MOST_BYTES, most or MOST_WORK, os.environ.get("CACHALOT_SIM_UNKNOWN", "zero"))
    computing = Computing(policy)
    computing.start()
    return computing


MOST_BYTES = 256 << 10  # of all tensors of an operation
MOST_WORK = 1e7  # multiplications
