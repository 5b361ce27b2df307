"""Memory histories of the programs in this folder."""

import sys

import torch

MIB = 1 << 20
SNAPSHOT = sys.argv[1] if len(sys.argv) > 1 else "-"  # "-": no history is recorded, so that `cachalot simulate` can record its own
SIZE = int(sys.argv[2]) if len(sys.argv) > 2 else 8


def begin() -> None:
    if SNAPSHOT != "-":
        torch.cuda.memory._record_memory_history(stacks="python")


def end() -> None:
    if SNAPSHOT != "-":
        torch.cuda.memory._dump_snapshot(SNAPSHOT)


def block(mib: float) -> torch.Tensor:
    return torch.empty(int(mib * MIB), dtype=torch.uint8, device="cuda")
