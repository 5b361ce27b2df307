"""States in which PyTorch's allocator runs out of memory although there is enough. cachalot does not."""

import threading

import pytest
import torch
from world import MODE, MiB, bytes_on_gpu, keep_busy, not_plug, total_memory


def native_fails():
    """A context: what is in it runs out of memory under native, and works under cachalot."""
    import contextlib

    return pytest.raises(torch.OutOfMemoryError) if MODE == "native" else contextlib.nullcontext()


def test_a_block_that_waits_for_a_stream_serves_the_request_that_waited_for_it():
    """The block is part of a segment in use, so it cannot go back to the device; once its stream is done, it fits.

    PyTorch waits for the stream, asks the device again and gives up without looking at the block that has become free;
    the same request again succeeds.
    """
    torch.cuda.set_per_process_memory_fraction(20 * MiB / total_memory())
    side = torch.cuda.Stream()
    keeps_the_segment = bytes_on_gpu(8 * MiB)
    waits = bytes_on_gpu(9 * MiB)
    address = waits.data_ptr()
    keep_busy(side)
    waits.record_stream(side)
    del waits
    with native_fails():
        assert bytes_on_gpu(9 * MiB).data_ptr() == address
    assert bytes_on_gpu(9 * MiB).data_ptr() == address


@not_plug
def test_one_threads_pool_leaves_the_others_their_recovery():
    """Another thread is inside use_mem_pool: cached memory is still given back for a request that needs it."""
    size = total_memory() * 6 // 10
    cached = bytes_on_gpu(size)
    del cached
    inside, leave = threading.Event(), threading.Event()

    def stay_in_a_pool():
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=stay_in_a_pool)
    thread.start()
    inside.wait()
    try:
        with native_fails():
            bytes_on_gpu(size + 20 * MiB)
    finally:
        leave.set()
        thread.join()


@not_plug
def test_one_threads_pool_leaves_the_others_their_empty_cache():
    cached = bytes_on_gpu(100 * MiB)
    del cached
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        thread = threading.Thread(target=torch.cuda.empty_cache)
        thread.start()
        thread.join()
        assert torch.cuda.memory_reserved() == (100 * MiB if MODE == "native" else 0)
