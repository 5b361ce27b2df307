"""CACHALOT_ON_OOM and cachalot.on_out_of_memory: programs with a planted cause, which the report names with its one recommendation.

The cause is that of `cachalot explain`; tests/analysis/failing_process_test.cpp has what the simulated device does not have."""

import json
import os
import pickle
import re
import subprocess

import pytest
from world import ENABLE_MODE, MODE, PAGES, full_only, not_native, not_plug, run_python, simulated, succeeds

pytestmark = not_native

COMMAND = os.environ.get("CACHALOT_COMMAND", "cachalot")

segments_only = pytest.mark.skipif(PAGES, reason="the page heap serves this request")
pages_only = pytest.mark.skipif(not PAGES, reason="needs the page heap")

# Programs see a device of 8 GiB. With `keep_splits` every 48 MiB of a stream are a free piece of 40 MiB and a live one.
HELPERS = """
MiB = 1 << 20

def block(mib, stream=None):
    with torch.cuda.stream(stream):
        return torch.empty(int(mib * MiB), dtype=torch.uint8, device="cuda")

def keep_splits(count, stream=None):
    pieces = []
    for _ in range(count):
        whole = block(48, stream)
        del whole
        pieces.append((block(40, stream), block(8, stream)))
    return [second for first, second in pieces]

def fails(mib, stream=None):
    try:
        block(mib, stream)
    except RuntimeError as error:
        assert "out of memory" in str(error), error
    else:
        raise AssertionError("there was enough memory")
"""


def reported(code, *, on_oom="report", temporary=None, **environment):
    """Runs a program, with a folder for temporary files, and returns the lines of its first report."""
    setup = f"import tempfile\ntempfile.tempdir = {str(temporary)!r}\n" if temporary else ""
    process = run_python(HELPERS + setup + code, CACHALOT_ON_OOM=on_oom, **environment)
    succeeds(process)
    lines = process.stderr.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("cachalot: out of memory on")), None)
    assert start is not None, f"no report:\n{process.stderr}"
    return lines[start:]


def value_of(lines, label):
    """The text behind a label, with the lines that continue it."""
    start = next(i for i, line in enumerate(lines) if re.match(rf"  {label} ", line))
    text = [lines[start].split(maxsplit=1)[1]]
    for line in lines[start + 1 :]:
        if not line.startswith(" " * 27):
            break
        text.append(line.strip())
    return " ".join(text)


def names(lines, cause, *recommended):
    assert len(lines) <= 40, len(lines)
    assert value_of(lines, "cause").startswith(cause + ":"), "\n".join(lines)
    for words in recommended:
        assert words in value_of(lines, "recommendation"), "\n".join(lines)


FRAGMENTED = "kept = keep_splits(150)\n"


@segments_only
def test_fragmentation_is_named_and_the_page_heap_serves_the_request():
    lines = reported(FRAGMENTED + "fails(2000)")
    names(lines, "fragmentation", "CACHALOT_CONF=heap:pages")
    assert any("the page heap" in line and "yes" in line for line in lines), lines
    assert any("in 150 segments of other tensors that Python holds" in line for line in lines), "who keeps the segments"
    succeeds(run_python(HELPERS + FRAGMENTED + "block(2000)", CACHALOT_CONF="heap:pages"))


@pages_only
def test_fragmentation_within_pages_is_named():
    """Each physical page of 2 MiB has a part of a live block."""
    code = "pairs = [(block(1.25), block(1.25)) for _ in range(3100)]\nkept = [second for first, second in pairs]\ndel pairs\n"
    lines = reported(code + "fails(3000)")
    names(lines, "fragmentation", "long-lived small tensors first")


@segments_only
def test_the_cache_of_another_stream_is_named():
    lines = reported("side = torch.cuda.Stream()\nkept = keep_splits(150, side)\nfails(2000)")
    names(lines, "other_stream", "heap:pages")
    assert "cached for stream 0x" in value_of(lines, "cause")


@not_plug
def test_a_private_pool_that_holds_the_cache_is_named():
    code = """
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    large = block(6000)
    del large
fails(4000)
"""
    names(reported(code), "private_pool", "use_on_oom=True")


@segments_only
@not_plug
def test_a_segment_in_which_nothing_lives_is_no_fragmentation_of_its_pool():
    code = """
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    large = block(5000)
    del large
    fails(7000)
"""
    lines = reported(code)
    names(lines, "private_pool", "CACHALOT_CONF=heap:pages")
    assert "nothing is live there" in value_of(lines, "cause")


def test_a_graph_pool_that_holds_the_cache_is_named():
    code = """
graph = torch.cuda.CUDAGraph()
result = torch.zeros(8, device="cuda")
with torch.cuda.graph(graph):
    between = torch.empty(6000 * MiB, dtype=torch.uint8, device="cuda")
    result.add_(1)
    del between
fails(4000)
"""
    names(reported(code), "graph_pools", "share one pool among graphs")


def test_a_limit_is_named():
    lines = reported("torch.cuda.set_per_process_memory_fraction(0.25)\nkept = block(1000)\nfails(2000)")
    names(lines, "limit", "cachalot.limits()", "2.93 GiB or more")
    assert any("yes  no limit: it is 2.00 GiB" in line for line in lines), lines


@segments_only
def test_a_refusal_is_named():
    code = "side = torch.cuda.Stream()\nlarge = block(6000, side)\ndel large\nfails(4000)"
    names(reported(code, CACHALOT_CONF="throw_on_cudamalloc_oom:True"), "limit", "remove throw_on_cudamalloc_oom")


def test_another_process_is_named(tmp_path):
    """It uses the same simulated device; the simulator's NVML does not say which process it is."""
    code = f"""
import subprocess, sys, time
other = subprocess.Popen([sys.executable, "-c", '''
import torch
held = torch.empty(5 << 30, dtype=torch.uint8, device="cuda")
print("ready", flush=True)
input()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={os.environ | simulated(shared=tmp_path / "device")!r})
assert other.stdout.readline() == b"ready\\n"
fails(4000)
other.communicate(b"\\n")
"""
    lines = reported(code, fresh=True, **simulated(shared=tmp_path / "device"))
    names(lines, "other_process", "nvidia-smi")
    assert any("other processes" in line and "5.0" in line for line in lines), lines


@pages_only
def test_a_tag_that_cannot_wake_is_named():
    code = """
for tag in ("weights", "kv"):
    with cachalot.region(tag):
        globals()[tag] = block(3000)
cachalot.release_physical("weights")
temporary = block(4000)
try:
    cachalot.restore_physical("weights")
except torch.OutOfMemoryError as error:
    assert "2.93 GiB of tag 'weights'" in str(error), error
else:
    raise AssertionError("there was enough memory")
"""
    lines = reported(code)
    names(lines, "asleep", "restore_physical", "'kv' (2.93 GiB)")
    assert "tag 'weights'" in value_of(lines, "cause")
    assert any(re.search(r" 0 bytes +2.93 GiB +weights$", line) for line in lines), lines


@pages_only
def test_what_sleeps_is_not_blamed_for_other_requests():
    code = """
with cachalot.region("weights"):
    weights = block(3000)
cachalot.release_physical("weights")
kept = block(6000)
fails(4000)
"""
    lines = reported(code)
    names(lines, "too_large", "less")
    assert any(re.search(r" 0 bytes +2.93 GiB +weights$", line) for line in lines), lines
    assert any(re.match(r" +5.86 GiB +1  other tensors that Python holds", line) for line in lines), lines
    assert any(re.match(r"  reserved +5.86 GiB", line) for line in lines), lines


@pages_only
def test_a_tag_that_could_sleep_is_recommended():
    lines = reported('with cachalot.region("kv"):\n    kv = block(6000)\nfails(4000)')
    names(lines, "too_large", "put the tag 'kv' (5.86 GiB) to sleep")
    assert any("yes  release_physical('kv')" in line for line in lines), lines


def test_what_is_plainly_too_large_is_named_with_the_bytes_that_lack():
    names(reported("kept = block(6000)\nfails(4000)"), "too_large", "use 1.77 GiB less")
    lines = reported("fails(20000)")
    names(lines, "too_large")
    assert "more than the device has" in value_of(lines, "cause")


MODEL = """
model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.Linear(4096, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(64, 4096, device="cuda")).sum().backward()
optimizer.step()
kept = block(1000)
"""


def test_live_memory_is_named_by_module_and_kind():
    lines = reported(MODEL + "fails(20000)")
    text = "\n".join(lines)
    row = r"256.0. MiB +\d+  Sequential.0: optimizer state 128.03 MiB, (parameters|gradients) 64.02 MiB, (parameters|gradients) 64.02 MiB"
    assert re.search(row, text), text
    assert re.search(r"1000.00 MiB +1  other tensors that Python holds", text), text
    assert re.search(r"160.0. MiB +\d+.\d % +8  optimizer state", text), text


def test_live_memory_is_named_by_library_where_others_than_pytorch_have_some():
    """The figures are those of cachalot.library_usage."""
    code = """
from collections import namedtuple
Usage = namedtuple("Usage", "library device live_bytes")
import cachalot._report.memory_report
cachalot._report.memory_report.library_usage = lambda: (Usage("cupy", 0, 3 * MiB), Usage("cupy", 1, 9 * MiB), Usage("torch", 0, 5 * MiB))
fails(20000)
"""
    lines = reported(code)
    at = next(i for i, line in enumerate(lines) if line.endswith("by library"))
    assert [line.split() for line in lines[at + 1 : at + 3]] == [["5.00", "MiB", "torch"], ["3.00", "MiB", "cupy"]]


@full_only
def test_live_memory_is_named_by_line_where_history_is_recorded():
    lines = reported("torch.cuda.memory._record_memory_history()\nkept = block(1000)\nfails(20000)")
    assert any("1000.00 MiB" in line and "in block" in line for line in lines), lines


def test_a_failure_on_autograds_thread_is_reported():
    code = """
class Hungry(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient + torch.empty(20000 * MiB // 4, device="cuda").sum()

x = torch.ones(8, device="cuda", requires_grad=True)
try:
    Hungry.apply(x).sum().backward()
except RuntimeError as error:
    assert "out of memory" in str(error), error
else:
    raise AssertionError("there was enough memory")
x.sum().backward()  # autograd's thread has left what failed: Python may end
"""
    lines = reported(code)
    names(lines, "too_large")
    assert "in backward" in value_of(lines, "ran out of memory")


def test_files_are_numbered_have_the_rank_and_end_at_the_cap(tmp_path):
    code = "model = torch.nn.Linear(100, 100).cuda()\nfor _ in range(4):\n    fails(20000)"
    folder = tmp_path / "new" / "folder"
    process = run_python(HELPERS + code, CACHALOT_ON_OOM=f"snapshot:{folder},most:2", RANK=3, LOCAL_RANK=1)
    succeeds(process)
    found = sorted(path.name for path in folder.iterdir())
    pid = re.match(r"oom\.rank3\.pid(\d+)\.1\.pickle", found[0])[1]
    assert found == [f"oom.rank3.pid{pid}.{number}.{suffix}" for number in (1, 2) for suffix in ("pickle", "txt")]
    assert process.stderr.count("says why") == 2
    assert "more than 2 failures are not reported" in process.stderr


def test_the_local_rank_serves_where_there_is_no_rank(tmp_path):
    code = 'torch.cuda.set_device(1)\nkept = block(100)\nfails(20000)\n'
    lines = reported(code, on_oom=f"report,snapshot:{tmp_path}", RANK="../x", LOCAL_RANK=5)
    names(lines, "too_large")
    assert lines[0].startswith("cachalot: out of memory on cuda:1, localrank5, process ")
    assert value_of(lines, "reserved").startswith("100.00 MiB")
    assert all(re.fullmatch(r"oom\.localrank5\.pid\d+\.1\.(txt|pickle)", path.name) for path in tmp_path.iterdir())


def test_the_snapshot_opens_and_the_text_has_every_line(tmp_path):
    lines = reported(MODEL + "fails(20000)", on_oom=f"report,snapshot:{tmp_path}")
    text, snapshot = next(tmp_path.glob("*.txt")), next(tmp_path.glob("*.pickle"))
    assert str(text) in "\n".join(lines) and str(snapshot) in "\n".join(lines)
    assert "Sequential.1" in text.read_text()
    document = pickle.loads(snapshot.read_bytes())
    assert {"segments", "device_traces", "allocator_settings", "external_annotations"} <= document.keys()
    assert all(isinstance(segment["segment_pool_id"], tuple) for segment in document["segments"])
    shown = subprocess.run([COMMAND, "snapshot", snapshot], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0 and "allocated" in shown.stdout, shown.stderr
    facts = document["cachalot"]["facts"][0]
    assert facts["device"] == 0 and 0 <= facts["free_bytes"] < facts["total_bytes"]
    explained = subprocess.run([COMMAND, "explain", "--json", snapshot], capture_output=True, text=True, timeout=60)
    assert explained.returncode == 0, explained.stderr
    device = json.loads(explained.stdout)["devices"][0]
    assert device["device"] == 0
    assert value_of(lines, "cause") == f"{device['verdict']['cause']}: {device['verdict']['text']}"
    assert value_of(lines, "recommendation") == device["verdict"]["recommendation"]
    again = subprocess.run([COMMAND, "explain", "--top", "1000", snapshot], capture_output=True, text=True, timeout=60)
    assert again.stdout == text.read_text()


def test_an_error_in_the_report_does_not_hide_that_memory_ran_out():
    code = """
import cachalot._report.oom_report
def broken(*_): raise ZeroDivisionError("planted")
cachalot._report.oom_report.made = broken
fails(20000)
cachalot.on_out_of_memory(call=lambda report: 1 / 0)
fails(20000)
"""
    process = run_python(HELPERS + code, CACHALOT_ON_OOM="report")
    succeeds(process)
    assert "the out-of-memory report failed: ZeroDivisionError: planted" in process.stderr


@pytest.mark.parametrize("part", ["add_owners", "_recorded_snapshot", "memory_report", "_tags", "_write"])
def test_a_part_that_fails_leaves_the_others(part, tmp_path):
    """A folder for temporary files serves where the user's cannot be written to."""
    code = f"""
import pathlib
from cachalot._report import oom_report
original = oom_report.{part}
def broken(*given):
    if {part!r} == "_write" and given[0] != pathlib.Path({str(tmp_path)!r}):
        return original(*given)
    raise ZeroDivisionError("planted")
oom_report.{part} = broken
fails(20000)
"""
    lines = reported(code, on_oom=f"report,snapshot:{tmp_path}", temporary=tmp_path)
    names(lines, "too_large")
    assert len(list(tmp_path.rglob("oom.*"))) == 2


# Programs whose command `cachalot` is a script: {real} is the true one.
SCRIPT = """
import pathlib
from cachalot._programs import command
from cachalot._report import oom_report
oom_report.EXPLAIN_SECONDS = {seconds}
command.find = lambda: {path}
"""


def with_command(script, folder, code="fails(20000)", seconds=30):
    """The lines of the report where the command is a shell script, which has the folder as its current one; None: there is none."""
    path = folder / "cachalot"
    if script is not None:
        path.write_text(f"#!/bin/sh\ncd {folder}\n{script}\n")
        path.chmod(0o755)
    found = None if script is None else str(path)
    setup = SCRIPT.format(seconds=seconds, path=f"{found!r} and pathlib.Path({found!r})")
    return reported(setup + code, temporary=folder)


@pytest.mark.parametrize(
    "script, why",
    [
        (None, "this installation has no `cachalot` command"),
        ("exec sleep 60", "`cachalot explain` took longer than 0.3 s"),
        ("echo cachalot: boom >&2; exit 2", "`cachalot explain` failed: cachalot: boom"),
        ("kill -SEGV $$", "`cachalot explain` failed: status -11"),
        ("echo '{}'", "`cachalot explain` gave no answer: "),
    ],
)
def test_without_an_answer_of_the_command_the_report_has_figures_and_the_line_to_type(script, why, tmp_path):
    lines = with_command(script, tmp_path, "kept = block(6000)\nfails(4000)", 0.3 if script == "exec sleep 60" else 30)
    assert value_of(lines, "cause").startswith(f"unknown: {why}"), lines
    assert value_of(lines, "device") == "8.00 GiB, 2.14 GiB free"
    assert value_of(lines, "reserved") == value_of(lines, "allocated") == "5.86 GiB"
    typed = re.fullmatch(r"cachalot explain (\S+)", value_of(lines, "recommendation"))
    shown = subprocess.run([COMMAND, "explain", typed[1]], capture_output=True, text=True, timeout=60)
    assert "too_large: 3.91 GiB was asked for" in shown.stdout, shown.stderr


def test_the_command_is_what_linux_ends_first_and_has_a_part_of_the_hosts_memory(tmp_path):
    limited = "until read score < /proc/self/oom_score_adj && [ $score = 1000 ]; do sleep 0.05; done; echo $score $(ulimit -v) >&2"
    score, most = re.search(r"failed: (\d+) (\d+)", value_of(with_command(limited, tmp_path), "cause")).groups()
    available = int(re.search(r"MemTotal: +(\d+)", open("/proc/meminfo").read())[1])
    assert score == "1000" and 0 < int(most) <= available // 2


def test_other_threads_allocate_while_the_command_runs(tmp_path):
    code = f"""
import pathlib, threading, time
folder = pathlib.Path({str(tmp_path)!r})
def allocate():
    while not (folder / "begun").exists():
        time.sleep(0.01)
    block(100)
    torch.cuda.empty_cache()
    (folder / "done").touch()
thread = threading.Thread(target=allocate)
thread.start()
fails(20000)
thread.join()
"""
    waits = f'touch begun; until [ -e done ]; do sleep 0.05; done; exec {COMMAND} "$@"'
    names(with_command(waits, tmp_path, code), "too_large")


def test_temporary_files_are_gone_and_where_there_is_no_room_for_any_the_figures_stay(tmp_path):
    reported("fails(20000)", temporary=tmp_path)
    assert not list(tmp_path.iterdir())
    no_room = "def broken(*given): raise OSError(28, 'No space left on device')\ncachalot._report.oom_report._write = broken\n"
    lines = reported("import cachalot._report.oom_report\n" + no_room + "fails(20000)", temporary=tmp_path)
    assert "No space left on device" in value_of(lines, "cause") and value_of(lines, "device").startswith("8.00 GiB")


def test_a_function_receives_the_report_and_may_allocate():
    code = """
seen = []
def call(report):
    kept = block(100)
    fails(20000)  # no second report
    seen.append(report)

cachalot.on_out_of_memory(call=call)
fails(20000)
(report,) = seen
assert (report.device, report.requested_bytes, report.cause) == (0, 20000 * MiB, "too_large"), report
assert report.recommendation in report.full_text.replace("\\n", " ") or report.recommendation
assert len(str(report).splitlines()) <= 40
cachalot.on_out_of_memory(None)
fails(20000)
assert len(seen) == 1
"""
    process = run_python(HELPERS + code)
    succeeds(process)
    assert "cachalot: out of memory on" not in process.stderr


def test_threads_that_fail_at_once_report_one_after_the_other():
    code = """
import threading
threads = [threading.Thread(target=fails, args=(20000,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    process = run_python(HELPERS + code, CACHALOT_ON_OOM="report")
    succeeds(process)
    assert re.findall(r"^cachalot: .* failure (\d)$", process.stderr, re.MULTILINE) == ["1", "2", "3", "4"]


def test_a_program_can_ask_for_it_with_enable():
    code = f"""
import torch, cachalot
cachalot.enable(mode={"full" if PAGES else MODE!r}, on_oom="report")
{HELPERS}
fails(20000)
"""
    process = run_python(code, preamble="", CACHALOT_CONF="heap:pages" if PAGES else "")
    succeeds(process)
    assert re.search("cause +too_large: ", process.stderr)


@pytest.mark.parametrize(
    "text, rule",
    [
        ("repot", "'repot' is unknown; it must be 'report', 'snapshot:DIR' and 'most:N'"),
        ("snapshot:", "'snapshot:' names no folder"),
        ("report,report", "'report' occurs twice"),
        ("report,most:0", "'most:0': the number of reports must be 1 or more"),
        ("most:3", "asks for nothing"),
        ("snapshot:/proc/self/status", "is a file; give a folder"),
        ("snapshot:" + "x" * 5000, "cannot be a folder: File name too long"),
        ("snapshot:~nobody-has-this-name/x", "cannot be a folder: "),
        ("snapshot:/tmp/\0x", "cannot be a folder: "),
    ],
)
def test_bad_settings_are_refused_in_words(text, rule):
    import cachalot

    with pytest.raises(ValueError, match=re.escape(rule)):
        cachalot.on_out_of_memory(text)


def test_a_bad_variable_is_refused_when_cachalot_is_enabled():
    process = run_python("", CACHALOT_ON_OOM="all")
    assert process.returncode != 0
    assert "environment variable CACHALOT_ON_OOM: 'all' is unknown" in process.stderr


def test_many_live_blocks_are_reported_in_a_few_seconds():
    code = """
import time
kept = [torch.empty(1000, device="cuda") for _ in range(20_000)]
began = time.process_time()
fails(20000)
assert time.process_time() - began < 10
"""
    names(reported(code), "too_large")


def test_a_report_of_many_rows_stays_within_forty_lines():
    from cachalot._report.oom_report import _shortened

    tables = "\n\n".join("\n".join([f"title {i}", *(f"row {n}" for n in range(1000))]) for i in range(6))
    text = _shortened("head\n" * 6 + "\n" + tables + "\n", ["tail", "end"])
    assert len(text.splitlines()) == 40 and text.endswith("tail\nend")
    assert text.count(" more") == 6
    assert text.splitlines()[6:8] == ["title 0", "row 0"]
    assert re.search(r"row 2\n  … and 99\d more\ntitle 1", text), text


def test_the_search_for_modules_ends_at_its_deadline():
    import torch
    from cachalot._report.oom_owners import add_owners

    model = torch.nn.Linear(100, 100).cuda()

    def owner(seconds):
        block = {"address": model.weight.data_ptr(), "size": 40448, "state": "active_allocated"}
        is_complete = add_owners([{"device": 0, "blocks": [block]}], 0, seconds)
        return is_complete, block.get("owner"), block.get("owner_kind")

    assert owner(10) == (True, "Linear", "parameters")
    assert owner(-1) == (False, None, None)


def test_the_memory_of_a_wrapper_is_that_of_the_tensor_inside():
    """The wrapper is like DTensor."""
    import torch
    from cachalot._report.oom_owners import address_of

    class Wrapper(torch.Tensor):
        @staticmethod
        def __new__(cls, inside):
            made = torch.Tensor._make_wrapper_subclass(cls, inside.shape, dtype=inside.dtype, device=inside.device)
            made._local_tensor = inside
            return made

        @classmethod
        def __torch_dispatch__(cls, *_):
            raise NotImplementedError

    inside = torch.empty(100, device="cuda")
    assert address_of(Wrapper(inside)) == address_of(inside[10:]) == inside.data_ptr()
    assert address_of(torch.empty(3)) == address_of(None) == 0


CYCLES = """
import gc, threading, time
gc.disable()

class Cycle:
    def __init__(self):
        self.tensor = torch.empty(300 << 20, dtype=torch.uint8, device="cuda")
        self.itself = self

def fill():
    for _ in range(60):
        Cycle()

"""


@pytest.mark.parametrize("on_a_thread", [False, True])
def test_garbage_is_collected_before_memory_runs_out(on_a_thread):
    """18 GiB of tensors in cycles go through 8 GiB."""
    fill = "thread = threading.Thread(target=fill); thread.start(); thread.join()" if on_a_thread else "fill()"
    succeeds(run_python(CYCLES + fill + "\nassert torch.cuda.memory_stats()['num_ooms'] == 0\n"))


def test_garbage_is_gone_although_as_much_is_allocated_meanwhile():
    program = CYCLES + """
class Successor(Cycle):
    def __del__(self):
        kept.append(torch.empty(300 << 20, dtype=torch.uint8, device="cuda:1"))

kept = []
Successor()
torch.empty((8 << 30) - (200 << 20), dtype=torch.uint8, device="cuda")
assert kept
"""
    succeeds(run_python(program))


def test_garbage_may_stay():
    program = CYCLES + "try:\n    fill()\nexcept torch.OutOfMemoryError:\n    print('ran out')\n"
    preamble = f"import torch, cachalot\ncachalot.enable(gc_on_oom=False, mode={ENABLE_MODE!r})\n"
    assert "ran out" in run_python(program, preamble=preamble).stdout


def test_who_holds_the_lock_for_long_does_not_hang_a_request_that_fails():
    """The request fails once five seconds are over."""
    program = CYCLES + """
import ctypes

kept = [torch.empty(1 << 30, dtype=torch.uint8, device="cuda") for _ in range(7)]
failed = threading.Event()

def fail():
    try:
        torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        failed.set()

thread = threading.Thread(target=fail)
thread.start()
ctypes.PyDLL(None).usleep(900_000)
thread.join(30)
assert failed.is_set()
"""
    succeeds(run_python(program))
