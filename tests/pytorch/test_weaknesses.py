"""States in which PyTorch's allocator fails, most often by running out of memory although there is enough.

cachalot does not. Each test names the versions of PyTorch that fail: 2.11 to 2.15 were looked at.
"""

import threading

import pytest
import torch
from world import MODE, VERSION, MiB, bytes_on_gpu, keep_busy, not_plug, run_python, total_memory


def native_fails(*, mended_in=None):
    """A context: what is in it runs out of memory under native, unless it is mended, and works under cachalot."""
    import contextlib

    fails = MODE == "native" and (mended_in is None or VERSION < mended_in)
    return pytest.raises(torch.OutOfMemoryError) if fails else contextlib.nullcontext()


def test_a_block_that_waits_for_a_stream_serves_the_request_that_waited_for_it():
    """The block is part of a segment in use, so it cannot go back to the device; once its stream is done, it fits.

    PyTorch waits for the stream, asks the device again and gives up without looking at the block that has become free;
    the same request again succeeds (2.11 to 2.15; its issue 189504).
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
    """Another thread is inside use_mem_pool: cached memory is still given back for a request that needs it.

    PyTorch runs out of memory (until 2.12; mended in 2.13).
    """
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
        with native_fails(mended_in="2.13"):
            bytes_on_gpu(size + 20 * MiB)
    finally:
        leave.set()
        thread.join()


@not_plug
def test_one_threads_pool_leaves_the_others_their_empty_cache():
    """PyTorch's empty_cache does nothing (until 2.12; mended in 2.13)."""
    cached = bytes_on_gpu(100 * MiB)
    del cached
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        thread = threading.Thread(target=torch.cuda.empty_cache)
        thread.start()
        thread.join()
        assert torch.cuda.memory_reserved() == (100 * MiB if MODE == "native" and VERSION < "2.13" else 0)


CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint

torch.cuda.memory._record_memory_history(context="all")
x = torch.randn(1 << 20, device="cuda", requires_grad=True)
checkpoint(lambda x: ((x * 2).relu() * 3).relu(), x, use_reentrant=False).sum().backward()
entries = torch.cuda.memory._snapshot()["device_traces"][0]
print(x.grad.shape, any(entry["action"] == "free_requested" and entry["frames"] for entry in entries))
"""


@not_plug
def test_the_call_stacks_of_frees_are_recorded_while_python_raises_an_exception():
    """An exception ends the recomputation of an activation checkpoint, and tensors are freed while Python raises it.

    PyTorch's recorder of call stacks clears it: "SystemError: error return without exception set" (2.11; mended in 2.12).
    """
    process = run_python(CHECKPOINTED, fresh=True)
    if MODE == "native" and VERSION < "2.12":
        assert process.returncode != 0 and "error return without exception set" in process.stderr, process.stderr
    else:
        assert (process.returncode, process.stdout) == (0, "torch.Size([1048576]) True\n"), process.stderr


@not_plug
def test_a_capture_that_fails_gives_its_memory_back():
    """PyTorch 2.11 keeps the graph's pool until the process ends (its issue 190348); 2.15 does not."""
    code = """
    torch.zeros(1, device="cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    def capture(spoils):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = torch.empty(64 << 20, dtype=torch.int8, device="cuda")
            if spoils:
                torch.cuda.synchronize()  # which a capture does not allow
        return graph, made
    for _ in range(3):
        try:
            capture(spoils=True)
        except Exception:
            continue
        raise AssertionError("the capture did not fail")
    graph, made = capture(spoils=False)
    graph.replay()
    while_kept = torch.cuda.memory_reserved() - before
    del graph, made
    torch.cuda.empty_cache()
    print((torch.cuda.memory_reserved() - before) >> 20, while_kept >> 20 >= 64, torch.cuda.memory_allocated())
    """
    told = run_python(code)
    assert told.returncode == 0, told.stderr
    reserved = int(told.stdout.split()[0])
    keeps = MODE == "native" and VERSION < "2.12"
    assert reserved > 0 if keeps else reserved == 0, told.stdout
    assert told.stdout.split()[1:] == ["True", "0"]
