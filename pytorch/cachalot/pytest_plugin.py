"""Limits of GPU memory for tests, and a guard of memory: a plugin of pytest, which pytest finds by itself where cachalot is installed.

    @pytest.mark.gpu_memory_limit("2 GiB")
    @pytest.mark.gpu_no_leaks
    @pytest.mark.gpu_guard
    def test_step():
        ...

docs/guides/pytest.md describes the marks and the options. Nothing is imported and nothing is printed for suites that use neither.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from ._base import environment

if TYPE_CHECKING:
    from ._programs.memory_of_test import Kind, Measurement


class Limit(NamedTuple):
    limit: int
    kind: Kind
    device: int | None


class NoLeaks(NamedTuple):
    threshold: int
    device: int | None


class Asked(NamedTuple):
    """The requests of a test's marks."""

    limits: tuple[Limit, ...]
    no_leaks: tuple[NoLeaks, ...]
    guard: bool | None  # None: no mark says it

    @property
    def devices(self) -> set[int | None]:
        """Returns the devices to measure, of which None is the current one."""
        return {limit.device for limit in self.limits} | {asked.device for asked in self.no_leaks}


def asked_by_marks(item: pytest.Item) -> Asked | None:
    """Returns what a test's marks ask for; None where it has none. Raises ValueError or TypeError, which names the mark."""
    asked = Asked(tuple(_limits(item)), tuple(_no_leaks(item)), _guard_mark(item))
    return asked if asked != ((), (), None) else None


def _limits(item: pytest.Item) -> Iterator[Limit]:
    """The closest limit of each device and kind."""
    def read(size: object, of: Kind = "allocated", device: object = None) -> Limit:
        if of not in ("allocated", "reserved"):
            raise ValueError(f"gpu_memory_limit: of is {of!r}; it must be 'allocated' or 'reserved'")
        from ._base.sizes import bytes_of

        return Limit(bytes_of("gpu_memory_limit: size", size), of, _device("gpu_memory_limit", device))

    seen: set[tuple[str, int | None]] = set()
    for mark in item.iter_markers("gpu_memory_limit"):
        try:
            limit = read(*mark.args, **mark.kwargs)
        except TypeError as error:
            raise TypeError(f"gpu_memory_limit takes size, of and device: {error}") from None
        if (limit.kind, limit.device) not in seen:
            seen.add((limit.kind, limit.device))
            yield limit


def _no_leaks(item: pytest.Item) -> Iterator[NoLeaks]:
    def read(threshold: object = 0, device: object = None) -> NoLeaks:
        from ._base.sizes import bytes_of

        return NoLeaks(bytes_of("gpu_no_leaks: threshold", threshold), _device("gpu_no_leaks", device))

    seen: set[int | None] = set()
    for mark in item.iter_markers("gpu_no_leaks"):
        try:
            asked = read(*mark.args, **mark.kwargs)
        except TypeError as error:
            raise TypeError(f"gpu_no_leaks takes threshold and device: {error}") from None
        if asked.device not in seen:
            seen.add(asked.device)
            yield asked


def _guard_mark(item: pytest.Item) -> bool | None:
    def read(on: object = True) -> bool:
        if not isinstance(on, bool):
            raise ValueError(f"gpu_guard: on is {on!r}; it must be True or False")
        return on

    mark = item.get_closest_marker("gpu_guard")
    try:
        return None if mark is None else read(*mark.args, **mark.kwargs)
    except TypeError as error:
        raise TypeError(f"gpu_guard takes on: {error}") from None


def _device(mark: str, device: object) -> int | None:
    text = str(device).removeprefix("cuda:")
    if device is not None and not (text.isdecimal() and not isinstance(device, bool)):
        raise ValueError(f"{mark}: device is {device!r}; it must be a number such as 1, or 'cuda:1'")
    return None if device is None else int(text)


_PROPERTY = "cachalot_gpu_memory"  # of a test's report: device, peak and the memory left, which also comes from xdist's workers
_MOST_ROWS = 20


_ASKED = pytest.StashKey["Asked | None"]()
_MEASURED = pytest.StashKey["dict[int, Measurement]"]()
_has_guard = False  # in this session
_figures_of_session: list[tuple[str, dict[str, Any]]] = []  # of each test


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cachalot", "GPU memory (cachalot)")
    group.addoption("--cachalot-report", action="store_true", help="show the tests with the highest peaks of GPU memory")
    group.addoption(
        "--cachalot-simulate", metavar="GPU", default=None,
        help="run the tests on a simulated GPU, such as a100 or 24GiB; options of `cachalot simulate` may follow in the same word",
    )
    group.addoption("--cachalot-guard", action="store_true", help="look for writes beside GPU memory and after its life, and for "
                                                                  "wrong frees, in each test")
    parser.addini("cachalot_guard", "as --cachalot-guard", type="bool", default=False)
    parser.addini("cachalot_simulate", "the GPU to simulate, as for --cachalot-simulate", default="")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Starts again on the simulated GPU before anything is captured or imported; starts the guard before anything is allocated."""
    given = early_config.known_args_namespace
    asked = given.cachalot_simulate if given.cachalot_simulate is not None else str(early_config.getini("cachalot_simulate"))
    if asked and "libcachalot_simulator" not in environment.text("LD_PRELOAD"):
        _start_again(asked, early_config)
    if given.cachalot_guard or early_config.getini("cachalot_guard"):
        _start_guard("--cachalot-guard")
    yield


def _start_again(asked: str, config: pytest.Config) -> None:
    """Becomes `cachalot simulate` with the command line that Python was started with."""
    from ._programs import command as _command

    if list(config.invocation_params.args) != sys.argv[1:]:
        raise pytest.UsageError("--cachalot-simulate needs pytest's own command line; a program that calls pytest.main can be "
                                "started by `cachalot simulate` itself")
    gpu, *options = shlex.split(asked)
    command = _command.find()
    if command is None:
        raise pytest.UsageError("--cachalot-simulate needs the command `cachalot`, which a wheel of cachalot has")
    which = ["--memory" if gpu[0].isdigit() and gpu[-1] in "bB" else "--gpu", gpu]
    sys.stdout.flush()
    sys.stderr.flush()
    words = [str(command), "simulate", *which, *options, "--", sys.executable, *sys.orig_argv[1:]]
    os.execve(command, words, environment.copied(CACHALOT_PYTHON=sys.executable))


def _start_guard(asked_by: str) -> None:
    global _has_guard
    from ._base.errors import EnableError
    from ._start import guard_of_test

    try:
        _has_guard = guard_of_test.start()
    except EnableError as error:
        raise pytest.UsageError(f"{asked_by}: {error}") from None


def pytest_report_header(config: pytest.Config) -> str | None:
    if not _guards_all(config):
        return None
    return "cachalot: GPU memory guard" if _has_guard else "cachalot: no GPU memory guard, since there is no GPU"


def _guards_all(config: pytest.Config) -> bool:
    return bool(config.getoption("cachalot_guard") or config.getini("cachalot_guard"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu_memory_limit(size, of='allocated', device=None): the test fails if it has more GPU memory "
                                       "at a time than '2 GiB', over what there was before; of='reserved' counts cached memory, too")
    config.addinivalue_line("markers", "gpu_no_leaks(threshold=0, device=None): the test fails if it leaves more allocated GPU "
                                       "memory than the threshold")
    config.addinivalue_line("markers", "gpu_guard(on=True): the test fails if memory beside its GPU memory, or memory that was freed, is "
                                       "written to, and if memory is freed or used wrongly; False: it does not, with --cachalot-guard, too")
    _figures_of_session.clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuses marks with bad arguments before any test runs."""
    for item in items:
        try:
            item.stash[_ASKED] = asked_by_marks(item)
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from None
    if any(asked and asked.guard for asked in (item.stash[_ASKED] for item in items)):
        _start_guard("a test is marked with gpu_guard")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Measures the test, without the fixtures around it."""
    asked = item.stash.get(_ASKED, None)
    measured = _begin(item, asked)
    try:
        result = yield
    except BaseException:
        _forget(item)  # the memory of a failed test is held by its traceback
        _add_to_failure(item)
        raise
    for measurement in measured.values():
        measurement.end_of_call()
    for limit in asked.limits if asked else ():
        peak = measured[_index(limit.device)].peak(limit.kind)
        if peak.peak > limit.limit:
            _tell_peaks(item, measured)
            _forget(item)
            pytest.fail(peak.over(limit.limit), pytrace=False)
    _tell_peaks(item, measured)
    _check_guard(item)
    return result


def _begin(item: pytest.Item, asked: Asked | None) -> dict[int, Measurement]:
    wants_report = bool(item.config.getoption("cachalot_report")) and "torch" in sys.modules
    is_measured = asked is not None and bool(asked.devices)
    needs_gpu = is_measured or asked is not None and asked.guard is True
    if not wants_report and not needs_gpu:
        return {}
    import torch

    from ._programs.memory_of_test import Measurement

    if needs_gpu and not torch.cuda.is_available():
        pytest.skip("a mark of GPU memory needs a GPU, or a simulated one: --cachalot-simulate a100")
    if not is_measured and not (wants_report and torch.cuda.is_initialized()):
        return {}
    devices = {_index(device) for device in (asked.devices if asked and is_measured else {None})}
    absent = max(devices)
    if absent >= torch.cuda.device_count():
        pytest.fail(f"a mark of this test names cuda:{absent}, and there are {torch.cuda.device_count()} devices", pytrace=False)
    kinds: frozenset[Kind] = frozenset(limit.kind for limit in asked.limits) if asked else frozenset()
    measured = item.stash[_MEASURED] = {
        device: Measurement(device, kinds, trace=is_measured) for device in sorted(devices)}
    return measured


def _found_by_guard(item: pytest.Item) -> str:
    """Returns the mistakes since the last call, if this test is to be told of them."""
    if not _has_guard:
        return ""
    from ._start import guard_of_test

    found = guard_of_test.found()
    asked = item.stash.get(_ASKED, None)
    is_guarded = _guards_all(item.config) if asked is None or asked.guard is None else asked.guard
    return found if is_guarded else ""


def _check_guard(item: pytest.Item) -> None:
    found = _found_by_guard(item)
    if found:
        pytest.fail(found, pytrace=False)


def _add_to_failure(item: pytest.Item) -> None:
    try:
        found = _found_by_guard(item)
    except RuntimeError:  # the failure may be one of CUDA, after which nothing can be checked
        return
    if found:
        item.add_report_section("call", "GPU memory guard", found)


def _index(device: int | None) -> int:
    import torch

    return torch.cuda.current_device() if device is None else device


def _measured_of(item: pytest.Item) -> dict[int, Measurement]:
    nothing: dict[int, Measurement] = {}
    return item.stash.get(_MEASURED, nothing)


def _forget(item: pytest.Item) -> None:
    for measurement in _measured_of(item).values():
        measurement.stop()
    item.stash[_MEASURED] = {}


def _tell_peaks(item: pytest.Item, measured: dict[int, Measurement]) -> None:
    for device, measurement in measured.items():
        item.user_properties.append((_PROPERTY, {"device": device, "peak": measurement.peak("allocated").peak}))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Looks for what the test left, once its fixtures have ended."""
    result = yield
    measured = _measured_of(item)
    try:
        marks = item.stash.get(_ASKED, None)
        for asked in marks.no_leaks if marks and measured else ():
            left = measured[_index(asked.device)].left()
            if left.bytes > asked.threshold:
                item.user_properties.append((_PROPERTY, {"device": left.device, "left": left.bytes}))
                pytest.fail(left.over(asked.threshold), pytrace=False)
    finally:
        _forget(item)
    _check_guard(item)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keeps the figures, which with xdist come from the workers."""
    if report.when == "teardown":
        properties: list[tuple[str, Any]] = report.user_properties
        _figures_of_session.extend((report.nodeid, value) for name, value in properties if name == _PROPERTY)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if not config.getoption("cachalot_report"):
        return
    from ._base.text import bytes_text

    by_test: dict[tuple[str, int], dict[str, int]] = {}
    for test, figures in _figures_of_session:
        by_test.setdefault((test, figures["device"]), {}).update(figures)
    rows = sorted(by_test.items(), key=lambda row: -row[1].get("peak", 0))
    terminalreporter.section("GPU memory")
    if not rows:
        terminalreporter.line("no test used GPU memory")
    for (test, device), figures in rows[:_MOST_ROWS]:
        left = f", leaves {bytes_text(figures['left'])}" if "left" in figures else ""
        terminalreporter.line(f"{bytes_text(figures.get('peak', 0)):>12}  cuda:{device}  {test}{left}")
    if len(rows) > _MOST_ROWS:
        terminalreporter.line(f"and {len(rows) - _MOST_ROWS} more tests")
