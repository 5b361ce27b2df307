"""The memory of all ranks of a job, of which one holds more than the others.

    torchrun --nproc-per-node 2 ranks.py

Started without torchrun, the program starts two ranks itself.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.run import main as torchrun

import cachalot


def train(rank: int) -> list[torch.Tensor]:
    """The first rank gathers what the others compute, as many programs do for their metrics."""
    kept = [torch.empty(64 << 20, dtype=torch.uint8, device="cuda")]
    if rank == 0:
        for _ in range(3):
            kept.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
    return kept


def main() -> None:
    cachalot.enable()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.cuda.set_device(rank % torch.cuda.device_count())
    cachalot.watch_leaks()  # records which lines allocate
    kept = train(rank)
    report = cachalot.distributed_report()
    if rank == 0:
        print(report)
    assert report.worst is not None and report.worst.rank == 0 and len(kept) == (4 if rank == 0 else 1)
    assert report.imbalance == 4 * 64 / ((4 + 1) * 64 / 2)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main()
    else:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of which torchrun would warn
        torchrun(["--standalone", "--nproc-per-node", "2", sys.argv[0]])
