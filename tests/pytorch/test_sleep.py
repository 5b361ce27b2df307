"""Memory that goes back to the GPU and comes again at the same addresses: cachalot.region, release_physical and
restore_physical.

The simulated runtime keeps the content of copies up to 1 MiB: saved memory lies here in blocks of at most that.
"""

import gc
import os
import re
import sys

import pytest
import torch
from world import MODE, PAGES, MiB, bytes_on_gpu, full_only, needs_enable, not_native, run_python, simulated, succeeds

pages_only = pytest.mark.skipif(not PAGES, reason="segments cannot sleep")


def reserved():
    return torch.cuda.memory_reserved()


@pages_only
def test_a_tag_sleeps_and_wakes_with_what_it_held():
    import cachalot

    outside = bytes_on_gpu(4 * MiB)
    with cachalot.region("weights"):
        weights = [torch.arange(1000 * (i + 1), dtype=torch.int32).cuda() for i in range(3)]
    expected = [tensor.cpu() for tensor in weights]
    addresses = [tensor.data_ptr() for tensor in weights]
    allocated = torch.cuda.memory_allocated()
    held = reserved()
    for _ in range(2):
        cachalot.release_physical("weights", save=True)
        assert reserved() == 4 * MiB
        assert torch.cuda.memory_allocated() == allocated
        cachalot.restore_physical("weights")
        assert reserved() == held
        assert [tensor.data_ptr() for tensor in weights] == addresses
        for tensor, content in zip(weights, expected, strict=True):
            assert torch.equal(tensor.cpu(), content)
    del outside, weights, tensor


@pages_only
def test_what_is_not_saved_is_lost():
    import cachalot

    with cachalot.region("cache"):
        cache = torch.ones(1000, dtype=torch.int32).cuda()
    cachalot.release_physical("cache")
    cachalot.restore_physical("cache")
    assert not torch.equal(cache.cpu(), torch.ones(1000, dtype=torch.int32))


@pages_only
def test_memory_gives_way_before_memory_runs_out_and_comes_back():
    import cachalot

    before = {region.tag for region in cachalot.regions()}
    with cachalot.region("adapter"):
        adapter = torch.arange(200_000, dtype=torch.int32).cuda()
    cachalot.make_evictable("adapter", priority=3)
    (region,) = [region for region in cachalot.regions() if region.tag == "adapter"]
    assert "adapter" not in before
    assert (region.is_evictable, region.priority, region.holds) == (True, 3, 0)
    everything = torch.cuda.mem_get_info()[0] + region.reserved_bytes
    large = bytes_on_gpu(everything // (2 * MiB) * 2 * MiB - 1 * MiB)
    (region,) = [region for region in cachalot.regions() if region.tag == "adapter"]
    assert region.is_asleep
    with pytest.raises(torch.OutOfMemoryError):
        cachalot.ensure("adapter")
    del large
    with cachalot.ensure("adapter") as hold:
        assert not hold.is_lost
        assert torch.equal(adapter.cpu(), torch.arange(200_000, dtype=torch.int32))
        with pytest.raises(torch.OutOfMemoryError):
            bytes_on_gpu(everything // (2 * MiB) * 2 * MiB - 1 * MiB)
    assert cachalot.give_way("16MiB") >= 2 * MiB
    cachalot.make_resident("adapter")
    cachalot.restore_physical("adapter")


@pages_only
def test_lost_content_is_made_again():
    import cachalot

    calls = []

    def refill():
        calls.append(len(calls))
        if len(calls) == 1:
            raise KeyError("not yet")
        tensor.fill_(7)

    with cachalot.region("derived"):
        tensor = torch.full((1000,), 7, device="cuda", dtype=torch.int32)
    cachalot.make_evictable("derived", save=False, refill=refill)
    cachalot.release_physical("derived")
    with pytest.raises(KeyError, match="not yet"):
        cachalot.ensure("derived")
    first = cachalot.ensure("derived")
    second = cachalot.ensure("derived")
    assert len(calls) == 2 and not first.is_lost and not second.is_lost
    (region,) = [region for region in cachalot.regions() if region.tag == "derived"]
    assert region.holds == 2
    first.release()
    first.release()
    del second
    (region,) = [region for region in cachalot.regions() if region.tag == "derived"]
    assert region.holds == 0
    cachalot.make_evictable("derived", save=False)
    cachalot.release_physical("derived")
    assert cachalot.ensure("derived").is_lost
    assert not cachalot.ensure("derived").is_lost
    cachalot.make_resident("derived")


def holds_of(tag):
    import cachalot

    return [region.holds for region in cachalot.regions() if region.tag == tag]


@pages_only
def test_a_refill_that_fails_leaves_no_hold_and_its_loss_is_told():
    import cachalot

    def refill():
        raise KeyError("never")

    with cachalot.region("unlucky"):
        tensor = torch.full((1000,), 7, device="cuda", dtype=torch.int32)
    cachalot.make_evictable("unlucky", save=False, refill=refill)
    cachalot.release_physical("unlucky")
    with pytest.raises(KeyError) as kept:  # with its traceback, whose frames have their variables
        cachalot.ensure("unlucky")
    assert holds_of("unlucky") == [0]
    cachalot.make_evictable("unlucky", save="pinned")
    assert cachalot.ensure("unlucky").is_lost
    cachalot.make_evictable("unlucky", save=False, refill=refill)
    cachalot.release_physical("unlucky")
    with pytest.raises(KeyError):
        cachalot.ensure("unlucky")
    cachalot.restore_physical("unlucky")
    assert not cachalot.ensure("unlucky").is_lost, "the program has restored it, and makes it itself"
    cachalot.make_resident("unlucky")
    del tensor, kept


@pages_only
def test_a_refill_may_ensure_its_own_tag():
    import cachalot

    def refill():
        with cachalot.ensure("own"):
            tensor.fill_(7)

    with cachalot.region("own"):
        tensor = torch.full((1000,), 7, device="cuda", dtype=torch.int32)
    cachalot.make_evictable("own", save=False, refill=refill)
    cachalot.release_physical("own")
    with cachalot.ensure("own") as hold:
        assert not hold.is_lost
    assert holds_of("own") == [0]
    cachalot.make_resident("own")


@pages_only
def test_an_interrupt_just_after_the_memory_is_back_leaves_no_hold_and_its_loss_is_told(monkeypatch):
    import cachalot
    from cachalot._bindings.plug import Plug

    call = Plug.call

    def interrupted(self, name, *arguments, **options):
        call(self, name, *arguments, **options)
        if name == "ensure":
            raise KeyboardInterrupt

    with cachalot.region("interrupted"):
        tensor = torch.ones(1000, device="cuda")
    cachalot.make_evictable("interrupted", save=False)
    cachalot.release_physical("interrupted")
    with monkeypatch.context() as patch:
        patch.setattr(Plug, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cachalot.ensure("interrupted")
    assert holds_of("interrupted") == [0]
    assert cachalot.ensure("interrupted").is_lost
    cachalot.make_resident("interrupted")
    del tensor


@pages_only
def test_a_hold_that_lives_to_the_end_of_the_interpreter_is_no_error():
    program = """
with cachalot.region("a"):
    tensor = torch.ones(1000, device="cuda")
cachalot.make_evictable("a")
hold = cachalot.ensure("a")
hold.itself = hold
import sys
sys.hold = cachalot.ensure("a")
"""
    process = run_python(program, fresh=True)
    succeeds(process)
    assert process.stderr == ""


@pages_only
def test_ensure_in_a_forked_child_fails_although_another_thread_ensures():
    program = """
import os, threading, torch, cachalot
cachalot.enable()
with cachalot.region("a"):
    tensor = torch.ones(1000, device="cuda")
refills, forked = threading.Event(), threading.Event()
def refill():
    refills.set()
    forked.wait()
cachalot.make_evictable("a", save=False, refill=refill)
cachalot.release_physical("a")
thread = threading.Thread(target=lambda: cachalot.ensure("a"))
thread.start()
refills.wait()
child = os.fork()
if child == 0:
    try:
        cachalot.ensure("a")
    except RuntimeError as error:
        os._exit(0 if "fork" in str(error) else 2)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
forked.set()
thread.join()
"""
    succeeds(run_python(program))


@not_native
@full_only
def test_memory_that_cannot_give_way_is_refused_with_the_rule():
    import cachalot

    for arguments, text in (
        ({"save": "disk"}, "save is 'disk'"),
        ({"save": "file"}, "folder is None"),
        ({"refill": print}, "save is 'pinned'; with a refill it must be False"),
        ({"priority": 2**31}, "priority is 2147483648; it must be a whole number from -2147483647 to 2147483647"),
        ({"priority": "high"}, "priority is 'high'; it must be a whole number"),
    ):
        with pytest.raises(ValueError, match=re.escape(text)):
            cachalot.make_evictable("x", **arguments)
    with pytest.raises(RuntimeError, match="must not be empty" if PAGES else "must not be empty|needs heap:pages"):
        cachalot.make_evictable("")
    with pytest.raises(RuntimeError, match="no memory was ever tagged 'nobody'" if PAGES else "needs heap:pages"):
        cachalot.ensure("nobody")
    with pytest.raises(ValueError, match="much"):
        cachalot.give_way("much")
    with pytest.raises(TypeError, match="pool is 3; it must be a torch.cuda.MemPool"):
        cachalot.make_plain(3)


@pages_only
def test_content_may_be_kept_in_a_file(tmp_path):
    import cachalot

    with cachalot.region("weights"):
        weights = [torch.arange(1000 * (i + 1), dtype=torch.int32).cuda() for i in range(3)]
    expected = [tensor.cpu() for tensor in weights]
    for folder in (tmp_path, str(tmp_path)):
        cachalot.release_physical("weights", save="file", folder=folder)
        assert reserved() == 0 and list(tmp_path.iterdir()) == []
        cachalot.restore_physical("weights")
        assert all(torch.equal(tensor.cpu(), content) for tensor, content in zip(weights, expected, strict=True))
    cachalot.release_physical("weights", save="pinned")
    cachalot.restore_physical("weights")
    assert torch.equal(weights[0].cpu(), expected[0])
    del weights


@pages_only
def test_a_process_that_is_killed_leaves_no_file(tmp_path):
    killed = run_python(f"""
        import os, signal
        with cachalot.region("weights"):
            weights = torch.arange(1000, dtype=torch.int32).cuda()
        cachalot.release_physical("weights", save="file", folder={str(tmp_path)!r})
        os.kill(os.getpid(), signal.SIGKILL)
        """)
    assert killed.returncode != 0 and list(tmp_path.iterdir()) == []


@pages_only
def test_a_disk_without_room_leaves_the_tag_as_it_was(tmp_path):
    size = (os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize // (1 << 30) + 2) << 30
    code = f"""
        with cachalot.region("weights"):
            weights = torch.empty({size}, dtype=torch.uint8, device="cuda")
            small = torch.arange(1000, dtype=torch.int32).cuda()
        try:
            cachalot.release_physical("weights", save="file", folder={str(tmp_path)!r})
        except torch.OutOfMemoryError as error:
            assert str(error).startswith("folder '{tmp_path}' has no room to save what tag 'weights' holds on device 0: "), error
            assert str(error).endswith(" are free") and " are needed, " in str(error), error
        else:
            raise AssertionError("not refused")
        assert not cachalot.regions()[0].is_asleep
        assert small.cpu()[999] == 999
    """
    succeeds(run_python(code, **simulated(memory=f"{2 * size >> 30}GiB")))
    assert list(tmp_path.iterdir()) == []


@not_native
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"save": "disk"}, "save is 'disk'; it must be True, False, 'pinned' or 'file'"),
        ({"save": 1}, "save is 1; it must be True"),
        ({"save": "file"}, "save is 'file', and folder is None; it must be an existing folder"),
        ({"save": True, "folder": "/tmp"}, "folder is '/tmp'; only save='file' has one"),
    ],
)
def test_a_way_to_save_that_does_not_exist_is_refused(arguments, message):
    import cachalot

    with pytest.raises(ValueError, match=message):
        cachalot.release_physical("weights", **arguments)


@pages_only
@pytest.mark.parametrize("folder", ["none", "file"])
def test_a_folder_without_files_is_refused(folder, tmp_path):
    import cachalot

    (tmp_path / "file").touch()
    with cachalot.region("weights"):
        weights = bytes_on_gpu(MiB)
    with pytest.raises(RuntimeError, match=f"{folder}' .*; it must be a folder in which this process may make files"):
        cachalot.release_physical("weights", save="file", folder=tmp_path / folder)
    assert reserved() == 2 * MiB
    del weights


@pages_only
def test_a_pool_sleeps_by_its_id():
    import cachalot

    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        pooled = bytes_on_gpu(2 * MiB)
    cachalot.release_physical(pool.id)
    assert reserved() == 0
    cachalot.restore_physical([pool.id])
    assert reserved() == 2 * MiB
    del pooled, pool


@pages_only
def test_the_memory_serves_others_meanwhile():
    import cachalot

    total = torch.cuda.mem_get_info()[1]
    size = total * 6 // 10 // (2 * MiB) * 2 * MiB
    with cachalot.region("weights"):
        weights = bytes_on_gpu(size)
    cachalot.release_physical("weights")
    cache = bytes_on_gpu(size)
    with pytest.raises(torch.OutOfMemoryError, match="Tried to allocate"):
        cachalot.restore_physical("weights")
    del cache
    cachalot.restore_physical("weights")
    assert reserved() == size
    del weights


@pages_only
def test_nothing_is_allocated_from_a_tag_that_is_asleep():
    import cachalot

    with cachalot.region("asleep"):
        cachalot.release_physical("asleep")
        with pytest.raises(RuntimeError, match="tag 'asleep' is asleep on device 0"):
            bytes_on_gpu(MiB)
    bytes_on_gpu(MiB)
    cachalot.restore_physical("asleep")
    with cachalot.region("asleep"):
        bytes_on_gpu(MiB)


@pages_only
def test_tensors_may_be_dropped_while_they_sleep():
    import cachalot

    with cachalot.region("weights"):
        kept, dropped = bytes_on_gpu(10 * MiB), bytes_on_gpu(40 * MiB)
    cachalot.release_physical("weights")
    del dropped
    gc.collect()
    torch.cuda.empty_cache()
    cachalot.restore_physical("weights")
    assert reserved() < 20 * MiB
    del kept


@pages_only
def test_a_captured_graph_finds_its_memory_where_it_was():
    import cachalot

    # Its constants lie in the pool, and so does what it needs in between, which is free.
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        source = torch.ones(1000, dtype=torch.int32).cuda()
    result = torch.zeros(1000, dtype=torch.int32).cuda()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool.id):
        between = source.clone()
        result.copy_(between)
        address = between.data_ptr()
        del between
    torch.cuda.synchronize()
    held = reserved()
    cachalot.release_physical(pool, save=True)
    assert reserved() < held
    cachalot.restore_physical(pool)
    assert reserved() == held
    assert any(s["address"] <= address < s["address"] + s["total_size"] for s in torch.cuda.memory_snapshot())
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(source.cpu(), torch.ones(1000, dtype=torch.int32))
    del source, result, graph, pool


@pages_only
def test_several_sleep_and_wake_in_one_call():
    import cachalot

    for tag in ("weights", "kv"):
        with cachalot.region(tag):
            globals()[tag] = bytes_on_gpu(4 * MiB)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        pooled = bytes_on_gpu(2 * MiB)
    cachalot.release_physical(["weights", "kv", pool])
    assert reserved() == 0
    with pytest.raises(TypeError, match=r"7 is neither a tag nor a torch.cuda.MemPool, nor several.*\['weights', 'kv'\]"):
        cachalot.restore_physical(["weights", 7])
    assert reserved() == 0
    cachalot.restore_physical(iter(("weights", "kv")))
    cachalot.restore_physical((pool,))
    assert reserved() == 10 * MiB
    del globals()["weights"], globals()["kv"], pooled, pool


@pages_only
def test_regions_tell_what_sleeps_and_how_large_it_is():
    import cachalot

    assert cachalot.regions() == ()
    outside = bytes_on_gpu(2 * MiB)
    with cachalot.region("told"):
        model = bytes_on_gpu(6 * MiB)
    with cachalot.region("empty"):
        pass
    awake = cachalot.Region("told", 0, False, allocated_bytes=6 * MiB, reserved_bytes=6 * MiB, asleep_bytes=0, requested_bytes=6 * MiB)
    assert cachalot.regions() == (awake,)
    cachalot.release_physical("told")
    asleep = cachalot.Region("told", 0, True, allocated_bytes=6 * MiB, reserved_bytes=0, asleep_bytes=6 * MiB, requested_bytes=6 * MiB)
    assert cachalot.regions()[0] == asleep  # the other device is asleep, too, where there is one
    cachalot.restore_physical("told")
    assert cachalot.regions() == (awake,)
    del outside, model


@pages_only
def test_regions_tell_what_was_asked_for_and_the_innermost_has_the_memory():
    import cachalot

    with cachalot.region("outer"):
        outer = bytes_on_gpu(3 * MiB + 100)
        with cachalot.region("inner"):
            inner = bytes_on_gpu(5 * MiB)

    def regions():
        return {region.tag: region for region in cachalot.regions() if region.device == 0}

    found = regions()
    assert found["outer"].requested_bytes == 3 * MiB + 100 < found["outer"].allocated_bytes
    assert found["inner"].requested_bytes == 5 * MiB
    cachalot.release_physical(["outer", "inner"])
    assert regions()["outer"].requested_bytes == 3 * MiB + 100
    cachalot.restore_physical(["outer", "inner"])
    del outer, inner


@pages_only
def test_a_use_of_sleeping_memory_is_reported_on_the_simulated_gpu():
    code = """
        with cachalot.region("weights"):
            weights = torch.arange(1000, dtype=torch.int32).cuda()
        cachalot.release_physical("weights", save=True)
        for part in (weights, weights[10:], weights[20:]):
            try:
                part.cpu()
            except RuntimeError as error:
                assert "invalid argument" in str(error), error
            else:
                raise AssertionError("copied")
        cachalot.restore_physical("weights")
        assert weights.cpu()[7] == 7
    """
    use = "cudaMemcpyAsync" + (r" at <string>:\d+ in <module>" if sys.version_info < (3, 13) else "")
    process = run_python(code)
    succeeds(process)
    assert len(re.findall(use + r" uses \[0x\w+, \+4000\), but \[0x\w+, \+2097152\) is asleep", process.stderr)) == 1, process.stderr
    assert process.stderr.count(" uses [0x") == 1 and "and 2 more uses of memory that is asleep" in process.stderr, process.stderr
    strict = run_python(code, **simulated(strict=1))
    assert re.search(use + r" uses \[0x", strict.stderr) and "release_physical" in strict.stderr, strict.stderr


@not_native
def test_before_cuda_is_in_use_there_are_no_regions():
    succeeds(run_python("assert cachalot.regions() == () and not torch.cuda.is_initialized()"))


@not_native
def test_what_cannot_sleep_is_refused_in_words():
    import cachalot

    unknown = "no memory was ever tagged 'nothing'" if PAGES else "release_physical needs heap:pages"
    with pytest.raises(RuntimeError, match=unknown):
        cachalot.release_physical("nothing")
    with pytest.raises(RuntimeError, match="must not be empty"), cachalot.region(""):
        pass
    with pytest.raises(TypeError, match="7 is neither a tag nor"):
        cachalot.restore_physical(7)
    with cachalot.region("weights"):
        weights = bytes_on_gpu(MiB)
    if not PAGES:
        with pytest.raises(RuntimeError, match="release_physical needs heap:pages; the heap of device 0 is 'segments'"):
            cachalot.release_physical("weights")
    del weights


@not_native
def test_it_works_however_cachalot_is_enabled():
    code = f"""
        assert cachalot.enabled_mode() == {"full" if PAGES else MODE!r}
        with cachalot.region("weights"):
            weights = torch.arange(1000, dtype=torch.int32).cuda()
        cachalot.release_physical("weights", save=True)
        assert torch.cuda.memory_reserved() == 0
        cachalot.restore_physical("weights")
        assert torch.equal(weights.cpu(), torch.arange(1000, dtype=torch.int32))
    """
    succeeds(run_python(code, CACHALOT_CONF="heap:pages"))


@not_native
def test_it_must_be_enabled_first():
    needs_enable('cachalot.region("a").__enter__()', 'cachalot.release_physical("a")')
