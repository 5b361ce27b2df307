"""The plugin of pytest: limits of GPU memory and leaks, on the allocator of the mode. Most tests run pytest in this process."""

import os
import subprocess
import sys
import tomllib
import traceback
from pathlib import Path

import pytest
import torch
import world

pytest_plugins = ["pytester"]
pytestmark = world.not_pages

HEAD = """
import pytest, torch
MiB = 1 << 20
def new(mib, device="cuda"):
    return torch.empty(mib * MiB, dtype=torch.uint8, device=device)
"""
PLUGIN = ("-p", "cachalot.pytest_plugin", "-p", "no:cacheprovider", "-q")


@pytest.fixture
def run(pytester):
    """Runs the tests of a text, and returns the result and the text of the output."""

    def go(code, *options):
        pytester.makepyfile(test_it=HEAD + code)
        result = pytester.runpytest_inprocess(*PLUGIN, *options)
        for call in result.reprec.getcalls("pytest_runtest_makereport"):
            if call.call.excinfo:  # a test that failed in there has tensors
                traceback.clear_frames(call.call.excinfo.tb)
                for frame, _ in traceback.walk_tb(call.call.excinfo.tb):
                    frame.f_locals  # noqa: B018  # a frame keeps a copy of its variables until it is asked again
        return result, str(result.stdout)

    return go


def test_a_peak_above_the_limit_fails_with_the_lines_that_hold_it(run):
    result, text = run("""
@pytest.fixture
def before(): return new(40)
@pytest.mark.gpu_memory_limit("60 MiB")
def test_over(before):
    kept = torch.empty(30 * MiB, dtype=torch.uint8, device="cuda")
    passing = torch.empty(32 * MiB, dtype=torch.uint8, device="cuda")
    del passing
    last = torch.empty(2 * MiB, dtype=torch.uint8, device="cuda")
""")
    result.assert_outcomes(failed=1)
    assert "exceeds its limit of 60.00 MiB on cuda:0" in text
    assert "peak of allocated memory: 62.00 MiB over the 40.00 MiB from before the test" in text
    if world.MODE != "plug":  # its history has no stacks
        assert "30.00 MiB in 1 block" in text and "32.00 MiB in 1 block" in text and " 2.00 MiB in" not in text
        assert "test_it.py:11 in test_over" in text and "> passing = torch.empty(32 * MiB" in text


def test_a_peak_at_the_limit_passes(run):
    result, _ = run("""
@pytest.mark.gpu_memory_limit("62MiB")
@pytest.mark.parametrize("sizes", [(30, 32), (62,)])
def test_at(sizes):
    kept = [new(size) for size in sizes]
""")
    result.assert_outcomes(passed=2)


def test_a_test_that_resets_the_statistics_has_the_same_peak(run):
    if world.MODE == "plug":
        pytest.skip("history has no sizes of the peak there: statistics alone tell it")
    result, text = run("""
@pytest.mark.gpu_memory_limit("60 MiB")
def test_reset():
    new(62)
    torch.cuda.reset_peak_memory_stats()
""")
    result.assert_outcomes(failed=1)
    assert "62.00 MiB over" in text


def test_reserved_memory_counts_what_is_cached(run):
    result, text = run("""
@pytest.mark.gpu_memory_limit("100 MiB", of="reserved")
@pytest.mark.gpu_memory_limit("100 MiB")
def test_reserved():
    a = new(60); del a
    b = new(80); del b
""")
    result.assert_outcomes(failed=1)
    assert "peak of reserved memory: 140.00 MiB" in text


def test_a_limit_is_of_a_device_and_the_closest_one_counts(run):
    result, text = run("""
@pytest.mark.gpu_memory_limit("1 MiB")
@pytest.mark.gpu_memory_limit("10 MiB", device="cuda:1")
class TestAll:
    @pytest.mark.gpu_memory_limit("50 MiB")
    def test_first(self): kept = new(40)
    def test_second(self): kept = new(40, "cuda:1")
    def test_third(self): kept = new(2)
""")
    result.assert_outcomes(passed=1, failed=2)
    assert "exceeds its limit of 10.00 MiB on cuda:1" in text and "exceeds its limit of 1.00 MiB on cuda:0" in text


def test_memory_of_fixtures_is_not_the_tests(run):
    result, _ = run("""
@pytest.fixture(scope="module")
def shared(): return new(100)
@pytest.fixture
def own():
    mine = new(100)
    yield mine
    del mine
@pytest.mark.gpu_memory_limit("10 MiB")
@pytest.mark.gpu_no_leaks
def test_small(shared, own): new(8)
""")
    result.assert_outcomes(passed=1)


def test_memory_that_is_left_is_an_error_with_its_line(run):
    result, text = run("""
kept = []
@pytest.mark.gpu_no_leaks
def test_leaks():
    kept.append(new(30))
@pytest.mark.gpu_no_leaks("30 MiB")
def test_leaks_little():
    kept.append(new(30))
@pytest.mark.gpu_no_leaks
def test_leaks_nothing():
    cycle = [new(30)]
    cycle.append(cycle)
    (torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")).sum()
def test_end(): kept.clear()
""")
    result.assert_outcomes(passed=4, errors=1)
    assert "this test leaves GPU memory on cuda:0: 30.00 MiB in 1 block" in text
    if world.MODE != "plug":
        assert "30.00 MiB in 1 block from test_it.py:4 in new" in text


def test_memory_that_a_fixture_frees_is_not_left(run):
    result, _ = run("""
@pytest.fixture
def box():
    things = []
    yield things
    things.clear()
@pytest.mark.gpu_no_leaks
def test_fills(box): box.append(new(30))
""")
    result.assert_outcomes(passed=1)


def test_a_test_that_fails_by_itself_fails_once(run):
    result, text = run("""
@pytest.mark.gpu_memory_limit("1 MiB")
@pytest.mark.gpu_no_leaks
def test_fails():
    kept = new(30)
    assert False, "its own"
""")
    result.assert_outcomes(failed=1)
    assert "its own" in text and "exceeds" not in text


def test_a_history_that_the_program_records_goes_on(run):
    if world.MODE == "plug":
        pytest.skip("its history has no stacks")
    torch.cuda.memory._record_memory_history()
    kept = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    result, text = run("""
@pytest.mark.gpu_memory_limit("10 MiB")
def test_over(): kept = new(20)
""")
    result.assert_outcomes(failed=1)
    assert "20.00 MiB in 1 block" in text and "30.00 MiB in 1 block" not in text
    assert torch._C._cuda_isHistoryEnabled()
    del kept


def test_history_stops_after_a_marked_test(run):
    run("@pytest.mark.gpu_memory_limit('10 MiB')\ndef test_small(): kept = new(2)")
    assert not torch._C._cuda_isHistoryEnabled()


def test_the_report_lists_peaks_and_what_is_left(run):
    result, text = run("""
kept = []
def test_unmarked(): new(20)
@pytest.mark.gpu_no_leaks
def test_leaks(): kept.append(new(30))
def test_without_gpu(): kept.clear()
""", "--cachalot-report")
    result.assert_outcomes(passed=3, errors=1)
    assert "GPU memory" in text
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "30.00 MiB cuda:0 test_it.py::test_leaks, leaves 30.00 MiB" in lines
    assert "20.00 MiB cuda:0 test_it.py::test_unmarked" in lines


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("gpu_memory_limit('2 gallons')", "gpu_memory_limit: size is '2 gallons'; it must be a number of bytes or a size such as"),
        ("gpu_memory_limit()", "gpu_memory_limit takes size, of and device"),
        ("gpu_memory_limit('1 GiB', of='cached')", "of is 'cached'; it must be 'allocated' or 'reserved'"),
        ("gpu_memory_limit('1 GiB', device='cpu')", "device is 'cpu'; it must be a number such as 1, or 'cuda:1'"),
        ("gpu_no_leaks(-1)", "gpu_no_leaks: threshold is -1"),
        ("gpu_no_leaks(limit=1)", "gpu_no_leaks takes threshold and device"),
    ],
)
def test_a_bad_mark_is_refused_before_any_test_runs(run, mark, message):
    result, text = run(f"def test_first(): pass\n@pytest.mark.{mark}\ndef test_bad(): pass\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in text + str(result.stderr) and "test_it.py::test_bad" in text + str(result.stderr)


def test_a_device_that_is_not_there_fails_the_test(run):
    result, text = run("@pytest.mark.gpu_memory_limit('1 GiB', device=63)\ndef test_far(): pass\n")
    result.assert_outcomes(failed=1)
    assert f"names cuda:63, and there are {torch.cuda.device_count()} devices" in text


def test_a_suite_without_marks_imports_nothing_and_prints_nothing(pytester):
    pytester.makepyfile(test_it="import sys\ndef test_light():\n    assert not {'torch', 'ctypes', 'cachalot._programs.memory_of_test'} & set(sys.modules)\n")
    plain = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-q")
    with_plugin = pytester.runpytest_subprocess(*PLUGIN)
    with_plugin.assert_outcomes(passed=1)
    without_time = [line for line in with_plugin.outlines if " in " not in line]
    assert without_time == [line for line in plain.outlines if " in " not in line]


def test_pytest_finds_the_plugin_of_an_installed_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"cachalot": "cachalot.pytest_plugin"}


SIMULATED = HEAD + """
@pytest.mark.gpu_memory_limit("1 GiB")
def test_card():
    assert torch.cuda.get_device_name() == "Tesla T4"
    new(100)
@pytest.mark.gpu_memory_limit("1 MiB")
def test_over(): new(100)
"""


def simulated(folder, *options):
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("LD_PRELOAD", "LD_LIBRARY_PATH") and not name.startswith("CACHALOT_SIM")}
    (folder / "test_it.py").write_text(SIMULATED)
    return subprocess.run([sys.executable, "-m", "pytest", *PLUGIN, *options], env=environment, cwd=folder, capture_output=True,
                          text=True, timeout=300)


@pytest.mark.skipif("CACHALOT_COMMAND" not in os.environ, reason="needs the cachalot command")
@pytest.mark.skipif(world.MODE != "native", reason="a process of its own: mode native runs it")
@pytest.mark.parametrize("by", ["option", "setting"])
def test_a_session_runs_on_a_simulated_gpu(tmp_path, by):
    if by == "setting":
        (tmp_path / "pytest.ini").write_text("[pytest]\ncachalot_simulate = t4 --context none\n")
    done = simulated(tmp_path, *(["--cachalot-simulate", "t4"] if by == "option" else []))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 1 passed" in done.stdout and "exceeds its limit of 1.00 MiB" in done.stdout


def test_a_session_that_a_program_runs_cannot_be_simulated(pytester, monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    pytester.makepyfile(test_it="def test_nothing(): pass")
    result = pytester.runpytest_inprocess(*PLUGIN, "--cachalot-simulate", "t4")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "needs pytest's own command line" in str(result.stderr) + str(result.stdout)


def test_workers_of_xdist_tell_the_same(pytester):
    pytest.importorskip("xdist")
    pytester.makepyfile(test_it=SIMULATED)
    result = pytester.runpytest_subprocess(*PLUGIN, "-n", "1", "--cachalot-report")
    text = str(result.stdout)
    assert "exceeds its limit of 1.00 MiB" in text
    assert "100.00 MiB  cuda:0  test_it.py::test_over" in text


GUARDED = world.HANDS + """
import pytest, torch
def make():
    return torch.empty(1000, dtype=torch.uint8, device="cuda")
@pytest.fixture
def kept():
    x = make()
    yield x
    smash(x.data_ptr() - 1)
def test_good(): make().fill_(3)
def test_behind():
    x = make()
    smash(x.data_ptr() + 1003)
def test_freed():
    x = make()
    pointer = x.data_ptr()
    del x
    smash(pointer + 7)
def test_twice():
    pointer = torch.cuda.caching_allocator_alloc(4096)
    torch.cuda.caching_allocator_delete(pointer)
    with pytest.raises((RuntimeError, ValueError)): torch.cuda.caching_allocator_delete(pointer)
def test_fixture(kept): pass
def test_fails_by_itself():
    x = make()
    smash(x.data_ptr() + 1003)
    assert False, "its own words"
@pytest.mark.gpu_guard(False)
def test_not_looked_at(): smash(make().data_ptr() + 1003)
@pytest.mark.gpu_guard
def test_marked(): pass
def test_good_after_bad(): make()
"""


def guarded(pytester, *options, code=GUARDED):
    pytester.makepyfile(test_it=code)
    result = pytester.runpytest_subprocess(*PLUGIN, *options)
    return result, str(result.stdout)


@pytest.mark.skipif(world.MODE != "full", reason="a process of its own, in which the plugin enables the full allocator")
def test_the_guard_fails_the_test_that_made_the_mistake_and_no_other(pytester):
    result, text = guarded(pytester, "--cachalot-guard", "-vv")
    result.assert_outcomes(passed=5, failed=4, errors=1)
    for name in ("good", "fixture", "not_looked_at", "marked", "good_after_bad"):
        assert f"test_it.py::test_{name} PASSED" in text
    assert "test_it.py::test_fixture ERROR" in text and "something wrote 1 bytes before the block of 1,000 bytes at 0x" in text
    assert "back_canary: something wrote 3 bytes behind the end of the block of 1,000 bytes" in text
    assert "write_after_free: something wrote at byte 7 of the block of 1,000 bytes" in text
    assert "    allocated at: test_it.py:13 in make\n      > return torch.empty(1000" in text
    assert "    freed at: the return of the test\n" in text
    assert "    freed at: test_it.py:26 in test_freed\n      > del x" in text
    assert "double_free: invalid device pointer" in text and "    here: test_it.py:31 in test_twice" in text
    assert "its own words" in text and "GPU memory guard" in text


@pytest.mark.skipif(world.MODE != "full", reason="a process of its own, in which the plugin enables the full allocator")
def test_a_mark_alone_guards_its_test(pytester):
    code = GUARDED.split("@pytest.fixture")[0] + """
@pytest.mark.gpu_guard
def test_marked():
    x = make()
    smash(x.data_ptr() - 1)
def test_not_marked(): smash(make().data_ptr() - 1)
@pytest.mark.gpu_guard
def test_good(): make()
"""
    result, text = guarded(pytester, code=code)
    result.assert_outcomes(passed=2, failed=1)
    assert "front_canary" in text and "test_marked" in text


def test_a_mark_of_the_guard_has_a_rule(run):
    result, _ = run("@pytest.mark.gpu_guard('yes')\ndef test_it(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
