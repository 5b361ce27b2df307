"""Functions that PyTorch 2.12 to 2.15 added to its allocator: equal under native and under cachalot, as in test_functions.py."""

from pathlib import Path

import pytest
import torch
from world import MODE, PAGES, VERSION, MiB, bytes_on_gpu, change_settings, compile_beside_the_plug, held_for, segments, since, total_memory

pytestmark = pytest.mark.skipif(MODE == "plug", reason="PyTorch's class behind the function pointers has none of it")

SOURCE = Path(__file__).with_name("newer_observers.cpp")


def reserved_of(pool):
    return torch.cuda.memory_stats_as_nested_dict()["reserved_bytes_by_private_pools"][tuple(pool)]


def stat(current, peak, allocated, freed):
    return {"current": current, "peak": peak, "allocated": allocated, "freed": freed}


# ---- statistics ----


@since("2.13")
def test_statistics_tell_what_each_private_pool_holds():
    pool = torch.cuda.MemPool()
    outside = bytes_on_gpu(3 * MiB)
    assert tuple(pool.id) not in torch.cuda.memory_stats_as_nested_dict()["reserved_bytes_by_private_pools"]
    with torch.cuda.use_mem_pool(pool):
        small, large = bytes_on_gpu(1000), bytes_on_gpu(5 * MiB)
    of_small, of_large = 2 * MiB, held_for(5 * MiB)
    both = of_small + of_large
    assert reserved_of(pool.id) == {
        "all": stat(both, both, both, 0),
        "small_pool": stat(of_small, of_small, of_small, 0),
        "large_pool": stat(of_large, of_large, of_large, 0),
    }
    first, second = pool.id
    assert torch.cuda.memory_stats()[f"reserved_bytes_by_private_pools.{first}_{second}.all.current"] == both
    identity = pool.id
    del small, large, pool
    torch.cuda.empty_cache()
    assert reserved_of(identity)["all"] == stat(0, both, both, both)  # a pool stays listed after its end
    torch.cuda.reset_peak_memory_stats()
    assert reserved_of(identity)["all"] == stat(0, 0, both, both)
    torch.cuda.reset_accumulated_memory_stats()
    assert reserved_of(identity)["all"] == stat(0, 0, 0, 0)
    assert torch.cuda.memory_reserved() == held_for(3 * MiB)


@since("2.13")
def test_the_pool_of_a_graph_is_listed_too():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = bytes_on_gpu(3 * MiB)
    assert reserved_of(graph.pool())["large_pool"]["current"] == held_for(3 * MiB)


# ---- throw_on_cudamalloc_oom ----


@pytest.fixture
def refusing():
    change_settings("throw_on_cudamalloc_oom:True")
    yield
    change_settings("throw_on_cudamalloc_oom:False,per_process_memory_fraction:1.0")


REFUSED = "Allocation was preemptively rejected because it would exceed per_process_memory_fraction limit. Requested size: "


@since("2.12")
def test_a_request_beyond_the_device_is_refused_before_the_device_is_asked(refusing):
    asked = torch.cuda.memory_stats()["num_device_alloc"]
    with pytest.raises(torch.OutOfMemoryError, match=f"CUDA out of memory. {REFUSED}.* GiB"):
        bytes_on_gpu(total_memory() + 2 * MiB)
    stats = torch.cuda.memory_stats()
    assert (stats["num_oom_rejections"], stats["num_ooms"]) == (1, 0)
    assert stats["num_alloc_retries"] == (1 if PAGES else 0)  # it looks for idle pages first
    assert stats["num_device_alloc"] == asked
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.memory_stats()["num_oom_rejections"] == 0


@since("2.12")
@pytest.mark.skipif(PAGES, reason="the page heap serves it with what is cached, which takes no new memory")
def test_nothing_is_given_back_for_a_request_that_is_refused(refusing):
    size = total_memory() * 6 // 10
    cached = bytes_on_gpu(size)
    del cached
    side = torch.cuda.Stream()
    with torch.cuda.stream(side), pytest.raises(torch.OutOfMemoryError, match=REFUSED):
        bytes_on_gpu(size)
    assert torch.cuda.memory_reserved() == -(-size // (2 * MiB)) * 2 * MiB
    assert torch.cuda.memory_stats()["num_oom_rejections"] == 1


@since("2.12")
def test_a_limit_that_a_program_sets_does_not_refuse_but_runs_out(refusing):
    torch.cuda.set_per_process_memory_fraction(0.5)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        bytes_on_gpu(total_memory() * 3 // 4)
    stats = torch.cuda.memory_stats()
    assert (stats["num_oom_rejections"], stats["num_ooms"]) == (0, 1)


@since("2.12")
def test_the_setting_is_true_or_false():
    with pytest.raises(ValueError, match="Expected 'True' or 'False'"):
        change_settings("throw_on_cudamalloc_oom:maybe")


# ---- allocations at an address ----


def placed(size, address):
    """A storage whose memory begins there."""
    storage = torch.empty(0, dtype=torch.uint8, device="cuda").untyped_storage()
    storage._resize_with_addr_(size, address)
    return storage


@pytest.fixture
def hole():
    """The address of 6 MiB that are free, between two tensors."""
    kept = [bytes_on_gpu(2 * MiB) for _ in range(5)]
    address = kept[1].data_ptr()
    del kept[1:4]
    return address, kept


@since("2.13")
def test_memory_is_allocated_at_an_address_that_is_free(hole):
    address, _ = hole
    block = placed(2 * MiB, address + MiB)
    assert block.data_ptr() == address + MiB
    assert torch.cuda.memory_allocated() == 6 * MiB
    behind = placed(3 * MiB, address + 3 * MiB)
    assert behind.data_ptr() == address + 3 * MiB
    del block, behind
    assert torch.cuda.memory_allocated() == 4 * MiB


@since("2.13")
def test_what_is_not_free_at_the_address_is_refused(hole):
    address, kept = hole
    before = torch.cuda.memory_stats()
    for size, wrong in ((2 * MiB, kept[0].data_ptr()), (7 * MiB, address), (2 * MiB, address - MiB)):
        with pytest.raises(RuntimeError, match=f"Could not allocate CUDA storage at exact address {wrong:#x}"):
            placed(size, wrong)
    with pytest.raises(RuntimeError, match=r"addr must be aligned to kMinBlockSize \(512 bytes\)"):
        placed(512, address + 1)
    with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(RuntimeError, match="exact address"):
        placed(2 * MiB, address)
    assert torch.cuda.memory_stats() == before
    assert placed(0, address).data_ptr() == 0


@since("2.13")
def test_what_lies_before_the_address_is_handed_out_and_freed(hole):
    address, _ = hole
    torch.cuda.memory._record_memory_history(stacks="python")
    torch.cuda.memory._set_memory_metadata("mine")
    try:
        block = placed(2 * MiB, address + MiB)
    finally:
        torch.cuda.memory._set_memory_metadata("")
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    trace = [entry for entry in trace if entry["action"] != "snapshot"]
    assert [(entry["action"], entry["addr"] - address, entry["size"]) for entry in trace] == [
        ("alloc", 0, MiB),
        ("alloc", MiB, 2 * MiB),
        ("free_requested", 0, MiB),
        ("free_completed", 0, MiB),
    ]
    if VERSION >= "2.15":
        marks = {(entry["user_metadata"], entry["internal_metadata"]) for entry in trace}
        assert marks == {("mine", "mallocWithAddress")}
    else:
        assert {entry["user_metadata"] for entry in trace} == {"mine\nmallocWithAddress"}
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 5 + 2


@since("2.13")
def test_memory_of_a_pool_is_allocated_at_its_address():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        block = bytes_on_gpu(3 * MiB)
        address = block.data_ptr()
        del block
        again = placed(3 * MiB, address)
    assert again.data_ptr() == address
    assert [s["allocated_size"] for s in segments(pool.id)] == [3 * MiB]
    with pytest.raises(RuntimeError, match="exact address"):
        placed(MiB + 1, address + 3 * MiB)  # free, but of the pool


@since("2.13")
def test_small_memory_is_allocated_at_its_address():
    small = [bytes_on_gpu(1000) for _ in range(3)]
    address = small[1].data_ptr()
    del small[1]
    again = placed(1000, address)
    assert again.data_ptr() == address
    assert torch.cuda.memory_allocated() == 3 * 1024


# ---- history ----


@since("2.13")
def test_where_an_allocation_was_made_can_be_asked_for():
    def maker():
        return bytes_on_gpu(3 * MiB)

    before = bytes_on_gpu(3 * MiB)
    torch.cuda.memory._record_memory_history("all", stacks="python")
    block = maker()
    ask = torch._C._cuda_allocationTraceback
    assert "maker" in [frame["name"] for frame in ask(block.data_ptr())]
    assert ask(before.data_ptr()) is None and ask(block.data_ptr() + 512) is None and ask(0) is None


def entries(*actions):
    return [e for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] in actions]


@since("2.14")
def test_a_live_allocation_can_be_annotated():
    torch.cuda.memory._record_memory_history("all", stacks="python")
    block = bytes_on_gpu(3 * MiB - 7)
    torch.cuda.memory._set_memory_metadata("of the thread")
    try:
        torch.cuda.memory._annotate_tensor(block[5:], "of the block")
    finally:
        torch.cuda.memory._set_memory_metadata("")
    (entry,) = entries("annotate")
    assert (entry["addr"], entry["size"]) == (block.data_ptr(), 3 * MiB - 7)
    assert (entry["user_metadata"], entry["pool_id"]) == ("of the block", (0, 0))
    assert "test_a_live_allocation_can_be_annotated" in [frame["name"] for frame in entry["frames"]]
    with pytest.raises(RuntimeError, match="annotateMemory: no live allocation found at pointer 0x200"):
        torch._C._cuda_annotateMemory(512, "nothing")


@since("2.14")
def test_annotations_can_be_left_out_of_history():
    torch.cuda.memory._record_memory_history("all", stacks="python", skip_actions=["annotate"])
    block = bytes_on_gpu(3 * MiB)
    torch.cuda.memory._annotate_tensor(block, "unseen")
    assert entries("annotate") == []


@since("2.14")
def test_metadata_is_supported_and_says_so():
    assert torch._C._cuda_memoryMetadataSupported()


@since("2.15")
def test_metadata_may_be_a_dict():
    torch.cuda.memory._record_memory_history("all", stacks="python")
    torch.cuda.memory._set_memory_metadata({"layer": 3})
    try:
        block = bytes_on_gpu(3 * MiB)
        assert torch.cuda.memory._get_memory_metadata() == '{"layer":3}'
    finally:
        torch.cuda.memory._set_memory_metadata("")
    assert entries("alloc")[-1]["user_metadata"] == '{"layer":3}'


@since("2.14")
def test_the_history_of_pinned_memory_is_in_the_snapshot():
    torch.cuda.memory._record_memory_history("all", stacks="python", record_pinned_host_memory=True)
    pinned = torch.empty(48 * MiB, dtype=torch.uint8, pin_memory=True)
    snapshot = torch.cuda.memory._snapshot()
    assert pinned.data_ptr() in [segment["address"] for segment in snapshot["host_segments"]]
    assert ("alloc", pinned.data_ptr()) in [(entry["action"], entry["addr"]) for entry in snapshot["host_traces"]]


# ---- captures are told apart from pools ----


@since("2.13")
def test_empty_cache_inside_a_pool_empties_the_cache():
    cached = bytes_on_gpu(40 * MiB)
    del cached
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0


@since("2.13")
def test_frees_that_are_done_are_seen_inside_a_pool():
    side = torch.cuda.Stream()
    block = bytes_on_gpu(16 * MiB)
    block.record_stream(side)
    del block
    torch.cuda.synchronize()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        other = bytes_on_gpu(3 * MiB)
        assert torch.cuda.memory_stats()["active_bytes.all.current"] == 3 * MiB


@since("2.13")
def test_the_cache_is_left_alone_while_a_graph_is_captured():
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inside = bytes_on_gpu(3 * MiB)
        held = torch.cuda.memory_reserved()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == held
    cached = bytes_on_gpu(40 * MiB)
    del cached
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == held


# ---- C++ ----


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return compile_beside_the_plug(SOURCE, tmp_path_factory.mktemp("observers") / "libnewer_observers.so")


@since("2.12")
def test_an_observer_is_told_of_a_refusal(library):
    from world import run_python, succeeds

    succeeds(
        run_python(
            f"""
            import ctypes, time, cachalot._bindings.plug
            cachalot._bindings.plug.Plug()
            observers = ctypes.CDLL({str(library)!r})
            torch.cuda.init()
            observers.attach_refusal_observer()
            total = torch.cuda.mem_get_info()[1]
            kept = torch.empty(20 << 20, dtype=torch.uint8, device="cuda")
            for _ in range(2):
                try:
                    torch.empty(total, dtype=torch.uint8, device="cuda")
                    raise AssertionError("it was served")
                except torch.OutOfMemoryError:
                    pass
            deadline = time.monotonic() + 10  # PyTorch's own allocator tells on another thread, some time later
            while observers.times_told() < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            figures = [ctypes.c_longlong.in_dll(observers, f"last_{{name}}").value for name in ("device", "asked", "held", "total")]
            assert observers.times_told() == 2 and figures == [0, total, 20 << 20, total], figures
            """,
            PYTORCH_CUDA_ALLOC_CONF="throw_on_cudamalloc_oom:True",
        )
    )
