"""Real models use as much memory on cachalot as on PyTorch's own allocator: the same peaks to the byte.

On the page heap they hold no more than on PyTorch's expandable segments, which round sizes alike.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import world
from models import MODELS

PROGRAM = Path(__file__).parent / "models.py"

pytestmark = world.full_only


def peaks(mode: str, name: str) -> dict[str, int]:
    environment = world.simulated(latency="none", memory="80GiB")
    command = [sys.executable, PROGRAM, mode, name]
    if mode == "native" and world.PAGES:
        done = world.run(command, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True", **environment)
    else:
        done = world.run_quickly(command, **environment)
    return json.loads(world.succeeds(done).splitlines()[-1])


@pytest.mark.parametrize("name", MODELS)
def test_a_model_needs_the_same_memory(name: str) -> None:
    native, full = peaks("native", name), peaks("full", name)
    assert native["allocated_bytes.all.peak"] > 32 << 20, "the model did not run"
    if world.PAGES:
        assert full["reserved_bytes.all.peak"] <= native["reserved_bytes.all.peak"]
        same = ("allocated_bytes.all.peak", "allocation.all.allocated")
        assert [full[key] for key in same] == [native[key] for key in same]
    else:
        assert full == native
