"""Files that `cachalot convert` writes, in the hands of those that read them: Python's pickle and PyTorch's viewer."""

import pathlib
import pickle
import pickletools
import subprocess
import sys

import pytest
import world
from torch.cuda import _memory_viz

pytestmark = [world.not_native, world.not_pages]

SNAPSHOT = pathlib.Path(__file__).resolve().parents[2] / "data" / "snapshots" / "layers.pickle"

# The opcodes of PyTorch's memory_viz (torch/utils/viz/MemoryViz.js) that are of protocol 4.
VIEWER_KNOWS = {
    "PROTO", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND",
    "APPENDS", "TUPLE2", "BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINUNICODE", "BINUNICODE", "NEWTRUE", "NEWFALSE", "NONE",
}  # fmt: skip


def convert(*arguments):
    return subprocess.run([sys.executable, "-m", "cachalot", "convert", *arguments], capture_output=True, text=True)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    path = tmp_path_factory.mktemp("converted") / "layers.pickle"
    assert convert(SNAPSHOT, "-o", path).returncode == 0
    return path


def test_a_snapshot_is_a_pickle_of_protocol_4_that_builds_data_alone(converted):
    opcodes = {opcode.name for opcode, _, _ in pickletools.genops(converted.read_bytes())}
    assert opcodes <= VIEWER_KNOWS
    assert next(pickletools.genops(converted.read_bytes()))[1] == 4


def test_a_snapshot_has_what_pytorch_wrote(converted):
    original, again = pickle.loads(SNAPSHOT.read_bytes()), pickle.loads(converted.read_bytes())
    assert again["segments"] == sorted(original["segments"], key=lambda segment: segment["device"])
    assert len(again["device_traces"]) == len(original["device_traces"])
    for entry, before in zip(again["device_traces"][0], original["device_traces"][0], strict=True):
        assert {key: value for key, value in entry.items() if key != "pool_id"} == before
        assert entry["pool_id"] == (0, 0)
    assert set(again) == set(original)


def test_pytorchs_viewer_takes_a_snapshot(converted):
    original, again = pickle.loads(SNAPSHOT.read_bytes()), pickle.loads(converted.read_bytes())
    assert _memory_viz.trace(again) == _memory_viz.trace(original)
    assert _memory_viz.segsum(again) == _memory_viz.segsum(original)
    lines = lambda function, data: function(data, format_flamegraph=str)  # noqa: E731  # without the script of flame graphs
    assert lines(_memory_viz.memory, again) == lines(_memory_viz.memory, original)
    assert lines(_memory_viz.segments, again) == lines(_memory_viz.segments, original)
    assert "snapshot.pickle" in _memory_viz.trace_plot(again) and "snapshot.pickle" in _memory_viz.segment_plot(again)


def test_a_file_that_is_none_leaves_nothing_behind(tmp_path):
    (tmp_path / "bad.pickle").write_bytes(b"\x80\x04cos\nsystem\n.")
    assert convert(tmp_path / "bad.pickle", "-o", tmp_path / "out.pickle").returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["bad.pickle"]
