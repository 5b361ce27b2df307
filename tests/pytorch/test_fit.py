"""`cachalot fit` on PyTorch programs: where its runs are made, and that they answer as the program itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cachalot
import pytest
import world
from cachalot._programs import simulation
from test_simulate import COMMAND, own_environment

pytestmark = [world.full_only, world.not_pages, pytest.mark.skipif(not COMMAND, reason="needs the cachalot command")]

# Takes 32 times `batch` MiB.
TAKES = "import torch\ntensors = [torch.empty(batch << 20, device='cuda') for _ in range(8)]\n"


def fit(folder: Path, program: str, *options: str) -> tuple[dict, str]:
    """The results as JSON, and standard error."""
    script, results = folder / "train.py", folder / "fit.json"
    script.write_text("import sys\nbatch = int(sys.argv[1])\n" + program)
    command = [COMMAND, "fit", "--json", str(results), *options, "--", sys.executable, "train.py", "{batch}"]
    done = subprocess.run(command, cwd=folder, env=own_environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(results.read_text()), done.stderr


def largest(results: dict) -> list[int | None]:
    (result,) = results["results"]
    return [result["pytorch"], result["expandable_segments"], result["page_heap"]]


def test_the_largest_value_is_the_last_with_which_the_program_fits(tmp_path: Path) -> None:
    program = TAKES + "if batch > 20: more = torch.empty(1 << 20, device='cuda')\n"  # one more allocation from some value on
    results, _ = fit(tmp_path, program, "--memory", "1020MiB", "--context", "none", "--vary", "batch=1..100")
    assert largest(results) == [31, 31, 31]
    for batch, code in ((31, 0), (32, 1)):
        done = world.run_by_command([COMMAND, "simulate", "--memory", "1020MiB", "--context", "none"], ["train.py", str(batch)],
                                    folder=tmp_path, **own_environment())
        assert done.returncode == code


@pytest.mark.parametrize("program", (
    # Another program where torch is there before it begins.
    "import sys\nsizes = 3 if 'torch' in sys.modules else 2\n",
    # Other modules where a variable is another; torch is imported behind the change.
    "import os\nos.environ['OF_THE_PROGRAM'] = '1'\nsizes = 2\n",
))
def test_runs_of_programs_that_cannot_be_forked(tmp_path: Path, program: str) -> None:
    results, _ = fit(tmp_path, program + TAKES.replace("8", "4 * sizes"), "--memory", "1000MiB", "--context", "none", "--vary", "batch=1..60")
    assert largest(results) == [31, 31, 31]


def test_modules_that_use_the_gpu_when_they_are_imported_are_not_imported_before(tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    packages.mkdir()
    (packages / "of_library.py").write_text("import torch\nheld = torch.empty(64 << 20, device='cuda', dtype=torch.uint8)\n")
    (packages / "first_library.py").write_text("import torch, time\ntime.sleep(0.1)\n")
    program = f"import sys\nsys.path.append({str(packages)!r})\nimport first_library, of_library\n"
    results, _ = fit(tmp_path, program + TAKES, "--memory", "1000MiB", "--context", "none",
                     "--vary", "batch=1..40")
    assert largest(results) == [29, 29, 29], "64 MiB less"


def test_the_corners_of_two_ranges(tmp_path: Path) -> None:
    script, results = tmp_path / "train.py", tmp_path / "fit.json"
    script.write_text("import sys, torch\nx = torch.empty((int(sys.argv[1]) * int(sys.argv[2])) << 21, device='cuda', dtype=torch.uint8)\n")
    command = [COMMAND, "fit", "--json", str(results), "--memory", "80MiB", "--context", "none", "--vary", "seq=1..8",
               "--vary", "batch=1..12", "--", sys.executable, "train.py", "{seq}", "{batch}"]
    done = subprocess.run(command, cwd=tmp_path, env=own_environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    staircase = {seq: min(40 // seq, 12) for seq in range(1, 9)}
    corners = {seq: batch for seq, batch in staircase.items() if staircase.get(seq + 1) != batch}
    found = json.loads(results.read_text())
    assert {one["values"]["seq"]: one["pytorch"] for one in found["results"]} == corners
    assert found["runs"] < 30 and "The same is assumed of seq" in " ".join(done.stdout.split())


WIDE = "tensors = [torch.empty(count * batch << 20, device='cuda:' + device) for device, count in {devices}]\n"


def test_a_value_fits_if_it_does_on_each_device(tmp_path: Path) -> None:
    program = "import torch\n" + WIDE.replace("{devices}", "[('0', 1), ('1', 2)]")  # 4 and 8 times the MiB
    options = ("--memory", "1000MiB", "--context", "none", "--vary", "batch=1..300", "--devices", "2")
    assert largest(fit(tmp_path, program, *options)[0]) == [125, 125, 125]


def test_a_value_fits_if_it_does_in_each_process(tmp_path: Path) -> None:
    program = ("import subprocess\nif len(sys.argv) == 2:\n"
               "    children = [subprocess.Popen([sys.executable, __file__, sys.argv[1], device]) for device in '10']\n"
               "    sys.exit(max(child.wait() for child in children))\n"
               "import torch\ndevice = sys.argv[2]\n" + WIDE.replace("{devices}", "[(device, 1 + int(device))]"))
    results, _ = fit(tmp_path, program, "--memory", "1000MiB", "--context", "none", "--vary", "batch=100,125,126", "--devices", "2")
    assert largest(results) == [125, 125, 125]


def test_a_program_that_sizes_itself_runs_on_each_gpu(tmp_path: Path) -> None:
    program = """
import torch
weights = torch.empty(batch << 28, dtype=torch.uint8, device="cuda")
free, total = torch.cuda.mem_get_info()
room = free - total // 10
if room < 1 << 30:
    raise ValueError("no room")
cache = [torch.empty(room // 4, dtype=torch.uint8, device="cuda") for _ in range(4)]
"""
    results, errors = fit(tmp_path, program, "--memory", "8GiB", "--context", "none", "--vary", "batch=16,24,25,64")
    assert results["sizes_itself"]
    assert largest(results) == [24, None, None]
    command = [COMMAND, "fit", "--vary", "batch=1,64", "--", sys.executable, "train.py", "{batch}"]
    done = subprocess.run(command, cwd=tmp_path, env=own_environment(), capture_output=True, text=True, timeout=240)
    assert done.returncode == 2 and "the program sizes itself to the GPU" in done.stderr and "name those" in done.stderr


def test_one_rank_of_a_job(tmp_path: Path) -> None:
    program = ("import os, torch\nimport torch.distributed as distributed\ndistributed.init_process_group('nccl')\n"
               "assert os.environ['RANK'] == '5' and os.environ['LOCAL_RANK'] == '1'\n"
               "x = torch.empty(batch << 22, device='cuda:1').chunk(distributed.get_world_size())[0].clone()\n")
    results, _ = fit(tmp_path, program, "--memory", "1000MiB", "--context", "none", "--devices", "2", "--world-size", "8", "--rank", "5",
                     "--vary", "batch=1,55,56")
    assert largest(results) == [55, 55, 55], "16 and 2 times so many MiB"


def test_operations_that_are_computed_steer_the_runs(tmp_path: Path) -> None:
    program = "import torch\ncount = int(torch.full((4, 100000), 2.0, device='cuda').sum().item()) or 1\n" + TAKES
    program = program.replace("batch << 20", "(batch if count == 1 else 2 * batch) << 20")
    options = ("--memory", "1020MiB", "--context", "none", "--vary", "batch=15,16,31,32")
    assert largest(fit(tmp_path, program, *options)[0]) == [31, 31, 31], "too large to be computed: unknown values are zeros"
    assert largest(fit(tmp_path, program, *options, "--compute", "all")[0]) == [15, 15, 15]


def without_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ.keys() - own_environment().keys():
        monkeypatch.delenv(name)


def test_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_simulator(monkeypatch)
    script = tmp_path / "train.py"
    script.write_text("import sys, torch\nx = [torch.empty(int(word) << 20, device='cuda') for word in sys.argv[1:]]\n")
    found = cachalot.fit([str(script), "{large}", "{small}"], {"large": [1000, 2000], "small": range(1, 5000)}, gpus=["l4", "rtx4090"])
    assert [(one.gpu, one.values["large"]) for one in found] == [("l4", 1000), ("l4", 2000), ("rtx4090", 1000), ("rtx4090", 2000)]
    assert found[0].pytorch - found[1].pytorch == 1000 and found[2].pytorch > found[0].pytorch
    with pytest.raises(cachalot.FitError, match="with batch=1 the program ended with an error of type ValueError"):
        cachalot.fit(["-c", "raise ValueError({batch})"], {"batch": [1]}, gpus=["l4"])


def test_options_of_runs_from_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_simulator(monkeypatch)
    script = tmp_path / "train.py"
    script.write_text("import sys, torch\nx = torch.empty(int(sys.argv[1]) << 20, device='cuda:1', dtype=torch.uint8)\n")
    (found,) = cachalot.fit([str(script), "{size}"], {"size": [999, 1000, 1001]}, memory="1000MiB", context="none", devices=2)
    assert (found.pytorch, found.values) == (1000, {})
    with pytest.raises(cachalot.FitError, match="--rank 2 is not a rank of --world-size 2"):
        cachalot.fit([str(script), "{size}"], {"size": [1]}, world_size=2, rank=2)
    with pytest.raises(TypeError, match="color is no option; these are: context, devices"):
        cachalot.fit([str(script), "{size}"], {"size": [1]}, color=1)


def test_lists_stay_lists_unless_they_are_the_last() -> None:
    assert simulation._text_of([0, 1], is_last=False) == "0,1"
    assert simulation._text_of(range(2), is_last=False) == simulation._text_of([1, 0], is_last=True) == "0..1"


ESTIMATED = """
import torch
from torch import nn

model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
while True:
    model(torch.randn(4096, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_an_estimate_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_simulator(monkeypatch)
    (tmp_path / "train.py").write_text(ESTIMATED)
    estimate = cachalot.estimate(str(tmp_path / "train.py"), gpu="t4", context="200MiB")
    parameters = 8 * (1024 * 1024 + 1024) * 4 / world.MiB
    assert estimate.params_mb == pytest.approx(parameters, rel=0.01) and estimate.gradients_mb == pytest.approx(parameters, rel=0.01)
    assert estimate.optimizer_mb == pytest.approx(2 * parameters, rel=0.01)
    assert estimate.activations_mb == pytest.approx(8 * 16, rel=0.01)
    assert estimate.total_mb == estimate.reserved_mb + 200 and estimate.context_mb == 200
    assert estimate.reserved_mb >= estimate.allocated_mb and (estimate.gpu, estimate.steps, estimate.exact) == ("t4", 2, True)
    assert estimate.fits() and estimate.fits("L4") and estimate.fits("NVIDIA L4", "page_heap")
    with pytest.raises(ValueError, match="'voodoo' is not a known GPU: `cachalot gpus` lists them"):
        estimate.fits("voodoo")
    with pytest.raises(ValueError, match="PyTorch as installed here has no kernels for k80|'k80' is not a known GPU"):
        estimate.fits("k80")
    with pytest.raises(ValueError, match="policy 'best' is not known: pytorch, expandable_segments and page_heap are"):
        estimate.fits("l4", "best")


def test_an_estimate_of_what_fits_on_some_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_simulator(monkeypatch)
    code = "import torch; x = [torch.empty(1 << 30, dtype=torch.uint8, device=f'cuda:{i % 2}') for i in range(40)]"
    estimate = cachalot.estimate(["-c", code], devices=2, context="none")
    assert estimate.total_mb == estimate.reserved_mb == 20 * 1024
    assert estimate.fits("l4") and not estimate.fits("t4"), "20 GiB on each of two"


def test_what_cannot_be_estimated_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_simulator(monkeypatch)
    for error, program, options in (
        ("^the program ended with an error of type ValueError at <string>:1: too few$", ["-c", "raise ValueError('too few')"], {}),
        ("^the program ended with exit code 7$", ["sh", "-c", "exit 7"], {}),
        ("^the program did not use the GPU with PyTorch$", ["true"], {}),
        ("^'voodoo' is not a known GPU", ["true"], {"gpu": "voodoo"}),
        ("^the program ended with an error of type OutOfMemoryError at <string>:1: CUDA out of memory",
         ["-c", "import torch; torch.empty(1 << 30, device='cuda')"], {"memory": "512MiB", "context": "none"}),
    ):
        with pytest.raises(cachalot.EstimateError, match=error):
            cachalot.estimate(program, **options)


MODEL = """
import functools, sys
import cachalot, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8)))

    def forward(self, x, scale=1.0):
        return self.layers(x) * scale

def of_output(output):
    return output.square().mean()
"""


def test_an_estimate_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL + """
if __name__ == "__main__":
    with torch.device("meta"):
        model, x = Net(), torch.empty(4096, 1024)
    for optimizer, loss in ((torch.optim.AdamW, None), (functools.partial(torch.optim.SGD, lr=0.1), of_output), (None, None)):
        one = cachalot.estimate_memory(model, {"x": x, "scale": 2.0}, optimizer, loss)
        print(round(one.params_mb), round(one.gradients_mb), round(one.optimizer_mb), one.fits("l4"), next(model.parameters()).is_meta)
""")
    (tmp_path / "bare.py").write_text(MODEL + "cachalot.estimate_memory(Net(), torch.empty(4096, 1024), torch.optim.AdamW)\n")
    done = subprocess.run([sys.executable, str(tmp_path / "model.py")], env=own_environment(), capture_output=True, text=True, timeout=120)
    assert done.stdout.split("\n")[:3] == ["32 32 64 True True", "32 32 0 True True", "32 0 0 True True"], done.stderr
    done = subprocess.run([sys.executable, str(tmp_path / "bare.py")], env=own_environment(), capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "guard the call there by `if __name__ == \"__main__\":`" in done.stderr.strip().split("\n")[-1]


def test_a_model_that_cannot_be_estimated_is_told() -> None:
    import torch

    with pytest.raises(cachalot.EstimateError, match="^the optimizer cannot be pickled: "):
        cachalot.estimate_memory(torch.nn.Linear(1, 1), torch.empty(1, device="meta"), lambda parameters: None)
    with pytest.raises(cachalot.EstimateError, match="^a loss needs an optimizer"):
        cachalot.estimate_memory(torch.nn.Linear(1, 1), torch.empty(1, device="meta"), loss=torch.sum)


def test_sigterm_ends_the_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import sys, time\nopen(sys.argv[1], 'w').close()\ntime.sleep(300)\n")
    command = [COMMAND, "fit", "--vary", "batch=1,2", sys.executable, "train.py", "begun-{batch}"]
    with subprocess.Popen(command, cwd=tmp_path, env=own_environment(), stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: (tmp_path / "begun-1").exists() and (tmp_path / "begun-2").exists())
        children = running_children(process.pid)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 2 and "interrupted" in process.stderr.read()
    assert len(children) == 2
    wait_for(lambda: not any(map(is_running, children)))


def wait_for(condition) -> None:
    latest = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < latest
        time.sleep(0.05)


def running_children(process: int) -> list[int]:
    return [int(child) for thread in Path(f"/proc/{process}/task").iterdir() for child in (thread / "children").read_text().split()]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a Dask scheduler with two workers, which are processes."""
    distributed = pytest.importorskip("distributed", reason="needs the package distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def test_runs_on_the_workers_of_a_dask_scheduler_answer_as_runs_here(tmp_path: Path, scheduler: str) -> None:
    options = ["--gpu", "l4", "--vary", "batch=100,400,600,700,900"]
    here, _ = fit(tmp_path, TAKES, *options)
    there, _ = fit(tmp_path, TAKES, *options, "--scheduler", scheduler)
    assert there["results"] == here["results"]


def test_what_a_worker_cannot_do_is_told(tmp_path: Path, scheduler: str) -> None:
    environment = own_environment() | {"CACHALOT_PYTHON": sys.executable}  # it asks the scheduler

    def refusal(*words: str) -> str:
        done = subprocess.run([COMMAND, "fit", "--vary", "batch=1,2", *words], cwd=tmp_path, env=environment, capture_output=True,
                              text=True, timeout=120)
        assert done.returncode == 2 and done.stderr.startswith("cachalot: ")
        return done.stderr

    assert "'no_such_program' cannot be run" in refusal("--scheduler", scheduler, "no_such_program", "{batch}")
    assert "ended with exit code 7; its last lines: told" in refusal("--scheduler", scheduler, "sh", "-c", "echo told; exit 7",
                                                                     "{batch}")
    assert "the Dask scheduler at nowhere does not answer: missing port" in refusal("--scheduler", "nowhere", "true", "{batch}")
