"""Observers written in C++: trace trackers and callbacks that free memory. The same under native and full."""

from pathlib import Path

import pytest
from world import MODE, PAGES, run_python, succeeds

pytestmark = pytest.mark.skipif(MODE == "plug", reason="C++ callers of the allocator need the full one")

SOURCE = Path(__file__).with_name("observers.cpp")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    from cachalot import _adapter, _plug

    _plug.Plug()  # loaded, as the compiled file will be linked with it
    path = tmp_path_factory.mktemp("observers") / "libobservers.so"
    _adapter._compile(SOURCE, path)
    return path


LOAD = """
import ctypes, cachalot._plug
cachalot._plug.Plug()
observers = ctypes.CDLL({library!r})
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, *_, OOM = range(9)
"""


def test_a_tracker_sees_a_segment_come_and_go(library):
    succeeds(
        run_python(
            LOAD.format(library=str(library))
            + f"""
torch.cuda.init()
observers.attach_tracker()
block = torch.empty(500 << 20, dtype=torch.uint8, device="cuda")
del block
torch.cuda.empty_cache()
seen = [observers.times_seen(action) for action in range(9)]
if {PAGES}:
    assert seen[SEGMENT_MAP] == seen[SEGMENT_UNMAP] >= 1, seen
else:
    assert seen[SEGMENT_ALLOC] == seen[SEGMENT_FREE] == 1, seen
assert seen[ALLOC] == seen[FREE_REQUESTED] == seen[FREE_COMPLETED] == 1, seen
"""
        )
    )


def test_callbacks_free_memory_before_the_allocator_grows(library):
    succeeds(
        run_python(
            LOAD.format(library=str(library))
            + """
observers.keep_spare.argtypes = [ctypes.c_void_p]
spare = torch._C._cuda_cudaCachingAllocator_raw_alloc(64 << 20, torch.cuda.current_stream().cuda_stream)
observers.keep_spare(spare)
called = observers.callback_calls()
block = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
assert block.data_ptr() == spare, "what the callback freed serves the request"
assert observers.callback_calls() == called + 1
assert torch.cuda.memory_reserved() == 64 << 20
"""
        )
    )
