"""The budget of a GPU between processes: cachalot.join_budget, cachalot.budget and `cachalot budget`, with processes that end."""

import json
import os
import signal
import subprocess
import time

import pytest
import torch
from world import PREAMBLE, GiB, MiB, bytes_on_gpu, needs_enable, not_native, run_python, start_quickly, succeeds

pytestmark = not_native

# A process that does what it is told, line by line, and says that it has done so.
TOLD = """
import os, sys
def cache(count):
    pieces = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(count >> 28)]
def held():
    return torch.cuda.memory_reserved()
print(os.getpid(), flush=True)
for line in sys.stdin:
    value = eval(line) if not line.startswith("!") else exec(line[1:])
    print(repr(value), flush=True)
"""


class Worker:
    """A process on the simulated GPU that runs one line after the other."""

    def __init__(self):
        stdin, told = os.pipe()
        said, stdout = os.pipe()
        with open(stdin) as its_input, open(stdout, "w") as its_output:
            self._program = start_quickly(PREAMBLE + TOLD, stdin=its_input, stdout=its_output)
        self._told, self._said = open(told, "w"), open(said)
        self.pid = int(self._said.readline())

    def tell(self, line):
        self._told.write(line + "\n")
        self._told.flush()
        return eval(self._said.readline())

    def end(self):
        with self._said, self._told:
            self._told.close()
            return self._program.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if not self._told.closed:
            self.end()


def command(*words, **options):
    return subprocess.run([os.environ["CACHALOT_COMMAND"], "budget", *map(str, words)], capture_output=True, text=True, timeout=60, **options)


def shown(path):
    return json.loads(command("show", "--path", path, "--json", check=True).stdout)


def seconds_until(condition):
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() < begin + 20, "it does not become so"
        time.sleep(0.005)
    return time.monotonic() - begin


def test_a_process_gives_memory_back_when_another_joins(tmp_path):
    path = tmp_path / "budget"
    with Worker() as first, Worker() as second:
        first.tell(f"!member = cachalot.join_budget(path={str(path)!r}, name='first')")
        command("set", "--total", "4GiB", "--path", path, check=True)
        first.tell("!live = torch.empty(512 << 20, dtype=torch.uint8, device='cuda')")
        first.tell("cache(3 << 30)")
        assert first.tell("held()") == 3.5 * GiB
        second.tell(f"!member = cachalot.join_budget(3, path={str(path)!r}, name='second')")
        assert seconds_until(lambda: first.tell("held()") == GiB) < 1
        assert {member["name"]: member["part_bytes"] for member in shown(path)["members"]} == {"first": GiB, "second": 3 * GiB}
        command("set", "first", "--share", 3, "--path", path, check=True)  # from outside
        second.tell("cache(3 << 30)")
        assert seconds_until(lambda: second.tell("held()") == 2 * GiB) < 1
        command("set", second.pid, "--share", 0.001, "--path", path, check=True)
        assert seconds_until(lambda: second.tell("held()") == 0) < 1
        assert first.tell("!live.add_(1)") is None  # live memory stays
        seconds_until(lambda: {member["name"]: member["live_bytes"] for member in shown(path)["members"]} == {"first": 512 * MiB, "second": 0})
        second.tell("member.leave()")
        assert [member["name"] for member in shown(path)["members"]] == ["first"]


def test_a_process_that_is_killed_is_no_member(tmp_path):
    path = tmp_path / "budget"
    with Worker() as first, Worker() as second:
        for worker, name in ((first, "first"), (second, "second")):
            worker.tell(f"!member = cachalot.join_budget(path={str(path)!r}, name={name!r}, floor='1GiB')")
        assert len(shown(path)["members"]) == 2
        os.kill(second.pid, signal.SIGKILL)
        assert second.end().returncode == -signal.SIGKILL
        (member,) = shown(path)["members"]
        assert member["name"] == "first" and member["part_bytes"] == shown(path)["total_bytes"]
        with Worker() as third:  # the floor of the killed one is free as well
            third.tell(f"!member = cachalot.join_budget(path={str(path)!r}, name='third', floor={shown(path)['total_bytes'] - GiB})")
            assert [each["name"] for each in shown(path)["members"]] == ["first", "third"]


def test_a_membership_is_a_context_and_the_budget_a_table(tmp_path):
    import cachalot

    path = tmp_path / "budget"
    with cachalot.join_budget(share=2, floor="1GiB", name="this", path=path) as membership:
        assert membership.path == path and membership.device == torch.cuda.current_device()
        tensor = bytes_on_gpu(30 * MiB)
        budget = cachalot.budget()
        (member,) = budget.members
        assert (member.name, member.share, member.floor_bytes, member.process_id) == ("this", 2, GiB, os.getpid())
        assert member.part_bytes == budget.total_bytes == torch.cuda.get_device_properties(0).total_memory
        assert budget.uuid == str(torch.cuda.get_device_properties(0).uuid) and budget.gpu == torch.cuda.get_device_name(0)
        seconds_until(lambda: cachalot.budget(path).members[0].live_bytes >= 30 * MiB)
        lines = str(budget).splitlines()
        assert lines[0].startswith(f"{path}: ") and lines[1].split()[-2:] == ["live", "name"] and lines[2].endswith("this")
        with pytest.raises(ValueError, match="leave it before another is joined"):
            cachalot.join_budget(path=tmp_path / "other")
        assert not (tmp_path / "other").exists()
        del tensor
    assert cachalot.budget(path).members == ()
    membership.leave()


def test_bad_values_are_refused_and_change_nothing(tmp_path):
    import cachalot

    path = tmp_path / "budget"
    for wrong, message in (
        ({"share": 0}, "a share of 0"),
        ({"share": float("nan")}, "a share of nan"),
        ({"floor": "2000GiB"}, "a floor of 2000.00 GiB"),
        ({"floor": "many"}, "'many' is not a size"),
        ({"floor": -1}, "'-1' is not a size"),
        ({"name": "12"}, "the name '12' is a number"),
        ({"name": "a\0b"}, "name is .*; it must be a text"),
    ):
        with pytest.raises(ValueError, match=message):
            cachalot.join_budget(**{"path": path, **wrong})
    with pytest.raises(ValueError, match="No such file"):
        cachalot.budget(tmp_path / "none")
    path.write_bytes(bytes(100))
    with pytest.raises(ValueError, match="has 100 bytes: it must have 4096"):
        cachalot.join_budget(path=path)
    assert path.read_bytes() == bytes(100)


def test_the_default_budget_is_the_gpus_and_of_this_user(tmp_path):
    code = """
    import os, pathlib
    torch.empty(1, device="cuda")
    member = cachalot.join_budget()
    uuid = torch.cuda.get_device_properties(0).uuid
    assert member.path == pathlib.Path(os.environ["CACHALOT_PUBLISH_DIR"]) / f"cachalot.budget.{os.geteuid()}.{uuid}", member
    assert member.path.stat().st_size == 4096 and member.path.stat().st_mode & 0o777 == 0o600
    assert cachalot.budget().members[0].name.startswith("python")
    if os.fork() == 0:                                      # a child is no member, and its end no end of the membership
        try:
            member.leave()
        finally:
            os._exit(0)
    os.wait()
    assert len(cachalot.budget(member.path).members) == 1
    """
    succeeds(run_python(code, CACHALOT_PUBLISH_DIR=str(tmp_path)))
    shown = command("show", env={"CACHALOT_PUBLISH_DIR": str(tmp_path)})
    assert shown.returncode == 0 and "0 members" in shown.stdout, shown


def test_returns_are_told_once_where_that_is_asked_for(tmp_path):
    code = f"""
    import os, subprocess, time
    member = cachalot.join_budget(path={str(tmp_path / "budget")!r}, name="loud", tells=True)
    setting = [os.environ["CACHALOT_COMMAND"], "budget", "set", "--total", "1GiB", "--path", str(member.path)]
    for _ in range(3):
        pieces = [torch.empty(256 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
        del pieces
        subprocess.run(setting, check=True, stdout=subprocess.DEVNULL)
        while torch.cuda.memory_reserved() > 1 << 30:
            time.sleep(0.01)
    """
    process = run_python(code)
    succeeds(process)
    (line,) = process.stderr.splitlines()
    assert line == "cachalot: gave 1024.00 MiB of GPU 0 back: 'loud' held 2.00 GiB, and its part of the budget is 1024.00 MiB"


def test_joining_needs_enable():
    needs_enable("cachalot.join_budget()", "cachalot.budget()")
