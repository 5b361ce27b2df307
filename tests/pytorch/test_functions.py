"""Every function through which PyTorch's users and PyTorch itself reach the allocator, a row each.

A row does what native does and asserts what it means, under native and under cachalot's full allocator alike. Under the
function-pointer plug a row holds, too, or is refused in words: nothing is silently wrong.
"""

import pickle
import tempfile
from dataclasses import dataclass
from collections.abc import Callable

import pytest
import torch
from torch.cuda import _memory_viz
from world import (
    MEMORY_COMES,
    MEMORY_GOES,
    MODE,
    PAGES,
    VERSION,
    MiB,
    bytes_on_gpu,
    held_for,
    keep_busy,
    restore_pool,
    run_python,
    segments,
    total_memory,
)


@dataclass(frozen=True)
class Row:
    check: Callable[[], None]
    refused_by_plug: str | None


ROWS = []


def row(refused_by_plug=None):
    """Adds a row. Its check must hold, or must fail with a RuntimeError that matches the plug's refusal."""

    def add(check):
        ROWS.append(pytest.param(Row(check, refused_by_plug), id=check.__name__))
        return check

    return add


@pytest.mark.parametrize("row", ROWS)
def test_function(row):
    if MODE == "plug" and row.refused_by_plug is not None:
        with pytest.raises(RuntimeError, match=row.refused_by_plug):
            row.check()
    else:
        row.check()


STAT_ARRAYS = (
    "allocation allocated_bytes requested_bytes active active_bytes segment reserved_bytes inactive_split "
    "inactive_split_bytes"
).split()
SCALARS = "num_alloc_retries num_ooms num_sync_all_streams num_device_alloc num_device_free max_split_size".split()


def stat_keys():
    """The keys of torch.cuda.memory_stats that are always there: 122, and one more since 2.12."""
    entries = ("current", "peak", "allocated", "freed")
    keys = {
        f"{name}.{pool}.{entry}"
        for name in STAT_ARRAYS
        for pool in ("all", "small_pool", "large_pool")
        for entry in entries
    }
    keys |= {f"{name}.{entry}" for name in ("oversize_allocations", "oversize_segments") for entry in entries}
    return keys | set(SCALARS) | ({"num_oom_rejections"} if VERSION >= "2.12" else set())


PRIVATE_POOLS = "reserved_bytes_by_private_pools"  # since 2.13, with keys for each pool that there ever was


def without_pools(stats):
    return {key: value for key, value in stats.items() if VERSION < "2.13" or not key.startswith(PRIVATE_POOLS)}


# ---- statistics ----


@row()
def memory_stats_has_every_key_and_counts():
    small, large = bytes_on_gpu(1000), bytes_on_gpu(5 * MiB)
    stats = torch.cuda.memory_stats()
    assert set(without_pools(stats)) == stat_keys()
    assert stats["allocation.all.current"] == 2
    assert stats["requested_bytes.all.current"] == 1000 + 5 * MiB
    assert stats["allocated_bytes.small_pool.current"] == 1024
    assert stats["allocated_bytes.large_pool.current"] == 5 * MiB
    reserved = 2 * MiB + held_for(5 * MiB)
    assert stats["reserved_bytes.all.current"] == reserved
    # PyTorch counts neither segments nor what is split of memory that it maps.
    assert stats["segment.small_pool.current"] == stats["segment.large_pool.current"] == (0 if PAGES else 1)
    assert stats["inactive_split_bytes.all.current"] == (0 if PAGES else reserved - 1024 - 5 * MiB)
    assert stats["num_device_alloc"] == 2
    assert stats["max_split_size"] == -1
    del small, large
    assert torch.cuda.memory_stats()["allocated_bytes.all.freed"] == 1024 + 5 * MiB


@row()
def memory_stats_as_nested_dict_is_the_same_tree():
    kept = bytes_on_gpu(1000)
    nested = torch.cuda.memory_stats_as_nested_dict()
    assert nested["allocated_bytes"]["small_pool"]["current"] == 1024
    assert nested["num_ooms"] == 0
    newer = {PRIVATE_POOLS} if VERSION >= "2.13" else set()
    assert set(nested) == {key.partition(".")[0] for key in stat_keys()} | newer


@row()
def allocated_and_reserved_with_their_peaks():
    kept, gone = bytes_on_gpu(3 * MiB), bytes_on_gpu(4 * MiB)
    del gone
    assert torch.cuda.memory_allocated() == 3 * MiB
    assert torch.cuda.max_memory_allocated() == 7 * MiB
    assert torch.cuda.memory_reserved() == torch.cuda.max_memory_reserved() == held_for(7 * MiB)


@row()
def memory_summary_prints_the_figures():
    kept = bytes_on_gpu(3 * MiB)
    summary = torch.cuda.memory_summary()
    allocated = next(line for line in summary.splitlines() if "Allocated memory" in line)
    assert "3072 KiB" in allocated or "3145728 B" in allocated
    assert "CUDA OOMs: 0" in torch.cuda.memory_summary(abbreviated=True)


@row()
def reset_peak_memory_stats_starts_again_from_now():
    kept, gone = bytes_on_gpu(3 * MiB), bytes_on_gpu(4 * MiB)
    del gone
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 3 * MiB


@row()
def reset_accumulated_memory_stats_starts_again_from_zero():
    kept = bytes_on_gpu(3 * MiB)
    torch.cuda.reset_accumulated_memory_stats()
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.allocated"] == stats["num_device_alloc"] == 0
    assert stats["allocated_bytes.all.current"] == 3 * MiB


@row()
def each_device_has_its_own_figures():
    on_second = bytes_on_gpu(3 * MiB, "cuda:1")
    assert torch.cuda.memory_allocated("cuda:0") == 0
    assert torch.cuda.memory_allocated("cuda:1") == 3 * MiB
    with pytest.raises((AssertionError, RuntimeError, ValueError)):
        torch.cuda.memory_stats(torch.cuda.device_count())


@row()
def torch_accelerator_memory_functions_say_the_same():
    kept, gone = bytes_on_gpu(3 * MiB), bytes_on_gpu(4 * MiB)
    del gone
    accelerator = torch.accelerator
    assert accelerator.memory_allocated() == 3 * MiB
    assert accelerator.max_memory_allocated() == 7 * MiB
    assert accelerator.memory_reserved() == accelerator.max_memory_reserved() == held_for(7 * MiB)
    # It leaves out what is newer.
    of_cuda = without_pools(torch.cuda.memory_stats())
    of_cuda.pop("num_oom_rejections", None)
    assert dict(accelerator.memory_stats()) == of_cuda
    accelerator.reset_peak_memory_stats()
    assert accelerator.max_memory_allocated() == 3 * MiB
    accelerator.reset_accumulated_memory_stats()
    assert accelerator.memory_stats()["allocated_bytes.all.allocated"] == 0
    assert accelerator.get_memory_info() == torch.cuda.mem_get_info()
    del kept
    accelerator.empty_cache()
    assert accelerator.memory_reserved() == 0


@row()
def host_memory_stats_are_of_another_allocator():
    pinned = torch.empty(1 * MiB, dtype=torch.uint8, pin_memory=True)
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] >= 1 * MiB
    assert torch.cuda.memory_allocated() == 0


# ---- snapshots and history ----


@row()
def memory_snapshot_shows_segments_and_blocks():
    kept = bytes_on_gpu(3 * MiB - 100)
    (segment,) = segments()
    assert segment["total_size"] == held_for(3 * MiB)
    assert segment["allocated_size"] == segment["active_size"] == 3 * MiB
    assert segment["requested_size"] == 3 * MiB - 100
    assert (segment["device"], segment["stream"], segment["segment_type"]) == (0, 0, "large")
    assert segment["segment_pool_id"] == (0, 0)
    assert segment["is_expandable"] == PAGES
    first, rest = segment["blocks"]
    assert (first["address"], first["size"], first["requested_size"]) == (kept.data_ptr(), 3 * MiB, 3 * MiB - 100)
    assert (first["state"], rest["state"]) == ("active_allocated", "inactive")
    assert rest["address"] == first["address"] + first["size"]


@row()
def snapshot_tells_the_settings():
    snapshot = torch.cuda.memory._snapshot()
    of_host = {"host_segments", "host_traces"} if VERSION >= "2.14" else set()
    assert set(snapshot) == {"segments", "device_traces", "allocator_settings", "external_annotations"} | of_host
    assert all(snapshot[key] == [] for key in of_host)
    settings = snapshot["allocator_settings"]
    assert settings["max_split_size"] == -1
    assert settings["expandable_segments"] is PAGES
    assert settings["roundup_power2_divisions"] == {str(1 << slot): 0 for slot in range(16)}
    of_pinned = {"max_round_threshold", "max_cached_size"} if VERSION >= "2.13" else set()
    assert all(settings[key] == -1 for key in of_pinned)
    assert set(settings) == of_pinned | {
        "PYTORCH_CUDA_ALLOC_CONF",
        "max_split_size",
        "garbage_collection_threshold",
        "expandable_segments",
        "pinned_num_register_threads",
        "release_lock_on_cudamalloc",
        "pinned_use_cuda_host_register",
        "graph_capture_record_stream_reuse",
        "roundup_power2_divisions",
    }


@row()
def dumped_snapshot_opens_in_memory_viz():
    torch.cuda.memory._record_memory_history(stacks="python")
    kept = bytes_on_gpu(3 * MiB)
    gone = bytes_on_gpu(4 * MiB)
    del gone
    with tempfile.NamedTemporaryFile(suffix=".pickle") as file:
        torch.cuda.memory._dump_snapshot(file.name)
        snapshot = pickle.load(file)
    assert f"total_reserved: {held_for(7 * MiB) // MiB}.0MiB" in _memory_viz.segsum(snapshot)
    assert "# free completed for" in _memory_viz.trace(snapshot)
    for page in (_memory_viz.trace_plot(snapshot), _memory_viz.segment_plot(snapshot)):
        assert page.lstrip().startswith("<!DOCTYPE html>") and len(page) > 1000


def joined(story):
    """Memory that comes or goes in several pieces side by side, as one."""
    result = []
    for action, address, size in story:
        if result and action in (MEMORY_COMES, MEMORY_GOES):
            last_action, last_address, last_size = result[-1]
            if action == last_action and address == last_address + last_size:
                result[-1] = (action, last_address, last_size + size)
                continue
        result.append((action, address, size))
    return result


@row()
def record_memory_history_keeps_what_happened():
    torch.cuda.memory._record_memory_history(stacks="python")
    block = bytes_on_gpu(3 * MiB)
    address = block.data_ptr()
    del block
    torch.cuda.empty_cache()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    story = joined((entry["action"], entry["addr"], entry["size"]) for entry in trace if entry["action"] != "snapshot")
    assert story == [
        (MEMORY_COMES, address, held_for(3 * MiB)),
        ("alloc", address, 3 * MiB),
        ("free_requested", address, 3 * MiB),
        ("free_completed", address, 3 * MiB),
        (MEMORY_GOES, address, held_for(3 * MiB)),
    ]
    times = [entry["time_us"] for entry in trace]
    assert times == sorted(times) and times[0] > 1_600_000_000_000_000  # microseconds since 1970


@row(refused_by_plug="no stacks")
def history_has_python_stacks():
    torch.cuda.memory._record_memory_history(stacks="python")
    kept = bytes_on_gpu(3 * MiB)
    snapshot = torch.cuda.memory._snapshot()
    (entry,) = [e for e in snapshot["device_traces"][0] if e["action"] == "alloc"]
    block = snapshot["segments"][0]["blocks"][0]
    for frames in (entry.get("frames"), block["frames"]):
        if not frames:
            raise RuntimeError("no stacks")
        assert "history_has_python_stacks" in [frame["name"] for frame in frames]
        assert any(frame["filename"] == __file__ for frame in frames)


@row()
def history_can_be_switched_off_and_asked_for():
    assert not torch._C._cuda_isHistoryEnabled()
    torch.cuda.memory._record_memory_history("all")
    assert torch._C._cuda_isHistoryEnabled()
    torch.cuda.memory._record_memory_history(None)
    assert not torch._C._cuda_isHistoryEnabled()
    kept = bytes_on_gpu(3 * MiB)
    assert torch.cuda.memory._snapshot()["device_traces"] in ([], [[]] * torch.cuda.device_count())


@row(refused_by_plug="no metadata")
def user_metadata_is_in_history():
    torch.cuda.memory._record_memory_history("all")
    torch.cuda.memory._set_memory_metadata("embedding table")
    try:
        if torch.cuda.memory._get_memory_metadata() != "embedding table":
            raise RuntimeError("no metadata")
        kept = bytes_on_gpu(3 * MiB)
    finally:
        torch.cuda.memory._set_memory_metadata("")
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert [e["user_metadata"] for e in trace if e["action"] == "alloc"] == ["embedding table"]


@row(refused_by_plug="no annotations")
def profiler_ranges_are_in_the_snapshot():
    torch.cuda.memory._record_memory_history("all", global_record_annotations=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        with torch.profiler.record_function("forward pass"):
            kept = bytes_on_gpu(3 * MiB)
    annotations = torch.cuda.memory._snapshot()["external_annotations"]
    if not annotations:
        raise RuntimeError("no annotations")
    stages = [a["stage"] for a in annotations if a["name"] == "forward pass"]
    assert stages == ["START", "END"]


# ---- limits, cache, devices ----


@row()
def memory_fraction_is_set_and_read_and_holds():
    torch.cuda.set_per_process_memory_fraction(0.25)
    assert torch.cuda.get_per_process_memory_fraction() == 0.25
    kept = bytes_on_gpu(total_memory() // 4 - 2 * MiB)
    with pytest.raises(RuntimeError, match="out of memory"):
        bytes_on_gpu(4 * MiB)


@row()
def mem_get_info_is_the_devices():
    free, total = torch.cuda.mem_get_info()
    kept = bytes_on_gpu(64 * MiB)
    assert torch.cuda.mem_get_info() == (free - 64 * MiB, total)


@row()
def empty_cache_gives_memory_back():
    free, _ = torch.cuda.mem_get_info()
    bytes_on_gpu(64 * MiB)
    assert torch.cuda.mem_get_info()[0] == free - 64 * MiB
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] == free
    assert torch.cuda.memory_reserved() == 0


@row()
def allocator_backend_has_a_name():
    name = torch.cuda.memory.get_allocator_backend()
    assert name == {"native": "native", "plug": "pluggable"}.get(MODE, "cachalot")


@row()
def current_allocator_is_an_object_when_it_is_not_natives():
    current = torch.cuda.memory._get_current_allocator().allocator()
    assert (current is None) == (MODE == "native")


@row()
def allocator_cannot_be_changed_after_the_first_use():
    bytes_on_gpu(1)
    mine = torch._C._cuda_customAllocator(1, 1)
    with pytest.raises(RuntimeError, match="Can't swap an already initialized allocator"):
        torch._C._cuda_changeCurrentAllocator(mine)


# ---- allocation ----


@row()
def empty_tensors_have_no_memory():
    assert bytes_on_gpu(0).data_ptr() == 0
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0


@row()
def caching_allocator_alloc_and_delete():
    address = torch.cuda.caching_allocator_alloc(3 * MiB)
    assert torch.cuda.memory_allocated() == 3 * MiB
    assert segments()[0]["blocks"][0]["address"] == address
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated() == 0


@row()
def caching_allocator_alloc_takes_a_stream_and_a_device():
    side = torch.cuda.Stream("cuda:1")
    address = torch.cuda.caching_allocator_alloc(3 * MiB, "cuda:1", side)
    (segment,) = segments()
    assert (segment["device"], segment["stream"]) == (1, side.cuda_stream)
    torch.cuda.caching_allocator_delete(address)


@row()
def caching_allocator_alloc_of_nothing_is_null():
    assert torch.cuda.caching_allocator_alloc(0) == 0
    torch.cuda.caching_allocator_delete(0)


@row()
def caching_allocator_delete_refuses_a_foreign_pointer():
    refusal = "a pointer not allocated here" if MODE == "plug" else "invalid device pointer|not a live allocation"
    with pytest.raises(RuntimeError, match=refusal):
        torch.cuda.caching_allocator_delete(512)


@row(refused_by_plug="caching cannot be switched off")
def caching_can_be_switched_off():
    torch.cuda.caching_allocator_enable(False)
    try:
        address = torch.cuda.caching_allocator_alloc(3 * MiB)
        uncached = torch.cuda.memory_allocated() == 0
        torch.cuda.caching_allocator_delete(address)
    finally:
        torch.cuda.caching_allocator_enable(True)
    if not uncached:
        raise RuntimeError("caching cannot be switched off")
    kept = bytes_on_gpu(3 * MiB)
    assert torch.cuda.memory_allocated() == 3 * MiB


@row()
def out_of_memory_is_torchs_own_error():
    with pytest.raises(
        torch.OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate .*GPU 0 has a total capacity of"
    ):
        bytes_on_gpu(2 * total_memory())
    assert torch.cuda.memory_stats()["num_ooms"] == 1


@row(refused_by_plug="does not yet support attachOutOfMemoryObserver")
def out_of_memory_observers_are_told():
    told = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *figures: told.append(figures))
    free, total = torch.cuda.mem_get_info()
    size = 2 * total
    with pytest.raises(RuntimeError):
        bytes_on_gpu(size)
    assert told == [(0, size, total, free)]


@row()
def record_stream_keeps_memory_from_reuse():
    side = torch.cuda.Stream()
    block = bytes_on_gpu(16 * MiB)
    address = block.data_ptr()
    block.record_stream(side)
    keep_busy(side)
    del block
    assert torch.cuda.memory_allocated() == 0
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 16 * MiB
    assert segments()[0]["blocks"][0]["state"] == "active_pending_free"
    other = bytes_on_gpu(16 * MiB)
    assert other.data_ptr() != address
    side.synchronize()
    again = bytes_on_gpu(16 * MiB)
    assert again.data_ptr() == address


# ---- pools and graphs ----

NO_POOLS = "does not yet support createOrIncrefPool"


@row(refused_by_plug=NO_POOLS)
def mem_pool_keeps_its_memory_apart():
    pool = torch.cuda.MemPool()
    outside = bytes_on_gpu(3 * MiB)
    with torch.cuda.use_mem_pool(pool):
        inside = bytes_on_gpu(3 * MiB)
    assert [s["blocks"][0]["address"] for s in segments(pool.id)] == [inside.data_ptr()]
    assert [s["address"] for s in pool.snapshot()] == [s["address"] for s in segments(pool.id)]
    assert pool.use_count() == 1
    del outside
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == held_for(3 * MiB)
    del inside, pool
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


@row()
def graph_capture_allocates_from_a_pool_of_its_own():
    before = bytes_on_gpu(3 * MiB)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = bytes_on_gpu(3 * MiB)
        temporary = bytes_on_gpu(3 * MiB)
        del temporary
    graph.replay()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # it leaves the pool alone
    (segment,) = segments(graph.pool())
    assert (segment["total_size"], segment["allocated_size"]) == (held_for(6 * MiB), 3 * MiB)
    assert segment["blocks"][0]["address"] == static.data_ptr()
    del static, graph, before
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0


def captured(pool, *sizes):
    """Tensors of these sizes, made while a graph was captured into the pool; with the graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        tensors = [bytes_on_gpu(size) for size in sizes]
    return graph, tensors


@row(refused_by_plug="does not yet support (getCheckpointState|checkPoolLiveAllocations)")
def pools_can_be_checked_and_restored_to_a_checkpoint():
    pool = torch.cuda.graph_pool_handle()
    first_graph, (kept, dies) = captured(pool, 3 * MiB, 4 * MiB)
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool, {kept.data_ptr(), dies.data_ptr()})
    state = torch._C._cuda_getCheckpointState(0, pool)
    dead = dies.data_ptr()
    del dies
    second_graph, (later,) = captured(pool, 5 * MiB)
    assert not torch._C._cuda_checkPoolLiveAllocations(0, pool, {kept.data_ptr()})
    owners = restore_pool(state, alive=[kept, later], kept=[kept])
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool, {kept.data_ptr(), dead})
    torch.cuda.caching_allocator_delete(dead)
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool, {kept.data_ptr()})
    owners.clear()
    assert torch._C._cuda_checkPoolLiveAllocations(0, pool, set())


@row(refused_by_plug="does not yet support")
def compiled_functions_run_in_cuda_graph_trees():
    twice, plus_one = (torch.compile(f, backend="cudagraphs") for f in (lambda x: x * 2, lambda x: x.relu() + 1))
    x = torch.ones(1 * MiB, device="cuda")
    with torch.no_grad():
        for _ in range(5):  # runs, is recorded, then is replayed from checkpoints of its pool
            torch.compiler.cudagraph_mark_step_begin()
            result = plus_one(twice(x))
    (segment,) = [s for s in segments() if s["address"] <= result.data_ptr() < s["address"] + s["total_size"]]
    assert segment["segment_pool_id"] != (0, 0)
    del result, x
    torch._inductor.cudagraph_trees.reset_cudagraph_trees()
    torch._dynamo.reset()


# ---- other callers of the allocator ----


@row(refused_by_plug="does not yet support cacheInfo")
def cudnn_asks_how_much_it_may_try():
    convolution = torch.nn.Conv2d(8, 8, 3, device="cuda")
    with torch.backends.cudnn.flags(enabled=True, benchmark=True), torch.no_grad():
        result = convolution(torch.ones(2, 8, 32, 32, device="cuda"))
    assert result.shape == (2, 8, 30, 30)
    del convolution, result
    torch._C._cuda_clearCublasWorkspaces()


@row(refused_by_plug="does not yet support shareI[Pp][Cc]Handle")
def storages_are_shared_in_natives_format():
    process = run_python(  # shared memory waits for its receiver
        """
        first = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        shared = torch.empty(4 << 20, dtype=torch.uint8, device="cuda")
        device, handle, size, offset, *_ = shared.untyped_storage()._share_cuda_()
        print(device, handle[0], chr(handle[1]), len(handle), size, offset)
        """
    )
    if process.returncode != 0:
        raise RuntimeError(process.stderr)
    # The version, "c" as cudaMalloc, and the handle of the segment; or "e" as expandable, since version 3 the kind of the
    # handles, and three handles of 2 MiB; then a key for each, and the socket that knows them.
    version = 3 if VERSION >= "2.13" else 2
    of_pages = 2 + 24 + (8 if version == 3 else 0) + 3 * (4 + 8) + 16
    kind, length, offset = ("e", of_pages, MiB) if PAGES else ("c", 2 + 64, 3 * MiB)
    assert process.stdout.split() == ["0", str(version), kind, str(length), str(4 * MiB), str(offset)]


@row(refused_by_plug="no memory events")
def profiler_sees_memory():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        block = bytes_on_gpu(3 * MiB)
        del block
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in events if event.device_type() == torch.profiler.DeviceType.CUDA]
    if not changes:
        raise RuntimeError("no memory events")
    assert changes == [3 * MiB, -3 * MiB]
