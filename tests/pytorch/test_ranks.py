"""cachalot.distributed_report() among processes with gloo, and the files of CACHALOT_REPORT_DIR."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import world
from cachalot import DistributedReport, RankReport, distributed_report
from world import GiB, MiB, succeeds

pytestmark = [world.not_native, world.not_pages]

# Each rank is a process that finds the others by a file.
BEGINNING = world.PREAMBLE + """
import os, sys, time
import torch.distributed as dist
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
def connect():
    dist.init_process_group("gloo", init_method="file://" + os.environ["MEETING"], rank=rank, world_size=world_size)
    # Gloo waits half an hour for a rank that ends before all are connected to it.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"connected/{rank}", "")
    store.wait([f"connected/{one}" for one in range(world_size)])
def hold(mib):
    torch.cuda.set_device(rank % 2)
    return torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
"""


# Starts the ranks as forks of a process that has imported torch, and prints exit status, output and errors of each as JSON.
LAUNCHER = """import torch
import json, os, sys, traceback
code, folder, world_size = sys.argv[1], sys.argv[2], int(sys.argv[3])
os.environ.update(MEETING=folder + "/meeting", WORLD_SIZE=str(world_size))
def become(rank):
    os.environ["RANK"] = str(rank)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{rank}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    status = 0
    try:
        exec(compile(code, "<rank>", "exec"), {"__name__": "__main__"})
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
children = []
for rank in range(world_size):
    child = os.fork()
    if child == 0: become(rank)
    children.append(child)
ended = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
text = lambda rank, name: open(f"{folder}/{rank}.{name}").read()
print(json.dumps([(status, text(rank, "out"), text(rank, "err")) for rank, status in enumerate(ended)]))
"""


def run_ranks(folder, code, world_size=2, *, beginning=BEGINNING):
    """Runs the code in each rank; returns of each rank its exit status, output and errors."""
    done = world.run_python("", preamble=LAUNCHER, arguments=[beginning + code, str(folder), str(world_size)])
    return json.loads(succeeds(done))


def start_rank(code, **environment):
    """Starts a job of one rank in a process of its own."""
    return subprocess.Popen([sys.executable, "-c", BEGINNING + code], env=os.environ | {"RANK": "0", "WORLD_SIZE": "1"} | environment,
                            text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def rank_with(number, peak, **others):
    return RankReport(number, "host", 1000 + number, device=0, total=8 * GiB, peak_reserved=peak, **others)


GATHER = """
connect()
cachalot.watch_leaks()
kept = hold(20 * (rank + 1))
if rank == 1: freed = hold(100); del freed; torch.cuda.empty_cache()
report = cachalot.distributed_report(timeout=60)
again = cachalot.distributed_report(timeout=60)
assert [one.rank for one in again.ranks] == [0, 1]
print(report.to_json())
"""


def test_all_ranks_have_the_same_report_with_the_lines_of_the_worst(tmp_path):
    ranks = run_ranks(tmp_path, GATHER)
    texts = [succeeds(subprocess.CompletedProcess([], *rank)) for rank in ranks]
    assert texts[0] == texts[1]
    report = DistributedReport.from_json(texts[0])
    first, second = report.ranks
    assert (first.reserved, first.peak_reserved) == (20 * MiB, 20 * MiB)
    assert (second.reserved, second.peak_reserved) == (40 * MiB, 140 * MiB)
    assert (second.allocated, second.requested, second.peak_allocated) == (40 * MiB, 40 * MiB, 140 * MiB)
    assert second.total == world.total_memory() and second.allocator == "cachalot"
    assert report.worst is second and report.imbalance == pytest.approx(140 / 80)
    assert first.sites is None and [site.bytes for site in second.sites] == [40 * MiB]
    assert "in hold" in second.sites[0].where
    assert json.loads(texts[0])["worst"] == 1


def test_a_rank_without_cuda_and_one_on_pytorchs_own_allocator_are_named(tmp_path):
    code = """
import cachalot
if rank == 0: cachalot.enable()
connect()
kept = hold(20) if rank == 1 else None
report = cachalot.distributed_report()
if rank == 0: print(report)
"""
    outputs = run_ranks(tmp_path, code, 3, beginning="import torch\n" + BEGINNING.removeprefix(world.PREAMBLE))
    text = succeeds(subprocess.CompletedProcess([], *outputs[0]))
    assert "3 ranks: rank 1 has the highest peak of reserved memory, 20.00 MiB" in text
    assert "rank 1: cachalot is not enabled there" in text
    assert "rank 0: CUDA has not been used" in text and "rank 2: CUDA has not been used" in text
    assert "rank 1: no call stacks are recorded: call cachalot.watch_leaks()" in text


@pytest.mark.parametrize("dead", [0, 1])
def test_a_rank_that_died_is_named_to_the_others(tmp_path, dead):
    code = f"connect()\nif rank == {dead}: os._exit(7)\ncachalot.distributed_report(timeout=1)"
    outputs = run_ranks(tmp_path, code, 3)
    assert outputs[dead][0] == 7
    for rank in {0, 1, 2} - {dead}:
        status, _, errors = outputs[rank]
        assert status == 1
        assert f"TimeoutError: rank {dead} has not called cachalot.distributed_report() within" in errors


def test_a_group_of_some_ranks_reports_these(tmp_path):
    code = """
connect()
group = dist.new_group([0, 2])
kept = hold(20 + 2 * rank)
if rank != 1: print([one.rank for one in cachalot.distributed_report(group).ranks])
else:
    try: cachalot.distributed_report(group)
    except ValueError as error: print(error)
dist.barrier()
"""
    outputs = [rank[1].strip() for rank in run_ranks(tmp_path, code, 3)]
    assert outputs[0] == outputs[2] == "[0, 2]"
    assert "must not call this" in outputs[1] or "not part of" in outputs[1]


def test_history_has_the_lines_as_well():
    if world.MODE == "plug":
        pytest.skip("history has no stacks")
    code = """
    torch.cuda.memory._record_memory_history()
    def keep(): return torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    kept = [keep(), keep()]
    print(cachalot.distributed_report())
    """
    assert "60.00 MiB in 2 blocks from <string>" in succeeds(world.run_python(code))


# The ends of programs.
FILES = "kept = hold(20 * (rank + 1))\nprint('ready', flush=True)\n"


def wait_for(path, seconds=60):
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} has not appeared"
        time.sleep(0.02)
    return json.loads(path.read_text())


def start_alone(folder, code, **environment):
    environment = {"CACHALOT_REPORT_DIR": str(folder / "reports"), "CACHALOT_REPORT_SECONDS": "1000"} | environment
    process = start_rank(FILES + code, **environment)
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize(
    ("code", "ended", "status"),
    [
        ("", "exit", 0),
        ("def lose(): raise KeyError('lost')\nlose()", "KeyError: 'lost'", 1),
        ("torch.empty(1 << 40, dtype=torch.uint8, device='cuda')", "OutOfMemoryError: CUDA out of memory", 1),
        ("sys.exit(3)", "exit", 3),
    ],
)
def test_a_program_that_ends_leaves_its_report(tmp_path, code, ended, status):
    process = start_alone(tmp_path, code)
    process.communicate(timeout=60)
    assert process.returncode == status
    report = json.loads((tmp_path / "reports" / "rank-00000.json").read_text())
    assert report["ended"].startswith(ended)
    assert report["reserved"] == 20 * MiB
    assert "rank 0 has the highest peak of reserved memory, 20.00 MiB" in (tmp_path / "reports" / "rank-00000.txt").read_text()


def test_sigterm_leaves_a_report_while_the_main_thread_is_in_c(tmp_path):
    code = "import ctypes, threading\nlock = threading.Lock()\nlibc = ctypes.CDLL(None)\n" \
           "libc.pthread_mutex_lock(buffer := ctypes.create_string_buffer(64))\nprint('locked', flush=True)\n" \
           "libc.pthread_mutex_lock(buffer)\n"
    process = start_alone(tmp_path, code)
    assert process.stdout.readline() == "locked\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert json.loads((tmp_path / "reports" / "rank-00000.json").read_text())["ended"] == "SIGTERM"


def test_a_programs_own_handler_of_sigterm_is_called(tmp_path):
    code = """
import signal
def handle(*_):
    print("handled", flush=True)
    sys.exit(5)
signal.signal(signal.SIGTERM, handle)
print("set", flush=True)
time.sleep(100)
"""
    process = start_alone(tmp_path, code)
    assert process.stdout.readline() == "set\n"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert (output, process.returncode) == ("handled\n", 5)
    assert wait_for(tmp_path / "reports" / "rank-00000.json")["reserved"] == 20 * MiB


def test_sigterm_to_a_forked_child_does_not_end_its_parent(tmp_path):
    code = """
import signal
child = os.fork()
if child == 0:
    time.sleep(100)
os.kill(child, signal.SIGTERM)
print(os.waitpid(child, 0)[1] == signal.SIGTERM, flush=True)
time.sleep(0.3)
print("alive", flush=True)
"""
    process = start_alone(tmp_path, code)
    output, _ = process.communicate(timeout=60)
    assert (output, process.returncode) == ("True\nalive\n", 0)


def test_a_rank_that_is_killed_leaves_its_report_of_a_moment_before(tmp_path):
    process = start_alone(tmp_path, "time.sleep(100)", CACHALOT_REPORT_SECONDS="0.1")
    wait_for(tmp_path / "reports" / "rank-00000.json")
    process.kill()
    process.communicate(timeout=60)
    report = distributed_report(folder=tmp_path / "reports")
    assert report.ranks[0].reserved == 20 * MiB and report.ranks[0].ended == ""
    assert "rank 0: no end is recorded, so it runs or was killed" in str(report)


def test_the_command_prints_the_folder_as_a_table_and_names_ranks_without_a_file(tmp_path):
    for number, peak in ((0, GiB), (2, 3 * GiB)):
        (tmp_path / f"rank-{number:05}.json").write_text(rank_with(number, peak, ended="SIGTERM", time=1.0).to_json())
    command = [sys.executable, "-m", "cachalot", "ranks", tmp_path]
    text = succeeds(world.run(command))
    assert "3 ranks: rank 2 has the highest peak of reserved memory, 3.00 GiB, 1.50 times the mean" in text
    assert "no report of rank 1" in text and "rank 0: it ended with SIGTERM" in text
    assert json.loads(succeeds(world.run([*command, "--json"])))["missing"] == [1]


def rank_json(**fields):
    return json.dumps({**json.loads(rank_with(0, GiB).to_json()), **fields})


@pytest.mark.parametrize(
    "content",
    [None, "{", '{"rank": 1}', "[1]", "[" * 100_000, rank_json(time=None), rank_json(rank="0"), rank_json(peak_reserved="much"),
     rank_json(sites=3), rank_json(sites=[3]), rank_json(reserved=True), rank_json(rank=10**12), rank_json(rank=-1)],
    ids=itertools.count(),
)  # fmt: skip
def test_a_folder_without_good_reports_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "rank-00000.json").write_text(content)
    told = "has no reports" if content is None else "rank-00000.json: this is no report of a rank"
    with pytest.raises(ValueError, match=told):
        distributed_report(folder=tmp_path)
    ended = world.run([sys.executable, "-m", "cachalot", "ranks", tmp_path])
    assert ended.returncode == 2 and ended.stderr.startswith("cachalot: ") and told in ended.stderr and ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [("CACHALOT_REPORT_SECONDS", "0", "must be a number above 0"), ("CACHALOT_REPORT_SECONDS", "soon", "must be a number above 0"),
     ("CACHALOT_REPORT_SECONDS", "1e300", "must be a number above 0, at most 1000000"),
     ("CACHALOT_REPORT_DIR", "/dev/null/reports", "is no folder to write to")],
)
def test_a_bad_setting_is_refused_when_cachalot_is_enabled(name, value, rule):
    done = world.run_python("", **{name: value})
    assert done.returncode == 1
    assert f"environment variable {name} is '{value}'" in done.stderr and rule in done.stderr


def test_a_large_job_has_a_short_table():
    report = DistributedReport(tuple(rank_with(number, (number + 1) * MiB) for number in range(100)), 100)
    lines = str(report).splitlines()
    assert len(lines) == 1 + 1 + 32 + 1 + 1
    assert "  and 68 more ranks, with lower peaks" in lines
    assert report.imbalance == pytest.approx(100 / 50.5)


def test_arguments_out_of_range_are_refused():
    with pytest.raises(ValueError, match="timeout is 0 and most is 5"):
        distributed_report(timeout=0)
