"""cuda.core on the process's heap: cachalot.enable_cuda_core()."""

import threading

import pytest
from cuda.core import Device, DeviceMemoryResource
from heap import OUT_OF_MEMORY, MiB, held, live_bytes, run, usage

import cachalot


@pytest.fixture
def device():
    device = Device(0)
    device.set_current()
    cachalot.enable_cuda_core(device)
    assert live_bytes("cuda.core") == 0
    return device


def test_a_buffer_is_copied_and_filled_in_memory_of_the_heap(device):
    stream = device.create_stream()
    one, other = device.allocate(1000, stream=stream), device.allocate(1000, stream=stream)
    assert live_bytes("cuda.core") == 2 * 1024
    one.copy_to(other, stream=stream)
    other.fill(0, stream=stream)
    stream.sync()
    assert one.is_device_accessible and not one.is_host_accessible and one.device_id == 0
    one.close()
    other.close(stream)
    assert live_bytes("cuda.core") == 0


def test_each_buffer_is_counted_from_its_allocation_to_its_free(device):
    before = usage("cuda.core")
    stream = device.create_stream()
    buffers = [device.allocate(5 * MiB, stream=stream) for _ in range(3)]
    del buffers[1:]
    assert live_bytes("cuda.core") == 5 * MiB
    buffers.clear()
    after = usage("cuda.core")
    assert (after.allocations - before.allocations, after.frees - before.frees, after.live_bytes) == (3, 3, 0)


def test_memory_is_reused_in_the_order_of_the_stream_that_frees_it(device):
    of_allocation, of_free = device.create_stream(), device.create_stream()
    buffer = device.allocate(3 * MiB, stream=of_allocation)
    address = int(buffer.handle)
    with held(int(of_free.handle)):
        buffer.close(of_free)
        assert int(device.allocate(3 * MiB, stream=of_allocation).handle) != address


def test_out_of_memory_is_both_cuda_cores_error_and_pythons(device):
    from cuda.core._utils.cuda_utils import CUDAError

    for error in (CUDAError, MemoryError):
        with pytest.raises(error, match=OUT_OF_MEMORY):
            device.allocate(16 << 30, stream=device.default_stream)
    device.allocate(1000, stream=device.default_stream).close()


def test_an_empty_buffer_takes_no_memory(device):
    before = usage("cuda.core").allocations
    device.allocate(0, stream=device.default_stream).close()
    assert usage("cuda.core").allocations == before


def test_without_a_device_all_devices_of_the_thread_are_served():
    def served():
        return [type(Device(index).memory_resource).__name__ for index in (0, 1)]

    def in_another_thread(results):
        Device(0).set_current()
        cachalot.enable_cuda_core()
        results.append(served())

    results = []
    thread = threading.Thread(target=in_another_thread, args=(results,))
    thread.start()
    thread.join()
    assert results == [["HeapMemoryResource", "HeapMemoryResource"]]


def test_a_second_call_changes_nothing(device):
    resource = device.memory_resource
    cachalot.enable_cuda_core(0)
    assert device.memory_resource is resource


def test_cuda_cores_own_resource_comes_back(device):
    buffer = device.allocate(1000, stream=device.default_stream)
    device.memory_resource = DeviceMemoryResource(device)
    other = device.allocate(1000, stream=device.default_stream)
    assert live_bytes("cuda.core") == 1024
    buffer.close()
    other.close()
    assert live_bytes("cuda.core") == 0


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="7"):
        cachalot.enable_cuda_core(7)


def test_a_process_ends_well_while_buffers_live():
    run("""
        import cachalot
        from cuda.core import Device
        device = Device(0)
        device.set_current()
        cachalot.enable_cuda_core(0)
        buffer = device.allocate(1000, stream=device.create_stream())
    """)
