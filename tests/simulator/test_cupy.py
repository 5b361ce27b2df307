"""CuPy, which loads CUDA's libraries by name, on the simulated CUDA runtime."""

import os

import cupy
import numpy
import pytest

CUDA = os.environ.get("CACHALOT_TEST_CUDA")


@pytest.mark.skipif(CUDA is None, reason="any version of CUDA is right")
def test_the_wheel_is_of_the_version_under_test():
    assert cupy.cuda.runtime.runtimeGetVersion() // 1000 == int(CUDA)


def test_devices_are_the_simulated_ones():
    assert cupy.cuda.runtime.getDeviceCount() == 2
    properties = cupy.cuda.runtime.getDeviceProperties(1)
    assert properties["name"] == b"NVIDIA H100 80GB HBM3"
    assert properties["totalGlobalMem"] == 8 << 30
    assert properties["multiProcessorCount"] == 132
    assert cupy.cuda.Device(0).mem_info[1] == 8 << 30


def test_copies_keep_their_content():
    values = numpy.arange(1000)
    array = cupy.array(values)
    assert numpy.array_equal(array.get(), values)
    copied = cupy.empty_like(array)
    copied.data.copy_from_device(array.data, array.nbytes)
    assert numpy.array_equal(copied.get(), values)


def test_memory_is_taken_from_the_device_and_given_back():
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    free_bytes = cupy.cuda.Device().mem_info[0]
    array = cupy.empty(64 << 20, dtype=cupy.uint8)
    assert cupy.cuda.Device().mem_info[0] == free_bytes - (64 << 20)
    attributes = cupy.cuda.runtime.pointerGetAttributes(array.data.ptr)
    assert (attributes.type, attributes.device) == (cupy.cuda.runtime.memoryTypeDevice, 0)
    del array
    pool.free_all_blocks()
    assert cupy.cuda.Device().mem_info[0] == free_bytes


def test_kernels_compile_and_launch():
    array = cupy.ones((64, 64), dtype=cupy.float32)
    assert (array + array @ array).shape == (64, 64)
    kernel = cupy.RawKernel('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }', "twice")
    kernel((1,), (64,), (array,))
    cupy.cuda.get_current_stream().synchronize()


def test_a_graph_is_captured_and_launched():
    array = cupy.ones(1000)
    array + 1  # compiled before the capture
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        result = array + 1
        graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
    assert result.shape == array.shape


def test_pinned_managed_and_stream_ordered_memory():
    assert cupy.cuda.alloc_pinned_memory(1000).mem.size >= 1000
    assert cupy.cuda.malloc_managed(1000).mem.size >= 1000
    assert cupy.cuda.malloc_async(1000).mem.size >= 1000


def test_too_much_memory_is_out_of_memory():
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError):
        cupy.empty(16 << 30, dtype=cupy.uint8)
