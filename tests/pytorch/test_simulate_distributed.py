"""`cachalot simulate` on programs of several ranks: processes that communicate by the simulated NCCL, and one rank by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import world
from test_simulate import COMMAND, own_environment, simulate

ROOT = Path(__file__).resolve().parents[2]

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
        # A thread of torch's lets tensors of collectives go in real time: it has done so before the next step takes memory.
        torch.cuda.synchronize()
        dist.group.WORLD._wait_for_pending_works()

def layers():
    return nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).cuda()
"""
END = "\ndist.destroy_process_group()\n"


def run_two_ranks(folder: Path, program: str, *options: str) -> tuple:
    (folder / "ranks.py").write_text(BEGINNING + program + END)
    launch = "sys.argv = ['', '--standalone', '--nproc-per-node', '2', 'ranks.py']\n"  # at a free port
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


def test_an_operation_that_is_defined_later_runs(tmp_path: Path) -> None:
    program = """
import torch
library = torch.library.Library("later", "DEF")
library.define("twice(Tensor x) -> Tensor")
library.impl("twice", lambda x: x + x, "CUDA")
library.impl("twice", lambda x: x + x, "CPU")
print(torch.ops.later.twice(torch.tensor([1, 2], device="cuda")).tolist())
"""
    done, _ = simulate(tmp_path, program)
    assert (done.returncode, done.stdout) == (0, "[2, 4]\n"), done.stderr


MODELS = {
    "ddp": "from torch.nn.parallel import DistributedDataParallel\nstep(DistributedDataParallel(layers()))",
    "fsdp2": "from torch.distributed.fsdp import fully_shard\nmodel = layers()\n"
             "for layer in model: fully_shard(layer)\nstep(fully_shard(model))",
}


@dataclass
class Trained:
    model: str
    done: subprocess.CompletedProcess
    report: dict


@pytest.fixture(scope="module", params=MODELS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A training on two ranks, once for all tests of it."""
    return Trained(request.param, *run_two_ranks(tmp_path_factory.mktemp("together"), MODELS[request.param]))


def test_a_training_on_two_ranks(trained: Trained) -> None:
    done, report = trained.done, trained.report
    assert done.returncode == 0, done.stderr
    assert len(report["processes"]) == 2
    per_device = nccl_bytes(report)
    assert len(per_device) == 2 and per_device[0] == per_device[1] == (2 + 24 * 10) << 20, "the channels of an H100"
    for process in report["processes"]:
        (used,) = [device for device in process["driver"]["devices"] if device["allocations"] > 0]
        assert used["nccl"]["used_bytes"] == 0, "given back by destroy_process_group"
        assert used["peak_used_bytes"] > per_device[0]
        (allocated,) = process["torch"]["devices"]
        assert allocated["peak"]["kinds"]["communication"] > 0, "buckets, or gathered parameters"


def test_a_rank_that_fails_does_not_hang_the_other(tmp_path: Path) -> None:
    done, _ = run_two_ranks(tmp_path, "assert dist.get_rank() == 0, 'rank 1 fails'\ndist.barrier()\n")
    assert done.returncode == 1
    assert "rank 1 fails" in done.stderr


def run_one_rank(folder: Path, program: str, rank: int, world_size: int, *options: str) -> tuple:
    return simulate(folder, BEGINNING + program + END, "--world-size", str(world_size), "--rank", str(rank), *options)


def torch_peaks(report: dict) -> list[int]:
    return [device["peak_requested_bytes"] for process in report["processes"] for device in process["torch"]["devices"]]


def test_a_rank_by_itself_has_the_memory_that_it_has_among_others(tmp_path: Path, trained: Trained) -> None:
    done, alone = run_one_rank(tmp_path, MODELS[trained.model], 1, 2)
    assert done.returncode == 0, done.stderr
    assert torch_peaks(alone) == [torch_peaks(trained.report)[1]]
    assert nccl_bytes(alone) == nccl_bytes(trained.report)[1:]


MESH = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cuda", (8, 128), mesh_dim_names=("replicate", "shard"))
step(fully_shard(layers(), mesh=mesh))
flag = torch.tensor([2.0, 3.0], device="cuda")
dist.all_reduce(flag)
parts = torch.zeros(1024, device="cuda", dtype=torch.int64)
dist.all_gather_into_tensor(parts, torch.tensor([dist.get_rank()], device="cuda"))
objects = [None] * dist.get_world_size()
dist.all_gather_object(objects, {"rank": dist.get_rank()})
received = ["mine"]
dist.broadcast_object_list(received, src=0)
cpu = dist.new_group(backend="gloo")
dist.barrier(cpu)
host = torch.ones(3)
dist.all_reduce(host, group=cpu)
rows = dist.new_group(list(range(512, 1024)))
row = torch.tensor([1.0], device="cuda")
dist.all_reduce(row, group=rows)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
print([os.environ[name] for name in names], list(mesh.get_coordinate()), flag.tolist(), set(parts.tolist()), objects[5], received,
      row.item(), torch.cuda.current_device())
"""


def test_a_rank_by_itself_stands_for_all(tmp_path: Path) -> None:
    done, _ = run_one_rank(tmp_path, MESH, 1001, 1024, "--devices", "8")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['1001', '1024', '1', '8'] [7, 105] [2048.0, 3072.0] {1001} {'rank': 1001} ['mine'] 512.0 1\n"


def test_one_rank_of_the_training_of_a_transformer(tmp_path: Path) -> None:
    size = "--layers 12 --hidden 1024 --heads 16 --mlp 4096 --vocabulary 32000 --tokens 1024".split()
    command = [COMMAND, "simulate", "--json", "report.json", "--world-size", "64", "--rank", "17", sys.executable,
               str(ROOT / "bench/simulate/fsdp_rank.py"), *size]
    done = subprocess.run(command, env=own_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "rank 17 of 64: 0.25 billion parameters" in done.stdout
    (device,) = json.loads((tmp_path / "report.json").read_text())["processes"][0]["torch"]["devices"]
    parameters = 250e6
    activations = (12 * 1024 * 1024 + 4 * 1024 * 32000) * 2  # the tensors that checkpoints keep, and the scores
    assert parameters * 8 / 64 < device["peak_allocated_bytes"] < parameters * 8 / 64 + 2 * activations


# Tensor and pipeline parallelism: 4 stages of 2 ranks each. It ends as many programs do, with its process groups.
PARALLEL = """
import sys
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("stages", "parts"))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(1024, 4096), nn.Linear(4096, 1024)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

with torch.device("cuda"):
    model = nn.Sequential(Block(), Block())
for block in model:
    parallelize_module(block, mesh["parts"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
index = mesh["stages"].get_local_rank()
received = torch.empty(4, 128, 1024, device="meta")
given = {"input_args": (received,), "output_args": (received,)} if SHAPES else {}
stage = PipelineStage(model, index, 4, torch.device("cuda"), group=mesh["stages"].get_group(), **given)
schedule = Schedule1F1B(stage, n_microbatches=8, loss_fn=lambda output, target: (output - target).square().mean())
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    whole = torch.randn(32, 128, 1024, device="cuda")
    schedule.step(*([whole] if index == 0 else []), **({"target": whole} if index == 3 else {}))
    optimizer.step()
    optimizer.zero_grad()
print(index, tuple(model[0].up.weight.to_local().shape), dist.get_world_size(mesh["parts"].get_group()))
"""


@pytest.mark.parametrize(("rank", "stage"), [(0, 0), (7, 3)])
def test_a_rank_of_tensor_and_pipeline_parallelism_by_itself(tmp_path: Path, rank: int, stage: int) -> None:
    done, report = simulate(tmp_path, "SHAPES = True\n" + BEGINNING + PARALLEL, "--world-size", "8", "--rank", str(rank),
                            "--local-rank", "0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == f"{stage} (2048, 1024) 2"
    assert report["ending"]["good"] and report["ending"]["optimizer_steps"] == 2


def test_a_stage_by_itself_must_know_the_shapes_that_it_receives(tmp_path: Path) -> None:
    done, _ = simulate(tmp_path, "SHAPES = False\n" + BEGINNING + PARALLEL, "--world-size", "8", "--rank", "2",
                       "--local-rank", "0")
    assert done.returncode == 1
    assert "stage 1 of the pipeline receives shapes from a rank that does not exist" in done.stderr
