"""The PyTorch examples in parts: options, tables, relations, and what a report says.

Each one as a whole is a test of ctest. The process runs on the simulated CUDA runtime, preloaded, or on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = ("gradient_accumulation", "mixed_precision", "cleanup", "memory_report", "saved_tensors")
sys.path[:0] = [str(EXAMPLES / name) for name in NAMES]

import cleanup  # noqa: E402
import gradient_accumulation  # noqa: E402
import memory_report  # noqa: E402
import mixed_precision  # noqa: E402
import saved_tensors  # noqa: E402
import torch  # noqa: E402
from common import gpu, table  # noqa: E402

MIB = 1 << 20
SMALL = ("--batch", "2", "--length", "8", "--width", "64", "--layers", "1")


@pytest.fixture(scope="module")
def on_cachalot() -> str:
    return gpu.start()


@pytest.fixture
def fresh(on_cachalot: str) -> None:
    gpu.begin_anew()
    assert torch.cuda.memory_allocated() == 0


def bytes_on_gpu(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device="cuda")


def run(name: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", EXAMPLES / name / f"{name}.py", *map(str, arguments)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "example, arguments, rule",
    [
        (gradient_accumulation, "--batch 0", "--batch: is '0'; it must be a whole number of 1 or more"),
        (gradient_accumulation, "--batch x", "--batch: is 'x'; it must be a whole number of 1 or more"),
        (gradient_accumulation, "--batch 6", "--micro-batches: is 4; it must divide --batch, 6"),
        (mixed_precision, "--width 100", "--width: is 100; it must be a multiple of 64"),
        (mixed_precision, "--layers -1", "--layers: is '-1'; it must be a whole number of 1 or more"),
        (saved_tensors, "--card 0", "--card: is '0'; it must be a whole number of 1 or more"),
        (saved_tensors, "--min-bytes -1", "--min-bytes: is '-1'; it must be a whole number of 0 or more"),
        (cleanup, "--most-cached 0", "--most-cached: is '0'; it must be a whole number of 1 or more"),
        (cleanup, "--leave-free 1.5", "--leave-free: is '1.5'; it must be a whole number of 0 or more"),
        (memory_report, "--steps 0", "--steps: is '0'; it must be a whole number of 1 or more"),
        (memory_report, "nowhere.py", "program: 'nowhere.py' is not a file"),
        (memory_report, "--json /nowhere/report.json", "--json: '/nowhere' is not a folder"),
    ],
)
def test_a_bad_option_is_one_error_with_value_and_rule(example, arguments, rule, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        example.parse(arguments.split())
    assert stopped.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: argument {rule}")


def test_the_columns_of_a_table_are_as_wide_as_they_must_be() -> None:
    assert table.lines(["name", "bytes"], ["a", "1,000,000"]) == ["name      bytes", "a     1,000,000"]


def test_a_relation_that_does_not_hold_ends_the_program_with_its_figures(capsys) -> None:
    relations = table.Relations()
    relations.equal("near", 104, 100, tolerance=0.05)
    relations.less("less", 1, 2)
    relations.at_most("as much", 2, 2)
    relations.finish()
    assert capsys.readouterr().out == "3 relations hold\n"
    relations.equal("far", 1060, 1000, tolerance=0.05)
    relations.less("equal", 2, 2)
    relations.at_most("more", 3, 2)
    with pytest.raises(SystemExit, match="far: 1,060 = 1,000 .up to 5%.\n.*equal: 2 < 2\n.*more: 3 <= 2"):
        relations.finish()


def test_pressure_is_a_large_cache_or_little_free_memory(fresh) -> None:
    def pressed(most_cached: int, leave_free: int) -> bool:
        return cleanup.under_pressure(argparse.Namespace(most_cached=most_cached, leave_free=leave_free))

    bytes_on_gpu(64 * MIB)
    free_mib = torch.cuda.mem_get_info()[0] // MIB
    assert pressed(most_cached=63, leave_free=0)
    assert not pressed(most_cached=64, leave_free=0)
    assert not pressed(most_cached=64, leave_free=free_mib)
    assert pressed(most_cached=64, leave_free=free_mib + 1)


def test_a_report_tells_what_is_live_cached_and_was_at_most(fresh) -> None:
    kept, freed = bytes_on_gpu(30 * MIB - 100), bytes_on_gpu(50 * MIB)
    del freed
    (before,) = memory_report.measure().devices
    memory_report.reset_peaks()
    report = memory_report.measure()
    (device,) = report.devices
    assert (device.requested, device.allocated, device.reserved) == (kept.nbytes, 30 * MIB, 80 * MIB)
    assert (before.peak_requested, before.peak_allocated) == (kept.nbytes + 50 * MIB, 80 * MIB)
    assert (device.peak_requested, device.peak_allocated, device.peak_reserved) == (kept.nbytes, 30 * MIB, 80 * MIB)
    assert device.internal_fragmentation == 1 - kept.nbytes / (30 * MIB)
    assert (device.largest_free, device.external_fragmentation) == (50 * MIB, 0)
    assert ["external", "fragmentation", "0.00%"] in map(str.split, memory_report.as_table(report).splitlines())
    memory_report.check(report)


def test_a_program_that_exits_is_reported_with_what_it_held(tmp_path: Path) -> None:
    program, figures = tmp_path / "program.py", tmp_path / "report.json"
    program.write_text(
        "import sys, torch\n"
        "held = torch.empty(3 << 20, dtype=torch.uint8, device='cuda')\n"
        "sys.exit(int(sys.argv[1]))\n"
    )
    done = run("memory_report", "--json", figures, "--native", program, 3)
    assert (done.returncode, done.stderr) == (3, "")
    assert "PyTorch's own allocator" in done.stdout and "only cachalot knows" in done.stdout
    (device,) = json.loads(figures.read_text())["devices"]
    assert (device["requested"], device["largest_free"]) == (3 << 20, None)


@pytest.mark.parametrize("name", ["gradient_accumulation", "mixed_precision"])
def test_the_relations_hold_on_pytorchs_own_allocator_and_for_small_work(name: str) -> None:
    accumulated = ("--micro-batches", 2) if name == "gradient_accumulation" else ()
    done = run(name, "--native", *SMALL, *accumulated)
    assert done.returncode == 0, done.stderr
    assert "PyTorch's own allocator" in done.stdout and "relations hold" in done.stdout


def test_cleanup_ends_as_a_process_of_its_own_ended() -> None:
    done = run("cleanup", CACHALOT_CONF="heap:neither")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cachalot: ") and "neither" in done.stderr


def test_without_a_gpu_an_example_says_so_in_one_line() -> None:
    done = run("memory_report", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 1
    assert done.stderr == "no GPU is found; `cachalot simulate python …` runs this on a simulated one\n"
