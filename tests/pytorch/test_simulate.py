"""Tests of `cachalot simulate` on PyTorch programs: its report on their memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import provider
import pytest
import torch
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
    """Returns the environment without the variables that the tests themselves run on."""
    return {name: value for name, value in os.environ.items() if name != "CACHALOT_SIM" and not name.startswith("LD_")}


def simulate(folder: Path, program: str, *options: str, run_with: list[str] = [],
             fresh: bool = False) -> tuple[subprocess.CompletedProcess, dict]:
    """Runs a program in a process that was forked from one that has imported torch; or a `fresh` one, by Python."""
    script, report = folder / "train.py", folder / "report.json"
    script.write_text(program)
    command, words = [COMMAND, "simulate", "--json", str(report), *options], [*run_with, "train.py", "--gpu"]
    if fresh:
        done = subprocess.run([*command, sys.executable, *words], env=own_environment(), cwd=folder, capture_output=True,
                              text=True, timeout=120)
    else:
        done = world.run_by_command(command, words, folder=folder, **own_environment())
    return done, json.loads(report.read_text())


def test_a_program_that_fits(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv.gz"
    done, report = simulate(tmp_path, TRAINING, "--gpu", "l4", "--trace", str(trace), fresh=True)
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


def test_a_program_that_sets_peaks_back(tmp_path: Path) -> None:
    resets = "torch.cuda.reset_peak_memory_stats()\nbatch = torch.zeros(1 << 20, device='cuda')\n"
    done, report = simulate(tmp_path, f"{TRAINING}del model, optimizer\ntorch.cuda.empty_cache()\n{resets}", "--gpu", "l4")
    allocated, reserved = map(int, done.stdout.split()[:2])
    device = report["processes"][0]["torch"]["devices"][0]
    assert (device["peak_allocated_bytes"], device["peak_reserved_bytes"]) == (allocated, reserved)


def test_a_program_that_does_not_fit(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, TRAINING, "--memory", "768MiB", "--context", "none")
    assert done.returncode == 1 and "torch.OutOfMemoryError" in done.stderr
    oom = report["processes"][0]["torch"]["devices"][0]["last_oom"]
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
        done, _ = simulate(tmp_path, "print(own_was_here)\n", fresh=True)
    finally:
        os.environ["PYTHONPATH"] = before
    assert done.stdout == "True\n", done.stderr
    assert "the program used no memory of the GPU, as far as its processes reported" in done.stderr


@pytest.mark.parametrize("probe", ["importlib.util.find_spec('torch')", "import torch"])
def test_a_program_may_ask_for_torch_before_it_imports_it(tmp_path: Path, probe: str) -> None:
    _, report = simulate(tmp_path, f"import importlib.util\nfor _ in range(2): {probe}\n" + TRAINING, fresh=True)
    assert report["processes"][0]["torch"]["devices"][0]["peak"]["at"] == "train.py:11 in step"


def test_a_program_that_looks_for_torch_alone(tmp_path: Path) -> None:
    done, _ = simulate(tmp_path, "import importlib.util\nprint(importlib.util.find_spec('torch').name)\n", fresh=True)
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


MANAGED = """
import ctypes, torch
runtime = ctypes.CDLL(None)
held = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
pointer = ctypes.c_void_p()
assert runtime.cudaMallocManaged(ctypes.byref(pointer), ctypes.c_size_t(30 << 20), 1) == 0
held = [held, torch.empty(40 << 20, dtype=torch.uint8, device="cuda")]
"""


def test_managed_memory_is_part_of_what_the_device_holds(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, MANAGED, "--memory", "1GiB", "--context", "none")
    managed = report["processes"][0]["driver"]["devices"][0]["managed"]
    assert managed == {"used_bytes": 30 << 20, "peak_used_bytes": 30 << 20, "at_peak_bytes": 30 << 20, "peak_host_bytes": 0}
    assert "on the device 110.00 MiB at the peak" in done.stderr
    assert "managed       30.00 MiB at most, 30.00 MiB of it on the device at its peak" in done.stderr


def test_managed_memory_makes_room(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, MANAGED, "--memory", "100MiB", "--context", "none")
    assert done.returncode == 0, done.stderr
    assert report["processes"][0]["driver"]["devices"][0]["managed"]["peak_host_bytes"] == 10 << 20
    assert ", up to 10.00 MiB on the host: the driver moves it to the host to make room" in done.stderr


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
    assert (device["history"], device["peak"], device["last_oom"]) == ("program's own", None, None)
    assert device["peak_allocated_bytes"] == (3 + 20) << 22
    assert "the program records memory history itself" in done.stderr and trace.read_text() == ""
    assert device["ooms"] == 1 and "fits          yes" in done.stderr
    assert "but it was out of memory, once" in done.stderr


def test_a_program_whose_first_allocation_fails(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, "import torch\n" + RAN_OUT, "--memory", "4GiB")
    assert report["processes"][0]["torch"]["devices"][0]["last_oom"]["at"] == "train.py:4 in <module>"
    assert "but it was out of memory at train.py:4 in <module>, asking for 5.00 GiB" in done.stderr
    assert "the program went on without that memory, and ended well" in done.stderr


def test_a_gpu_for_which_this_pytorch_has_no_kernels(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, "import torch\nkept = torch.zeros(8, device='cuda')\n", "--gpu", "v100")
    answer = "PyTorch as installed here has no kernels for Tesla V100-SXM2-16GB, of compute capability 7.0"
    assert f"fits          NO: {answer}" in done.stderr
    (table,) = report["processes"][0]["cards"]
    assert "v100" in table["left_out"] and "v100" not in [row["gpu"] for row in table["cards"]]


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


CONTEXT = """
import torch
before, total = torch.cuda.mem_get_info()
torch.mm(torch.ones(64, 64, device="cuda"), torch.ones(64, 64, device="cuda"))
with_cublas = torch.cuda.mem_get_info()[0]
print(total - before, before - with_cublas - torch.cuda.memory_reserved())
"""


def test_a_program_takes_the_context_and_cublas_of_the_gpu(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, CONTEXT, "--gpu", "a100", "--memory", "40GiB")
    device = report["processes"][0]["driver"]["devices"][0]
    context, cublas = device["context_bytes"], device["library_bytes"]["cublas"]
    assert done.stdout == f"{context} {cublas}\n", done.stderr
    assert 1429 << 20 <= context + cublas <= (1429 + 4) << 20, "measured on an A100"
    assert list(device["library_bytes"]) == ["cublas"]
    assert "context       1.40 GiB: an estimate for NVIDIA A100-SXM4-40GB with cuBLAS;" in done.stderr


def test_a_program_that_has_no_memory_for_a_library(tmp_path: Path) -> None:
    program = "import torch\nx = torch.ones(64, 64, device='cuda')\ntorch.mm(x, x)\n"
    done, _ = simulate(tmp_path, program, "--memory", "1GiB")
    assert done.returncode == 1 and "CUBLAS_STATUS_ALLOC_FAILED" in done.stderr
    assert "fits          NO: no memory for cublas, which takes 680.00 MiB, with 522.00 MiB free" in done.stderr


def test_the_memory_to_spare_is_that_of_the_fullest_moment(tmp_path: Path) -> None:
    program = "import torch\nx = torch.ones(400 << 20, dtype=torch.uint8, device='cuda')\ndel x\n"
    program += "torch.cuda.empty_cache()\nx = torch.ones(64, 64, device='cuda')\ntorch.mm(x, x)\n"
    done, report = simulate(tmp_path, program, "--memory", "1280MiB")  # 400, and later 680, beside 500 MiB
    assert done.returncode == 0, done.stderr
    device = report["processes"][0]["driver"]["devices"][0]
    spare = device["total_bytes"] - device["peak_with_context_bytes"]
    assert 0 < spare < 100 << 20, done.stderr
    assert f"fits          probably: {spare >> 20}.00 MiB to spare, but the context may take 320.00 MiB more" in done.stderr


def test_the_measurement_for_a_gpu_finds_what_the_simulated_one_is_charged_with(tmp_path: Path) -> None:
    measurement = str(Path(__file__).parents[2] / "bench/gpu/context.py")
    program = "import runpy, sys\nsys.argv[1:] = ['--json']\n"
    program += f"runpy.run_path({measurement!r}, run_name='__main__')\n"
    done, report = simulate(tmp_path, program, "--memory", "80GiB")
    found = json.loads(done.stdout)
    device = report["processes"][0]["driver"]["devices"][0]
    expected = {"before": 0, "context": device["context_bytes"], **device["library_bytes"], "kernels": 0}
    assert found == expected and found["cudnn"] > 0, done.stderr


GRAPH_AND_LIBRARIES = """
import torch
x = torch.eye(64, device="cuda")
torch.linalg.inv(x), torch.fft.fft(x)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(205):
        x = x * 2
graph.replay()
"""


def test_the_report_counts_executable_graphs_and_names_libraries_with_unknown_workspaces(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, GRAPH_AND_LIBRARIES, "--gpu", "a100")
    driver = report["processes"][0]["driver"]
    assert driver["unknown_workspaces"] == ["cuSOLVER", "cuFFT"]
    assert "libraries     workspaces of cuSOLVER, cuFFT are not known and missing" in done.stderr
    device = driver["devices"][0]
    assert device["graphs"] == {"bytes": 4 << 20, "graphs": 1, "kernel_nodes": 205}, "10 KiB each, in units of 2 MiB"
    assert "CUDA graphs   4.00 MiB: an estimate, half to twice, for 1 executable graph with 205 kernels" in done.stderr
    assert device["spread"]["more_bytes"] == (311 + 250 << 20) + 205 * (10 << 10)


STEPS = """
import os
import signal
import torch

model = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.Linear(1000, 1000)).cuda()

def train(steps):
    optimizer, other = torch.optim.SGD(model.parameters()), torch.optim.SGD(model.parameters())
    for _ in range(steps):
        model(torch.ones(64, 1000, device="cuda")).sum().backward()
        optimizer.step()
        other.step()

def infer(calls):
    for _ in range(calls):
        model(torch.ones(64, 1000, device="cuda"))

"""


@pytest.mark.parametrize("last, how", [
    ("train(3); prnt('done')", "an error of type NameError at train.py:19 after 3 steps"),
    ("infer(2); exit(5)", "exit code 5 after 2 forward calls"),
    ("infer(1); model('a library complains')", "an error of type TypeError at train.py:19 after 2 forward calls"),
    ("train(1); os.kill(os.getpid(), signal.SIGTERM)", "signal 15 (Terminated) after 1 step"),
])
def test_whether_a_program_fits_is_unknown_if_it_did_not_end_well(tmp_path: Path, last: str, how: str) -> None:
    done, report = simulate(tmp_path, STEPS + last)
    assert f"\n\nunknown: the program ended with {how}\ndevice 0 of process " in "\n" + done.stderr, done.stderr
    assert "fits          unknown: what ran needed " in done.stderr
    assert "fits on" not in done.stderr
    assert report["ending"]["good"] is False
    assert report["processes"][0]["torch"]["devices"][0]["peak_allocated_bytes"] > 8_000_000


@pytest.mark.skipif(not torch.__version__.startswith("2.11."), reason="where the seed of a dropout is kept is PyTorch 2.11's")
def test_hooks_that_move_the_seed_of_a_dropout_to_the_gpu_get_a_segmentation_fault_as_there(tmp_path: Path) -> None:
    """PyTorch's efficient attention saves the seed on the CPU, and reads it there in the backward pass."""
    program = """
import torch

shape = 1, 2, 64, 32
query, key, value = (torch.zeros(shape, device="cuda", requires_grad=True) for _ in range(3))
with torch.autograd.graph.saved_tensors_hooks(lambda saved: (saved.device, saved.cpu()), unpack):
    torch.nn.functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1).sum().backward()
print("done")
"""
    done, _ = simulate(tmp_path, "unpack = lambda saved: saved[1].to(saved[0])" + program)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    done, report = simulate(tmp_path, "unpack = lambda saved: saved[1].cuda()" + program, fresh=True)
    assert "\nunknown: the program ended with signal 11 (Segmentation fault)\nthe CPU accessed memory of device 0, at 0x" in done.stderr
    assert report["processes"][0]["driver"]["host_access"]["device"] == 0


def test_a_program_that_handles_sigterm_itself_keeps_its_handler(tmp_path: Path) -> None:
    handler = "signal.signal(signal.SIGTERM, lambda *_: print('mine', flush=True))\n"
    done, report = simulate(tmp_path, STEPS + handler + "os.kill(os.getpid(), signal.SIGTERM); train(1)", fresh=True)
    assert (done.returncode, done.stdout) == (0, "mine\n")
    assert report["ending"] == {"asked": None, "circles_at": None, "error": None, "forward_calls": 1, "good": True,
                                "optimizer_steps": 1, "signal": None}


@pytest.mark.parametrize("body, forward_calls, optimizer_steps", [("infer(9)", 2, 0), ("train(9)", 1, 2)])
def test_a_program_is_ended_after_the_steps_that_were_asked_for(tmp_path: Path, body: str, forward_calls: int,
                                                                 optimizer_steps: int) -> None:
    done, report = simulate(tmp_path, STEPS + "print('kept')\n" + body + "; print('not reached')", "--max-steps", "2")
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr
    what = "2 steps" if optimizer_steps else "2 forward calls"
    assert f"\n\nthe program was ended after {what} as asked\ndevice 0 of process " in "\n" + done.stderr
    assert "fits          yes" in done.stderr
    assert report["ending"] == {"asked": "steps", "circles_at": None, "error": None, "forward_calls": forward_calls, "good": True,
                                "optimizer_steps": optimizer_steps, "signal": None}


DEEPSPEEDS = """
import torch

class DeepSpeedZeroOptimizer_Stage3:
    def __init__(self, parameters):
        self.groups, self.optimizer = [[one] for one in parameters], torch.optim.SGD(parameters, momentum=0.9)

    def step(self, overflows=False):
        for group in [] if overflows else self.groups:
            self.optimizer.param_groups[0]["params"] = group
            self.optimizer.step()
"""
STEPPING_BY_GROUPS = """
import torch
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
model = torch.nn.Linear(1000, 1000).cuda()
optimizer = DeepSpeedZeroOptimizer_Stage3(list(model.parameters()))
for i in range(5):
    model(torch.ones(8, 1000, device="cuda")).sum().backward()
    optimizer.step(overflows=i == 1)
"""


@pytest.mark.parametrize("most, steps", [("9", 4), ("2", 2)])
def test_a_step_of_zero_counts_once_after_all_groups_of_parameters(tmp_path: Path, most: str, steps: int) -> None:
    folder = tmp_path / "deepspeed" / "runtime" / "zero"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent, folder.parent.parent):  # in place of one that is installed
        (package / "__init__.py").touch()
    (folder / "stage3.py").write_text(DEEPSPEEDS)
    _, report = simulate(tmp_path, STEPPING_BY_GROUPS, "--max-steps", most)
    assert report["ending"]["optimizer_steps"] == steps
    after = report["processes"][0]["torch"]["devices"][0]["steps"]
    assert [one["step"] for one in after] == list(range(1, steps + 1))
    assert {one["kinds"]["optimizer state"] for one in after} == {4 * (1000 * 1000 + 1000)}  # both groups have their state


def test_a_thread_that_a_library_has_started_has_its_place_there(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages" / "engine"
    folder.mkdir(parents=True)
    (folder / "serve.py").write_text("import torch\ndef serve():\n    torch.ones(1000, 1000, device='cuda')\n")
    program = "import sys\nsys.path.insert(0, 'site-packages')\nfrom engine.serve import serve\n"
    _, report = simulate(tmp_path, program + "import threading\nthread = threading.Thread(target=serve)\nthread.start()\nthread.join()\n")
    assert report["processes"][0]["torch"]["devices"][0]["peak"]["at"] == "engine/serve.py:3 in serve"


# Live memory takes 7716 MiB at the end. A page heap puts the holes of 8 MiB together; the rests of the blocks of 190 MiB
# expandable segments give back as well; PyTorch's default policy does neither.
HOLES = """
import torch

def block(mib):
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")

kept = [block(6990)]
small = [block(8) for _ in range(24)]
del small[::2]
for _ in range(3):
    hole = block(190)
    del hole
    kept.append(block(110))
kept += [block(100) for _ in range(3)]
"""

POLICIES = {
    "pytorch": ({}, []),
    "expandable_segments": ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, []),
    "page_heap": ({}, ["-m", "cachalot", "run", "--config", "heap:pages"]),
}


def test_the_table_of_cards_says_what_runs_on_these_cards_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, report = simulate(tmp_path, HOLES, "--gpu", "l4", "--context", "none")
    (table,) = report["processes"][0]["cards"]
    assert table["exact"] and table["live_bytes"] == 7716 << 20
    boundaries = {}
    for policy, (variables, run_with) in POLICIES.items():
        largest_no = [card["gpu"] for card in table["cards"] if not card[policy]][-1]
        smallest_yes = next(card["gpu"] for card in table["cards"] if card[policy])
        boundaries[policy] = largest_no, smallest_yes
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            for gpu, fits in ((largest_no, False), (smallest_yes, True)):
                done, _ = simulate(tmp_path, HOLES, "--gpu", gpu, "--context", "none", run_with=run_with)
                assert (done.returncode == 0) is fits, (policy, gpu, done.stderr)
    assert len(set(boundaries.values())) == 3, f"the policies differ on some card: {boundaries}"
    assert boundaries["page_heap"] == ("gtx1660", "rtx4060ti")


def test_a_trace_that_lacks_what_the_program_does_gives_an_approximate_table(tmp_path: Path) -> None:
    program = HOLES + "del kept, small\ntorch.cuda.empty_cache()\nmore = [block(150) for _ in range(60)]\n"
    done, report = simulate(tmp_path, program, "--gpu", "l4")
    (table,) = report["processes"][0]["cards"]
    assert not table["exact"]
    assert "approximate: the program does more with memory than allocate and free it" in done.stderr


def test_a_program_that_ran_out_of_memory_has_the_table_up_to_its_request(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, HOLES, "--gpu", "p4")
    (table,) = report["processes"][0]["cards"]
    assert not table["cards"][0]["pytorch"] and table["cards"][-1]["pytorch"]
    assert "fits          NO" in done.stderr and "Up to the request that failed, with it" in done.stderr
    done, report = simulate(tmp_path, "import torch\ntorch.ones(4 << 30, dtype=torch.uint8, device='cuda')\n", "--memory", "2GiB")
    (table,) = report["processes"][0]["cards"]  # the first request of all
    assert not table["cards"][0]["pytorch"] and table["cards"][-1]["page_heap"]


def test_a_request_that_no_card_serves_has_no_table(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, "import torch\nkept = torch.ones(4, device='cuda')\ntorch.ones(1 << 40, device='cuda')\n")
    assert report["processes"][0]["cards"] == []
    assert "fits          NO: out of memory" in done.stderr and "fits on" not in done.stderr


def test_a_program_that_takes_the_free_memory_is_told_of(tmp_path: Path) -> None:
    takes = """
import torch
weights = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
free, total = {}
kept = [torch.empty(int(free * 0.1), dtype=torch.uint8, device="cuda") for _ in range({})]
"""
    done, report = simulate(tmp_path, takes.format("torch.cuda.mem_get_info()", 9), "--gpu", "h100")
    (table,) = report["processes"][0]["cards"]
    assert table["sized"]["blocks"] == 9 and table["sized"]["at"] == "train.py:5 in <listcomp>"
    sizes = {card["gpu"]: card["sized_bytes"] / 2**30 for card in table["cards"] if card["page_heap"]}
    assert 62 < sizes["h100"] < 75 and 8 < sizes["t4"] < 11 and "gtx1650" not in sizes
    assert "sized to it   " in done.stderr and "which the program asked for when" in done.stderr
    done, _ = simulate(tmp_path, takes.format("80 << 30, 0", 9), "--gpu", "h100")
    assert "sized to it" not in done.stderr and "fits on" in done.stderr


ASKS = {
    "total": "told = torch.cuda.get_device_properties(0).total_memory",
    "free": "told = torch.cuda.mem_get_info()[0]",
    "nvml": """
import ctypes
nvml, device, told = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
assert nvml.nvmlInit_v2() == nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert nvml.nvmlDeviceGetMemoryInfo(device, told) == 0
told = told[1]""",
}
TAKES = {
    "two sizes": "kept = [torch.empty(told // (100 if i % 6 else 25), dtype=torch.uint8, device='cuda') for i in range(40)]",
    "one size": "kept = [torch.empty(told // 10, dtype=torch.uint8, device='cuda') for _ in range(7)]",
    "a model": "model = torch.nn.Sequential(*(torch.nn.Linear(1 << 14, 1 << 14, bias=False, device='cuda') for _ in range(12)))\n"
               "with torch.no_grad(): model(torch.empty(1, 1 << 14, device='cuda'))",
    "until none": "kept = []\ntry:\n    while True: kept.append(torch.empty(1 << 30, dtype=torch.uint8, device='cuda'))\n"
                  "except torch.cuda.OutOfMemoryError: pass",
}


@pytest.mark.parametrize(("first", "asks", "takes", "is_sized"), [
    ("", "total", "one size", True), ("", "free", "two sizes", True), ("", "nvml", "one size", True),
    ("torch.cuda.init()", "nvml", "one size", True), ("", "free", "a model", False), ("told = 0", "", "until none", True)])
def test_memory_that_a_program_sizes_is_told_of(tmp_path: Path, first: str, asks: str, takes: str, is_sized: bool) -> None:
    program = "\n".join(["import torch", first, ASKS.get(asks, ""), TAKES[takes]]) + "\n"
    done, report = simulate(tmp_path, program, "--gpu", "l4")
    assert done.returncode == 0, done.stderr
    (table,) = report["processes"][0]["cards"]
    assert ("sized" in table) is is_sized, done.stderr
    assert table["cards"][0]["pytorch"] is is_sized, "a card that is much smaller"


ENGINE = """
import sys
import torch
sys.path.append("site-packages")
from vllm.config.cache import CacheConfig
from vllm.v1.worker.utils import allocate_kv_cache
config = CacheConfig({given})
cache = allocate_kv_cache(torch.cuda.mem_get_info()[0] * 3 // 10)
"""


@pytest.mark.parametrize("given", ["", "kv_cache_memory_bytes=1 << 30"])
def test_the_cache_of_an_engine_is_sized_whatever_part_it_takes_unless_the_program_gives_its_size(tmp_path: Path, given: str) -> None:
    package = tmp_path / "site-packages" / "vllm"
    (package / "v1" / "worker").mkdir(parents=True)
    (package / "config").mkdir()
    (package / "config" / "cache.py").write_text(
        "class CacheConfig:\n    def __init__(self, kv_cache_memory_bytes=None):\n        self.kv_cache_memory_bytes = kv_cache_memory_bytes\n")
    (package / "v1" / "worker" / "utils.py").write_text(
        "import torch\ndef allocate_kv_cache(size):\n    return torch.zeros(size, dtype=torch.int8, device='cuda')\n")
    done, report = simulate(tmp_path, ENGINE.format(given=given), "--gpu", "h100")
    (table,) = report["processes"][0]["cards"]
    assert ("sized" in table) is (given == ""), done.stderr
    assert table["cards"][0]["pytorch"] is (given == ""), "a card that is much smaller"
    assert "caches " in done.stderr


def test_a_library_that_takes_the_free_memory_is_told_of(tmp_path: Path) -> None:
    program = """
import ctypes, torch
torch.ones(1, device="cuda")
free, total = torch.cuda.mem_get_info()
ctypes.CDLL(None).cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(int(free * 0.9)))
"""
    done, _ = simulate(tmp_path, program, "--gpu", "h100")
    assert "the program asked how much memory there is and took 90." in done.stderr


CONVOLUTION = """
import torch
pictures = torch.empty(8, 16, 64, 64, device="cuda")
torch.nn.functional.conv2d(pictures, torch.empty(32, 16, 3, 3, device="cuda"))
"""


def test_the_report_tells_which_cudnn_planned_convolutions(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, CONVOLUTION, "--gpu", "a100")
    (process,) = report["processes"]
    use = process["driver"]["cudnn"]
    assert process["driver"]["devices"][0]["library_bytes"]["cudnn"] == 300 << 20
    assert use["planned"] and use["executions"] == 1 and use["largest_workspace_bytes"] > 0
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("  cuDNN")]
    version = use["version"]
    name = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    assert line.startswith(f"  cuDNN         {name} plans for this GPU, by its heuristics; the largest workspace has ")


def test_the_report_tells_nothing_of_cudnn_where_nothing_convolves(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, "import torch\ntorch.ones(4, device='cuda').sum().item()\n")
    assert report["processes"][0]["driver"]["cudnn"] is None and "cuDNN" not in done.stderr


FORKS = """
import multiprocessing
import torch

def train():
    print(torch.ones(4, device="cuda").sum().item(), torch.cuda.device_count(), flush=True)

child = multiprocessing.get_context("fork").Process(target=train)
child.start()
child.join()
"""


def test_after_an_error_of_another_kind_it_is_unknown_whether_a_program_fits(tmp_path: Path) -> None:
    recovers = "import torch\ntry:\n    torch.ones(1 << 40, device='cuda')\nexcept torch.OutOfMemoryError:\n    {}\n"
    done, report = simulate(tmp_path, recovers.format("pass") + "torch.ones(4, device='cuda')\nopen('/nonexistent')\n")
    error = report["processes"][0]["torch"]["ended_by"]
    assert (error["type"], error["may_be_of_memory"]) == ("FileNotFoundError", False)
    assert "unknown: the program ended with an error of type FileNotFoundError" in done.stderr and "NO" not in done.stderr
    done, report = simulate(tmp_path, recovers.format("open('/nonexistent')"))
    assert report["processes"][0]["torch"]["ended_by"]["may_be_of_memory"]
    assert "fits          NO: out of memory" in done.stderr


def test_a_child_that_ran_out_of_memory_does_not_fit_though_its_parent_ended_well(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, FORKS.replace("torch.ones(4", "torch.ones(1 << 40"), fresh=True)
    assert done.returncode == 0 and [one["driver"]["exit_status"] for one in report["processes"]] == [1]
    assert "NO: out of memory at " in done.stderr and " in train, asking for 4096.00 GiB" in done.stderr
    assert "this process ended with exit code 1; the program went on, and ended well" in done.stderr


KILLED = """
import ctypes, multiprocessing, os, signal, time
import torch

def serve(connection):
    kept = torch.ones(1 << 28, dtype=torch.uint8, device="cuda")
    connection.send(1)
    time.sleep(60)

here, there = multiprocessing.Pipe()
child = multiprocessing.get_context("fork").Process(target=serve, args=(there,))
child.start()
here.recv()
"""


def test_a_process_that_is_killed_reports_its_last_second(tmp_path: Path) -> None:
    kill = "time.sleep(2.5); ctypes.CDLL(None).syscall(62, child.pid, signal.SIGKILL); child.join()"  # kill() would ask it
    done, report = simulate(tmp_path, KILLED + kill, fresh=True)
    (process,) = report["processes"]
    assert not process["driver"]["is_final"] and process["driver"]["devices"][0]["peak_used_bytes"] == 256 << 20
    assert "did not end by itself: the figures are those until its last second" in done.stderr


def test_a_process_writes_all_of_its_report_before_the_program_kills_it(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, KILLED + "child.kill(); child.join(); print(child.exitcode)", fresh=True)
    assert (done.returncode, done.stdout) == (0, "-9\n"), done.stderr
    (process,) = report["processes"]
    assert process["driver"]["is_final"] and process["torch"]["devices"][0]["peak_allocated_bytes"] == 256 << 20
    assert "did not end by itself" not in done.stderr and " in serve" in done.stderr


# A worker whose main thread runs C code, as that of Ray: no handler of Python's runs in it.
IN_C = """
import ctypes, os, signal, subprocess, sys, threading, time
import torch

libc = ctypes.CDLL(None)
if sys.argv[1] in ("end", "wait"):
    kept = torch.ones(1 << 28, dtype=torch.uint8, device="cuda")
    print("ready", flush=True)
    if sys.argv[1] == "end":
        threading.Timer(0.2, libc._Exit, [3]).start()
    while True:
        libc.pause()
child = subprocess.Popen([sys.executable, __file__, "{}"], stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
"""


@pytest.mark.parametrize(("ending", "how"), [
    ("end", "assert child.wait() == 3"),
    ("wait", "libc.kill(child.pid, signal.SIGKILL); assert child.wait() == -9"),
    ("wait", "os.killpg(child.pid, signal.SIGKILL); assert child.wait() == -9"),
    ("wait", "child.kill(); assert child.wait() == -9"),
    ("wait", "os._exit(0)"),
], ids=["ends at once", "killed by C code", "killed with its group", "killed by Python", "left"])
def test_a_worker_that_runs_c_code_writes_all_of_its_report(tmp_path: Path, ending: str, how: str) -> None:
    done, report = simulate(tmp_path, IN_C.format(ending) + how, fresh=True)
    assert done.returncode == 0, done.stderr
    (process,) = report["processes"]
    assert process["driver"]["is_final"] and process["torch"]["devices"][0]["peak_allocated_bytes"] == 256 << 20
    assert " at train.py:7 in <module>" in done.stderr


def test_a_server_that_reads_an_unknown_value_again_and_again_ends_with_the_program(tmp_path: Path) -> None:
    program = """
import multiprocessing, sys
import torch

def circle(connection):
    ended = torch.empty(1, device="cuda")
    while ended.item() == 0:
        pass
    connection.send("not reached")

def idle():
    torch.ones(1 << 20, device="cuda")
    here.recv()

if __name__ == "__main__":
    here, there = multiprocessing.Pipe()
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=idle), fork.Process(target=circle, args=(there,))]
    for child in children:
        child.start()
    print("started", flush=True)
    here.recv()
"""
    done, report = simulate(tmp_path, program, fresh=True)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
    assert "the program was ended: at train.py:7 in circle it has read an unknown value 10,000 times" in done.stderr
    assert [one["driver"]["is_final"] for one in report["processes"]] == [True, True] and report["ending"]["good"]
    assert "train.py:12 in idle" in done.stderr


def test_a_server_that_kills_itself_as_it_is_asked_to_end_has_its_report(tmp_path: Path) -> None:
    program = """
import os, signal, time
import torch
kept = torch.ones(1 << 20, device="cuda")
signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
time.sleep(60)
"""
    done, report = simulate(tmp_path, program, "--max-seconds", "5")
    assert report["ending"]["asked"] == "seconds" and report["ending"]["good"], done.stderr
    assert "the program was ended as asked" in done.stderr and " at train.py:4 in <module>" in done.stderr
    assert report["processes"][0]["driver"]["is_final"]


def test_a_process_outside_of_the_run_is_killed_at_once(tmp_path: Path) -> None:
    program = """
import subprocess, time
other = subprocess.Popen(["sleep", "60"])
start = time.monotonic()
other.kill()
print(other.wait(), time.monotonic() - start < 5)
other.kill()
"""
    done, _ = simulate(tmp_path, program, fresh=True)
    assert done.stdout == "-9 True\n", done.stderr


def test_a_process_that_a_package_runs_has_the_places_of_the_package(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "served.py").write_text("""
import torch

def serve():
    kept = torch.ones(1 << 20, device="cuda")
    torch.empty(1, device="cuda").item()
""")
    done, report = simulate(tmp_path, """
import multiprocessing, sys
sys.path.append("site-packages")
import served
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=served.serve)
    child.start()
    child.join()
""", fresh=True)
    (torch_report,) = [one["torch"] for one in report["processes"] if one["torch"]["devices"]]
    assert torch_report["devices"][0]["peak"]["at"] == "served.py:6 in serve", done.stderr
    assert torch_report["values"]["unknown_reads"] == [{"at": "served.py:6 in serve", "how": "value", "times": 1}]


FORKED_SERVER = """
import torch

def serve():
    model = torch.nn.Linear(1 << 10, 1 << 10, bias=False, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for _ in range(5):
        model(torch.ones(8, 1 << 10, device="cuda")).sum().backward()
        optimizer.step()
    torch.empty(1, device="cuda").item()
"""
FORKS_SERVER = """
import multiprocessing, sys
sys.path.append("site-packages")
import served
child = multiprocessing.get_context("fork").Process(target=served.serve)
child.start()
child.join()
"""


def test_a_child_by_fork_has_its_own_places_kinds_and_steps(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "served.py").write_text(FORKED_SERVER)
    done, report = simulate(tmp_path, FORKS_SERVER, fresh=True)
    (torch_report,) = [one["torch"] for one in report["processes"] if one["torch"]["devices"]]
    (device,) = torch_report["devices"]
    assert torch_report["values"]["unknown_reads"] == [{"at": "served.py:10 in serve", "how": "value", "times": 1}]
    assert " at served.py:5 in serve" in done.stderr and "train.py" not in done.stderr
    assert [step["step"] for step in device["steps"]] == [1, 2, 3, 4, 5]
    kinds = device["steps"][-1]["kinds"]
    assert [kinds[kind] for kind in ("parameters", "gradients", "optimizer state")] == 3 * [4 << 20]
    done, report = simulate(tmp_path, FORKS_SERVER, "--max-steps", "2", fresh=True)
    assert done.returncode == 0 and "the program was ended after 2 steps as asked" in done.stderr


def test_a_child_by_fork_may_use_the_gpu_that_its_parent_did_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    done, report = simulate(tmp_path, FORKS, "--devices", "2")
    assert (done.returncode, done.stdout) == (0, "4.0 1\n"), done.stderr
    assert report["processes"][0]["torch"]["devices"][0]["allocations"] > 0 and " in train" in done.stderr
