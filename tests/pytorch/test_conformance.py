"""The properties that PyTorch's own tests expect of its allocator, in cachalot's words: true under native and under cachalot
alike."""

import random

import pytest
import torch
import world
from provider import Provider
from world import (
    MEMORY_COMES,
    MEMORY_GOES,
    MODE,
    PAGES,
    VERSION,
    GiB,
    KiB,
    MiB,
    bytes_on_gpu,
    held_for,
    keep_busy,
    not_plug,
    restore_pool,
    segments,
    succeeds,
    total_memory,
)

SMALL_SEGMENT = 2 * MiB
LARGE_SEGMENT = 20 * MiB


def settings(text):
    torch._C._accelerator_setAllocatorSettings(text)


def reserved():
    return torch.cuda.memory_reserved()


def blocks_of(address):
    """The snapshot's block at this address, with its segment."""
    return next((b, s) for s in segments() for b in s["blocks"] if b["address"] == address)


# ---- sizes ----


@pytest.mark.parametrize(
    "asked, allocated, held",
    [
        (1, 512, SMALL_SEGMENT),
        (511, 512, SMALL_SEGMENT),
        (512, 512, SMALL_SEGMENT),
        (513, 1024, SMALL_SEGMENT),
        (MiB - 1, MiB, SMALL_SEGMENT),
        (MiB, MiB, SMALL_SEGMENT),
        (MiB + 1, MiB + 512, LARGE_SEGMENT),
        (2 * MiB, 2 * MiB, LARGE_SEGMENT),
        (5 * MiB, 5 * MiB, LARGE_SEGMENT),
        (10 * MiB - 1, 10 * MiB, 10 * MiB),
        (10 * MiB, 10 * MiB, 10 * MiB),
        (10 * MiB + 1, 10 * MiB + 512, 12 * MiB),
        (11 * MiB, 12 * MiB, 12 * MiB),
        (19 * MiB, 20 * MiB, 20 * MiB),
        (20 * MiB, 20 * MiB, 20 * MiB),
        (21 * MiB + 1, 22 * MiB, 22 * MiB),
    ],
)
def test_a_request_is_rounded_and_gets_a_segment(asked, allocated, held):
    if PAGES:  # no block is too large to be split, as with PyTorch's expandable segments
        allocated = -(-asked // 512) * 512
        held = held_for(allocated)
    kept = bytes_on_gpu(asked)
    assert (torch.cuda.memory_allocated(), reserved()) == (allocated, held)
    assert torch.cuda.memory_stats()["requested_bytes.all.current"] == asked


# ---- accounting ----


def test_allocated_memory_rises_and_returns_exactly():
    one = bytes_on_gpu(1)
    before = torch.cuda.memory_allocated()
    other = bytes_on_gpu(100 * KiB)
    assert torch.cuda.memory_allocated() == before + 100 * KiB
    del other
    assert torch.cuda.memory_allocated() == before


def test_torch_accelerator_accounts_for_tensors():
    if MODE == "plug":
        torch.empty(1, device="cuda")
    accelerator = torch.accelerator
    accelerator.reset_peak_memory_stats()
    assert accelerator.memory_allocated() == accelerator.max_memory_allocated()
    assert accelerator.memory_reserved() == accelerator.max_memory_reserved()
    before = accelerator.memory_stats()
    kept = torch.empty(256, device="cuda")
    after = accelerator.memory_stats()
    assert after["active_bytes.all.current"] == before["active_bytes.all.current"] + 1024
    del kept
    gone = accelerator.memory_stats()
    assert gone["active_bytes.all.current"] == before["active_bytes.all.current"]
    assert gone["active_bytes.all.freed"] == after["active_bytes.all.freed"] + 1024
    assert accelerator.max_memory_allocated() == accelerator.memory_allocated() + 1024
    accelerator.reset_peak_memory_stats()
    assert accelerator.max_memory_allocated() == accelerator.memory_allocated()


def test_random_requests_keep_the_books():
    """Ten thousand allocations, frees and flushes: live memory never overlaps, and the statistics add up."""
    choose = random.Random(123)
    live = {}
    for step in range(10_000):
        action = choose.random()
        if action < 0.5 or not live:
            size = int(2 ** choose.uniform(0, 23))
            live[step] = bytes_on_gpu(size)
        elif action < 0.998:
            del live[choose.choice(list(live))]
        else:
            torch.cuda.empty_cache()
        if len(live) > 200:
            del live[choose.choice(list(live))]
    ranges = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in live.values())
    assert all(left[1] <= right[0] for left, right in zip(ranges, ranges[1:], strict=False))
    stats = torch.cuda.memory_stats()
    assert stats["allocation.all.current"] == len(live)
    assert stats["requested_bytes.all.current"] == sum(t.nbytes for t in live.values())
    shown = segments()
    assert stats["reserved_bytes.all.current"] == sum(s["total_size"] for s in shown)
    assert stats["allocated_bytes.all.current"] == sum(s["allocated_size"] for s in shown)
    for segment in shown:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]


# ---- out of memory and limits ----


@pytest.mark.parametrize(
    "size, message",
    [
        (800_000_000 * GiB, r"Tried to allocate 800000000.00 GiB. GPU 0 has a total capacity of"),
        (8_000_000_000 * GiB, r"Tried to allocate more than 1EB memory|more than 1 ?EiB|1EB"),
    ],
)
def test_impossible_requests_are_refused_and_harmless(size, message):
    error = torch.OutOfMemoryError
    with pytest.raises(error, match=message):
        bytes_on_gpu(size)
    assert bytes_on_gpu(1).data_ptr() != 0


def test_memory_that_became_free_serves_the_request_that_failed():
    size = total_memory() // 2
    kept = bytes_on_gpu(size)
    with pytest.raises(RuntimeError, match="out of memory"):
        bytes_on_gpu(size + MiB)
    del kept
    bytes_on_gpu(size + MiB)


@pytest.mark.parametrize("conf", ["", pytest.param("max_split_size_mb:20", marks=not_plug)])
def test_out_of_memory_stays_catchable(conf):
    settings(conf)
    held = []
    with pytest.raises(RuntimeError, match="out of memory"):
        while True:
            held.append(bytes_on_gpu(total_memory() // 8))
    assert len(held) >= 7
    held.clear()
    bytes_on_gpu(total_memory() // 2)


def test_the_fraction_must_be_a_float_in_range():
    for wrong in (1, "1.0", None):
        with pytest.raises(TypeError, match="must be `float`"):
            torch.cuda.set_per_process_memory_fraction(wrong)
    for wrong in (-0.1, 1.1, 2.0):
        with pytest.raises(ValueError, match="Invalid fraction value"):
            torch.cuda.set_per_process_memory_fraction(wrong)


def test_the_fraction_limits_what_is_held():
    torch.cuda.set_per_process_memory_fraction(0.5)
    bytes_on_gpu(int(total_memory() * 0.499))
    torch.cuda.empty_cache()
    with pytest.raises(RuntimeError, match="out of memory"):
        bytes_on_gpu(int(total_memory() * 0.5) + 2 * MiB)
    torch.cuda.set_per_process_memory_fraction(1.0)
    bytes_on_gpu(int(total_memory() * 0.6))


def test_the_fraction_is_read_back_exactly():
    choose = random.Random(7)
    for fraction in (1.0, 0.0, 0.5, *(choose.random() for _ in range(20))):
        torch.cuda.set_per_process_memory_fraction(fraction)
        got = torch.cuda.get_per_process_memory_fraction()
        # The limit is kept in whole bytes.
        bytes_kept = round(fraction * total_memory()) if VERSION >= "2.13" else int(fraction * total_memory())
        assert got == bytes_kept / total_memory() or (got == fraction and VERSION < "2.13")


@not_plug
def test_observers_see_out_of_memory_before_the_error():
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda device, asked, total, free: seen.append((device, asked)))
    with pytest.raises(torch.OutOfMemoryError):
        bytes_on_gpu(4 * total_memory())
    assert seen == [(0, 4 * total_memory())]


# ---- settings ----


@not_plug
def test_settings_round_sizes_until_they_are_not_repeated():
    def rounded(size):
        block = bytes_on_gpu(size)
        return torch.cuda.memory_allocated()

    assert rounded(600 * KiB) == 600 * KiB
    settings("roundup_power2_divisions:4")
    assert rounded(600 * KiB) == 640 * KiB
    assert rounded(84 * MiB) == 96 * MiB
    settings("roundup_power2_divisions:[64:8,128:2,256:4,512:2,1024:4,>:1]")
    assert rounded(70 * MiB) == 72 * MiB
    assert rounded(130 * MiB) == 192 * MiB
    assert rounded(300 * MiB) == 320 * MiB
    requested = 2 * 600 * KiB + (84 + 70 + 130 + 300) * MiB
    assert torch.cuda.memory_stats()["requested_bytes.all.allocated"] == requested
    settings("max_split_size_mb:40")
    assert rounded(600 * KiB) == 600 * KiB


@not_plug
@pytest.mark.parametrize(
    "conf, message",
    [
        ("foo:1,bar:2", "Unrecognized key 'foo'"),
        ("garbage_collection_threshold:1.2", "garbage_collect"),
        ("max_split_size_mb:2", "max_split_size_mb too small"),
        ("release_lock_on_cudamalloc:none", "Expected 'True' or 'False'"),
        ("pinned_use_cuda_host_register:none", "Expected 'True' or 'False'"),
        ("pinned_num_register_threads:none", "stoull"),
        ("pinned_num_register_threads:1024", "128"),
        ("roundup_power2_divisions:3", "power of 2"),
    ],
)
def test_bad_settings_are_refused(conf, message):
    with pytest.raises(ValueError, match=message):
        settings(conf)


@not_plug
@pytest.mark.parametrize(
    "conf", ["max_split_size_mb,100", "max_split_size_mb:100,", "max_split_size_mb:100abc", " max_split_size_mb : 100 "]
)
def test_what_native_tolerates_is_tolerated(conf):
    settings(conf)
    assert torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] == 100 * MiB


@not_plug
def test_backend_native_may_be_repeated():
    settings("backend:native,max_split_size_mb:40")
    assert torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] == 40 * MiB


@not_plug
@pytest.mark.skipif(PAGES, reason="the page heap splits every block: max_split_size_mb means nothing to it")
def test_blocks_beyond_max_split_size_are_not_split_nor_lent_to_small_requests():
    settings("max_split_size_mb:40")
    bytes_on_gpu(60 * MiB)
    assert reserved() == 60 * MiB
    kept = bytes_on_gpu(30 * MiB)
    assert reserved() == 90 * MiB
    same = bytes_on_gpu(50 * MiB)
    assert reserved() == 90 * MiB and torch.cuda.memory_allocated() == 90 * MiB
    assert torch.cuda.memory_stats()["oversize_allocations.current"] == 1


@not_plug
def test_garbage_is_collected_above_the_threshold():
    settings("garbage_collection_threshold:0.5")
    torch.cuda.set_per_process_memory_fraction(120 * MiB / total_memory())
    old = bytes_on_gpu(40 * MiB)
    del old
    recent = bytes_on_gpu(30 * MiB)
    assert reserved() == 40 * MiB  # the rest of its block is too small a piece
    other = bytes_on_gpu(44 * MiB)
    del other
    grown = bytes_on_gpu(30 * MiB)
    del recent
    assert torch.cuda.memory_stats()["num_ooms"] == 0
    assert reserved() <= 120 * MiB


@pytest.mark.parametrize("fraction", ["0.5", "0.0"])
@not_plug
def test_the_environment_sets_the_fraction(fraction):
    process = world.run_python(
        "print(torch.cuda.get_per_process_memory_fraction())",
        PYTORCH_CUDA_ALLOC_CONF=f"per_process_memory_fraction:{fraction}",
    )
    assert float(succeeds(process)) == float(fraction)


@not_plug
def test_the_environment_cannot_set_a_fraction_out_of_range():
    process = world.run_python("torch.cuda.init()", PYTORCH_CUDA_ALLOC_CONF="per_process_memory_fraction:1.1")
    assert process.returncode != 0
    assert "per_process_memory_fraction" in process.stderr


@not_plug
def test_caching_can_be_bypassed():
    before = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
    torch.cuda.caching_allocator_enable(False)
    try:
        torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(MiB))
        assert torch.cuda.memory_stats()["requested_bytes.all.allocated"] == before
    finally:
        torch.cuda.caching_allocator_enable(True)
    torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(MiB))
    assert torch.cuda.memory_stats()["requested_bytes.all.allocated"] == before + MiB


@not_plug
def test_max_split_size_and_expandable_segments_share_a_limit():
    torch.cuda.set_per_process_memory_fraction(120 * MiB / total_memory())
    settings("expandable_segments:False,max_split_size_mb:40")
    first = bytes_on_gpu(40 * MiB)
    settings("expandable_segments:True,max_split_size_mb:40")
    second = bytes_on_gpu(40 * MiB)
    settings("expandable_segments:False,max_split_size_mb:40")
    third = bytes_on_gpu(40 * MiB)
    with pytest.raises(torch.OutOfMemoryError):
        bytes_on_gpu(40 * MiB)
    del first, second, third
    whole = bytes_on_gpu(120 * MiB)


# ---- streams ----


def test_a_view_keeps_its_tensors_memory_from_reuse():
    side = torch.cuda.Stream()
    block = bytes_on_gpu(12 * MiB)
    address = block.data_ptr()
    view = block[MiB:]
    keep_busy(side)
    view.record_stream(side)
    del block, view
    with torch.cuda.stream(torch.cuda.current_stream()):
        assert bytes_on_gpu(12 * MiB).data_ptr() != address
    side.synchronize()
    assert bytes_on_gpu(12 * MiB).data_ptr() == address


@pytest.mark.skipif(PAGES, reason="what is free on one stream serves others on the page heap: cross_stream")
def test_memory_is_for_one_stream():
    block = bytes_on_gpu(12 * MiB)
    address = block.data_ptr()
    del block
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        other = bytes_on_gpu(12 * MiB)
    assert other.data_ptr() != address
    assert bytes_on_gpu(12 * MiB).data_ptr() == address
    assert {s["stream"] for s in segments()} == {0, side.cuda_stream}


def test_recording_the_own_stream_changes_nothing():
    block = bytes_on_gpu(12 * MiB)
    block.record_stream(torch.cuda.current_stream())
    del block
    assert torch.cuda.memory_stats()["active_bytes.all.current"] == 0


def test_frees_that_wait_for_a_stream_do_not_run_out_of_memory():
    """A loop whose temporaries are used on a side stream, of twice the device's memory in all."""
    side = torch.cuda.Stream()
    size = total_memory() // 50
    for _ in range(100):
        temporary = bytes_on_gpu(size)
        keep_busy(side, 0.01)
        temporary.record_stream(side)
        del temporary
    assert torch.cuda.memory_stats()["num_ooms"] == 0


def test_memory_of_another_device_is_recorded_there():
    second = bytes_on_gpu(12 * MiB, "cuda:1")
    side = torch.cuda.Stream("cuda:1")
    keep_busy(side)
    second.record_stream(side)
    del second
    assert torch.cuda.memory_stats("cuda:1")["active_bytes.all.current"] == 12 * MiB
    assert torch.cuda.memory_stats("cuda:0")["active_bytes.all.current"] == 0
    side.synchronize()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved("cuda:1") == 0


def test_a_tensor_is_copied_to_another_gpu():
    here = torch.arange(16, dtype=torch.uint8).to("cuda:0")
    there = here.to("cuda:1")
    assert there.cpu().tolist() == list(range(16))
    assert [torch.cuda.memory_allocated(device) for device in range(2)] == [512, 512]


# ---- graphs ----


def test_out_of_memory_in_a_capture_ends_it():
    with pytest.raises(RuntimeError, match="out of memory"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            bytes_on_gpu(1 << 40)
    assert not torch.cuda.is_current_stream_capturing()
    bytes_on_gpu(1)


@pytest.mark.parametrize("shared", [True, False])
def test_graphs_that_share_a_pool_share_its_memory(shared):
    def capture(pool=None):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            value = bytes_on_gpu(KiB)
            for _ in range(5):
                value = value.clone()
        return graph, value

    first = capture()
    second = capture(first[0].pool() if shared else None)
    of_graphs = [s["total_size"] for s in segments() if s["segment_pool_id"] != (0, 0)]
    assert of_graphs == [SMALL_SEGMENT] * (1 if shared else 2)
    del first, second


@pytest.mark.parametrize(
    "size, count, held, held_by_result",
    [
        (512, 1, SMALL_SEGMENT, SMALL_SEGMENT),
        (MiB, 2, 2 * SMALL_SEGMENT, SMALL_SEGMENT),
        (MiB + 512, 1, LARGE_SEGMENT, LARGE_SEGMENT),
        (10 * MiB - 512, 2, 2 * LARGE_SEGMENT, LARGE_SEGMENT),
        (10 * MiB + 512, 3, 3 * 12 * MiB, 12 * MiB),
    ],
)
def test_a_graphs_memory_lives_as_long_as_the_graph_and_its_result(size, count, held, held_by_result):
    kind = "small" if size <= MiB else "large"
    if PAGES:
        count, held = 1, held_for(3 * size)

    def of_graphs():
        private = [s for s in segments() if s["segment_pool_id"] != (0, 0) and s["segment_type"] == kind]
        return len(private), sum(s["total_size"] for s in private), sum(s["active_size"] for s in private)

    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        source = bytes_on_gpu(size)
        graph.capture_begin()
        result = source.clone()
        for _ in range(5):
            result = result.clone() + 1  # three tensors live at a time
        graph.capture_end()
    for _ in range(2):
        assert of_graphs() == (count, held, size)
        graph.replay()
        torch.cuda.empty_cache()
    del graph
    torch.cuda.empty_cache()
    left = of_graphs()
    if PAGES:  # memory mapped at once is given back at once, and the result may lie across two such pieces
        held_by_result = min(left[1], 2 * held_for(size))
    assert left == (1, held_by_result, size)
    del result, source
    torch.cuda.empty_cache()
    assert reserved() == 0


def test_streams_of_a_capture_share_the_graphs_pool():
    before = {s["segment_pool_id"] for s in segments()} | {(0, 0)}
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    source = bytes_on_gpu(40 * MiB)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(first):
        graph.capture_begin()
        one = source + source
    with torch.cuda.stream(second):
        second.wait_stream(first)
        two = one + source
    first.wait_stream(second)
    with torch.cuda.stream(first):
        graph.capture_end()
    new = [s for s in segments() if s["segment_pool_id"] not in before]
    assert len({s["segment_pool_id"] for s in new}) == 1
    if PAGES:
        return  # neighbours are one segment in a snapshot, whatever their streams
    assert {s["stream"] for s in new} == {first.cuda_stream, second.cuda_stream}
    assert len(new) == 2


# ---- snapshots and history ----


def test_the_snapshot_finds_a_tensor():
    torch.cuda.memory._record_memory_history("state", stacks="python")
    kept = torch.empty(311, 411, device="cuda")
    block, segment = blocks_of(kept.data_ptr())
    assert block["requested_size"] == 311 * 411 * 4
    assert block["state"] == "active_allocated"
    assert segment["segment_type"] == "small"
    if MODE != "plug":
        assert "test_the_snapshot_finds_a_tensor" in [frame["name"] for frame in block["frames"]]
    del kept
    torch.cuda.empty_cache()
    assert segments() == []


def test_the_last_action_is_the_segments_free():
    torch.cuda.memory._record_memory_history()
    bytes_on_gpu(3 * MiB)
    torch.cuda.empty_cache()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert [e["action"] for e in trace if e["action"] != "snapshot"][-1] == MEMORY_GOES


def test_history_keeps_the_latest_entries():
    torch.cuda.memory._record_memory_history(max_entries=4)
    sizes = [KiB * (i + 1) for i in range(6)]
    kept = [bytes_on_gpu(size) for size in sizes]
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert [(e["action"], e["size"]) for e in trace] == [("alloc", size) for size in sizes[2:]]


def test_snapshots_are_in_history_once_taken():
    torch.cuda.memory._record_memory_history()
    kept = bytes_on_gpu(1000)

    def shown():
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        return [(e["addr"], e["size"]) for e in trace if e["action"] == "snapshot"]

    of_active_bytes = (0, 1024)
    assert [shown(), shown(), shown()] == [[], [of_active_bytes], [of_active_bytes] * 2]


@not_plug
def test_history_skips_actions_on_request():
    torch.cuda.memory._record_memory_history(skip_actions=["free_requested", MEMORY_COMES])
    bytes_on_gpu(3 * MiB)
    actions = [e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0]]
    assert [a for a in actions if a != "snapshot"] == ["alloc", "free_completed"]


@not_plug
def test_clear_history_forgets():
    torch.cuda.memory._record_memory_history()
    bytes_on_gpu(3 * MiB)
    torch.cuda.memory._record_memory_history(clear_history=True)
    actions = [e["action"] for e in torch.cuda.memory._snapshot()["device_traces"][0]]
    assert "alloc" not in actions


@not_plug
@pytest.mark.parametrize(
    "context, of_alloc, of_free", [("all", True, True), ("alloc", True, False), ("state", False, False)]
)
def test_stacks_are_kept_at_the_level_asked_for(context, of_alloc, of_free):
    def makes():
        return [bytes_on_gpu(3 * MiB)]

    def frees(tensors):
        tensors.clear()

    torch.cuda.memory._record_memory_history(context=context, stacks="python")
    frees(makes())
    stacks = {
        entry["action"]: [frame["name"] for frame in entry.get("frames", [])]
        for entry in torch.cuda.memory._snapshot()["device_traces"][0]
    }
    assert ("makes" in stacks["alloc"]) == of_alloc
    assert ("frees" in stacks["free_requested"]) == of_free


@not_plug
def test_segments_remember_who_made_them():
    torch.cuda.memory._record_memory_history(context="all", stacks="python")
    whole = bytes_on_gpu(LARGE_SEGMENT)
    (segment,) = segments()
    assert "test_segments_remember_who_made_them" in [frame["name"] for frame in segment["frames"]]


@not_plug
def test_metadata_marks_what_is_allocated_under_it():
    torch.cuda.memory._record_memory_history()
    marks = ["", "first", "second", ""]
    kept = []
    for mark in marks:
        torch.cuda.memory._set_memory_metadata(mark)
        assert torch.cuda.memory._get_memory_metadata() == mark
        kept.append(bytes_on_gpu(3 * MiB))
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert [e["user_metadata"] for e in trace if e["action"] == "alloc"] == marks


@not_plug
def test_out_of_memory_is_in_history():
    torch.cuda.memory._record_memory_history()
    free, total = torch.cuda.mem_get_info()
    with pytest.raises(torch.OutOfMemoryError):
        bytes_on_gpu(2 * total)
    (entry,) = [e for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] == "oom"]
    assert (entry["size"], entry["device_free"]) == (2 * total, free)


# ---- checkpoints of private pools ----


class Pool:
    """Graphs captured one after the other into one pool, as torch.compile's graph trees do it."""

    def __init__(self):
        self.id = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream()
        self.graphs = []

    def capture(self, make):
        """Returns the result of make(), called while a graph is captured."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.id, stream=self.stream):
            made = make()
        self.graphs.append(graph)
        return made

    def checkpoint(self):
        return torch._C._cuda_getCheckpointState(0, self.id)

    def live(self):
        return sorted(b["address"] for s in segments(self.id) for b in s["blocks"] if b["state"] == "active_allocated")

    def picture(self):
        if PAGES:  # the pages that came since stay in the pool, as a segment would
            return self.live()
        return [
            (s["address"], s["total_size"], [(b["address"], b["size"], b["state"]) for b in s["blocks"]])
            for s in segments(self.id)
        ]


@pytest.fixture
def pool():
    made = Pool()
    yield made
    made.graphs.clear()
    torch.cuda.empty_cache()
    assert segments(made.id) == [], "the pool's segments leak"


@not_plug
def test_a_restored_pool_looks_as_it_did(pool):
    first = pool.capture(lambda: bytes_on_gpu(8 * MiB))
    before, state = pool.picture(), pool.checkpoint()
    second = pool.capture(lambda: bytes_on_gpu(5 * MiB))
    assert pool.live() == sorted([first.data_ptr(), second.data_ptr()])
    owners = restore_pool(state, alive=[first, second], kept=[first])
    assert pool.picture() == before
    del second
    assert pool.live() == [first.data_ptr()]
    owners.clear()
    assert pool.live() == []


@not_plug
def test_a_restored_pool_serves_the_same_addresses_again(pool):
    first = pool.capture(lambda: bytes_on_gpu(8 * MiB))
    state = pool.checkpoint()
    second = pool.capture(lambda: bytes_on_gpu(5 * MiB))
    address = second.data_ptr()
    owners = restore_pool(state, alive=[first, second], kept=[first])
    del second
    third = pool.capture(lambda: bytes_on_gpu(5 * MiB))
    assert third.data_ptr() == address


@not_plug
def test_allocations_in_the_middle_of_a_segment_are_restored(pool):
    def make():
        blocks = [bytes_on_gpu(2 * MiB) for _ in range(6)]
        return [blocks[1], blocks[2], blocks[4]]

    kept = pool.capture(make)
    before, state = pool.picture(), pool.checkpoint()
    fills = pool.capture(lambda: [bytes_on_gpu(2 * MiB) for _ in range(3)])
    assert pool.picture() != before
    owners = restore_pool(state, alive=kept + fills, kept=kept)
    assert pool.picture() == before
    fills.clear()
    assert pool.live() == sorted(t.data_ptr() for t in kept)
    owners.clear()
    assert pool.live() == []


@not_plug
def test_what_died_after_the_checkpoint_comes_back_until_it_is_freed(pool):
    first, second = pool.capture(lambda: (bytes_on_gpu(8 * MiB), bytes_on_gpu(4 * MiB)))
    state = pool.checkpoint()
    addresses = sorted([first.data_ptr(), second.data_ptr()])
    del first, second
    assert pool.live() == []
    restore_pool(state, alive=[])
    assert pool.live() == addresses
    for freed, address in enumerate(addresses, start=1):
        torch._C._cuda_cudaCachingAllocator_raw_delete(address)
        assert len(pool.live()) == 2 - freed


@not_plug
def test_tensors_given_to_a_restore_free_their_memory(pool):
    first = pool.capture(lambda: bytes_on_gpu(8 * MiB))
    state = pool.checkpoint()
    (owner,) = restore_pool(state, alive=[first], kept=[first])
    del first
    assert len(pool.live()) == 1
    del owner
    assert pool.live() == []


@not_plug
def test_live_allocations_of_a_pool_are_checked_exactly(pool):
    first, second = pool.capture(lambda: (bytes_on_gpu(8 * MiB), bytes_on_gpu(4 * MiB)))
    check = torch._C._cuda_checkPoolLiveAllocations
    assert check(0, pool.id, {first.data_ptr(), second.data_ptr()})
    assert not check(0, pool.id, {first.data_ptr()})
    assert not check(0, pool.id, {first.data_ptr(), second.data_ptr(), 512})
    del second
    assert check(0, pool.id, {first.data_ptr()})
    with pytest.raises(RuntimeError, match="[Cc]ould not find pool|no .*pool|does not exist"):
        check(0, (123456, 654321), set())


@not_plug
def test_a_pool_may_be_fed_by_the_current_thread(pool):
    first = pool.capture(lambda: bytes_on_gpu(8 * MiB))
    torch._C._cuda_beginAllocateCurrentThreadToPool(0, pool.id)
    try:
        second = bytes_on_gpu(8 * MiB)
        outside = bytes_on_gpu(64 * KiB)
    finally:
        torch._C._cuda_endAllocateToPool(0, pool.id)
        torch._C._cuda_releasePool(0, pool.id)
    assert pool.live() == sorted([first.data_ptr(), second.data_ptr(), outside.data_ptr()])
    after = bytes_on_gpu(8 * MiB)
    assert after.data_ptr() not in pool.live()


# ---- MemPool ----


@not_plug
def test_pools_have_ids_of_their_own():
    handle, pool = torch.cuda.graph_pool_handle, torch.cuda.MemPool
    ids = [handle(), pool().id, handle(), pool().id]
    assert len(set(ids)) == len(ids)
    assert all(first == 0 and second > 0 for first, second in ids)
    assert [second for _, second in ids] == sorted(second for _, second in ids)


@not_plug
def test_a_live_pool_keeps_its_memory_and_a_dead_one_gives_it_back():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = bytes_on_gpu(3 * MiB)
    del inside
    torch.cuda.empty_cache()
    assert len(segments(pool.id)) == 1
    identity = pool.id
    del pool
    assert segments(identity) == []


@not_plug
def test_a_dead_pools_segment_lives_as_long_as_its_tensor():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        inside = bytes_on_gpu(3 * MiB)
    identity = pool.id
    del pool
    torch.cuda.empty_cache()
    assert len(segments(identity)) == 1
    del inside
    torch.cuda.empty_cache()
    assert segments(identity) == []


@not_plug
def test_a_pool_takes_its_segments_from_its_provider():
    with Provider() as provider:
        pool = torch.cuda.MemPool(provider.allocator)
        assert pool.use_count() == 1
        assert provider.calls() == (0, 0)
        with torch.cuda.use_mem_pool(pool):
            assert pool.use_count() == 2
            inside = bytes_on_gpu(3 * MiB)
        assert pool.use_count() == 1
        assert provider.calls() == (1, 0)
        assert len(segments(pool.id)) == 1
        with torch.cuda.use_mem_pool(pool):
            second = bytes_on_gpu(3 * MiB)
        assert provider.calls() == (1, 0)
        outside = bytes_on_gpu(3 * MiB)
        assert len(segments()) == 2
        del inside, second
        torch.cuda.empty_cache()
        assert provider.calls() == (1, 0)
        del pool
        torch.cuda.empty_cache()
        assert provider.calls() == (1, 1)
        del outside


@not_plug
def test_a_tensor_may_outlive_the_pool_and_the_provider_object():
    with Provider() as provider:
        pool = torch.cuda.MemPool(provider.allocator)
        with torch.cuda.use_mem_pool(pool):
            inside = bytes_on_gpu(3 * MiB)
        provider.forget_allocator()
        del pool
        assert provider.calls() == (1, 0)
        del inside
        torch.cuda.empty_cache()
        assert provider.calls() == (1, 1)


@not_plug
def test_a_provider_without_memory_is_out_of_memory():
    with Provider() as provider:
        provider.set_capacity(0)
        pool = torch.cuda.MemPool(provider.allocator)
        with torch.cuda.use_mem_pool(pool), pytest.raises(torch.OutOfMemoryError):
            bytes_on_gpu(3 * MiB)
        del pool


@not_plug
@pytest.mark.parametrize("use_on_oom", [True, False])
def test_a_pool_may_help_out_when_memory_runs_short(use_on_oom):
    pool = torch.cuda.MemPool(use_on_oom=use_on_oom)
    with torch.cuda.use_mem_pool(pool):
        inside = bytes_on_gpu(40 * MiB)
    address = inside.data_ptr()
    del inside
    torch.cuda.set_per_process_memory_fraction(60 * MiB / total_memory())
    if use_on_oom:
        assert bytes_on_gpu(40 * MiB).data_ptr() == address
    else:
        with pytest.raises(torch.OutOfMemoryError):
            bytes_on_gpu(40 * MiB)
    del pool


@not_plug
def test_a_deleted_pool_is_not_asked_for_help():
    pool = torch.cuda.MemPool(use_on_oom=True)
    with torch.cuda.use_mem_pool(pool):
        inside = bytes_on_gpu(40 * MiB)
    del pool
    torch.cuda.set_per_process_memory_fraction(60 * MiB / total_memory())
    with pytest.raises(torch.OutOfMemoryError):
        bytes_on_gpu(40 * MiB)
    del inside


@not_plug
@pytest.mark.parametrize("no_split, count", [(True, 2), (False, 1)])
def test_a_pool_may_forbid_splitting(no_split, count):
    pool = torch.cuda.MemPool(no_split=no_split)
    with torch.cuda.use_mem_pool(pool):
        kept = [bytes_on_gpu(3 * MiB), bytes_on_gpu(3 * MiB)]
    assert len(segments(pool.id)) == (1 if PAGES else count)
    assert torch.cuda.memory_allocated() == (2 * held_for(3 * MiB) if no_split else 6 * MiB)
    kept.clear()
    del pool


@not_plug
def test_pools_nest():
    outer, inner = torch.cuda.MemPool(), torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(outer):
        first = bytes_on_gpu(3 * MiB)
        with torch.cuda.use_mem_pool(inner):
            second = bytes_on_gpu(3 * MiB)
        third = bytes_on_gpu(30 * MiB)
    of_outer = 1 if PAGES else 2  # the third block's pages come after the first's
    assert (len(segments(outer.id)), len(segments(inner.id)), len(segments())) == (of_outer, 1, of_outer + 1)


@not_plug
def test_a_pool_is_for_the_thread_that_uses_it():
    import threading

    pool = torch.cuda.MemPool()
    elsewhere = []
    with torch.cuda.use_mem_pool(pool):
        thread = threading.Thread(target=lambda: elsewhere.append(bytes_on_gpu(3 * MiB)))
        thread.start()
        thread.join()
        inside = bytes_on_gpu(3 * MiB)
    assert blocks_of(elsewhere[0].data_ptr())[1]["segment_pool_id"] == (0, 0)
    assert blocks_of(inside.data_ptr())[1]["segment_pool_id"] == pool.id
    elsewhere.clear()


@not_plug
def test_threads_use_pools_of_their_own_at_the_same_time():
    import threading

    pools = [torch.cuda.MemPool() for _ in range(4)]
    addresses = [None] * len(pools)

    def work(index):
        with torch.cuda.use_mem_pool(pools[index]):
            kept = [bytes_on_gpu(KiB * (1 + step % 64)) for step in range(200)]
            addresses[index] = {t.data_ptr() for t in kept}
            shown = {b["address"] for s in segments(pools[index].id) for b in s["blocks"]}
            if not addresses[index] <= shown:
                addresses[index] = None

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(pools))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(addresses)
    assert len(set().union(*addresses)) == sum(len(a) for a in addresses)


@not_plug
def test_a_pool_serves_a_graph_and_a_thread():
    pool = torch.cuda.MemPool()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        static = bytes_on_gpu(3 * MiB)
    with torch.cuda.use_mem_pool(pool):
        on_other_stream = bytes_on_gpu(3 * MiB)
    assert {blocks_of(t.data_ptr())[1]["segment_pool_id"] for t in (static, on_other_stream)} == {pool.id}


@pytest.mark.skipif(MODE not in ("native", "pages"), reason="the heap of segments stays one: mode pages runs it")
def test_expandable_segments_grow_in_a_pool():
    settings("expandable_segments:True")
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        kept = [bytes_on_gpu(3 * MiB) for _ in range(10)]
    (segment,) = segments(pool.id)
    assert segment["is_expandable"]


def test_a_thread_in_a_green_context_allocates_and_stays_in_it():
    succeeds(
        world.run_python(
            """
            import ctypes
            from torch.cuda.green_contexts import GreenContext

            def current():
                context = ctypes.c_void_p()
                assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) == 0
                return context.value

            before = torch.zeros(3 << 20, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()  # the primary context is current, as after any work
            primary = current()
            green = GreenContext.create(num_sms=8, device_id=0)
            green.set_context()
            inside = current()
            assert inside != primary
            kept = [torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in (1, 40, 300)]
            kept[1].record_stream(torch.cuda.Stream())
            del kept[1], before
            torch.cuda.synchronize()
            again = torch.empty(50 << 20, dtype=torch.uint8, device="cuda")
            assert current() == inside
            green.pop_context()
            assert current() == primary
            del kept, again
            torch.cuda.empty_cache()
            assert torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 0
            """
        )
    )
