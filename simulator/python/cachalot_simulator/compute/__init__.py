"""Computes for real what kernels would, where that is cheap, so that values steer the program as on a GPU.

A kernel under an unused dispatch key sees each operation of PyTorch below autograd, also in autograd's threads. The operation
runs as always: its memory is that of the CUDA path. If all of its tensors are small, PyTorch's CPU kernels then compute it
once more, and the result is put into the simulated memory. Other results are unknown and read as zeros. A result that is
computed from unknown values is a guess: finite, deterministic, and reported where the program reads it.

The module device_memory reads and writes simulated memory, host moves tensors between it and the CPU, and has the random
numbers, operators knows what each operation writes, estimates multiplications, and takes apart sparse and nested tensors,
sizes has the operations whose results' sizes depend on values, replacements has CPU functions for operations without a CPU
kernel, choices makes the choices among unknown numbers, triton_kernels has the writes of Triton's kernels, exports tensors that
other libraries get, spread knows which elements of a result are unknown, reads counts what the program reads of unknown values,
races tells the simulator which memory each operation uses, and operations joins them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from cachalot_simulator.settings import setting

if TYPE_CHECKING:
    from cachalot_simulator.ending import Ending

# The defaults are those of bench/simulate/computing.py --limits: what a larger limit costs a training grows from here on.
LIMITS = {"compute_bytes": 256 << 10,  # of all tensors of an operation
          "compute_work": 10_000_000}  # multiplications
VALUES = {"compute": ("none", "small", "all"), "unknown": ("zero", "expected", "max")}


def choice(key: str) -> str:
    """The value of a key of CACHALOT_SIM; the first of its values without it. Ends the program if the key has another value."""
    value = setting(key) or VALUES[key][0]
    if value not in VALUES[key]:
        raise SystemExit(f"CACHALOT_SIM: option {key}: it must be one of {', '.join(VALUES[key])}, not '{value}'")
    return value


def limit(key: str) -> int:
    """Returns the whole number of a key of CACHALOT_SIM, or its default. Ends the program if it is not one."""
    value = setting(key) or str(LIMITS[key])
    if not value.isdecimal():
        raise SystemExit(f"CACHALOT_SIM: option {key}: it must be a whole number, not '{value}'")
    return int(value)


def start_computing(ending: Ending) -> Any:
    """Starts to compute what `compute` and `unknown` of CACHALOT_SIM ask for; None: nothing is computed. `ending` ends the
    program where it reads unknown values again and again."""
    which, unknown = map(choice, VALUES)
    if which == "none":
        return None
    from cachalot_simulator.compute.operations import Computing, Policy
    from cachalot_simulator.compute.races import Races

    most_bytes, most_work = (math.inf, math.inf) if which == "all" else map(limit, LIMITS)
    races = Races() if setting("races") == "1" else None
    computing = Computing(Policy(most_bytes, most_work, unknown), ending, races)
    computing.start()
    return computing
