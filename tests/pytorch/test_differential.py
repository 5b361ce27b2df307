"""Runs a random program under PyTorch's allocator and under cachalot: the figures are equal after every step.

On the page heap: the figures of live memory, and of PyTorch's expandable segments, which round sizes alike.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import world

PROGRAM = Path(__file__).parent / "differential_program.py"
STEPS = int(os.environ.get("CACHALOT_DIFFERENTIAL_STEPS", "2000"))
SEEDS = range(int(os.environ.get("CACHALOT_DIFFERENTIAL_SEEDS", "3")))

# The figures that do not tell where memory lies. Small blocks may lie beside large ones: then they count as large.
OF_WHAT_LIVES = tuple(
    f"{name}.all." for name in ("allocation", "allocated_bytes", "active", "active_bytes", "requested_bytes")
) + ("num_ooms",)

pytestmark = world.full_only


def compared(record: dict) -> dict:
    """The part of a step's record that must be the same."""
    if not world.PAGES:
        return {"stats": record["stats"], "snapshot": record.get("snapshot")}
    return {"stats": {key: value for key, value in record["stats"].items() if key.startswith(OF_WHAT_LIVES)}}


def run(mode: str, seed: int, out: Path) -> None:
    environment = world.simulated(latency="none", launch_ns=10**12, memory="80GiB")
    command = [sys.executable, PROGRAM, mode, seed, STEPS, out]
    if world.PAGES:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        done = world.run([*command, "expandable"], timeout=1200, **environment)
    else:
        done = world.run_quickly(command, timeout=1200, **environment)
    world.succeeds(done)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_step_leaves_the_same_statistics(seed: int, tmp_path: Path) -> None:
    outs = {mode: tmp_path / f"{mode}.jsonl" for mode in ("native", "full")}
    for mode, out in outs.items():
        run(mode, seed, out)
    before: list[str] = []
    with open(outs["native"], encoding="utf-8") as native, open(outs["full"], encoding="utf-8") as full:
        for expected_line, actual_line in zip(native, full, strict=True):
            expected, actual = json.loads(expected_line), json.loads(actual_line)
            before = [*before[-9:], expected["did"]]
            assert actual["did"] == expected["did"]
            assert actual["stats"].keys() == expected["stats"].keys()
            step = f"seed {seed}, step {expected['step']}"
            expected, actual = compared(expected), compared(actual)
            differing = {
                key: (value, actual["stats"][key])
                for key, value in expected["stats"].items()
                if actual["stats"][key] != value
            }
            assert not differing, f"{step} (native, cachalot) after {before}: {differing}"
            assert actual == expected, step
