"""`cachalot simulate` computes small operations: values steer a program as on a GPU, and memory stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import world
from test_simulate import COMMAND, simulate

pytestmark = [world.full_only, world.not_pages, pytest.mark.skipif(not COMMAND, reason="needs the cachalot command")]


def compute(folder: Path, program: str, *options: str) -> tuple[str, dict]:
    """What a program prints, which must end well, and the report's part on values."""
    done, report = simulate(folder, program, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout, max((process["torch"] for process in report["processes"] if process["torch"]), key=total)["values"]


def total(report: dict) -> int:
    """What a process allocated: compilers, which torch.compile starts, allocate next to nothing."""
    return sum(device["allocations"] for device in report["devices"])


# Each line is evaluated on the CPU and on the device, from the same seven numbers.
EXPRESSIONS = """
x + 1
torch.arange(10, device=d).cumsum(0)
torch.nonzero(x > 1)
torch.nonzero(torch.ones(0, device=d))
x[x > 1]
torch.unique(x)
torch.unique(x, return_inverse=True, return_counts=True)
torch.unique_consecutive(x)
torch.unique(torch.stack([x, x]), dim=0)
torch.repeat_interleave(x)
torch.repeat_interleave(x, x)
torch.masked_select(x, x > 1)
torch.bincount(x)
torch.equal(x, x)
torch.equal(x, x + 1)
x.max().item()
x.topk(3)
x.sort()
torch.where(x > 1)
torch.where(x > 1, x, -x)
x.float().softmax(0).argmax()
bool((x > 1).any()), bool((x > 1).all())
x.tolist()
x.view(7, 1).expand(7, 3).t().cpu()
x[::2].cpu()
x[::2].double().cpu()
torch.zeros(4, 7, device=d).index_put_((torch.tensor([1], device=d), x[:1]), x[:1].float())
torch.zeros(7, device=d).masked_fill_(x > 2, 5)
torch.ones(3, 3, device=d).half() @ torch.ones(3, 3, device=d).half()
torch.histc(x.float(), 4)
torch.isfinite(x.float()).all().item()
torch.linspace(0, 1, 5, device=d)
torch.tril(torch.ones(4, 4, device=d, dtype=torch.bool))
torch.full((2,), 3.5, device=d).to(torch.int32)
torch.cat([x, x]).unbind()
torch.nn.functional.one_hot(x)
torch.nn.functional.pad(x, (1, 2))
torch.randperm(5, device=d).sort().values
torch.searchsorted(x.sort().values, x)
torch._foreach_add([x, x], 1)
str(x), str(x.float() / 3), str(x > 1)
"""

COMPARES = """
import threading, torch
DATA = [3, 1, 2, 3, 1, 5, 0]

def value(expression, d):
    return eval(expression, {"torch": torch, "d": d, "x": torch.tensor(DATA, device=d)})

def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and torch.equal(one.cpu(), other.cpu())
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, str):  # with the device a line is longer
        return "".join(one.split()).replace(",device='cuda:0'", "") == "".join(other.split())
    return one == other

def compare():
    for expression in EXPRESSIONS.strip().splitlines():
        on_device, on_cpu = value(expression, "cuda"), value(expression, "cpu")
        if not same(on_device, on_cpu):
            print(expression, on_device, on_cpu)

compare()
thread = threading.Thread(target=compare)
thread.start()
thread.join()
"""


def test_small_operations_have_the_values_that_the_cpu_computes(tmp_path: Path) -> None:
    printed, values = compute(tmp_path, f"EXPRESSIONS = {EXPRESSIONS!r}\n{COMPARES}")
    assert printed == ""
    assert values["unknown_reads"] == [] and values["not_computable"] == [] and values["computed"] > 200


def test_unknown_values_are_zero_and_told_with_their_places(tmp_path: Path) -> None:
    printed, values = compute(tmp_path, """
import torch
weights = torch.randn(2000, 2000, device="cuda")
product = weights @ weights
print(product.sum().item(), bool(torch.isfinite(product).all()), int(product[0].argmax()))
known = torch.ones(3, device="cuda")
print(known.sum().item())
""")
    assert printed.split() == ["0.0", "True", "0", "3.0"]
    assert values["unknown_reads"] == [{"at": "train.py:5 in <module>", "how": "value", "times": 3}]


@pytest.mark.parametrize(("policy", "selected"), [("zero", 0), ("expected", 2_000_000), ("max", 4_000_000)])
def test_sizes_of_unknown_masks_follow_the_policy(tmp_path: Path, policy: str, selected: int) -> None:
    printed, values = compute(tmp_path, """
import torch
weights = torch.randn(2000, 2000, device="cuda")
print(len(torch.nonzero(weights > 0)), len(weights[weights > 0]))
""", "--unknown", policy)
    assert printed.split() == [str(selected)] * 2
    assert {read["how"] for read in values["unknown_reads"]} == {"size"}


def test_a_loop_that_waits_for_an_unknown_value_ends_with_a_verdict(tmp_path: Path) -> None:
    printed, values = compute(tmp_path, """
import torch
weights = torch.randn(2000, 2000, device="cuda")
while weights.sum() == 0:
    pass
print("not reached")
""")
    assert printed == ""
    assert values["unknown_reads"] == [{"at": "train.py:4 in <module>", "how": "value", "times": 10_000}]


TRAINING = """
import torch
from torch import nn
from torch.nn import functional

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.norm, self.head = nn.Linear(32, 96), nn.BatchNorm1d(32), nn.Linear(32, 10)

    def forward(self, x):
        q, k, v = self.qkv(x).view(8, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(8, 16, 32)
        return self.head(torch.relu(self.norm(x.transpose(1, 2)).transpose(1, 2)))

def losses(device, scale=1):
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        x = torch.randn(8, 16, 32, generator=generator).to(device)
        y = torch.randint(0, 10, (8, 16), generator=generator).to(device)
        loss = functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item(), norm.item()
"""


def test_with_all_computed_losses_are_those_of_the_cpu(tmp_path: Path) -> None:
    printed, values = compute(tmp_path, TRAINING + """
on_device, on_cpu = list(losses("cuda")), list(losses("cpu"))
assert on_cpu[0] != on_cpu[3]
print(max(abs(a - b) for one, other in zip(on_device, on_cpu) for a, b in zip(one, other)) < 1e-4)
""", "--compute", "all", "--gpu", "t4")
    assert printed == "True\n"
    assert values["unknown_reads"] == [] and values["not_computable"] == []


ALLOCATES = TRAINING + """
list(losses("cuda"))
model = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True).cuda()
x = torch.randn(4, 256, 512, device="cuda")
for _ in range(2):
    with torch.autocast("cuda", torch.bfloat16):
        model(x).square().mean().backward()
table = torch.arange(64, device="cuda").view(8, 8)
torch.topk(table, 2), table.cumsum(1), table.float().std(), torch.cat([table, table]).sort()
"""


def test_allocations_are_the_same_whether_values_are_computed_or_not(tmp_path: Path) -> None:
    traces = []
    for which in ("none", "small", "all"):
        trace = tmp_path / f"{which}.csv"
        compute(tmp_path, ALLOCATES, "--compute", which, "--trace", str(trace))
        traces.append([line for line in trace.read_text().splitlines() if line.startswith("a")])  # frees race
    assert len(traces[0]) > 400
    assert traces[0] == traces[1] == traces[2]


def test_random_numbers_follow_the_seed_and_leave_the_cpus_alone(tmp_path: Path) -> None:
    printed, _ = compute(tmp_path, """
import torch
def draw():
    torch.manual_seed(7)
    return torch.rand(100, device="cuda"), torch.randint(0, 9, (5,), device="cuda"), torch.rand(3)
first, second = draw(), draw()
torch.manual_seed(7)
print(all(map(torch.equal, first, second)), torch.equal(first[2], torch.rand(3)), len(first[0].unique()) > 50)
""")
    assert printed == "True True True\n"


def test_compiled_code_computes_nothing_and_the_report_says_so(tmp_path: Path) -> None:
    printed, values = compute(tmp_path, """
import torch

@torch.compile
def double(x):
    return x * 2 + 1

y = double(torch.ones(4, device="cuda"))
print(y.sum().item())
""")
    assert printed == "0.0\n"
    assert values["compiled"] and [read["at"] for read in values["unknown_reads"]] == ["train.py:9 in <module>"]
