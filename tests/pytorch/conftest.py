"""One run of pytest is one mode: CACHALOT_TEST_MODE is native (PyTorch's own allocator, the oracle), plug, full, pages
(full, on the page heap).

The whole process runs on the simulated CUDA runtime, preloaded, or on a GPU. Every test begins with an empty allocator.
"""

import gc
import traceback

import pytest
import torch
import world

world.enable()


@pytest.fixture(autouse=True)
def empty_allocator():
    world.reset()
    gc.freeze()  # nothing of this has memory: searching all modules for garbage again takes a tenth of a second each time
    yield
    gc.collect()


def pytest_report_header():
    return f"mode {world.MODE}, PyTorch {torch.__version__}, {torch.cuda.get_device_name()}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test's tensors die with it, not with its traceback."""
    report = yield
    error = call.excinfo and call.excinfo.value
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        for frame, _ in traceback.walk_tb(error.__traceback__):
            frame.f_locals  # noqa: B018  # a frame keeps a copy of its variables until it is asked again
        error = error.__context__
    return report
