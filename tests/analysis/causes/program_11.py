"""A training with a group of ranks for each kind of parallelism."""

import os
import tempfile

import torch
import torch.distributed as dist
from watched import block, watch

MEETING = f"file://{tempfile.mkdtemp()}/ranks"


def meet(rank: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=MEETING, rank=rank, world_size=2, device_id=torch.device("cuda", rank))
    groups = [dist.new_group([0, 1]) for _ in range(4)]
    for group in groups:
        dist.all_reduce(torch.ones(8, device="cuda"), group=group)
    torch.cuda.synchronize()


def main():
    meet(0)
    weights = [block(40) for _ in range(4)]
    batch = block(1500)
    del weights, batch


other = os.fork()
if other == 0:
    meet(1)
    os._exit(0)
watch(main)
