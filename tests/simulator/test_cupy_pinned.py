"""CuPy's pinned memory from cachalot's pinned heap, on the simulated CUDA runtime."""

import subprocess
import sys
import threading

import cachalot
import cupy
import cupyx
import numpy
import pytest

MiB = 1 << 20

cachalot.enable_cupy_pinned()


@pytest.fixture(autouse=True)
def nothing_pinned():
    cachalot.set_pinned_limit(None)
    cupy.cuda.Device().synchronize()
    yield
    cupy.cuda.Device().synchronize()


def live_bytes():
    return cachalot.pinned_stats()["allocated_bytes.all.current"]


def test_buffers_are_cachalots_and_hold_what_is_written():
    before = live_bytes()
    buffer = cupy.cuda.alloc_pinned_memory(3 * MiB)
    assert buffer.size() == 3 * MiB and buffer.ptr % 512 == 0
    assert live_bytes() == before + 3 * MiB
    values = numpy.frombuffer(buffer, dtype=numpy.uint8, count=1000)
    values[:] = 7
    assert values.sum() == 7000
    del values, buffer
    assert live_bytes() == before


def test_cupyx_makes_arrays_of_it():
    before = live_bytes()
    array = cupyx.empty_pinned(1000, dtype=numpy.float32)
    array[:] = numpy.arange(1000)
    on_gpu = cupy.empty(1000, dtype=numpy.float32)
    on_gpu.set(array)
    assert numpy.array_equal(on_gpu.get(), array)
    assert live_bytes() > before


def test_sizes_are_not_rounded_to_powers_of_two():
    kept = cupy.cuda.alloc_pinned_memory(67 * MiB)
    assert kept.size() <= cachalot.pinned_stats()["reserved_bytes.all.current"] < 96 * MiB


def test_a_freed_buffer_serves_the_next_request():
    buffer = cupy.cuda.alloc_pinned_memory(5000)
    address = buffer.ptr
    del buffer
    again = cupy.cuda.alloc_pinned_memory(5000)
    assert again.ptr == address


def test_no_bytes_are_no_memory():
    assert cupy.cuda.alloc_pinned_memory(0).ptr == 0


def test_the_limit_is_a_memory_error():
    cachalot.enable_cupy_pinned(limit="64MiB")
    with pytest.raises(MemoryError, match="tried to allocate 65.00 MiB.* of a limit of 64.00 MiB"):
        cupy.cuda.alloc_pinned_memory(65 * MiB)
    kept = cupy.cuda.alloc_pinned_memory(MiB)
    assert kept.size() == MiB
    with pytest.raises(ValueError, match="pinned_limit is 'much'"):
        cachalot.enable_cupy_pinned(limit="much")


def test_threads_allocate_at_once():
    before = live_bytes()
    threads = [
        threading.Thread(target=lambda: [cupy.cuda.alloc_pinned_memory(1000 + n) for n in range(200)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert live_bytes() == before


@pytest.mark.parametrize("program", [
    "import cachalot, cupy; cachalot.enable_cupy_pinned(); kept = cupy.cuda.alloc_pinned_memory(1000)",
    "import cachalot, cupy, sys; cachalot.enable_cupy_pinned(); sys.kept = cupy.cuda.alloc_pinned_memory(1000)",
])  # fmt: skip
def test_a_process_ends_with_a_live_buffer(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_without_cupy_it_says_what_to_install():
    program = "import sys; sys.modules['cupy'] = None; import cachalot; cachalot.enable_cupy_pinned()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert "cachalot._base.errors.EnableError: cupy cannot be imported" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("Install it: pip install cupy-cuda13x")
