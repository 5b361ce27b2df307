"""A training with a group of ranks for each kind of parallelism."""

import os

import torch
import torch.distributed as dist
from watched import block, watch


def main():
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29571", RANK="0", WORLD_SIZE="2")
    dist.init_process_group("nccl", rank=0, world_size=2, device_id=torch.device("cuda:0"))
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    for group in groups:
        dist.all_reduce(torch.ones(8, device="cuda"), group=group)
    weights = [block(40) for _ in range(4)]
    batch = block(180)
    del weights, batch


watch(main)
