"""Numba on the process's heap: cachalot.enable_numba()."""

import gc

import numpy
import pytest
from heap import OUT_OF_MEMORY, MiB, held, live_bytes, run, usage
from numba import cuda

import cachalot

cachalot.enable_numba()


@pytest.fixture(autouse=True)
def nothing_lives():
    gc.collect()
    assert live_bytes("numba") == 0


@pytest.mark.filterwarnings("ignore:Grid size")
def test_a_kernel_runs_on_memory_of_the_heap():
    @cuda.jit
    def twice(values):
        values[cuda.grid(1)] *= 2

    array = cuda.to_device(numpy.ones(128, dtype=numpy.float32))
    twice[1, 128](array)
    assert array.copy_to_host().shape == (128,)
    assert live_bytes("numba") == 512


def test_each_array_is_counted_from_its_allocation_to_its_free():
    before = usage("numba")
    arrays = [cuda.device_array(1000, dtype=numpy.uint8) for _ in range(3)]
    assert live_bytes("numba") == 3 * 1024
    view = arrays[0][10:20]
    del arrays
    assert live_bytes("numba") == 1024  # the view's
    del view
    after = usage("numba")
    assert (after.allocations - before.allocations, after.frees - before.frees, after.live_bytes) == (3, 3, 0)


def test_memory_is_of_the_current_device():
    with cuda.gpus[1]:
        array = cuda.device_array(MiB, dtype=numpy.uint8)
        assert live_bytes("numba", device=1) == MiB
        del array
    assert live_bytes("numba", device=1) == 0


def test_memory_is_not_reused_while_any_of_numbas_streams_works():
    def address_of(array):
        return array.device_ctypes_pointer.value

    stream = cuda.stream()
    array = cuda.device_array(3 * MiB, dtype=numpy.uint8)
    address = address_of(array)
    with held(int(stream)):  # by work that may use the array
        del array
        assert address_of(cuda.device_array(3 * MiB, dtype=numpy.uint8)) != address
    cuda.synchronize()
    assert address_of(cuda.device_array(3 * MiB, dtype=numpy.uint8)) == address


def test_out_of_memory_is_numbas_error_with_cachalots_text():
    with pytest.raises(cuda.cudadrv.driver.CudaAPIError, match=OUT_OF_MEMORY) as raised:
        cuda.device_array(16 << 30, dtype=numpy.uint8)
    assert raised.value.code == 2  # CUDA_ERROR_OUT_OF_MEMORY
    assert cuda.device_array(1000).size == 1000


def test_memory_info_counts_cached_memory_as_free():
    def memory_info():
        cuda.synchronize()
        probe = cuda.device_array(512, dtype=numpy.uint8)  # its allocation sees that the work before a free is done
        return cuda.current_context().get_memory_info(), probe

    before, probe = memory_info()
    del probe
    array = cuda.device_array(64 * MiB, dtype=numpy.uint8)
    during, probe = memory_info()
    del array, probe
    after, probe = memory_info()
    assert during == (before.free - 64 * MiB, before.total)
    assert after == before


def test_an_array_has_an_ipc_handle_with_its_offset_in_the_segment():
    arrays = [cuda.device_array(1000, dtype=numpy.uint8) for _ in range(2)]
    handles = [array.get_ipc_handle() for array in arrays]
    addresses = [array.device_ctypes_pointer.value for array in arrays]
    offsets = [handle._ipc_handle.offset for handle in handles]
    assert addresses[1] - addresses[0] == offsets[1] - offsets[0] != 0


def test_on_the_page_heap_the_refusal_of_an_ipc_handle_says_what_to_do():
    run(
        """
        import cachalot, numba.cuda, pytest
        cachalot.enable_numba()
        with pytest.raises(RuntimeError, match="CACHALOT_CONF=heap:segments"):
            numba.cuda.device_array(1000).get_ipc_handle()
        """,
        CACHALOT_CONF="heap:pages",
    )


def test_the_environment_alone_makes_it_the_manager():
    program = """
        import cachalot, numba.cuda
        array = numba.cuda.device_array(1000)
        print(*[row.library for row in cachalot.library_usage()])
    """
    assert run(program, NUMBA_CUDA_MEMORY_MANAGER="cachalot.numba") == "numba\n"
    assert run(program) == "\n"


def test_arrays_that_exist_stay_with_numbas_own_manager():
    run("""
        import cachalot, numba.cuda
        old = numba.cuda.device_array(1 << 20)
        free = numba.cuda.current_context().get_memory_info().free
        cachalot.enable_numba()
        new = numba.cuda.device_array(1 << 20)
        assert [row.live_bytes for row in cachalot.library_usage()] == [8 << 20]
        del old, new
        assert [row.live_bytes for row in cachalot.library_usage()] == [0]
    """)


def test_a_process_ends_well_while_arrays_live():
    run("""
        import cachalot, numba.cuda
        cachalot.enable_numba()
        array = numba.cuda.device_array(1000)
    """)
