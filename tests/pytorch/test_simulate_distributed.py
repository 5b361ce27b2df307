"""`cachalot simulate` on programs of several processes, which communicate by the simulated NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest
import world
from test_simulate import COMMAND, simulate

pytestmark = [world.full_only, world.not_pages, pytest.mark.skipif(not COMMAND, reason="needs the cachalot command")]

BEGINNING = """
import os
import torch
import torch.distributed as dist
from torch import nn

local_rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local_rank)
dist.init_process_group("nccl")

def step(model):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        model(torch.randn(8, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

def layers():
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).cuda()
"""
END = "\ndist.destroy_process_group()\n"


def run_two_ranks(folder: Path, program: str, *options: str) -> tuple:
    (folder / "ranks.py").write_text(BEGINNING + program + END)
    launch = "sys.argv = ['', '--nproc-per-node', '2', 'ranks.py']\n"
    return simulate(folder, "import sys\n" + launch + "from torch.distributed.run import main\nmain()\n",
                    "--devices", "2", *options)


def nccl_bytes(report: dict) -> list[int]:
    devices = [device for process in report["processes"] for device in process["driver"]["devices"]]
    return [device["nccl"]["peak_used_bytes"] for device in devices if device["allocations"] > 0]


DATA = """
rank = dist.get_rank()
total = torch.tensor([rank + 1.0, 10.0 * rank], device="cuda", dtype=torch.bfloat16)
dist.all_reduce(total)
objects = [{"from": rank}, "text"] if rank == 0 else [None, None]
dist.broadcast_object_list(objects, device=torch.device("cuda"))
gathered = [None, None]
dist.all_gather_object(gathered, ("rank", rank, "x" * 700_000))
dist.barrier()
scattered = [None]
dist.scatter_object_list(scattered, [[1], [2, 2]] if rank == 0 else None)
lengths = [(name, rank, len(text)) for name, rank, text in gathered]
print(f"\\n{rank}: {total.tolist()} {objects} {lengths} {scattered}")
"""


def test_small_collectives_and_objects_move_their_data(tmp_path: Path) -> None:
    done, _ = run_two_ranks(tmp_path, DATA)
    assert done.returncode == 0, done.stderr
    same = "[3.0, 10.0] [{'from': 0}, 'text'] [('rank', 0, 700000), ('rank', 1, 700000)]"
    assert f"0: {same} [[1]]" in done.stdout and f"1: {same} [[2, 2]]" in done.stdout


MODELS = {
    "ddp": "from torch.nn.parallel import DistributedDataParallel\nstep(DistributedDataParallel(layers()))",
    "fsdp2": "from torch.distributed.fsdp import fully_shard\nmodel = layers()\n"
             "for layer in model: fully_shard(layer)\nstep(fully_shard(model))",
}


@pytest.mark.parametrize("model", MODELS)
def test_a_training_on_two_ranks(tmp_path: Path, model: str) -> None:
    done, report = run_two_ranks(tmp_path, MODELS[model])
    assert done.returncode == 0, done.stderr
    assert len(report["processes"]) == 2
    per_device = nccl_bytes(report)
    assert len(per_device) == 2 and per_device[0] == per_device[1] == (2 + 24 * 10) << 20, "the channels of an H100"
    for process in report["processes"]:
        (used,) = [device for device in process["driver"]["devices"] if device["allocations"] > 0]
        assert used["nccl"]["used_bytes"] == 0, "given back by destroy_process_group"
        assert used["peak_used_bytes"] > per_device[0]


def test_a_rank_that_fails_does_not_hang_the_other(tmp_path: Path) -> None:
    done, _ = run_two_ranks(tmp_path, "assert dist.get_rank() == 0, 'rank 1 fails'\ndist.barrier()\n")
    assert done.returncode == 1
    assert "rank 1 fails" in done.stderr
