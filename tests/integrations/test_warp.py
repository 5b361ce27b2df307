"""NVIDIA Warp on the process's heap: cachalot.enable_warp().

Warp's library has a CUDA runtime of its own inside, which finds no device on the simulated one: fills, captures and Warp's own
allocator do not work there. Arrays, kernels and streams do, through the driver.
"""

import gc

import pytest
import warp
from heap import OUT_OF_MEMORY, MiB, live_bytes, run, usage

import cachalot

warp.config.quiet = True
cachalot.enable_warp()


@warp.kernel
def twice(values: warp.array(dtype=float)):
    index = warp.tid()
    values[index] = values[index] * 2.0


@pytest.fixture(autouse=True)
def nothing_lives():
    gc.collect()
    assert live_bytes("warp") == 0


def test_a_kernel_runs_on_memory_of_the_heap():
    array = warp.empty(1000, dtype=float, device="cuda:0")
    warp.launch(twice, dim=1000, inputs=[array], device="cuda:0")
    assert live_bytes("warp") == 4096


def test_each_array_is_counted_from_its_allocation_to_its_free():
    before = usage("warp")
    arrays = [warp.empty(5 * MiB, dtype=warp.uint8, device="cuda:0") for _ in range(3)]
    del arrays[1:]
    assert live_bytes("warp") == 5 * MiB
    arrays.clear()
    after = usage("warp")
    assert (after.allocations - before.allocations, after.frees - before.frees, after.live_bytes) == (3, 3, 0)


def test_memory_is_of_the_arrays_device():
    array = warp.empty(MiB, dtype=warp.uint8, device="cuda:1")
    assert live_bytes("warp", device=1) == MiB
    del array
    assert live_bytes("warp", device=1) == 0


def test_memory_is_reused_in_the_order_of_the_current_stream():
    def address_of(stream):
        with warp.ScopedStream(stream, sync_enter=False):
            return warp.empty(3 * MiB, dtype=warp.uint8, device="cuda:0").ptr

    one, other = warp.Stream("cuda:0"), warp.Stream("cuda:0")
    first = address_of(one)
    assert address_of(other) != first
    assert address_of(one) == first


@pytest.mark.skipif(not hasattr(warp, "MemoryKind"), reason="this Warp has no kinds of memory")
def test_memory_is_of_the_kind_that_warp_knows_for_devices():
    assert warp.empty(10, dtype=float, device="cuda:0").memory_kind == warp.MemoryKind.CUDA_DEVICE


def test_out_of_memory_is_warps_error_with_cachalots_text():
    with pytest.raises(RuntimeError, match=f"Failed to allocate .* on device 'cuda:0': {OUT_OF_MEMORY}"):
        warp.empty((1 << 31) - 1, dtype=warp.mat44d, device="cuda:0")


class FakeDevice:
    """A device of Warp's while it captures, as far as an allocator sees it."""

    ordinal, captures = 0, {"stream": "graph"}

    class current_allocator:
        allocated, freed = [], []

        @classmethod
        def allocate(cls, size):
            cls.allocated.append(size)
            return 4096

        @classmethod
        def deallocate(cls, address, size):
            cls.freed.append((address, size))

    class context_guard:
        __enter__ = __exit__ = lambda *_: None

    context_guard = context_guard()


def test_memory_of_a_captured_graph_is_from_warps_own_allocator():
    from cachalot.integrations.warp import DeviceAllocator
    from cachalot._heap.libraries import LibraryHeap

    allocator = DeviceAllocator(FakeDevice(), LibraryHeap("warp"), None)
    before = usage("warp")
    assert allocator.allocate(1000) == 4096
    allocator.deallocate(4096, 1000)
    own = FakeDevice.current_allocator
    assert (own.allocated, own.freed) == ([1000], [(4096, 1000)])
    assert usage("warp") == before


def test_a_second_call_changes_nothing():
    allocator = warp.get_device_allocator("cuda:0")
    cachalot.enable_warp()
    assert warp.get_device_allocator("cuda:0") is allocator


def test_warps_own_allocator_comes_back():
    array = warp.empty(1000, dtype=float, device="cuda:0")
    own = type(warp.get_device("cuda:0").current_allocator)
    warp.set_cuda_allocator(None)
    assert type(warp.get_device_allocator("cuda:0")) is own
    del array
    assert live_bytes("warp") == 0
    cachalot.enable_warp()


def test_a_process_ends_well_while_arrays_live():
    run("""
        import cachalot, warp
        warp.config.quiet = True
        cachalot.enable_warp()
        array = warp.empty(1000, dtype=float, device="cuda:0")
    """)
