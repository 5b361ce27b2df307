"""Files that `cachalot convert` writes, in the hands of those that read them: Python's pickle, PyTorch's viewer, pyarrow."""

import importlib.util
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


def test_parquet_needs_pyarrow(tmp_path):
    output = tmp_path / "layers.parquet"
    ended = convert(SNAPSHOT, "-o", output)
    if importlib.util.find_spec("pyarrow") is None:
        assert ended.returncode == 2 and "pyarrow" in ended.stderr and not output.exists()
        return
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(output)
    assert ended.returncode == 0 and table.num_rows > 0
    assert "place" in table.column_names and str(table.schema.field("bytes").type) == "uint64"


def test_a_file_that_is_none_leaves_nothing_behind(tmp_path):
    (tmp_path / "bad.pickle").write_bytes(b"\x80\x04cos\nsystem\n.")
    for output in ("out.pickle", "out.parquet"):
        assert convert(tmp_path / "bad.pickle", "-o", tmp_path / output).returncode == 2
    assert [path.name for path in tmp_path.iterdir()] == ["bad.pickle"]


def test_parquet_is_asked_for_by_the_output_alone(tmp_path):
    source = tmp_path / "named.parquet"  # a snapshot with a strange name
    source.write_bytes(SNAPSHOT.read_bytes())
    assert convert(source, "-o", tmp_path / "out.csv").returncode == 0
    assert (tmp_path / "out.csv").read_text().startswith("device,")
    assert convert(source, "--to", "csv", "-o", tmp_path / "csv.parquet").returncode == 0
    assert (tmp_path / "csv.parquet").read_text().startswith("device,")


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
@pytest.mark.parametrize("output", ["-", "/", ".", "/dev/null", "x" * 5000])
def test_parquet_is_written_to_files_alone(tmp_path, output):
    ended = convert(SNAPSHOT, "--to", "parquet", "-o", output)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1 and output[:10] in ended.stderr
    assert not pathlib.Path("-").exists() and pathlib.Path("/dev/null").is_char_device()


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_parquet_does_not_replace_its_input(tmp_path):
    source = tmp_path / "layers.parquet"
    source.write_bytes(SNAPSHOT.read_bytes())
    (tmp_path / "link.parquet").symlink_to(source)
    for output in (source, tmp_path / "link.parquet"):
        ended = convert(source, "-o", output)
        assert ended.returncode == 2 and "would be lost" in ended.stderr
    assert source.read_bytes() == SNAPSHOT.read_bytes()
