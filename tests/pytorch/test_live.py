"""Statistics for other processes and for logs: cachalot.publish, CACHALOT_PUBLISH, cachalot.on_statistics."""

import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from world import MiB, bytes_on_gpu, not_native, run_python, succeeds

pytestmark = not_native

GUIDE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "tools" / "top.md"


def top(directory, *arguments):
    command = [os.environ["CACHALOT_COMMAND"], "top", "--directory", str(directory), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def published(directory):
    return json.loads(top(directory, "--json", "--count", "1", "--interval", "0.3"))


def test_publish_shows_this_process_to_cachalot_top(tmp_path):
    import cachalot

    tensor = bytes_on_gpu(30 * MiB)
    page = cachalot.publish(tmp_path)
    try:
        assert page.parent == tmp_path
        assert cachalot.publish(tmp_path) == page
        sample = published(tmp_path)
        (process,) = sample["processes"]
        assert process["pid"] == os.getpid()
        device = process["devices"][0]
        assert device["allocated_bytes"] == torch.cuda.memory_allocated() >= 30 * MiB
        assert device["reserved_bytes"] == torch.cuda.memory_reserved()
        assert device["allocations"] == torch.cuda.memory_stats()["allocation.all.allocated"]
        # The simulated NVML knows the GPU by the UUID that CUDA gives.
        assert device["uuid"] == str(torch.cuda.get_device_properties(0).uuid)
        assert {gpu["uuid"]: gpu["gpu"] for gpu in sample["gpus"]}[device["uuid"]] == 0
    finally:
        cachalot.stop_publishing()
    assert not page.exists()
    del tensor


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    import cachalot

    with pytest.raises(ValueError, match="missing/cachalot"):
        cachalot.publish(tmp_path / "missing")


@pytest.mark.parametrize("name", ["\0name", "\ud800"])
def test_a_folder_with_a_name_that_none_has_is_an_error(tmp_path, name):
    import cachalot

    with pytest.raises(ValueError, match="^directory is .*; it must be the path of a folder"):
        cachalot.publish(f"{tmp_path}{name}")
    assert list(tmp_path.iterdir()) == []


def test_the_environment_publishes_until_the_process_ends(tmp_path):
    program = f"""
    import os, subprocess, torch, cachalot
    pages = lambda: [name for name in os.listdir({str(tmp_path)!r}) if name.startswith("cachalot.")]
    assert pages() == []
    torch.empty(1 << 20, device="cuda")
    assert pages() == [f"cachalot.{{os.getpid()}}.0"], pages()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if len(pages()) == 1 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert len(pages()) == 1
    """
    succeeds(run_python(program, fresh=True, CACHALOT_PUBLISH="1", CACHALOT_PUBLISH_DIR=str(tmp_path)))
    assert list(tmp_path.iterdir()) == []


def test_on_statistics_calls_at_each_interval_until_it_is_stopped():
    import cachalot

    tensor = bytes_on_gpu(30 * MiB)
    called = threading.Event()
    figures = []

    def callback(statistics, step):
        figures.append((statistics, step))
        if len(figures) >= 2:
            called.set()

    log = cachalot.on_statistics(callback, interval_s=0.05)
    assert called.wait(20)
    log.stop()
    count = len(figures)
    statistics, step = figures[-1]
    assert step is None
    assert statistics["cachalot/0/allocated_bytes"] == torch.cuda.memory_allocated()
    assert statistics["cachalot/0/reserved_bytes"] == torch.cuda.memory_reserved()
    assert 0 <= statistics["cachalot/0/unused_share"] <= 1
    assert all(isinstance(number, float) for number in statistics.values())
    cachalot.log_statistics(3)
    assert len(figures) == count, "it is stopped"
    del tensor


def test_the_guide_writes_for_tensorboard_and_wandb(monkeypatch):
    import cachalot

    scalars, runs = [], []
    writer = SimpleNamespace(add_scalar=lambda tag, scalar_value, global_step: scalars.append((tag, scalar_value, global_step)))
    run = SimpleNamespace(log=lambda data, step: runs.append((data, step)))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=lambda: writer))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda: run))
    logs, on_statistics = [], cachalot.on_statistics
    monkeypatch.setattr(cachalot, "on_statistics", lambda *how, **when: logs.append(on_statistics(*how, **when)))
    tensor = bytes_on_gpu(30 * MiB)
    for code in re.findall(r"^```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL):
        exec(code, {"cachalot": cachalot})
    cachalot.log_statistics(7)
    for log in logs:
        log.stop()
    allocated = float(torch.cuda.memory_allocated())
    assert ("cachalot/0/allocated_bytes", allocated, 7) in scalars
    ((data, step),) = runs
    assert step == 7 and data["cachalot/0/allocated_bytes"] == allocated
    del tensor


@pytest.mark.parametrize("interval", [0, -1, float("nan"), float("inf"), -float("inf"), 1e12, threading.TIMEOUT_MAX * 2])
def test_an_interval_that_is_none_is_refused(interval):
    import cachalot

    with pytest.raises(ValueError, match="from 0.01 to 1000000"):
        cachalot.on_statistics(print, interval_s=interval)


def test_a_callback_that_asks_for_itself_does_not_wait_for_ever():
    import cachalot

    log = cachalot.on_statistics(lambda statistics, step: cachalot.log_statistics(), interval_s=None)
    try:
        with pytest.raises(RuntimeError, match="calls log_statistics"):
            cachalot.log_statistics()
    finally:
        log.stop()


def within_seconds(function):
    """Calls the function in a thread, which the test does not wait for if it does not return."""
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it does not return"


def test_callbacks_that_ask_for_each_other_do_not_wait_for_ever():
    import cachalot

    errors = []

    def callback(statistics, step):
        for log in logs:
            try:
                log.log(step)
            except RuntimeError as error:
                errors.append(str(error))

    logs = [cachalot.on_statistics(callback, interval_s=0.02) for _ in range(2)]
    try:
        within_seconds(lambda: cachalot.log_statistics(1))
    finally:
        within_seconds(lambda: [log.stop() for log in logs])
    assert len(errors) >= 4 and all("calls log_statistics" in error for error in errors)


def test_a_callback_may_stop_its_log_on_every_thread():
    import cachalot

    steps = []

    def callback(statistics, step):
        if step == 7:
            time.sleep(0.2)  # meanwhile the log's own thread begins to wait for this call
            log.stop()
        steps.append(step)

    log = cachalot.on_statistics(callback, interval_s=0.05)
    within_seconds(lambda: cachalot.log_statistics(7))
    within_seconds(log.stop)
    assert steps.count(7) == 1 and steps[-1] == 7, "nothing is called after stop()"


def test_callbacks_may_stop_each_others_logs():
    import cachalot

    both = threading.Barrier(2)
    logs = []

    def stops(other):
        def callback(statistics, step):
            both.wait(20)
            logs[other].stop()

        return callback

    logs += [cachalot.on_statistics(stops(1), interval_s=0.2), cachalot.on_statistics(stops(0), interval_s=0.2)]
    within_seconds(lambda: [log.stop() for log in logs] if time.sleep(1) is None else None)


def test_stop_waits_for_a_call_on_another_thread_and_lets_none_begin():
    import cachalot

    begun, ended = threading.Event(), []

    def callback(statistics, step):
        begun.set()
        time.sleep(0.3)
        ended.append(step)

    log = cachalot.on_statistics(callback, interval_s=None)
    caller = threading.Thread(target=lambda: cachalot.log_statistics(1))
    caller.start()
    assert begun.wait(20)
    log.stop()
    assert ended == [1], "it was under way"
    caller.join()
    log.log(2)
    assert ended == [1], "it is stopped"


def test_an_exception_of_the_callback_reaches_log_statistics_and_not_the_thread(caplog):
    import cachalot

    called = threading.Event()

    def broken(statistics, step):
        called.set()
        raise ValueError("broken")

    log = cachalot.on_statistics(broken, interval_s=0.02)
    assert called.wait(20)
    with pytest.raises(ValueError, match="broken"):
        cachalot.log_statistics()
    log.stop()
    assert "cachalot.on_statistics failed" in caplog.text


@pytest.mark.parametrize("interval", [0, -1, 0.001, float("nan")])
def test_bad_arguments_are_refused(interval):
    import cachalot

    with pytest.raises(ValueError, match="interval_s is"):
        cachalot.on_statistics(print, interval_s=interval)
    with pytest.raises(TypeError, match="must be callable"):
        cachalot.on_statistics(None)
