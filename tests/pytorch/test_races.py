"""Tests of `cachalot simulate --races`: each race of race_programs.py is found, and nothing else is reported."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path

import pytest
import world
from test_simulate import simulate

COMMAND = os.environ.get("CACHALOT_COMMAND")
PROGRAMS = Path(__file__).with_name("race_programs.py")
PLACES = ("allocated_at", "used_at", "freed_at", "reallocated_at", "reused_at")

pytestmark = [world.full_only, world.not_pages, pytest.mark.skipif(not COMMAND, reason="needs the cachalot command")]


def program_of(place: str | None) -> str | None:
    """The function of race_programs.py that has a place: "train.py:42 in work", as the program is called that runs."""
    found = re.search(r"train\.py:(\d+)", place or "")
    line = int(found[1]) if found else 0
    functions = [one for one in ast.parse(PROGRAMS.read_text()).body if isinstance(one, ast.FunctionDef)]
    return next((one.name for one in functions if one.lineno <= line <= (one.end_lineno or 0)), place)


def races_of(report: dict) -> list[dict]:
    (process,) = report["processes"]
    return process["torch"]["races"]


def planted() -> set[str]:
    return set(re.findall(r"^def (bad_\w+)", PROGRAMS.read_text(), re.MULTILINE))


@pytest.mark.parametrize("first_line", ["", "import cachalot; cachalot.enable()"], ids=["pytorch", "cachalot"])
def test_each_race_is_found_and_no_other(tmp_path: Path, first_line: str) -> None:
    future = "from __future__ import annotations"
    done, report = simulate(tmp_path, PROGRAMS.read_text().replace(f"{future}\n", f"{future}; {first_line}\n", 1), "--races")
    assert done.returncode == 3, done.stderr
    told = {program_of(race[place]) for race in races_of(report) for place in PLACES}
    assert len(planted()) >= 30
    assert planted() - told == set(), "not found"
    assert {name for name in told if name is not None and name.startswith("ok_")} == set(), "no race"


PREFETCHER = """
import torch
side, main = torch.cuda.Stream(), torch.cuda.current_stream()
host = torch.ones(1 << 20, pin_memory=True)

def load():
    with torch.cuda.stream(side):
        return host.to("cuda", non_blocking=True)

def step(batch):
    main.wait_stream(side)
    {use}
    return batch.sum()

for _ in range(3):
    step(load())
"""


def test_a_prefetcher_without_record_stream(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, PREFETCHER.format(use="pass"), "--races")
    assert done.returncode == 3
    (race,) = races_of(report)
    assert race == {
        "bytes": 4 << 20, "times": 2, "missing": "record_stream", "allocated_for": "stream 1",
        "used_on": "the default stream", "reused_on": "stream 1", "allocated_at": "train.py:8 in load",
        "used_at": "train.py:13 in step", "freed_at": "train.py:16 in <module>", "reallocated_at": "train.py:8 in load",
        "reused_at": "train.py:8 in load"}
    assert "4.00 MiB that the default stream uses at train.py:13 in step may be overwritten by stream 1 at train.py:8 in load" in done.stderr
    assert "missing: record_stream with the default stream, before the free, or a wait" in done.stderr


def test_a_prefetcher_with_record_stream(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, PREFETCHER.format(use="batch.record_stream(main)"), "--races")
    assert (done.returncode, races_of(report)) == (0, [])
    assert re.search(r"^memory races in process \d+\n  race +none$", done.stderr, re.MULTILINE)


def test_races_are_not_watched_without_the_option(tmp_path: Path) -> None:
    done, report = simulate(tmp_path, PREFETCHER.format(use="pass"))
    assert done.returncode == 0 and races_of(report) is None
    assert "memory races" not in done.stderr


def test_operations_must_be_seen() -> None:
    done = subprocess.run([COMMAND, "simulate", "--races", "--compute", "none", "-c", "pass"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "--races needs to see PyTorch's operations, which it does not with --compute none" in done.stderr


TWO_RANKS = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank())
x = torch.ones(4 << 20, device="cuda")
work = dist.all_reduce(x, async_op=True)
del x, work
for _ in range(3):
    torch.ones(4 << 20, device="cuda")
torch.cuda.synchronize()
dist.destroy_process_group()
"""


def test_collectives_keep_their_memory(tmp_path: Path) -> None:
    # PyTorch itself keeps the memory of a collective without a wait.
    done, report = simulate(tmp_path, TWO_RANKS, "--races", "--devices", "2",
                            run_with=["-m", "torch.distributed.run", "--nproc-per-node", "2"], fresh=True)
    assert done.returncode == 0, done.stderr
    assert all(process["torch"]["races"] == [] for process in report["processes"] if process["torch"])


RECOMPUTED = """
import torch
from torch.utils.checkpoint import checkpoint

layer = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64)).cuda()
for _ in range(2):
    checkpoint(layer, torch.ones(8, 64, device="cuda", requires_grad=True), use_reentrant=False).sum().backward()
"""


def test_a_recomputed_activation_ends_by_its_exception(tmp_path: Path) -> None:
    # Hooks of PyTorch in Python would clear it.
    done, report = simulate(tmp_path, RECOMPUTED, "--races")
    assert (done.returncode, races_of(report)) == (0, []), done.stderr
