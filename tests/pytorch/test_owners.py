"""Tests of the purposes of memory in `cachalot simulate`, by kind and by module."""

from __future__ import annotations

import subprocess
from pathlib import Path

import test_simulate

MODEL = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)
    def forward(self, x):
        return x + self.down(self.up(x).relu())

class Model(nn.Module):
    def __init__(self, checkpointed=False):
        super().__init__()
        self.checkpointed = checkpointed
        self.layers = nn.ModuleList(Block() for _ in range(4))
        self.register_buffer("scale", torch.ones(1000))
    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x

def train(model, steps, optimizer=torch.optim.AdamW, rows=1024):
    optimizer = optimizer(model.parameters())
    for _ in range(steps):
        model(torch.ones(rows, 256, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def simulate(folder: Path, program: str, *options: str, fresh: bool = False) -> tuple[subprocess.CompletedProcess, dict]:
    """The report's part on the device is of a program that must end well."""
    done, report = test_simulate.simulate(folder, MODEL + program, *options, fresh=fresh)
    assert done.returncode == 0, done.stderr
    return done, report["processes"][0]["torch"]["devices"][0]


def bytes_of(count: int) -> int:
    """Returns the bytes of `count` floats."""
    return 4 * count


PARAMETERS = 4 * (2 * bytes_of(256 * 1024) + bytes_of(1024) + bytes_of(256))


def test_a_training_has_parameters_gradients_and_optimizer_state(tmp_path: Path) -> None:
    done, device = simulate(tmp_path, "train(Model().cuda(), 3)\n")
    assert [step["step"] for step in device["steps"]] == [1, 2, 3]
    for step in device["steps"]:
        kinds = step["kinds"]
        assert (kinds["parameters"], kinds["gradients"], kinds["buffers"]) == (PARAMETERS, PARAMETERS, bytes_of(1000))
        assert kinds["optimizer state"] == 2 * PARAMETERS
        assert sum(kinds.values()) == step["bytes"]
    kinds = device["peak"]["kinds"]
    assert kinds["parameters"] == PARAMETERS and kinds["optimizer state"] == 2 * PARAMETERS
    assert "after step 3  " in done.stderr and "used for      " in done.stderr


def test_activations_are_in_the_modules_that_made_them(tmp_path: Path) -> None:
    done, device = simulate(tmp_path, "train(Model().cuda(), 2, rows=16384)\n")
    modules = {module["path"]: module["kinds"] for module in device["peak"]["modules"]}
    assert modules["layers.2"]["activations"] == bytes_of(16384 * 1024) + bytes_of(16384 * 256), "of relu, and the sum"
    assert modules["layers.2.up"]["parameters"] == bytes_of(256 * 1024) + bytes_of(1024)
    assert "in layers.* (3 modules): activations 240.00 MiB" in done.stderr


def test_a_checkpoint_has_activations_of_one_layer_at_a_time(tmp_path: Path) -> None:
    _, device = simulate(tmp_path, "train(Model(checkpointed=True).cuda(), 2, rows=16384)\n")
    assert device["peak"]["kinds"]["activations"] < 2 * bytes_of(16384 * 1024)
    _, whole = simulate(tmp_path, "train(Model().cuda(), 2, rows=16384)\n")
    assert whole["peak"]["kinds"]["activations"] >= 3 * bytes_of(16384 * 1024)


def test_inference_has_temporaries(tmp_path: Path) -> None:
    program = "model = Model().cuda()\nwith torch.no_grad():\n    for _ in range(3): model(torch.ones(16384, 256).cuda())\n"
    _, device = simulate(tmp_path, program)
    kinds = device["peak"]["kinds"]
    assert device["steps"] == [] and "activations" not in kinds and "gradients" not in kinds
    assert kinds["parameters"] == PARAMETERS and kinds["temporaries"] >= 2 * bytes_of(16384 * 1024)


def test_key_value_caches_are_a_kind_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "kv_cache.py").write_text("import torch\ndef room():\n    return torch.empty(8, 1 << 20, device='cuda')\n")
    _, device = simulate(tmp_path, "import sys\nsys.path.insert(0, '.')\nimport kv_cache\ncache = kv_cache.room()\n")
    assert device["peak"]["kinds"] == {"caches": bytes_of(8 << 20)}


def test_two_models_with_an_optimizer_each(tmp_path: Path) -> None:
    program = "one, other = Model().cuda(), Model().cuda()\ntrain(one, 2)\ntrain(other, 1, torch.optim.SGD)\n"
    _, device = simulate(tmp_path, program)
    assert [step["step"] for step in device["steps"]] == [1, 2]
    assert device["steps"][-1]["kinds"]["parameters"] == PARAMETERS, "the other model has not run yet"


def test_the_tree_of_calls(tmp_path: Path) -> None:
    program = "train(Model().cuda(), 1, rows=16384)\n"
    own, device = simulate(tmp_path, program, "--frames", "own", fresh=True)
    lines = [line for line in own.stderr.splitlines() if " in forward" in line]
    assert any(line.endswith("    train.py:21 in forward") for line in lines), own.stderr
    assert any(line.endswith("      train.py:11 in forward") for line in lines), "below the line that called it"
    assert "torch/nn" not in own.stderr and "allocations at" not in own.stderr
    whole, _ = simulate(tmp_path, program, "--frames", "all")
    assert "torch/nn/modules/linear.py" in whole.stderr
    assert {frame["origin"] for stack in device["peak"]["stacks"] for frame in stack["frames"]} == {"own", "torch"}


def test_marks_change_no_allocation(tmp_path: Path) -> None:
    program = "train(Model(checkpointed=True).cuda(), 2)\n"
    traces = []
    for name, traces_only in (("with", 0), ("without", 1)):
        trace = tmp_path / f"{name}.csv"
        simulate(tmp_path, program, "--trace", str(trace), "sh", "-c", f'CACHALOT_SIM="$CACHALOT_SIM,traces_only:{traces_only}" exec "$0" "$@"')
        traces.append(trace.read_text())
    assert traces[0] == traces[1] and traces[0].count("\n") > 100


LEAVES_ALONE = """
class Equal(nn.Module):
    def __eq__(self, other):
        return isinstance(other, Equal)
    def forward(self, x):
        return x * 2

class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.transform = Equal()
    def __len__(self):
        return 64
    def __getitem__(self, i):
        return self.transform(torch.full((3,), float(i)))

model = Model().cuda()
x = torch.ones(4, 256, device="cuda")
assert torch.jit.trace(model, x)(x).shape == x.shape
assert Equal().cuda()(x).sum().item() == 2 * x.numel()
compiled_for = []
def backend(graph, _):
    compiled_for.append(graph)
    return graph.forward
step = torch.compile(nn.Linear(256, 4).cuda(), backend=backend)
optimizer = torch.optim.SGD(model.parameters())
for parameter in model.parameters():
    optimizer.state[parameter]["past"] = [torch.zeros_like(parameter)]  # as LBFGS does it
for pictures in torch.utils.data.DataLoader(Images(), batch_size=32, num_workers=1):
    step(x)
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print(len(compiled_for), pictures.shape)
"""


def test_programs_are_as_without_hooks(tmp_path: Path) -> None:
    # Tracing, modules without a hash, hooks that change compiled modules, and workers that are forked.
    done, device = simulate(tmp_path, LEAVES_ALONE, "--max-steps", "30")  # a worker makes 64 calls
    assert done.stdout == "1 torch.Size([32, 3])\n" and done.stderr.count("\n") < 60, done.stderr
    assert [step["step"] for step in device["steps"]] == [1, 2]
    assert device["steps"][-1]["kinds"]["optimizer state"] == PARAMETERS, "in lists"


def test_a_graph_of_gradients_is_part_of_the_forward_pass(tmp_path: Path) -> None:
    program = """
model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    x = torch.ones(4096, 256, device="cuda", requires_grad=True)
    slope, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    second, = torch.autograd.grad(slope.sum(), x, create_graph=True, allow_unused=True)
    (slope.square().sum() + (second.sum() if second is not None else 0)).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    _, device = simulate(tmp_path, program)
    kinds = device["peak"]["kinds"]
    assert kinds["activations"] > 8 * bytes_of(4096 * 1024) and kinds.get("kept", 0) < 80 << 20  # workspaces


QUANTIZED = """
from torch.testing._internal.two_tensor import TwoTensor  # has no memory but that of two others, as states of torchao
model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters())
for parameter in model.parameters():
    codes = torch.zeros(parameter.numel(), dtype=torch.uint8, device="cuda")
    optimizer.state[parameter] = {"past": {"codes": TwoTensor(codes, codes.clone())}}
for _ in range(2):
    model(torch.ones(1024, 256, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_state_that_is_quantized_is_optimizer_state(tmp_path: Path) -> None:
    _, device = simulate(tmp_path, QUANTIZED)
    kinds = device["steps"][-1]["kinds"]
    assert PARAMETERS // 2 <= kinds["optimizer state"] <= PARAMETERS // 2 + 32 * 512


MASTERS = """
model = Model().cuda().bfloat16()
master = torch.cat([one.detach().float().flatten() for one in model.parameters()]).requires_grad_()
optimizer = torch.optim.AdamW([master])
for _ in range(2):
    model(torch.ones(1024, 256, device="cuda", dtype=torch.bfloat16)).sum().backward()
    master.grad = torch.cat([one.grad.float().flatten() for one in model.parameters()])
    optimizer.step()
"""


def test_copies_of_parameters_that_an_optimizer_steps_are_its_state(tmp_path: Path) -> None:
    _, device = simulate(tmp_path, MASTERS)
    kinds = device["steps"][-1]["kinds"]
    assert kinds["optimizer state"] == 3 * PARAMETERS and kinds["parameters"] == PARAMETERS // 2


def test_parameters_of_no_module_are_parameters(tmp_path: Path) -> None:
    program = """
model = Model().cuda().requires_grad_(False)
prompt = torch.zeros(1024, 256, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([prompt], momentum=0.9)
for _ in range(2):
    model(prompt).sum().backward()
    optimizer.step()
"""
    _, device = simulate(tmp_path, program)
    kinds = device["steps"][-1]["kinds"]
    assert kinds["parameters"] == PARAMETERS + bytes_of(1024 * 256) and kinds["optimizer state"] == bytes_of(1024 * 256)
