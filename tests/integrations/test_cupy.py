"""CuPy on the process's heap: cachalot.enable_cupy()."""

import gc
import threading

import cupy
import pytest
from heap import OUT_OF_MEMORY, MiB, held, live_bytes, run, usage

import cachalot

KERNEL = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'


@pytest.fixture(autouse=True)
def enabled():
    cachalot.enable_cupy()
    gc.collect()
    assert live_bytes("cupy") == 0
    yield


def test_a_sort_a_reduction_and_a_kernel_run_in_memory_of_the_heap():
    before = usage("cupy").allocations
    values = cupy.arange(1000)[::-1].copy()
    assert cupy.sort(values).shape == (1000,)
    assert values.sum().shape == ()
    cupy.RawKernel(KERNEL, "twice")((1,), (64,), (cupy.ones(64, dtype=cupy.float32),))
    assert usage("cupy").allocations - before >= 5
    assert cupy.get_default_memory_pool().used_bytes() == 0


def test_each_array_is_counted_from_its_allocation_to_its_free():
    before = usage("cupy")
    arrays = [cupy.empty(1000, dtype=cupy.uint8) for _ in range(3)] + [cupy.empty(5 * MiB, dtype=cupy.uint8)]
    assert live_bytes("cupy") == 3 * 1024 + 5 * MiB
    assert usage("cupy").allocations == before.allocations + 4
    del arrays[1:]
    assert live_bytes("cupy") == 1024
    assert usage("cupy").frees == before.frees + 3
    assert usage("cupy").peak_bytes >= 3 * 1024 + 5 * MiB


def test_memory_is_of_the_current_device():
    with cupy.cuda.Device(1):
        array = cupy.empty(MiB, dtype=cupy.uint8)
    assert live_bytes("cupy", device=1) == MiB
    del array
    assert (live_bytes("cupy", device=1), live_bytes("cupy", device=0)) == (0, 0)


def test_memory_is_reused_in_the_order_of_the_current_stream():
    def address_of(stream):
        with stream:
            return cupy.empty(3 * MiB, dtype=cupy.uint8).data.ptr

    one, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    first = address_of(one)
    assert address_of(other) != first
    assert address_of(one) == first


def test_each_thread_has_its_own_current_stream():
    stream = cupy.cuda.Stream(non_blocking=True)
    addresses = []

    def allocate():
        addresses.append(cupy.empty(7 * MiB, dtype=cupy.uint8).data.ptr)

    with stream:
        thread = threading.Thread(target=allocate)
        thread.start()
        thread.join()
        allocate()
    allocate()
    assert addresses[2] == addresses[0] != addresses[1]


def test_a_stream_that_gets_the_handle_of_a_destroyed_one_does_not_get_its_memory():
    first = cupy.cuda.Stream(non_blocking=True)
    handle = first.ptr
    with first:
        address = cupy.empty(9 * MiB, dtype=cupy.uint8).data.ptr
    with held(handle):
        del first
        second = cupy.cuda.Stream(non_blocking=True)
        assert second.ptr == handle, "the runtime did not reuse the handle: nothing is tested"
        with second:
            assert cupy.empty(9 * MiB, dtype=cupy.uint8).data.ptr != address


def test_out_of_memory_is_cupys_error_with_cachalots_text():
    with pytest.raises(cupy.cuda.memory.OutOfMemoryError, match=OUT_OF_MEMORY) as raised:
        cupy.empty(16 << 30, dtype=cupy.uint8)
    assert "16.00 GiB" in str(raised.value)
    assert live_bytes("cupy") == 0
    assert cupy.empty(1000).size == 1000


def test_an_empty_array_takes_no_memory():
    before = usage("cupy").allocations
    assert cupy.empty(0).size == 0
    assert usage("cupy").allocations == before


def test_counts_are_exact_when_threads_allocate_and_others_free():
    before = usage("cupy")
    arrays = [[] for _ in range(4)]

    def allocate(mine):
        mine += [cupy.empty(size, dtype=cupy.uint8) for size in range(1, 500)]

    for work in (allocate, list.clear):
        threads = [threading.Thread(target=work, args=(mine,)) for mine in (arrays if work is allocate else arrays[::-1])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    after = usage("cupy")
    assert (after.allocations - before.allocations, after.frees - before.frees) == (4 * 499, 4 * 499)
    assert after.live_bytes == 0


def test_a_second_call_changes_nothing():
    allocator = cupy.cuda.get_allocator()
    cachalot.enable_cupy()
    assert cupy.cuda.get_allocator() is allocator


def test_cupys_pool_comes_back_and_arrays_of_the_heap_are_freed_there():
    of_heap = cupy.empty(MiB, dtype=cupy.uint8)
    pool = cupy.get_default_memory_pool()
    cupy.cuda.set_allocator(pool.malloc)
    of_pool = cupy.empty(MiB, dtype=cupy.uint8)
    assert (live_bytes("cupy"), pool.used_bytes()) == (MiB, MiB)
    del of_heap
    assert live_bytes("cupy") == 0
    cachalot.enable_cupy()
    assert (of_pool.size, pool.used_bytes()) == (MiB, MiB)
    del of_pool
    assert pool.used_bytes() == 0


def test_inside_using_allocator_it_is_refused_with_what_to_do():
    with cupy.cuda.using_allocator(cupy.cuda.malloc_async), pytest.raises(cachalot.EnableError, match="outside of it"):
        cachalot.enable_cupy()


def test_what_cupys_pool_had_cached_goes_back_to_the_device():
    run("""
        import cachalot, cupy
        cupy.empty(64 << 20, dtype=cupy.uint8)
        assert cupy.get_default_memory_pool().total_bytes() == 64 << 20
        cachalot.enable_cupy()
        assert cupy.get_default_memory_pool().total_bytes() == 0
    """)


def test_a_process_ends_well_while_arrays_live_and_a_thread_allocates():
    for _ in range(3):  # the thread may be anywhere at the end
        run("""
            import cachalot, cupy, itertools, threading, time
            cachalot.enable_cupy()
            arrays = [cupy.empty(1000) for _ in range(10)]
            threading.Thread(target=lambda: [cupy.empty(1000) is None for _ in itertools.count()], daemon=True).start()
            time.sleep(0.05)
        """)


def test_options_of_the_environment_and_of_the_call_count():
    program = """
        import cachalot, cupy
        cachalot.enable_cupy({config})
        cupy.empty(5 << 20, dtype=cupy.uint8)
        from cachalot._bindings.plug import process_plug
        print(process_plug().stats(0)["reserved_bytes.all.current"] >> 20)
    """
    assert run(program.format(config="")) == "20\n"  # one segment of PyTorch's rules
    assert run(program.format(config=""), CACHALOT_CONF="heap:pages") != "20\n"
    assert run(program.format(config="'heap:pages'")) != "20\n"
