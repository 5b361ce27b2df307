"""Files that `cachalot convert` writes, in the hands of those that read them: Python's pickle, PyTorch's viewer, pyarrow."""

import importlib.util
import os
import pathlib
import pickle
import pickletools
import subprocess
import sys

import pytest
import world
from torch.cuda import _memory_viz

pytestmark = [world.not_native, world.not_pages]

needs_pyarrow = pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is not installed")

SNAPSHOT = pathlib.Path(__file__).resolve().parents[2] / "data" / "snapshots" / "layers.pickle"

# The opcodes of PyTorch's memory_viz (torch/utils/viz/MemoryViz.js) that are of protocol 4.
VIEWER_KNOWS = {
    "PROTO", "STOP", "MARK", "MEMOIZE", "BINGET", "LONG_BINGET", "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND",
    "APPENDS", "TUPLE2", "BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINUNICODE", "BINUNICODE", "NEWTRUE", "NEWFALSE", "NONE",
}  # fmt: skip


def convert(*arguments, **variables):
    command = [sys.executable, "-m", "cachalot", "convert", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables})


def program(path, text):
    """Writes a program in C, which takes the command's place: a script would not."""
    (path.parent / "program.c").write_text(text)
    subprocess.run(["cc", "-o", path, path.parent / "program.c"], check=True)
    return str(path)


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


@needs_pyarrow
@pytest.mark.parametrize("output", ["", "-", "/", ".", "/dev/null", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "x" * 5000])
def test_parquet_is_written_to_files_alone(tmp_path, output):
    ended = convert(SNAPSHOT, "--to", "parquet", "-o", output)
    assert ended.returncode == 2 and ended.stderr.count("\n") == 1 and f"-o {output[:10]}" in ended.stderr
    assert ended.stdout == "" and len(ended.stderr) < 5200
    assert not pathlib.Path("-").exists() and pathlib.Path("/dev/null").is_char_device()


@needs_pyarrow
def test_parquet_does_not_take_the_place_of_what_standard_output_is(tmp_path):
    with (tmp_path / "out").open("w") as out:
        command = [sys.executable, "-m", "cachalot", "convert", SNAPSHOT, "--to", "parquet", "-o", "/dev/stdout"]
        ended = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True)
    assert ended.returncode == 2 and "-o /dev/stdout: there is something else than a file" in ended.stderr
    assert (tmp_path / "out").read_text() == ""


@needs_pyarrow
def test_parquet_does_not_replace_its_input(tmp_path):
    source = tmp_path / "layers.parquet"
    source.write_bytes(SNAPSHOT.read_bytes())
    (tmp_path / "link.parquet").symlink_to(source)
    for output in (source, tmp_path / "link.parquet"):
        ended = convert(source, "-o", output)
        assert ended.returncode == 2 and "would be lost" in ended.stderr
    assert source.read_bytes() == SNAPSHOT.read_bytes()
    ended = convert("missing.parquet", "-o", "missing.parquet")
    assert ended.returncode == 2 and "-o missing.parquet: another argument names this file, which would be lost" in ended.stderr


@needs_pyarrow
def test_a_file_that_cannot_be_written_is_told_in_words(tmp_path):
    ended = convert(SNAPSHOT, "-o", "missing/out.parquet")
    assert ended.returncode == 2
    assert ended.stderr == "cachalot: -o missing/out.parquet: cannot write the file: No such file or directory\n"
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        f"sys.argv = ['', 'convert', {str(SNAPSHOT)!r}, '-o', 'out.parquet']; from cachalot.__main__ import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, cwd=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr == "cachalot: -o out.parquet: cannot write the file: File too large\n"
    assert list(tmp_path.iterdir()) == []


@needs_pyarrow
def test_a_file_may_have_a_name_that_is_no_text(tmp_path):
    output = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.parquet")
    ended = convert(SNAPSHOT, "-o", output)
    assert (ended.returncode, ended.stderr) == (0, "") and os.path.isfile(output)


@needs_pyarrow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("int main() { return 0; }", "the table of the allocations cannot be read: Empty CSV file"),
        ('#include <stdio.h>\nint main() { puts("device,address\\n1"); return 0; }', "the table of the allocations cannot be read"),
        ("#include <signal.h>\nint main() { return raise(SIGKILL); }", "the command ended with signal 9"),
        ('#include <stdio.h>\nint main() { puts("device\\n1"); return 3; }', "the command ended with the exit code 3"),
    ],
)
def test_a_command_that_fails_is_told_in_words(tmp_path, text, message):
    ended = convert(SNAPSHOT, "-o", tmp_path / "out.parquet", CACHALOT_COMMAND=program(tmp_path / "command", text))
    assert ended.returncode == 2 and message in ended.stderr and ended.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*.part")) and not (tmp_path / "out.parquet").exists()
