"""Real models use as much memory on cachalot as on PyTorch's own allocator: the same peaks to the byte.

On the page heap they hold no more than on PyTorch's expandable segments, which round sizes alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import world
from models import MODELS

PROGRAM = Path(__file__).parent / "models.py"

pytestmark = world.full_only


def peaks(mode: str, name: str) -> dict[str, int]:
    environment = os.environ | {"CACHALOT_SIM_LATENCY": "none", "CACHALOT_SIM_MEMORY": "80GiB"}
    if mode == "native" and world.PAGES:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    command = [sys.executable, str(PROGRAM), mode, name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{name} on {mode}: {done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", MODELS)
def test_a_model_needs_the_same_memory(name: str) -> None:
    with ThreadPoolExecutor(2) as workers:
        native, full = workers.map(lambda mode: peaks(mode, name), ("native", "full"))
    assert native["allocated_bytes.all.peak"] > 32 << 20, "the model did not run"
    if world.PAGES:
        assert full["reserved_bytes.all.peak"] <= native["reserved_bytes.all.peak"]
        same = ("allocated_bytes.all.peak", "allocation.all.allocated")
        assert [full[key] for key in same] == [native[key] for key in same]
    else:
        assert full == native
