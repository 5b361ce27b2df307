"""torch's pinned memory: what torch documents of it and its own tests check, on torch's host allocator and on cachalot's."""

import ctypes
import gc
import threading

import pytest
import torch
from torch.utils.data import DataLoader
from world import MODE, KiB, MiB, keep_busy, not_native, since

if MODE != "native":
    import cachalot

    cachalot.enable(pinned=True)

SIMULATED = hasattr(ctypes.CDLL(None), "cachalot_sim_launch")
MEASURES = ("current", "peak", "allocated", "freed")
KEYS = {
    *(f"{name}.{each}" for name in ("allocations", "allocated_bytes", "active_requests", "active_bytes") for each in MEASURES),
    *(f"{name}.{each}" for name in ("host_alloc_time", "host_free_time") for each in ("total", "max", "min", "count", "avg")),
    "num_host_alloc",
    "num_host_free",
}


@pytest.fixture(autouse=True)
def nothing_pinned():
    """Each test begins with nothing pinned and with statistics that begin now."""
    gc.collect()
    torch.cuda.synchronize()
    if MODE != "native":
        cachalot.set_pinned_limit(None)
    torch._C._host_emptyCache()
    torch.cuda.reset_accumulated_host_memory_stats()
    torch.cuda.reset_peak_host_memory_stats()
    yield
    torch.cuda.synchronize()


def pinned_bytes(count):
    return torch.empty(count, dtype=torch.uint8, pin_memory=True)


def stats(key):
    return torch.cuda.host_memory_stats()[key]


# ---- the properties of pinned tensors ----


def test_what_is_pinned_says_so():
    plain = torch.arange(10)
    pinned = plain.pin_memory()
    assert pinned.is_pinned() and not plain.is_pinned()
    assert torch.equal(pinned, plain)
    assert pinned.pin_memory().data_ptr() == pinned.data_ptr()
    assert pinned[3:7].is_pinned()


def test_factories_and_storages_pin():
    assert torch.zeros(3, 4, pin_memory=True).is_pinned()
    assert torch.empty_like(torch.ones(5), pin_memory=True).is_pinned()
    storage = torch.ones(6).untyped_storage().pin_memory()
    assert storage.is_pinned() and storage.nbytes() == 24
    transposed = torch.arange(6).reshape(2, 3).t().pin_memory()
    assert transposed.is_pinned() and transposed.tolist() == [[0, 3], [1, 4], [2, 5]]


def test_an_empty_tensor_has_no_memory():
    before = torch.cuda.host_memory_stats()
    empty = torch.empty(0, pin_memory=True)
    assert empty.data_ptr() == 0
    assert torch.cuda.host_memory_stats() == before


def test_memory_holds_what_the_host_writes():
    first, second = pinned_bytes(1000), pinned_bytes(1000)
    first.fill_(1)
    second.fill_(2)
    assert first.sum() == 1000 and second.sum() == 2000


def test_copies_to_the_gpu_and_back_are_right():
    source = torch.arange(1000.0).pin_memory()
    on_gpu = source.to("cuda", non_blocking=True)
    back = torch.empty(1000, pin_memory=True)
    back.copy_(on_gpu, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, source)


# ---- the cache (torch's test_caching_pinned_memory) ----


def test_a_freed_buffer_serves_the_next_request():
    pinned = torch.ones(1).pin_memory()
    address = pinned.data_ptr()
    del pinned
    assert torch.ones(1).pin_memory().data_ptr() == address


@pytest.mark.parametrize("part", [slice(None), slice(100, 200)])
def test_a_buffer_that_a_copy_uses_is_not_handed_out(part):
    pinned = torch.ones(1000, pin_memory=True)
    address = pinned.data_ptr()
    side = torch.cuda.Stream()
    keep_busy(side)
    with torch.cuda.stream(side):
        pinned[part].to("cuda", non_blocking=True)
    del pinned
    assert torch.empty(1000, pin_memory=True).data_ptr() != address
    torch.cuda.synchronize()
    assert torch.empty(1000, pin_memory=True).data_ptr() == address


def test_a_buffer_that_a_copy_writes_is_not_handed_out():
    on_gpu = torch.ones(1000, device="cuda")
    pinned = torch.empty(1000, pin_memory=True)
    address = pinned.data_ptr()
    keep_busy(torch.cuda.current_stream())
    pinned.copy_(on_gpu, non_blocking=True)
    del pinned
    assert torch.empty(1000, pin_memory=True).data_ptr() != address
    torch.cuda.synchronize()


def test_every_stream_that_uses_a_buffer_keeps_it():
    pinned = torch.ones(1000, pin_memory=True)
    address = pinned.data_ptr()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for seconds, stream in zip((0.1, 5), streams):
        keep_busy(stream, seconds)
        with torch.cuda.stream(stream):
            pinned.to("cuda", non_blocking=True)
    del pinned
    streams[0].synchronize()
    assert torch.empty(1000, pin_memory=True).data_ptr() != address
    streams[1].synchronize()
    assert torch.empty(1000, pin_memory=True).data_ptr() == address


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_stream_of_another_gpu_keeps_a_buffer():
    pinned = torch.ones(1000, pin_memory=True)
    address = pinned.data_ptr()
    other = torch.cuda.Stream("cuda:1")
    keep_busy(other)
    with torch.cuda.stream(other):
        pinned.to("cuda:1", non_blocking=True)
    del pinned
    assert torch.empty(1000, pin_memory=True).data_ptr() != address
    other.synchronize()
    assert torch.empty(1000, pin_memory=True).data_ptr() == address


def test_copies_of_memory_that_is_not_pinned_work_as_before():
    plain = torch.arange(1000.0)
    assert torch.equal(plain.to("cuda", non_blocking=True).cpu(), plain)
    registered = torch.zeros(1024)
    runtime = torch.cuda.cudart()
    assert int(runtime.cudaHostRegister(registered.data_ptr(), 4096, 0)) == 0
    assert registered.is_pinned()
    registered.to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert int(runtime.cudaHostUnregister(registered.data_ptr())) == 0


# ---- statistics (torch's test_host_memory_stats) ----


def test_the_statistics_have_torchs_keys():
    assert set(torch.cuda.host_memory_stats()) == KEYS


def test_statistics_count_requests_and_what_is_pinned():
    requests, used = stats("active_requests.current"), stats("active_bytes.current")  # torch 2.11 counts some frees late
    first = pinned_bytes(4096)
    assert (stats("active_requests.current"), stats("active_bytes.current")) == (requests + 1, used + 4096)
    assert stats("allocations.current") == stats("num_host_alloc") == stats("host_alloc_time.count") == 1
    assert stats("allocated_bytes.current") >= 4096
    second = pinned_bytes(4096)
    assert (stats("active_requests.current"), stats("active_bytes.current")) == (requests + 2, used + 8192)
    assert stats("active_requests.allocated") == 2
    del first, second
    torch._C._host_emptyCache()
    assert stats("allocated_bytes.current") == stats("allocations.current") == 0
    assert stats("num_host_free") == stats("host_free_time.count") == stats("num_host_alloc")
    assert stats("allocated_bytes.peak") == stats("allocated_bytes.allocated") == stats("allocated_bytes.freed")


def test_sums_and_peaks_can_be_reset():
    kept = pinned_bytes(30 * MiB)
    held = stats("allocated_bytes.current")
    del kept
    torch._C._host_emptyCache()
    assert stats("allocated_bytes.peak") == held
    torch.cuda.reset_peak_host_memory_stats()
    assert stats("allocated_bytes.peak") == stats("host_alloc_time.max") == stats("host_alloc_time.min") == 0
    assert stats("host_alloc_time.count") == 1
    torch.cuda.reset_accumulated_host_memory_stats()
    assert stats("host_alloc_time.count") == stats("num_host_alloc") == stats("allocated_bytes.allocated") == 0


def test_the_gpu_statistics_do_not_contain_it():
    kept = pinned_bytes(MiB)
    assert torch.cuda.memory_allocated() == 0
    assert kept.is_pinned()


# ---- DataLoader and threads ----


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_pins_its_batches(workers):
    data = [{"x": torch.full((50,), float(n)), "y": (torch.tensor(n), "text")} for n in range(12)]
    seen = []
    for batch in DataLoader(data, batch_size=4, pin_memory=True, num_workers=workers):
        assert batch["x"].is_pinned() and batch["y"][0].is_pinned()
        seen += batch["x"].to("cuda", non_blocking=True).cpu()[:, 0].tolist()
    assert seen == list(range(12))


def test_threads_pin_at_once():
    wrong = []

    def work(number):
        for n in range(200):
            pinned = torch.full((100 + n,), number, pin_memory=True)
            if n % 3 == 0:
                pinned.to("cuda", non_blocking=True)
            if not bool((pinned == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- graphs (torch's TestCachingHostAllocatorCudaGraph) ----


def test_a_graph_reads_its_pinned_source_at_each_replay():
    source = torch.ones(100, pin_memory=True)
    target = torch.empty(100, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source, non_blocking=True)
    for value in (3.0, 4.0):
        source.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        if not SIMULATED:  # where a graph's copies take time and move nothing
            assert target.cpu()[0] == value


@since("2.11")
def test_a_buffer_that_a_capture_used_is_not_handed_out_again():
    target = torch.empty(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pinned = torch.empty(1000, pin_memory=True)
        address = pinned.data_ptr()
        target.copy_(pinned, non_blocking=True)
        del pinned
        assert torch.empty(1000, pin_memory=True).data_ptr() != address
    torch.cuda.synchronize()
    assert torch.empty(1000, pin_memory=True).data_ptr() != address
    graph.replay()
    torch.cuda.synchronize()


@since("2.11")
def test_a_buffer_that_no_stream_used_is_handed_out_within_a_capture():
    graph = torch.cuda.CUDAGraph()
    inside = torch.empty(10, device="cuda")
    with torch.cuda.graph(graph):
        inside.add_(1)
        pinned = torch.empty(1000, pin_memory=True)
        address = pinned.data_ptr()
        del pinned
        assert torch.empty(1000, pin_memory=True).data_ptr() == address


@not_native  # torch's own never gives such a buffer back
@since("2.11")
def test_what_a_graph_used_comes_back_with_its_end():
    target = torch.empty(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(torch.empty(1000, pin_memory=True), non_blocking=True)
    assert stats("active_requests.current") == 1
    graph.reset()
    torch.cuda.synchronize()
    torch._C._host_emptyCache()
    assert stats("allocated_bytes.current") == 0


@not_native  # torch's work until its cudaEventQuery fails is not specified
def test_a_buffer_of_before_can_be_freed_while_a_stream_that_uses_it_captures():
    target = torch.empty(1000, device="cuda")
    source = torch.ones(1000, pin_memory=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source, non_blocking=True)
        del source
    torch.cuda.synchronize()
    torch._C._host_emptyCache()
    assert stats("active_requests.current") == 0


# ---- cachalot's improvements ----


@not_native
@pytest.mark.parametrize("size", [33 * MiB, 67 * MiB + 1])
def test_sizes_are_not_rounded_to_powers_of_two(size):
    kept = pinned_bytes(size)
    assert kept.nbytes <= cachalot.pinned_stats()["reserved_bytes.all.current"] <= size + 2 * MiB


@not_native
def test_a_free_buffer_is_split_and_merged():
    whole = pinned_bytes(64 * MiB)
    address = whole.data_ptr()
    del whole
    parts = [pinned_bytes(16 * MiB) for _ in range(4)]
    assert sorted(part.data_ptr() for part in parts) == [address + n * 16 * MiB for n in range(4)]
    del parts
    assert pinned_bytes(64 * MiB).data_ptr() == address
    assert stats("num_host_alloc") == 1


@not_native
def test_the_limit_is_an_out_of_memory_error_after_the_cache_went_back():
    cachalot.set_pinned_limit("64MiB")
    cached = pinned_bytes(40 * MiB)
    del cached
    kept = pinned_bytes(60 * MiB)  # needs the bytes of the cached buffer
    with pytest.raises(torch.OutOfMemoryError, match="tried to allocate 8.00 MiB.* of a limit of 64.00 MiB"):
        pinned_bytes(8 * MiB)
    assert cachalot.pinned_stats()["limit_bytes"] == 64 * MiB
    assert stats("active_requests.current") == 1
    del kept
    assert pinned_bytes(8 * MiB).is_pinned()


@not_native
def test_the_limit_can_change_and_go():
    cachalot.set_pinned_limit(32 * MiB)
    with pytest.raises(torch.OutOfMemoryError):
        pinned_bytes(33 * MiB)
    cachalot.set_pinned_limit("0.5GiB")
    kept = pinned_bytes(33 * MiB)
    cachalot.set_pinned_limit("64 mb")
    assert cachalot.pinned_stats()["limit_bytes"] == 64 * MiB
    cachalot.set_pinned_limit(None)
    assert kept.is_pinned() and cachalot.pinned_stats()["limit_bytes"] is None


@not_native
@pytest.mark.parametrize("limit", ["4 gigs", "1MiB", -5, 0, True, 2.5, "", "99999999TiB"])
def test_a_limit_that_is_none_is_refused_in_words(limit):
    with pytest.raises(ValueError, match=r"pinned_limit is .*; it must be a number of bytes or a size .* at least 2 MiB"):
        cachalot.set_pinned_limit(limit)
    assert cachalot.pinned_stats()["limit_bytes"] is None


@not_native
def test_the_statistics_of_both_interfaces_agree():
    kept = pinned_bytes(100 * KiB)
    assert cachalot.is_pinned_enabled()
    assert cachalot.pinned_stats()["active_bytes.all.current"] == stats("active_bytes.current") == 100 * KiB
    assert cachalot.pinned_stats()["reserved_bytes.all.current"] == stats("allocated_bytes.current")
    assert kept.is_pinned()


# ---- history and snapshots ----


@pytest.fixture
def history():
    torch.cuda.memory._record_memory_history("all", stacks="python", record_pinned_host_memory=True)
    yield
    torch.cuda.memory._record_memory_history(None)


@since("2.14")
def test_the_history_has_requests_with_their_stacks(history):
    pinned = pinned_bytes(48 * MiB)
    address = pinned.data_ptr()
    del pinned
    traces = torch.cuda.memory._snapshot()["host_traces"]
    entries = [entry for entry in traces if entry["addr"] == address]
    actions = [entry["action"] for entry in entries]
    assert actions == ["segment_alloc", "alloc", "free_requested", "free_completed"]
    assert any(frame["filename"] == __file__ for frame in entries[1]["frames"])
    assert [entry["time_us"] for entry in traces] == sorted(entry["time_us"] for entry in traces)


@since("2.14")
def test_the_snapshot_has_every_pinned_byte(history):
    kept, freed = pinned_bytes(3 * MiB), pinned_bytes(48 * MiB)
    del freed
    segments = torch.cuda.memory._snapshot()["host_segments"]
    assert sum(segment["total_size"] for segment in segments) == stats("allocated_bytes.current")
    assert kept.data_ptr() in [segment["address"] for segment in segments if segment["allocated_size"] > 0]
    assert sum(segment["allocated_size"] for segment in segments) < 48 * MiB


@since("2.14")
def test_memory_that_a_program_pins_itself_is_in_the_history(history):
    buffer = ctypes.create_string_buffer(64 * KiB)
    address = ctypes.addressof(buffer)
    if int(torch.cuda.cudart().cudaHostRegister(address, 64 * KiB, 0)) != 0:
        pytest.skip("cudaHostRegister refuses the buffer")
    during = torch.cuda.memory._snapshot()["host_segments"]
    torch.cuda.cudart().cudaHostUnregister(address)
    after = torch.cuda.memory._snapshot()
    assert address in [segment["address"] for segment in during]
    assert address not in [segment["address"] for segment in after["host_segments"]]
    actions = [entry["action"] for entry in after["host_traces"] if entry["addr"] == address]
    assert actions == ["segment_alloc", "alloc", "free_requested", "free_completed", "segment_free"]


@since("2.14")
def test_threads_that_pin_while_history_records_stacks_do_not_wait_for_each_other(history):
    threads = [
        threading.Thread(target=lambda: [torch.ones(100 + n).pin_memory() for n in range(100)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


