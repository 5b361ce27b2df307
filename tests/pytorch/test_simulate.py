"""`cachalot simulate` on PyTorch programs: what it tells of their memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import provider
import pytest
import world

COMMAND = os.environ.get("CACHALOT_COMMAND")

pytestmark = [world.full_only, world.not_pages, pytest.mark.skipif(not COMMAND, reason="needs the cachalot command")]

TRAINING = """
import sys
import torch
from torch import nn

def step(model, optimizer):
    loss = model(torch.randn(64, 4096, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

model = nn.Sequential(*(nn.Linear(4096, 4096) for _ in range(4))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    step(model, optimizer)
print(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), *sys.argv[1:])
"""


def own_environment() -> dict[str, str]:
    """Without what the tests themselves run on."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("CACHALOT_SIM_", "LD_"))}


def simulate(folder: Path, program: str, *options: str) -> tuple[subprocess.CompletedProcess, dict]:
    script, report = folder / "train.py", folder / "report.json"
    script.write_text(program)
    command = [COMMAND, "simulate", "--json", str(report), *options, sys.executable, "train.py", "--gpu"]
    done = subprocess.run(command, env=own_environment(), cwd=folder, capture_output=True, text=True, timeout=120)
    return done, json.loads(report.read_text())


def test_a_program_that_fits(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv.gz"
    done, report = simulate(tmp_path, TRAINING, "--gpu", "l4", "--trace", str(trace))
    assert done.returncode == 0, done.stderr
    allocated, reserved, argument = done.stdout.split()
    assert argument == "--gpu", "the program's own arguments reach it"
    (process,) = report["processes"]
    (torch_report,), (device,) = process["torch"]["devices"], process["driver"]["devices"]
    assert torch_report["peak_allocated_bytes"] == int(allocated)
    assert torch_report["peak_reserved_bytes"] == int(reserved) == device["peak_used_bytes"]
    assert torch_report["peak"]["at"] == "train.py:9 in step"
    assert any("train.py:12 in <module>" in site["at"] for site in torch_report["peak"]["sites"])
    assert "NVIDIA L4" in done.stderr and "fits          yes" in done.stderr
    replayed = subprocess.run([COMMAND, "replay", "--json", str(trace)], capture_output=True, text=True, check=True)
    assert json.loads(replayed.stdout)["peak_reserved_bytes"] == int(reserved), "the trace is the program's"


@pytest.mark.parametrize("gpu", ["t4", "a100", "l4", "rtx4090", "h100"])
def test_a_program_that_asks_what_its_kernels_were_compiled_for(tmp_path: Path, gpu: str) -> None:
    # CUB does: PyTorch has no code for 8.9, and the driver would run that for 8.6.
    done, _ = simulate(tmp_path, "import torch; torch.rand(100_000, device='cuda').sort()", "--gpu", gpu)
    assert done.returncode == 0, done.stderr


def test_a_program_that_does_not_fit(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, TRAINING, "--memory", "768MiB")
    assert done.returncode == 1 and "torch.OutOfMemoryError" in done.stderr
    oom = report["processes"][0]["torch"]["devices"][0]["first_oom"]
    assert oom["at"] == "train.py:9 in step"
    assert "fits          NO: out of memory at train.py:9 in step, asking for 64.00 MiB" in done.stderr


def test_a_program_on_cachalot(tmp_path: Path) -> None:
    native, _ = simulate(tmp_path, TRAINING)
    ours, report = simulate(tmp_path, "import cachalot; cachalot.enable()\n" + TRAINING)
    assert ours.stdout == native.stdout
    assert report["processes"][0]["torch"]["devices"][0]["peak"]["at"] == "train.py:10 in step"


def test_a_program_with_a_sitecustomize_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.own_was_here = True\n")
    os.environ["PYTHONPATH"], before = f"{tmp_path}:{os.environ['PYTHONPATH']}", os.environ["PYTHONPATH"]
    try:
        done, _ = simulate(tmp_path, "print(own_was_here)\n")
    finally:
        os.environ["PYTHONPATH"] = before
    assert done.stdout == "True\n", done.stderr
    assert "no process of the program used the GPU's memory" in done.stderr


@pytest.mark.parametrize("probe", ["importlib.util.find_spec('torch')", "import torch"])
def test_a_program_may_ask_for_torch_before_it_imports_it(tmp_path: Path, probe: str) -> None:
    _, report = simulate(tmp_path, f"import importlib.util\nfor _ in range(2): {probe}\n" + TRAINING)
    assert report["processes"][0]["torch"]["devices"][0]["peak"]["at"] == "train.py:11 in step"


def test_a_program_that_looks_for_torch_alone(tmp_path: Path) -> None:
    done, _ = simulate(tmp_path, "import importlib.util\nprint(importlib.util.find_spec('torch').name)\n")
    assert (done.returncode, done.stdout) == (0, "torch\n"), done.stderr


OWN_ALLOCATOR = """
import torch
own = torch.cuda.memory.CUDAPluggableAllocator({library!r}, "provider_allocate", "provider_free")
torch.cuda.memory.change_current_allocator(own)
print(torch.empty(5 << 20, dtype=torch.uint8, device="cuda").device)
"""


def test_a_program_with_an_allocator_of_its_own(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, OWN_ALLOCATOR.format(library=str(provider.library())))
    assert (done.returncode, done.stdout) == (0, "cuda:0\n"), done.stderr
    assert "Traceback" not in done.stderr
    (process,) = report["processes"]
    assert process["torch"] is None
    assert process["driver"]["devices"][0]["peak_used_bytes"] >= 5 << 20


RECORD = "torch.cuda.memory._record_memory_history(max_entries=7)\n"
RAN_OUT = """
try:
    torch.empty(5 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    pass
"""


@pytest.mark.parametrize("before, after", [(RECORD, ""), ("torch.cuda.init()\n" + RECORD, ""), ("", RECORD)])
def test_a_program_that_records_history_itself_keeps_its_own(tmp_path: Path, before: str, after: str) -> None:
    trace = tmp_path / "trace.csv"
    count = "print(len(torch.cuda.memory._snapshot()['device_traces'][0]))\n"
    program = "import torch\n" + before + "kept = torch.ones(3 << 20, device='cuda')\n" + after
    program += "more = [torch.ones(1 << 20, device='cuda') for _ in range(20)]\n" + count + RAN_OUT
    done, report = simulate(tmp_path, program, "--memory", "4GiB", "--trace", str(trace))
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr
    (device,) = report["processes"][0]["torch"]["devices"]
    assert (device["history"], device["peak"], device["first_oom"]) == ("program's own", None, None)
    assert device["peak_allocated_bytes"] == (3 + 20) << 22
    assert "the program records memory history itself" in done.stderr and trace.read_text() == ""
    assert device["ooms"] == 1 and "fits          NO: out of memory, once" in done.stderr


def test_a_program_whose_first_allocation_fails(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, "import torch\n" + RAN_OUT, "--memory", "4GiB")
    assert report["processes"][0]["torch"]["devices"][0]["first_oom"]["at"] == "train.py:4 in <module>"
    assert "fits          NO: out of memory at train.py:4 in <module>, asking for 5.00 GiB" in done.stderr


CHECKPOINTED = """
import torch
from torch.utils.checkpoint import checkpoint

def block(x):
    return ((x * 2).relu() * 3).relu()

x = torch.randn(1 << 20, device="cuda", requires_grad=True)
checkpoint(block, x, use_reentrant=False).sum().backward()
print(x.grad.shape)
"""


def test_a_program_with_activation_checkpoints(tmp_path: Path) -> None:
    # An exception ends the recomputation, and tensors are freed while Python looks for its handler.
    done, report = simulate(tmp_path, CHECKPOINTED)
    assert (done.returncode, done.stdout) == (0, "torch.Size([1048576])\n"), done.stderr
    assert report["processes"][0]["torch"]["devices"][0]["peak"]["sites"]


ALLOCATES_WHILE_RAISING = """
import torch
kept = []

class AllocatesAtItsEnd:
    def __del__(self):
        kept.append(torch.ones(1000, device="cuda"))

try:
    int(AllocatesAtItsEnd())
except TypeError as error:
    print(len(kept), "AllocatesAtItsEnd" in str(error))
"""


def test_a_program_that_allocates_while_it_raises(tmp_path: Path) -> None:
    done, _ = simulate(tmp_path, ALLOCATES_WHILE_RAISING)
    assert (done.returncode, done.stdout) == (0, "1 True\n"), done.stderr
