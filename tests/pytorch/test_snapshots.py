"""`cachalot snapshot` and `cachalot replay` on what torch.cuda.memory._dump_snapshot writes, of either allocator."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from pathlib import Path

import pytest
import torch
import world

COMMAND = os.environ.get("CACHALOT_COMMAND")

pytestmark = [world.not_plug, pytest.mark.skipif(not COMMAND, reason="needs the cachalot command")]

MiB = 1 << 20


def command(*arguments: str) -> dict:
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def kept_weights() -> list[torch.Tensor]:
    return [world.bytes_on_gpu(3 * MiB), world.bytes_on_gpu(30 * MiB), world.bytes_on_gpu(1000)]


@pytest.fixture
def snapshot(tmp_path: Path):
    """A snapshot's path, while what is in it lives; the history began after the first of the tensors."""
    before = world.bytes_on_gpu(5 * MiB)
    torch.cuda.memory._record_memory_history(stacks="python")
    kept = kept_weights()
    dropped = world.bytes_on_gpu(7 * MiB)
    del dropped
    path = tmp_path / "snapshot.pickle"
    torch.cuda.memory._dump_snapshot(str(path))
    yield str(path)
    del before, kept


def test_its_figures_are_torchs(snapshot: str) -> None:
    (device,) = command("snapshot", "--json", snapshot)["devices"]
    stats = torch.cuda.memory_stats()
    assert device["allocated_bytes"] == stats["allocated_bytes.all.current"]
    assert device["requested_bytes"] == stats["requested_bytes.all.current"]
    assert device["reserved_bytes"] == stats["reserved_bytes.all.current"]
    assert device["segments"] == stats["segment.all.current"] or world.PAGES
    assert device["live_blocks"] == stats["active.all.current"] == 4


def test_places_are_those_of_the_program(snapshot: str) -> None:
    (device,) = command("snapshot", "--json", snapshot)["devices"]
    largest = device["sites"][0]
    assert largest["file"].endswith("world.py") and largest["function"] == "bytes_on_gpu"
    assert largest["bytes"] >= 33 * MiB and largest["blocks"] == 3
    assert {site["file"] for site in device["sites"]} >= {""}, "what was there before has no stack"


def test_its_history_is_replayed(snapshot: str) -> None:
    replayed = command("replay", "--json", "--check-hazards", snapshot)
    assert replayed["events"] == 4 + 2  # four that live, one of them from before, and one that came and went
    assert replayed["ooms"] == 0
    assert replayed["peak_requested_bytes"] == torch.cuda.memory_stats()["requested_bytes.all.peak"]


def test_a_pickle_that_runs_something_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path}/owned",)

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path = tmp_path / "evil.pickle"
        path.write_bytes(pickle.dumps({"segments": [], "device_traces": [Evil()]}, protocol))
        for action in ("snapshot", "replay"):
            done = subprocess.run([COMMAND, action, str(path)], capture_output=True, text=True)
            assert done.returncode == 2 and "GLOBAL is refused" in done.stderr, done.stderr
            assert done.stderr.count("\n") == 1
    assert not (tmp_path / "owned").exists()
