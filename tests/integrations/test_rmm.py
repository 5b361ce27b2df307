"""RMM on the process's heap: cachalot.enable_rmm().

RMM's libraries have CUDA runtimes of their own inside, which find no device on the simulated one. RMM needs its own for two
things that are not tested here: its own resources, and the number of the current device, which is given below.
"""

import ctypes
import gc

import pytest
import rmm
import rmm.pylibrmm.memory_resource._memory_resource as resources
from heap import OUT_OF_MEMORY, MiB, held, live_bytes, run, usage

import cachalot

resources.getDevice = lambda: 0
cachalot.enable_rmm()

DEVICE_0 = "import rmm.pylibrmm.memory_resource._memory_resource as resources; resources.getDevice = lambda: 0"


@pytest.fixture(autouse=True)
def nothing_lives():
    gc.collect()
    assert live_bytes("rmm") == 0


@pytest.fixture
def streams():
    """Two streams of CUDA's."""
    runtime = ctypes.CDLL(None)
    made = [ctypes.c_void_p(), ctypes.c_void_p()]
    for stream in made:
        assert runtime.cudaStreamCreate(ctypes.byref(stream)) == 0
    yield [stream.value for stream in made]
    for stream in made:
        assert runtime.cudaStreamSynchronize(stream) == 0


class Wrapped:
    """A stream as RMM takes it from other libraries."""

    def __init__(self, handle):
        self._handle = handle

    def __cuda_stream__(self):
        return 0, self._handle


def stream_of(handle):
    return rmm.pylibrmm.stream.Stream(Wrapped(handle))


def test_each_buffer_is_counted_from_its_allocation_to_its_free():
    before = usage("rmm")
    buffers = [rmm.DeviceBuffer(size=5 * MiB) for _ in range(3)]
    del buffers[1:]
    assert live_bytes("rmm") == 5 * MiB
    buffers.clear()
    after = usage("rmm")
    assert (after.allocations - before.allocations, after.frees - before.frees, after.live_bytes) == (3, 3, 0)


def test_memory_is_of_the_resources_device():
    resource = rmm.mr.get_per_device_resource(1)
    address = resource.allocate(MiB)
    assert (live_bytes("rmm", device=1), live_bytes("rmm")) == (MiB, 0)
    resource.deallocate(address, MiB)
    assert live_bytes("rmm", device=1) == 0


def test_memory_is_reused_in_the_order_of_its_stream(streams):
    one, other = (stream_of(stream) for stream in streams)
    resource = rmm.mr.get_current_device_resource()

    def address_on(stream):
        address = resource.allocate(3 * MiB, stream)
        resource.deallocate(address, 3 * MiB, stream)
        return address

    first = address_on(one)
    with held(streams[0]):
        assert address_on(other) != first
        assert address_on(one) == first


def test_a_free_on_another_stream_waits_for_it(streams):
    one, other = (stream_of(stream) for stream in streams)
    resource = rmm.mr.get_current_device_resource()
    first = resource.allocate(3 * MiB, one)
    with held(streams[1]):
        resource.deallocate(first, 3 * MiB, other)
        second = resource.allocate(3 * MiB, one)
        assert second != first
    resource.deallocate(second, 3 * MiB, one)


def test_adaptors_of_rmm_go_over_it():
    counted = rmm.mr.StatisticsResourceAdaptor(rmm.mr.get_current_device_resource())
    buffer = rmm.DeviceBuffer(size=MiB, mr=counted)
    assert counted.allocation_counts.current_bytes == MiB == live_bytes("rmm")
    del buffer


def test_out_of_memory_is_a_memory_error_with_cachalots_text():
    with pytest.raises(MemoryError, match=OUT_OF_MEMORY):
        rmm.DeviceBuffer(size=1 << 50)


def test_an_empty_buffer_needs_nothing():
    before = usage("rmm")
    assert rmm.DeviceBuffer(size=0).size == 0
    assert usage("rmm").live_bytes == before.live_bytes


def test_a_second_call_changes_nothing():
    resource = rmm.mr.get_per_device_resource(0)
    cachalot.enable_rmm()
    assert rmm.mr.get_per_device_resource(0) is resource


@pytest.mark.parametrize("bad", [-1, 2, True, "cuda:0"])
def test_a_device_that_does_not_exist_is_refused(bad):
    with pytest.raises(ValueError, match="there are 2 CUDA devices"):
        cachalot.enable_rmm(bad)


def test_one_device_alone_is_enabled():
    run(f"""
        import cachalot, rmm; {DEVICE_0}
        cachalot.enable_rmm(1)
        kinds = [type(rmm.mr.get_per_device_resource(device)).__name__ for device in (0, 1)]
        assert kinds == ["CudaMemoryResource", "CallbackMemoryResource"], kinds
    """)


def test_enable_all_enables_it_at_its_import():
    run(f"""
        import cachalot
        assert "rmm" in cachalot.enable_all().at_import
        import rmm; {DEVICE_0}
        buffer = rmm.DeviceBuffer(size=1 << 20)
        assert [usage.live_bytes for usage in cachalot.library_usage() if usage.library == "rmm"] == [1 << 20]
    """)


def test_a_version_that_is_too_old_is_one_line():
    run("""
        import cachalot, rmm
        rmm.__version__ = "25.10.00"
        try:
            cachalot.enable_rmm()
        except cachalot.EnableError as error:
            assert str(error) == "rmm 25.10.00 is too old: cachalot serves 25.12 and newer: pip install -U rmm-cu13", error
        else:
            raise AssertionError("it was enabled")
    """)


def test_a_process_ends_well_while_buffers_live():
    run(f"""
        import cachalot, rmm; {DEVICE_0}
        cachalot.enable_rmm()
        buffer = rmm.DeviceBuffer(size=1 << 20)
        rmm.kept = buffer
    """)
