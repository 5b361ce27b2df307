"""Limits at run time: cachalot.set_limit, set_soft_limit, trim and reserve."""

import gc
import sys
import threading

import pytest
import torch
from world import PAGES, MiB, bytes_on_gpu, keep_busy, needs_enable, not_native, run_python, succeeds

pytestmark = not_native


@pytest.fixture(autouse=True)
def without_limits():
    yield
    import cachalot

    cachalot.set_limit(None)
    cachalot.set_soft_limit(None)


def cached(count):
    """Makes `count` bytes that are held and free."""
    bytes_on_gpu(count)
    return torch.cuda.memory_reserved()


def test_an_allocation_beyond_the_limit_is_refused_and_the_message_names_the_limit():
    import cachalot

    cachalot.set_limit("100MiB")
    first = bytes_on_gpu(60 * MiB)
    with pytest.raises(torch.OutOfMemoryError, match=r'100\.00 MiB allowed by set_limit\("100MiB"\)'):
        bytes_on_gpu(60 * MiB)
    assert torch.cuda.memory_reserved() == 60 * MiB
    del first
    bytes_on_gpu(90 * MiB)
    assert cachalot.limits() == cachalot.Limits(0, 100 * MiB, 'set_limit("100MiB")', None, torch.cuda.memory_reserved(), 0)
    cachalot.set_limit(None)
    bytes_on_gpu(200 * MiB)
    assert cachalot.limits().limit_bytes is None


def test_a_limit_is_a_number_a_part_of_the_device_or_of_what_is_free():
    import cachalot

    free, total = torch.cuda.mem_get_info()
    cachalot.set_limit(64 * MiB)
    assert cachalot.limits().limit_bytes == 64 * MiB
    cachalot.set_limit("50%")
    assert cachalot.limits().limit_bytes == total // 2
    held = cached(32 * MiB)
    cachalot.set_limit("free-64MiB")
    assert cachalot.limits().limit_bytes == torch.cuda.mem_get_info()[0] + held - 64 * MiB
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert cachalot.limits().limit_bytes == total // 4
    assert "0.25" in cachalot.limits().set_by


@pytest.mark.parametrize("limit", ["", "much", "120%", "-1", -1, "free+1GiB", "2 GiB or so"])
def test_another_limit_is_refused_and_the_old_one_stays(limit):
    import cachalot

    cachalot.set_limit("100MiB")
    with pytest.raises(ValueError, match="is not a limit of memory") as error:
        cachalot.set_limit(limit)
    assert f"'{limit}'" in str(error.value)
    assert cachalot.limits().limit_bytes == 100 * MiB


def test_a_limit_below_what_is_held_gives_cached_memory_back():
    import cachalot

    live = bytes_on_gpu(40 * MiB)
    cached(60 * MiB)
    cachalot.set_limit("50MiB")
    assert 40 * MiB <= torch.cuda.memory_reserved() <= 50 * MiB
    del live


def test_the_option_limits_from_the_start():
    program = """
    import torch
    import cachalot
    cachalot.enable("limit:100MiB")
    try:
        torch.empty(200 << 20, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        assert "100.00 MiB allowed by limit:100MiB" in str(error), error
    else:
        raise AssertionError("not refused")
    """
    succeeds(run_python(program, preamble=""))


def test_the_soft_limit_calls_back_once_per_crossing():
    import cachalot

    told = []
    cachalot.set_soft_limit("100MiB", told.append)
    first = bytes_on_gpu(60 * MiB)
    assert told == []
    second = bytes_on_gpu(60 * MiB)
    assert told == [cachalot.SoftLimit(device=0, held_bytes=120 * MiB, soft_limit_bytes=100 * MiB)]
    third = bytes_on_gpu(60 * MiB)
    assert len(told) == 1
    del first, second, third
    torch.cuda.empty_cache()
    fourth = bytes_on_gpu(120 * MiB)
    assert len(told) == 2
    del fourth


def test_the_callback_may_free_and_trim_and_runs_on_the_thread_that_crossed():
    import cachalot

    cache = {"old": bytes_on_gpu(90 * MiB)}
    threads = []

    def on_soft(soft):
        threads.append(threading.current_thread())
        cache.clear()
        gc.collect()
        cachalot.trim(soft.soft_limit_bytes // 2)

    cachalot.set_soft_limit("100MiB", on_soft)
    new = []
    thread = threading.Thread(target=lambda: new.append(bytes_on_gpu(60 * MiB)))
    thread.start()
    thread.join()
    assert threads == [thread]
    assert new[0].numel() == 60 * MiB
    assert torch.cuda.memory_reserved() < 70 * MiB
    del new


def test_an_exception_of_the_callback_does_not_reach_the_allocation(monkeypatch):
    import cachalot

    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", lambda of: unraisable.append(str(of.exc_value)))
    cachalot.set_soft_limit("10MiB", lambda soft: 1 // 0)
    assert bytes_on_gpu(60 * MiB).numel() == 60 * MiB
    assert unraisable == ["integer division or modulo by zero"]


def test_a_soft_limit_needs_a_function():
    import cachalot

    with pytest.raises(ValueError, match="has no callback"):
        cachalot.set_soft_limit("80%")
    with pytest.raises(TypeError, match="on_soft is 'print'"):
        cachalot.set_soft_limit("80%", "print")
    assert cachalot.limits().soft_limit_bytes is None


def test_trim_keeps_what_it_is_to_keep_and_live_memory():
    import cachalot

    live = bytes_on_gpu(40 * MiB)
    freed = [bytes_on_gpu(30 * MiB) for _ in range(4)]
    freed.clear()
    assert cachalot.trim("1GiB") == 0
    given = cachalot.trim("90MiB")
    assert given + torch.cuda.memory_reserved() == 160 * MiB
    assert 90 * MiB <= torch.cuda.memory_reserved() < 120 * MiB
    assert cachalot.trim() == 120 * MiB - given
    assert torch.cuda.memory_reserved() == 40 * MiB
    with pytest.raises(ValueError, match="'half' is not a size"):
        cachalot.trim("half")
    del live


@pytest.mark.skipif(not PAGES, reason="cudaFree waits for the device")
def test_trim_leaves_the_pages_of_a_busy_stream():
    import cachalot

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        busy = bytes_on_gpu(64 * MiB)
        keep_busy(stream)
        del busy
    assert cachalot.trim() == 0
    assert not stream.query()
    stream.synchronize()
    assert cachalot.trim() == 64 * MiB


def test_what_is_reserved_serves_without_new_memory():
    import cachalot

    cachalot.reserve("640MiB")
    held = torch.cuda.memory_reserved()
    assert held == 640 * MiB
    assert cachalot.limits().reservation_bytes == held
    calls = torch.cuda.memory_stats()["num_device_alloc"]
    tensors = [bytes_on_gpu((1 + i % 5) * 7 * MiB) for i in range(25)] + [bytes_on_gpu(1000) for _ in range(1000)]
    assert torch.cuda.memory_reserved() == held
    assert torch.cuda.memory_stats()["num_device_alloc"] == calls
    del tensors
    torch.cuda.empty_cache()
    cachalot.trim()
    assert torch.cuda.memory_reserved() == 0


def captured(of):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # empties the cache of all devices first
        of.mul_(2)
    return graph


def captured_after_a_run_in_its_pool(of):
    """Captures like the graph trees of torch.compile(mode="reduce-overhead")."""
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool)
    torch.cuda.empty_cache()
    of.mul_(2)
    torch._C._cuda_endAllocateToPool(0, pool)
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        of.mul_(2)
    torch._C._cuda_releasePool(0, pool)
    return graph


def made_callable(of):
    return torch.cuda.make_graphed_callables(lambda a: a * 2, (of,))


@pytest.mark.parametrize("capture", [captured, captured_after_a_run_in_its_pool, made_callable])
def test_a_reservation_survives_the_capture_of_a_graph(capture):
    import cachalot

    devices = range(torch.cuda.device_count())
    for device in devices:
        cachalot.reserve("640MiB", device)
    static = torch.ones(1000, device="cuda")
    held = [torch.cuda.memory_reserved(device) for device in devices]
    graph = capture(static)
    assert cachalot.limits(0).reservation_bytes >= 600 * MiB
    assert all(torch.cuda.memory_reserved(device) >= held[device] for device in devices)
    calls = torch.cuda.memory_stats()["num_device_alloc"]
    tensor = bytes_on_gpu(300 * MiB)
    assert torch.cuda.memory_stats()["num_device_alloc"] == calls
    del graph, static, tensor
    torch.cuda.empty_cache()
    for device in devices:
        cachalot.trim(0, device)


def test_a_reservation_beyond_the_limit_is_refused():
    import cachalot

    cachalot.set_limit("100MiB")
    with pytest.raises(torch.OutOfMemoryError, match=r"Tried to reserve 200\.00 MiB .* allowed by set_limit"):
        cachalot.reserve(200 * MiB)
    assert torch.cuda.memory_reserved() == 0


def test_limits_need_cachalot():
    needs_enable('cachalot.set_limit("1GiB")', "cachalot.trim()", "cachalot.reserve(1)", "cachalot.limits()")
