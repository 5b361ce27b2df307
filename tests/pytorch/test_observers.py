"""Observers written in C++: trace trackers and callbacks that free memory. The same under native and full."""

from pathlib import Path

import pytest
from world import MODE, PAGES, compile_beside_the_plug, full_only, run_python, succeeds

pytestmark = pytest.mark.skipif(MODE == "plug", reason="C++ callers of the allocator need the full one")

SOURCE = Path(__file__).with_name("observers.cpp")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_beside_the_plug(SOURCE, tmp_path_factory.mktemp("observers") / "libobservers.so")


LOAD = """
import ctypes, cachalot._bindings.plug
cachalot._bindings.plug.Plug()
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


NAME = "PYTORCH_CUDA_ALLOC_CONF"
ASK = """
def answer():
    torch.cuda.init()
    block = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    is_expandable = torch.cuda.memory_snapshot()[0]["is_expandable"]
    return observers.has_expandable_segments() == 1, is_expandable, settings["max_split_size"] >> 20
"""


@full_only
@pytest.mark.parametrize(
    "environment, has_pages",
    [
        ({NAME: "max_split_size_mb:40", "CACHALOT_CONF": "heap:pages"}, True),
        ({NAME: "expandable_segments: False, max_split_size_mb:40", "CACHALOT_CONF": "heap:pages"}, True),
        ({NAME: "max_split_size_mb:40, expandable_segments: True,", "CACHALOT_CONF": "heap:segments"}, False),
        ({NAME: "max_split_size_mb:40,expandable_segments:True", "CACHALOT_CONF": "expandable_segments:False"}, False),
        ({NAME: "max_split_size_mb:40,expandable_segments:True", "CACHALOT_CONF": ""}, True),
        ({NAME: "max_split_size_mb:40", "CACHALOT_CONF": ""}, False),
    ],
)
def test_code_that_asks_for_expandable_segments_is_told_which_heap_there_is(library, environment, has_pages):
    """The heap's choice is told for each way to choose it, with the other settings as they were given, also when a program
    changes them. Pages can be switched off, and not on."""
    process = run_python(
        LOAD.format(library=str(library))
        + ASK
        + f"""
assert answer() == ({has_pages}, {has_pages}, 40), answer()
torch._C._accelerator_setAllocatorSettings("max_split_size_mb:50")
assert answer() == ({has_pages}, {has_pages}, 50), answer()
torch._C._accelerator_setAllocatorSettings("max_split_size_mb:60,expandable_segments:{not has_pages}")
assert answer() == (False, False, 60), answer()
""",
        **environment,
    )
    succeeds(process)


@full_only
def test_settings_are_shown_as_they_were_given_with_the_heap_there_is(library):
    process = run_python(
        LOAD.format(library=str(library))
        + ASK
        + """
assert answer() == (True, True, 40), answer()
settings = torch.cuda.memory._snapshot()["allocator_settings"]
assert settings["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:40", settings
assert settings["expandable_segments"] is True, settings
""",
        **{NAME: "max_split_size_mb:40", "CACHALOT_CONF": "heap:pages"},
    )
    succeeds(process)


@full_only
def test_a_heap_that_a_program_chooses_before_it_uses_memory_is_told(library):
    process = run_python(
        LOAD.format(library=str(library))
        + """
assert observers.has_expandable_segments() == 0
torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
assert observers.has_expandable_segments() == 1
block = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
assert torch.cuda.memory_snapshot()[0]["is_expandable"]
""",
        **{NAME: "", "CACHALOT_CONF": ""},  # in mode pages, enable() has told the test's own environment of pages
    )
    succeeds(process)
