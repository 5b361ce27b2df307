"""`cachalot advise` on PyTorch programs, and on the workers of a Dask scheduler."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import world
from test_simulate import COMMAND, own_environment

pytestmark = [world.full_only, world.not_pages, pytest.mark.skipif(not COMMAND, reason="needs the cachalot command")]

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "data" / "traces"

# Records its own history, which alone describes it.
RECORDED = """
import sys, torch
torch.cuda.memory._record_memory_history()
tensors = [torch.empty(size << 18, device='cuda') for size in (3, 9, 30, 5, 17, 2)]
del tensors[1::2]
tensors += [torch.empty(size << 18, device='cuda') for size in (24, 8, 31)]
with torch.cuda.stream(torch.cuda.Stream()):
    tensors.append(torch.empty(7 << 18, device='cuda'))
torch.cuda.memory._dump_snapshot(sys.argv[1])
print(torch.cuda.max_memory_reserved())
"""


def advise(*words: str | Path, code: int = 0, **environment: str) -> list[dict]:
    command = [COMMAND, "advise", "--json", "--no-times", *map(str, words)]
    done = subprocess.run(command, env=own_environment() | environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def native(advice: dict) -> dict:
    return next(one for one in advice["policies"] if one["policy"] == "native")


def test_the_replay_of_pytorchs_policy_reserves_what_the_history_and_the_program_tell(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshot.pickle"
    done = world.run_python(RECORDED, preamble="", arguments=[str(snapshot)], fresh=True)
    reserved = int(world.succeeds(done))
    (advice,) = advise(snapshot)
    assert advice["recorded_reserved_bytes"] == reserved
    assert native(advice)["peak_reserved_bytes"] == reserved


def test_a_program_is_run_and_replayed(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys, torch\nx = [torch.empty(int(sys.argv[1]) << 18, device='cuda') for _ in range(4)]\n")
    (advice,) = advise("--gpu", "t4", "--", sys.executable, script, "3")
    assert advice["recorded_reserved_bytes"] == native(advice)["peak_reserved_bytes"] == 20 * world.MiB
    assert advice["on"]["gpu"] == "t4" and native(advice)["gpus"] == ["t4"]


def test_what_is_promised_is_what_a_run_with_the_setting_reserves(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("bench_advise", ROOT / "bench" / "advise.py")
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    program = next(path for path in bench.write_programs(tmp_path) if path.stem == "streams")
    settings = ("expandable_segments:True", "garbage_collection_threshold:0.8", "roundup_power2_divisions:4")
    for policy, promised, real in bench.compare(COMMAND, sys.executable, program, settings):
        assert abs(promised - real) <= bench.MOST_PERCENT / 100 * real, policy


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a Dask scheduler with two workers, which are processes."""
    distributed = pytest.importorskip("distributed", reason="needs the package distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster:
        yield cluster.scheduler_address


def test_workers_answer_as_this_machine(tmp_path: Path, scheduler: str) -> None:
    broken = tmp_path / "broken.pickle"
    broken.write_bytes(b"\x80\x04}")
    files = [str(TRACES / "frag_toy.csv.gz"), str(broken), str(TRACES / "lsm.csv.gz"), str(tmp_path / "missing.csv")]

    def lines(*options: str) -> list[str]:
        environment = own_environment() | {"CACHALOT_PYTHON": sys.executable}  # it asks the scheduler
        done = subprocess.run([COMMAND, "advise", "--json", "--no-times", "--gpu", "l4", *options, *files], env=environment,
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    here = lines()
    assert ["error" in json.loads(line) for line in here] == [False, True, False, True]
    assert lines("--scheduler", scheduler) == here
    assert lines("--scheduler", scheduler, "--send-files") == here


def test_a_scheduler_that_does_not_answer_is_told() -> None:
    done = subprocess.run([COMMAND, "advise", "--scheduler", "nowhere", TRACES / "lsm.csv.gz"], capture_output=True, text=True,
                          env=own_environment() | {"CACHALOT_PYTHON": sys.executable}, timeout=120)
    if "package distributed" in done.stderr:
        pytest.skip("needs the package distributed")
    assert done.returncode == 2 and "the Dask scheduler at nowhere does not answer" in done.stderr
