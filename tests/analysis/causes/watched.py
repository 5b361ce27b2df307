"""Runs a program like a user that looks for the cause of a lack of memory: with history, a snapshot and the traceback kept."""

import os
import sys
import traceback
from collections.abc import Callable

import torch

MIB = 1 << 20


def block(mib: float) -> torch.Tensor:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")


def watch(main: Callable[[], None], **history: str) -> None:
    """Calls `main`, whose failure leaves $OUT.pickle and $OUT.txt; exits with 0 if memory ran out."""
    torch.cuda.memory._record_memory_history(**history)
    try:
        main()
    except RuntimeError:
        with open(os.environ["OUT"] + ".txt", "w") as file:
            traceback.print_exc(file=file)
        torch.cuda.memory._dump_snapshot(os.environ["OUT"] + ".pickle")
        sys.exit(0)
    sys.exit("there was enough memory")
