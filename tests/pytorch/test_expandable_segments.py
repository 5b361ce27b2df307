"""The recorded figures of PyTorch's expandable segments, which `cachalot compare` must reach, are PyTorch's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import world

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = os.environ.get("CACHALOT_COMMAND")


@world.full_only
@world.not_pages
@pytest.mark.skipif(not COMMAND, reason="needs the build folder of the cachalot command")
@pytest.mark.skipif(not torch.__version__.startswith("2.11."), reason="the figures are PyTorch 2.11's")
def test_what_is_recorded_is_what_pytorch_holds() -> None:
    program = [sys.executable, str(ROOT / "bench/pytorch/expandable_segments.py"), "--check"]
    build = Path(COMMAND or "").parent.parent
    options = ["--build", str(build), "--python", sys.executable, "--only", "lsm,streams,frag_toy"]
    done = subprocess.run(program + options, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@world.full_only
@world.not_pages
@pytest.mark.parametrize(("arguments", "rule"), [
    (["--steps", "-1"], "argument --steps: -1 is no number of steps: it must be a whole number, at least 1"),
    (["--steps", "some"], "argument --steps: some is no number of steps: it must be a whole number, at least 1"),
    (["--build", "/none"], "--build /none has no simulator/libcachalot_simulator.so: build it with"),
])
def test_bad_arguments_of_the_grpo_program_are_refused(arguments: list[str], rule: str) -> None:
    process = world.run([sys.executable, ROOT / "bench/grpo.py", *arguments])
    assert process.returncode == 2 and f"grpo.py: error: {rule}" in process.stderr
