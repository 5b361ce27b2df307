"""`cachalot simulate` computes small operations: values steer a program as on a GPU, and memory stays the same."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import leak_programs
import pytest
import world
from test_simulate import COMMAND, simulate

pytestmark = [world.full_only, world.not_pages, pytest.mark.skipif(not COMMAND, reason="needs the cachalot command")]


def compute(folder: Path, program: str, *options: str) -> tuple[str, dict]:
    """Returns the output of a program, which must end well, and the report's part on values."""
    done, report = simulate(folder, program, *options)
    assert done.returncode == 0, done.stderr
    return done.stdout, max((process["torch"] for process in report["processes"] if process["torch"]), key=total)["values"]


def total(report: dict) -> int:
    """Returns the allocations of a process: compilers, which torch.compile starts, allocate next to nothing."""
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
torch.histc(x.float(), 4), torch.histc(x if d == "cuda" else x.double(), 8, 0, 7).long()
torch.isfinite(x.float()).all().item()
torch.linspace(0, 1, 5, device=d)
torch.tril(torch.ones(4, 4, device=d, dtype=torch.bool))
torch.full((2,), 3.5, device=d).to(torch.int32)
torch.cat([x, x]).unbind()
torch.stack([x, x])[:, x > 2]
torch.stack([x, x])[:, x > 5]
torch.ones(600, 600, device=d)[torch.arange(600, device=d) > 590].shape
copy.deepcopy(x), x.clone().set_(x), torch.stack([x, x]).t_(), x.clone().unsqueeze_(0), x.clone().resize_(3)
torch.nn.functional.one_hot(x)
torch.nn.functional.pad(x, (1, 2))
torch.randperm(5, device=d).sort().values
torch.searchsorted(x.sort().values, x)
torch._foreach_add([x, x], 1)
str(x), str(x.float() / 3), str(x > 1)
torch.isin(torch.arange(2000, device=d), torch.arange(300, device=d) * 3).sum()
torch.allclose(x.float(), x.float()), torch.allclose(x.float(), x.float() + 1)
torch.linalg.solve(torch.eye(3, device=d) * 2, torch.ones(3, device=d)), torch.linalg.matrix_exp(torch.zeros(2, 2, device=d))
torch.sparse_coo_tensor(torch.stack([x, x]), x.float(), (6, 6)).coalesce()
torch.sparse_coo_tensor(torch.stack([x, x]), x.float(), (6, 6)).to_dense()
torch.ones(3, 3, device=d).tril().to_sparse() * 2
torch.ones(3, 3, device=d).tril().to_sparse() @ torch.ones(3, 2, device=d)
torch.zeros(3, 3, device=d).add_(torch.ones(3, 3, device=d).tril().to_sparse())
torch.ones(3, 3, device=d).tril().to_sparse_csr().to_dense()
torch.nn.functional.embedding_bag(x, torch.eye(6, device=d), x[1:3] - 1)
torch.nested.nested_tensor([x[:2], x[:3]]).to_padded_tensor(0)
torch.linalg.svdvals(torch.eye(3, device=d)), torch.linalg.eigvalsh(torch.eye(3, device=d) * 2), torch.linalg.pinv(torch.eye(3, device=d))
torch.linalg.inv(torch.eye(2, device=d) * 3), torch.linalg.cholesky(torch.eye(2, device=d)), torch.linalg.cond(torch.eye(2, device=d))
(x.to(torch.complex64) * 1j).conj() * 1, (x.to(torch.complex64) * 1j).conj().imag + 0
torch.arange(8).to(d, torch.float64, non_blocking=True), x.to("cpu", torch.float64, non_blocking=True), x.clone().copy_(x.float(), non_blocking=True)
torch.ones(3, 3, device=d).double().tril().to_sparse_csr().to_sparse().to_dense()
(lambda norm: (norm(x.float().view(7, 1)).shape, norm.running_mean, norm.num_batches_tracked))(torch.nn.BatchNorm1d(1).to(d))
torch._foreach_add([torch.ones(1), x.float()], 1)
torch.normal(x.float(), torch.ones(7, device=d)).shape, torch.normal(0.0, x.float().abs()).shape
x.view(7, 1).expand(7, 2).contiguous().t().clone().copy_(x.expand(2, 7))
torch.zeros(3, device=d).copy_(1.5), torch.zeros((), device=d).copy_(x.max().item())
torch.full((2,), 1.5, device=d).to(torch.float8_e4m3fn).to(torch.float32)
sparse_gradients(x, d)
"""

COMPARES = """
import copy, threading, torch
DATA = [3, 1, 2, 3, 1, 5, 0]

def value(expression, d):
    return eval(expression, {"torch": torch, "copy": copy, "sparse_gradients": sparse_gradients, "d": d, "x": torch.tensor(DATA, device=d)})

def sparse_gradients(x, d):
    table = torch.nn.EmbeddingBag(6, 2, mode="sum", sparse=True, device=d)
    with torch.no_grad():
        table.weight.fill_(1)
    table(x, x[1:3] - 1).sum().backward()
    merged = table.weight.grad.coalesce()
    return merged.indices(), merged.values(), x.clone()

def same(one, other):
    if isinstance(one, torch.Tensor) and one.is_sparse:
        return one.shape == other.shape and same(one._indices(), other._indices()) and same(one._values(), other._values())
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


# They run one after the other in one process, each as a file of its name.
PROGRAMS = {"unknown": """
import torch
weights = torch.randn(2000, 2000, device="cuda")
product = weights @ weights
print(product.sum().item(), bool(torch.isfinite(product).all()), int(product[0, 0].int()))
known = torch.ones(3, device="cuda")
print(known.sum().item())
""", "large": """
import torch
weights = torch.randn(1000, 1000, device="cuda")
print((weights @ weights).cpu().sum().item())
print(torch.ones(1000, 1000, device="cuda").t().cpu().sum().item())
""", "edges": """
import torch
edges = torch.randint(0, 5000, (2, 100_000), generator=torch.Generator().manual_seed(3))

def handled(edges):
    nodes = torch.arange(0, 5000, 3, device=edges.device)
    mask = torch.zeros(5000, dtype=torch.bool, device=edges.device)
    mask[nodes] = True
    inside = edges[:, mask[edges[0]] & mask[edges[1]]]
    places = edges.new_empty(100_000)  # of which most stay unknown
    places[nodes] = torch.arange(len(nodes), device=edges.device)
    keys, counts = torch.unique(edges[0] * 5000 + edges[1], return_counts=True)
    order = edges[1].argsort(stable=True)
    yield inside, places[inside], places[edges[:, :50_000]][:, mask[edges[1, :50_000]]].shape, keys, counts
    yield edges[:, order], edges[0].cumsum(0)[-1].item(), torch.isin(edges, nodes).sum().item(), torch.bincount(edges[1])
    yield torch.unique(edges, dim=1), torch.bucketize(edges[0], nodes), torch.searchsorted(nodes, edges[1]).argmax().item()
    yield torch.masked_select(edges, edges > 4000), edges.clone(), edges.t().contiguous(), torch.zeros_like(edges[0]).scatter_add_(0, *edges)

def flat(values):
    return [one.cpu() if isinstance(one, torch.Tensor) else one for group in values for one in group]

for one, other in zip(flat(handled(edges.cuda())), flat(handled(edges)), strict=True):
    print(torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other)
kept = (torch.rand(300_000, device="cuda") < 0.25).sum().item()
print(74_000 < kept < 76_000)
""", "scores": """
import torch
chosen = torch.randn(100_000, 64, device="cuda").topk(8).indices
print(chosen.view(-1).bincount(minlength=64).sum().item())
""", "exported": """
import torch
numbers = torch.arange(5, device="cuda")
assert numbers.sum().item() == 10
class Mine:
    __cuda_array_interface__ = numbers.__cuda_array_interface__
print(numbers.tolist())
numbers.fill_(2)
print(numbers.tolist())
""", "unknown_inputs": """
import torch
unknown = (torch.randn(600, 600, device="cuda") @ torch.randn(600, 600, device="cuda"))[:4, :4].contiguous()
for operation in (torch.linalg.inv, torch.linalg.cholesky, torch.linalg.eigh, torch.linalg.svd, torch.linalg.lu_factor):
    operation(unknown)
print(torch.distributions.Normal(unknown[0], unknown[1].exp()).sample().shape)
large = torch.empty(4096, 4096, device="cuda")
print(torch.equal(large, large.clone()), (unknown.to(torch.float8_e5m2).float() + 1).shape)
""", "most_frequent": """
import torch
unknown = torch.randn(3000, 3000, device="cuda") @ torch.randn(3000, 5, device="cuda")
rows = torch.randint(0, 9, (2, 3000), device="cuda")
rows[1, ::2] = 7
before = torch.cuda.memory_allocated()
torch.cuda.reset_peak_memory_stats()
for numbers in (unknown.t(), rows.double(), rows.half(), rows > 20, unknown[:, 0]):
    found = numbers.mode(-1)
    assert found.values.shape == found.indices.shape == numbers.shape[:-1]
print(rows.mode(-1).values[1].item(), torch.cuda.max_memory_allocated() - before < 1 << 20)
""", "modes": """
import torch
from torch.utils.flop_counter import FlopCounterMode
with FlopCounterMode(display=False) as counter:
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
print(counter.get_total_flops())
lazy = torch.nn.LazyLinear(3).cuda()
print(lazy(torch.ones(2, 5, device="cuda")).shape)
torch.set_default_device("cuda")
print(torch.jit.CompilationUnit("def tripled(x):\\n  return x * 2 + x\\n").tripled(torch.arange(3)).tolist())
torch.set_default_device(None)
""", "graph": """
import torch
counter, copied = torch.zeros(2, device="cuda"), torch.zeros(2, device="cuda")
counter.add_(1)  # loads the kernel
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    counter.add_(1)
    copied.copy_(counter)
counter.fill_(5)
copied.fill_(6)
assert counter.tolist() + copied.tolist() == [5, 5, 6, 6]
graph.replay()
print(counter.tolist(), copied.tolist())
""", "masks": """
import torch
weights = torch.randn(2000, 2000, device="cuda")
print(len(torch.nonzero(weights > 0)), len(weights[weights > 0]))
numbers = weights[0, :1000].long()
print(len(numbers.unique()), len(torch.unique(numbers.view(500, 2), dim=0)), len(torch.repeat_interleave(numbers)))
print(torch.sparse_coo_tensor(torch.stack([numbers, numbers]), weights[0, :1000], (9, 9)).coalesce()._nnz())
""", "recorded": """
import torch
side = torch.cuda.Stream()
numbers = torch.ones(2, dtype=torch.int32, device="cuda")
with torch.cuda.stream(side):
    sent = torch.stack((numbers, numbers * 2))
    numbers.record_stream(side)
sent.record_stream(torch.cuda.current_stream())
large = torch.arange(300_000, device="cuda")
large.record_stream(side)
print(numbers.tolist(), sent.tolist(), large[-1].item())
""", "random": """
import torch
def draw():
    torch.manual_seed(7)
    return torch.rand(100, device="cuda"), torch.randint(0, 9, (5,), device="cuda"), torch.rand(3)
first, second = draw(), draw()
torch.manual_seed(7)
print(all(map(torch.equal, first, second)), torch.equal(first[2], torch.rand(3)), len(first[0].unique()) > 50)
""", "lists": """
import torch
known = [torch.ones(3, device="cuda") for _ in range(20)]
large = torch.randn(2000, 2000, device="cuda")
torch._foreach_mul_([large, *known[:10], large.t()], 2)
print([one.sum().item() for one in known])
""", "compiled": """
import torch

@torch.compile
def double(x):
    return x * 2 + 1

y = double(torch.ones(4, device="cuda"))
print(y.sum().item())
print(y)
""", "draws": """
import torch
unknown = (torch.randn(2000, 2000, device="cuda") @ torch.randn(2000, 2000, device="cuda"))[:2, :4].softmax(-1)
drawn = torch.multinomial(unknown, 10, replacement=True)
print(tuple(drawn.shape), int(drawn.max()) < 4)
""", "loop": """
import torch
weights = torch.randn(2000, 2000, device="cuda")
optimizer = torch.optim.SGD([torch.zeros(1, device="cuda", requires_grad=True)])
for step in range(10_001):
    loss = weights.sum().item()
    if step % 5_000 == 0: optimizer.step()
print("trained", flush=True)
while weights.sum() == 0:
    pass
print("not reached")
"""}
IN_TURN = """
for name, program in PROGRAMS.items():
    print(f"=={name}")
    exec(compile(program, f"{name}.py", "exec"), {"__name__": name})
"""


@dataclass
class Shared:
    """The output of the programs of one process, by their names, the report's part on values, and the end of the process."""

    printed: dict[str, str]
    values: dict
    ending: dict

    def reads(self, name: str) -> list[dict]:
        return [read for read in self.values["unknown_reads"] if read["at"].startswith(f"{name}.py:")]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shared:
    done, report = simulate(tmp_path_factory.mktemp("shared"), f"PROGRAMS = {PROGRAMS!r}\n{IN_TURN}")
    assert done.returncode == 0, done.stderr
    printed = dict(part.split("\n", 1) for part in done.stdout.split("==")[1:])
    return Shared(printed, report["processes"][0]["torch"]["values"], report["ending"])


def test_unknown_values_are_zero_and_told_with_their_places(shared: Shared) -> None:
    assert shared.printed["unknown"].split() == ["0.0", "True", "0", "3.0"]
    assert shared.reads("unknown") == [{"at": "unknown.py:5 in <module>", "how": "value", "times": 3}]


def test_a_copy_that_is_too_large_to_be_made_is_a_read_of_unknown_values(shared: Shared) -> None:
    assert shared.printed["large"].split() == ["0.0", "0.0"]
    assert [(read["at"], read["how"], read["times"]) for read in shared.reads("large")] == [
        ("large.py:4 in <module>", "value", 1), ("large.py:5 in <module>", "value", 1)]


def test_large_operations_on_whole_numbers_are_computed(shared: Shared) -> None:
    assert set(shared.printed["edges"].split()) == {"True"} and len(shared.printed["edges"].split()) == 17
    assert shared.reads("edges") == []


def test_large_operations_on_guesses_alone_are_not(shared: Shared) -> None:
    assert [read["how"] for read in shared.reads("scores")] == ["size", "value"]


def test_what_another_library_gets_is_a_guess_until_it_is_written_again(shared: Shared) -> None:
    assert shared.printed["exported"].splitlines() == ["[0, 1, 2, 3, 4]", "[2, 2, 2, 2, 2]"]
    assert [read["at"] for read in shared.reads("exported")] == ["exported.py:7 in <module>"]


def test_what_a_graph_writes_is_unknown_after_each_launch(shared: Shared) -> None:
    assert shared.printed["graph"] == "[0.0, 0.0] [0.0, 0.0]\n"
    assert [(read["at"], read["times"]) for read in shared.reads("graph")] == [("graph.py:13 in <module>", 2)]


def test_memory_that_another_stream_uses_keeps_its_values(shared: Shared) -> None:
    assert shared.printed["recorded"] == "[1, 1] [[1, 1], [2, 2]] 299999\n"
    assert shared.reads("recorded") == []


def test_unknown_inputs_of_linear_algebra_and_distributions_end_no_program(shared: Shared) -> None:
    assert shared.printed["unknown_inputs"].splitlines() == ["torch.Size([4])", "True torch.Size([4, 4])"]


def test_the_mode_of_many_elements_is_found(shared: Shared) -> None:
    assert shared.printed["most_frequent"].split() == ["7", "True"]


def test_modes_of_the_program_do_not_see_what_is_computed(shared: Shared) -> None:
    assert shared.printed["modes"].splitlines() == ["1024", "torch.Size([2, 3])", "[0, 3, 6]"]


def test_an_operation_on_many_tensors_makes_all_of_them_unknown(shared: Shared) -> None:
    assert shared.printed["lists"].strip() == str([0.0] * 10 + [3.0] * 10)
    assert shared.reads("lists") == [{"at": "lists.py:6 in <listcomp>", "how": "value", "times": 10}]


def test_random_numbers_follow_the_seed_and_leave_the_cpus_alone(shared: Shared) -> None:
    assert shared.printed["random"] == "True True True\n"


def test_choices_with_replacement_are_places_of_the_tensor(shared: Shared) -> None:
    assert shared.printed["draws"] == "(2, 10) True\n"


def test_compiled_code_computes_nothing_and_the_report_says_so(shared: Shared) -> None:
    assert shared.printed["compiled"].splitlines() == ["0.0", "tensor([0., 0., 0., 0.], device='cuda:0')"]
    assert shared.values["compiled"]
    assert {read["at"] for read in shared.reads("compiled")} == {"compiled.py:9 in <module>", "compiled.py:10 in <module>"}


def test_a_loop_that_waits_for_an_unknown_value_ends_with_a_verdict(shared: Shared) -> None:
    assert shared.printed["loop"] == "trained\n"
    trained, waited = shared.reads("loop")
    assert trained == {"at": "loop.py:6 in <module>", "how": "value", "times": 10_001}
    assert waited == {"at": "loop.py:9 in <module>", "how": "value", "times": 10_000}
    assert shared.ending["good"] and shared.ending["circles_at"] == "loop.py:9 in <module>"


def test_sizes_of_unknown_masks_are_zero_by_default(shared: Shared) -> None:
    assert shared.printed["masks"].split() == ["0", "0", "1", "1", "0", "1"]
    assert {read["how"] for read in shared.reads("masks")} == {"size"}


def test_the_report_of_unknown_sizes_names_the_policy_for_larger_ones(tmp_path: Path) -> None:
    done, _ = simulate(tmp_path, PROGRAMS["masks"])
    assert "(sizes may be larger on a GPU: --unknown max takes larger ones)" in done.stderr
    done, _ = simulate(tmp_path, PROGRAMS["masks"], "--unknown", "max")
    assert "a size at train.py:4" in done.stderr and "may be larger" not in done.stderr


@pytest.mark.parametrize(("policy", "selected"), [("expected", 2_000_000), ("max", 4_000_000)])
def test_sizes_of_unknown_masks_follow_the_policy(tmp_path: Path, policy: str, selected: int) -> None:
    printed, values = compute(tmp_path, PROGRAMS["masks"], "--unknown", policy)
    one, two = (500, 250) if policy == "expected" else (1000, 500)
    assert printed.split() == [str(count) for count in (selected, selected, one, two, one, one)]
    assert {read["how"] for read in values["unknown_reads"]} == {"size"}


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


ALLOCATES = TRAINING + """
on_device = list(losses("cuda"))
model = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True).cuda()
x = torch.randn(4, 256, 512, device="cuda")
for _ in range(2):
    with torch.autocast("cuda", torch.bfloat16):
        model(x).square().mean().backward()
table = torch.arange(64, device="cuda").view(8, 8)
torch.topk(table, 2), table.cumsum(1), table.float().std(), torch.cat([table, table]).sort()
on_cpu = list(losses("cpu"))
assert on_cpu[0] != on_cpu[3]
print(max(abs(a - b) for one, other in zip(on_device, on_cpu) for a, b in zip(one, other)) < 1e-4)
"""


@dataclass
class Run:
    printed: str
    values: dict | None
    allocations: list[str]


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs one program with nothing, little and all computed."""
    folder = tmp_path_factory.mktemp("trainings")
    runs = {}
    for which in ("none", "small", "all"):
        trace = folder / f"{which}.csv"
        printed, values = compute(folder, ALLOCATES, "--compute", which, "--gpu", "t4", "--trace", str(trace))
        runs[which] = Run(printed, values, [line for line in trace.read_text().splitlines() if line.startswith("a")])
    return runs


def test_with_all_computed_losses_are_those_of_the_cpu(trainings: dict[str, Run]) -> None:
    run = trainings["all"]
    assert run.printed == "True\n"
    assert run.values["unknown_reads"] == [] and run.values["not_computable"] == []


def test_allocations_are_the_same_whether_values_are_computed_or_not(trainings: dict[str, Run]) -> None:
    none, small, everything = (trainings[which].allocations for which in ("none", "small", "all"))  # frees race
    assert len(none) > 400
    assert none == small == everything


def test_known_masks_of_unknown_values_have_known_sizes(tmp_path: Path) -> None:
    printed, values = compute(tmp_path, """
import torch
weights = torch.randn(2000, 2000, device="cuda")
row, mask = (weights @ weights)[0], torch.arange(2000, device="cuda") % 4 == 0
print(len(row[mask]), len(torch.masked_select(weights, mask)))
row.requires_grad_()
spread = torch.zeros(2, 2000, device="cuda").masked_scatter(mask, row.repeat(2))
spread.sum().backward()
print(*spread.shape, *row.grad.shape)
""")
    assert printed.split() == ["500", "1000000", "2", "2000", "2000"]
    assert values["unknown_reads"] == [] and values["not_computable"] == []


def test_counts_of_unknown_numbers_have_the_least_length(tmp_path: Path) -> None:
    printed, values = compute(tmp_path, """
import torch
weights = torch.randn(2000, 2000, device="cuda")
chosen = (weights @ weights)[:8, :16].topk(2).indices.flatten()
print(len(torch.bincount(chosen, minlength=16)))
""")
    assert printed == "16\n"
    assert values["unknown_reads"] == [{"at": "train.py:5 in <module>", "how": "size", "times": 1}]


KNOWN_IN_PART = """
torch.stack([unknown.sum(), one[0]]) * 2 + 1
torch.cat([unknown, one]).flip(0)[::2]
torch.cat([unknown, one]).view(2, 4).t().contiguous().half()
torch.cat([unknown, one]).view(2, 4).index_select(0, two[:1])
torch.nn.functional.pad(torch.cat([unknown, one]), (1, 0), value=3.0)
torch.zeros(8, device="cuda").index_put_((two,), unknown[:2])
torch.zeros(4, device="cuda").add_(torch.cat([unknown[:2], two]))
unknown.new_zeros(2), torch.ones_like(unknown)
unknown.masked_fill(one.cumsum(0) > 2, 0.5), torch.where(one.cumsum(0) > 1, one, unknown)
torch.sparse_coo_tensor(two.view(1, 2), unknown[:2], (9,)).coalesce().indices()
"""


def test_elements_are_known_that_do_not_depend_on_unknown_ones(tmp_path: Path) -> None:
    printed, values = compute(tmp_path, f"EXPRESSIONS = {KNOWN_IN_PART!r}" + """
import torch
from cachalot_simulator.compute.host import unknown_elements

unknown = (torch.ones(1000, 1000, device="cuda") @ torch.ones(1000, 1000, device="cuda"))[0, :4].clone()
one, two = torch.ones(4, device="cuda"), torch.tensor([1, 2], device="cuda")
for expression in EXPRESSIONS.strip().splitlines():
    found = eval(expression)
    for result in found if isinstance(found, tuple) else [found]:
        print("".join("?" if is_unknown else "!" for is_unknown in unknown_elements(result).flatten().tolist()))
sums = torch.zeros(2, device="cuda")
for _ in range(3):
    sums += torch.stack([unknown.sum(), one.sum()])
print(sums[1].item())
""")
    assert printed.split() == ["?!", "!!??", "?!?!?!?!", "!!!!", "!????!!!!", "!??!!!!!", "??!!", "!!", "!!!!", "??!!", "?!!!", "!!", "12.0"]
    assert values["unknown_reads"] == []


@pytest.mark.parametrize(("policy", "selected"), [("zero", 0), ("expected", 100), ("max", 200)])
def test_calls_that_select_by_an_unknown_mask_agree(tmp_path: Path, policy: str, selected: int) -> None:
    printed, values = compute(tmp_path, """
import torch
product = torch.ones(1000, 1000, device="cuda") @ torch.ones(1000, 1000, device="cuda")
mask = product[0, :200] > 0
places, row = torch.where(mask)[0], torch.arange(200, device="cuda")
print(len(row[mask]), len(places), len(torch.masked_select(row, mask)), int(mask.sum()), torch.stack([row, row])[:, mask].size(1))
row[mask] = row[places] + 1
""", "--unknown", policy)
    assert printed.split() == [str(selected)] * 5
    assert [(read["at"], read["how"], read["times"]) for read in values["unknown_reads"]] == [
        ("train.py:5 in <module>", "size", 1), ("train.py:6 in <module>", "size", 3), ("train.py:6 in <module>", "value", 1),
        ("train.py:7 in <module>", "size", 1)]


def test_what_kernels_of_triton_write_is_unknown(tmp_path: Path) -> None:
    printed, values = compute(tmp_path, """
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, sums_ptr, most_ptr, rows, length, WIDTH: tl.constexpr):
    columns = tl.arange(0, WIDTH)
    row_ptr, total = x_ptr + columns, tl.zeros((WIDTH,), tl.float32)
    for _ in range(rows):
        total += tl.load(row_ptr, columns < length)
        row_ptr += length
    tl.store(sums_ptr + columns, total, columns < length)
    tl.atomic_max(most_ptr, tl.max(total))

x = torch.ones(4, 100, device="cuda")
sums, most = torch.zeros(100, device="cuda"), torch.zeros(1, device="cuda")
kernel[(1,)](x, sums, most, 4, 100, WIDTH=128)
print(x.sum().item())
print(sums.sum().item(), most.item())

@torch.compile
def scale(x):
    x.mul_(2)

scale(x)
print(x.sum().item())
""")
    assert printed.split() == ["400.0", "0.0", "0.0", "0.0"]
    assert values["compiled"]
    places = {read["at"]: read["times"] for read in values["unknown_reads"]}
    assert places == {"train.py:20 in <module>": 2, "train.py:27 in <module>": 1}


def test_kernels_of_triton_on_whole_numbers_are_computed(tmp_path: Path) -> None:
    # A server learns from such kernels how many tokens each request has.
    printed, values = compute(tmp_path, """
import torch
import triton
import triton.language as tl

@triton.jit
def last(row_ptr, count):
    return tl.load(row_ptr + count - 1)

@triton.jit
def update(places_ptr, counts_ptr, tokens_ptr, totals_ptr, last_ptr, texts_ptr, length, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    place = tl.load(places_ptr + row)
    if place < 0:
        return
    count, total = tl.load(counts_ptr + row), tl.load(totals_ptr + place)
    for i in range(count):
        tl.store(texts_ptr + place * length + total + i, tl.load(tokens_ptr + row * WIDTH + i))
    tl.store(totals_ptr + place, total + count)
    columns = tl.arange(0, WIDTH)
    tokens = tl.load(tokens_ptr + row * WIDTH + columns, columns < count, -1)
    tl.store(last_ptr + place, tl.max(tokens) + last(tokens_ptr + row * WIDTH, count))

def ints(*numbers):
    return torch.tensor(numbers, device="cuda", dtype=torch.int32)

tokens = torch.arange(12, device="cuda").view(3, 4)
totals, most = ints(10, 20, 30), torch.zeros(3, device="cuda", dtype=torch.int64)
texts = torch.empty(3, 1 << 20, device="cuda", dtype=torch.int64)  # far more than is computed at a time
for _ in range(2):
    update[(3,)](ints(2, -1, 0), ints(2, 1, 3), tokens, totals, most, texts, 1 << 20, WIDTH=4)
print(totals.tolist(), most.tolist(), texts[2, 30:34].tolist(), texts[0, 13:16].tolist())
update[(3,)](ints(2, -1, 0), ints(2, 1, 3), texts, totals, most, texts, 1 << 20, WIDTH=4)
print(totals.tolist())
print(most[2].item())
many = torch.zeros(300, device="cuda", dtype=torch.int32)
update[(300,)](many, many, tokens, totals, most, texts, 1 << 20, WIDTH=4)
print(totals[0].item())
""")
    assert printed.splitlines() == ["[16, 20, 34] [20, 0, 2] [0, 1, 0, 1] [8, 9, 10]", "[19, 20, 36]", "0", "0"]
    places = {read["at"]: read["times"] for read in values["unknown_reads"]}
    assert places == {"train.py:34 in <module>": 1, "train.py:35 in <module>": 1, "train.py:38 in <module>": 1}


def test_kernels_of_triton_follow_tables_of_addresses(tmp_path: Path) -> None:
    # SGLang joins so the places of a request's tokens in the cache: those that others have, by address, and new ones.
    printed, values = compute(tmp_path, """
import torch
import triton
import triton.language as tl

@triton.jit
def join(table_ptr, addresses_ptr, shared_ptr, lengths_ptr, new_ptr, width: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    shared, length = tl.load(shared_ptr + row), tl.load(lengths_ptr + row)
    address = tl.load(addresses_ptr + row).to(tl.pointer_type(tl.int64))
    for i in range(tl.cdiv(shared, BLOCK)):
        columns = tl.arange(0, BLOCK) + i * BLOCK
        tl.store(table_ptr + row * width + columns, tl.load(address + columns, columns < shared), columns < shared)
    first = tl.cast(0, tl.int64)
    for i in range(row):
        first += tl.load(lengths_ptr + i) - tl.load(shared_ptr + i)
    columns = tl.arange(0, BLOCK)
    mask = columns < length - shared
    tl.store(table_ptr + row * width + shared + columns, tl.load(new_ptr + first + columns, mask), mask)

prefixes = [torch.arange(100 * i, 100 * i + n, device="cuda") for i, n in enumerate((0, 3, 6))]
addresses = torch.tensor([one.data_ptr() for one in prefixes], dtype=torch.uint64, pin_memory=True).to("cuda", non_blocking=True)
shared = torch.tensor([len(one) for one in prefixes], device="cuda")
table = torch.zeros(3, 8, device="cuda", dtype=torch.int32)
join[(3,)](table, addresses, shared, shared + torch.tensor([4, 2, 1], device="cuda"), torch.arange(1000, 1007, device="cuda"), 8, BLOCK=4)
print(table.tolist())
""")
    assert printed == ("[[1000, 1001, 1002, 1003, 0, 0, 0, 0], [100, 101, 102, 1004, 1005, 0, 0, 0], "
                       "[200, 201, 202, 203, 204, 205, 1006, 0]]\n")
    assert values["unknown_reads"] == []


def test_a_benchmark_that_flushes_the_cache_takes_no_time(tmp_path: Path) -> None:
    printed, _ = compute(tmp_path, """
import time
import torch
cache = torch.cuda.get_device_properties(0).L2_cache_size
buffer, numbers = torch.empty(cache // 4, dtype=torch.int, device="cuda"), torch.ones(1 << 20, dtype=torch.int, device="cuda")
start = time.monotonic()
for _ in range(2000):
    buffer.zero_()
print(cache, time.monotonic() - start < 20, int(numbers.zero_().sum()))
""", "--gpu", "a100")
    assert printed == "41943040 True 0\n"


def test_activations_that_wait_on_the_cpu_are_not_read(tmp_path: Path) -> None:
    printed, values = compute(tmp_path, """
import torch
layers = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(3))).cuda()
for pin in (True, False):
    with torch.autograd.graph.save_on_cpu(pin_memory=pin):
        loss = layers(torch.randn(1000, 1000, device="cuda")).square().mean()
    loss.backward()
print(layers[0].weight.grad.device)
""")
    assert printed == "cuda:0\n" and values["unknown_reads"] == []


def test_a_copy_that_has_no_values_reads_none(tmp_path: Path) -> None:
    printed, values = compute(tmp_path, """
import torch
product = torch.ones(1000, 1000, device="cuda") @ torch.ones(1000, 1000, device="cuda")
print(product.to("meta").device, torch.empty(1000, 1000, device="meta").copy_(product).device, product.float().cpu().device)
""")
    assert printed == "meta meta cpu\n"
    assert values["unknown_reads"] == [{"at": "train.py:4 in <module>", "how": "value", "times": 1}]


def test_choices_among_unknown_numbers_are_in_the_middle(tmp_path: Path) -> None:
    printed, values = compute(tmp_path, """
import torch
large = torch.randn(2000, 2000, device="cuda") @ torch.randn(2000, 2000, device="cuda")
for x in (large, large[:3, :100]):
    print(x.argmax(-1)[0].item(), x.argmax(-1, keepdim=True).shape == (len(x), 1), x.topk(3).indices[1].tolist(),
          x.max(0).indices[0].item(), torch.multinomial(x.softmax(-1), 2)[0].tolist(), x.argmax().item())
known = torch.tensor([[1.0, 3.0, 2.0]], device="cuda")
print(known.argmax(-1).tolist(), known.topk(2).indices.tolist(), known.max(1).indices.tolist())
""")
    assert printed.splitlines() == [
        "764 True [764, 765, 766] 764 [764, 765] 1528000", "38 True [38, 39, 40] 1 [38, 39] 114", "[1] [[1, 2]] [1]"]
    assert {read["at"] for read in values["unknown_reads"]} == {"train.py:5 in <module>", "train.py:6 in <module>"}


def test_choices_among_unknown_numbers_leave_out_what_the_program_excludes(tmp_path: Path) -> None:
    # The program does as transformers, which excludes the token that ends a text until the text is long enough.
    printed, _ = compute(tmp_path, """
import torch
x = (torch.randn(2000, 2000, device="cuda") @ torch.randn(2000, 2000, device="cuda"))[:2, :100]
places = torch.arange(100, device="cuda")
for excluded in (7, 38):
    y = torch.where(places == excluded, -float("inf"), x)
    print(y.argmax(-1).tolist(), y.topk(2).indices[1].tolist(), y.max(1).indices.tolist(), y.argmin(-1).tolist(),
          y.topk(1, largest=False).indices.flatten().tolist(), y.argmax().item(), y.t().argmax(0, keepdim=True).tolist())
""")
    assert printed.splitlines() == [
        "[38, 38] [38, 39] [38, 38] [7, 7] [7, 7] 76 [[38, 38]]", "[39, 39] [39, 40] [39, 39] [38, 38] [38, 38] 76 [[39, 39]]"]


def test_what_a_guess_selects_is_what_the_program_gave_it(tmp_path: Path) -> None:
    # The program does as transformers' search by beams, which ends if no text that goes on is better than the worst one that has
    # ended.
    printed, _ = compute(tmp_path, """
import torch
scores = torch.randn(2000, 2000, device="cuda") @ torch.randn(2000, 2000, device="cuda")
has_ended = scores.argmax(-1)[:4] == 3
worst = torch.where(has_ended, scores[0, :4], -1e9)
print(bool(torch.any(scores[0, 4:8] > worst)), worst.tolist())
""")
    assert printed == f"True {[-1e9] * 4}\n"


def test_an_operation_on_memory_that_is_asleep_is_reported(tmp_path: Path) -> None:
    program = """
import torch, cachalot
cachalot.enable("heap:pages")
with cachalot.region("weights"):
    weights = torch.ones(1000, device="cuda")
cachalot.release_physical("weights")
weights + 1
"""
    done, _ = simulate(tmp_path, program)
    assert "a kernel at " in done.stderr and "train.py:7 in <module> uses [0x" in done.stderr and "is asleep" in done.stderr, done.stderr


def test_the_leak_report_names_the_programs_line_suspect_and_cure_as_without_computing(tmp_path: Path) -> None:
    names = [row.name for row in leak_programs.TABLE[::3]]
    program = f"import sys\nsys.path.append({str(Path(__file__).parent)!r})\nimport torch, cachalot, leak_programs\n"
    done, _ = simulate(tmp_path, f"{program}cachalot.enable()\nleak_programs.main({names!r})\n")
    answers = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert list(answers) == names, done.stderr
    for row in leak_programs.TABLE[::3]:
        # The simulator's Python computes a backward pass, on a thread that has no line of the program's.
        trouble = leak_programs.trouble(row, answers[row.name], where="" if row.operation else None)
        assert not trouble, trouble
