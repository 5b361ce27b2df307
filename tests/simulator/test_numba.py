"""Numba's CUDA target, which loads the driver by name, on the simulated one."""

import numpy
import pytest
from numba import cuda


def test_devices_are_the_simulated_ones():
    assert cuda.is_available()
    assert len(cuda.gpus) == 2
    assert cuda.get_current_device().compute_capability == (9, 0)


def test_copies_keep_their_content():
    values = numpy.arange(1000)
    assert numpy.array_equal(cuda.to_device(values).copy_to_host(), values)


def test_memory_is_taken_from_the_device_and_given_back():
    context = cuda.current_context()
    context.memory_manager.deallocations.clear()
    free_bytes = context.get_memory_info().free
    array = cuda.device_array(64 << 20, dtype=numpy.uint8)
    assert context.get_memory_info().free == free_bytes - (64 << 20)
    del array
    context.memory_manager.deallocations.clear()
    assert context.get_memory_info().free == free_bytes


@pytest.mark.filterwarnings("ignore:Grid size")
def test_kernels_compile_and_launch():
    @cuda.jit
    def twice(values):
        values[cuda.grid(1)] *= 2

    array = cuda.to_device(numpy.ones(128, dtype=numpy.float32))
    stream = cuda.stream()
    twice[1, 128, stream](array)
    stream.synchronize()
    assert array.shape == (128,)


def test_pinned_memory_and_events():
    with cuda.pinned(numpy.ones(1000)):
        start, end = cuda.event(), cuda.event()
        start.record()
        end.record()
        end.synchronize()
    assert cuda.event_elapsed_time(start, end) >= 0


def test_too_much_memory_is_out_of_memory():
    with pytest.raises(cuda.cudadrv.driver.CudaAPIError):
        cuda.device_array(16 << 30, dtype=numpy.uint8)
