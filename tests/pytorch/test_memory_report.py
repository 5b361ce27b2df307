"""cachalot.memory_report(): rows that add up to what nvidia-smi shows, for all holders of memory, and with unknown figures."""

import json
import re
import threading

import pytest
import torch
from world import MODE, PAGES, MiB, bytes_on_gpu, full_only, not_native, run_python, simulated, succeeds

import cachalot
from cachalot._bindings import driver, nvml

pages_only = pytest.mark.skipif(not PAGES, reason="segments cannot sleep")


def report(device=None):
    """A report that adds up."""
    made = cachalot.memory_report(device)
    assert sum(row.bytes or 0 for row in made.rows) == made.used_bytes
    for row in made.rows:
        if row.parts and row.bytes is not None:
            assert sum(part.bytes for part in row.parts) == row.bytes, row
    return made


def parts(row):
    return {part.name: part.bytes for part in row.parts}


@not_native
def test_the_rows_are_the_statistics():
    kept = bytes_on_gpu(40 * MiB)
    cached = bytes_on_gpu(80 * MiB)
    del cached
    made = report()
    assert made.live_bytes == torch.cuda.memory_allocated() == 40 * MiB
    assert made.cachalot_bytes == torch.cuda.memory_reserved()
    assert made.cached_bytes == torch.cuda.memory_reserved() - 40 * MiB > 0
    free, total = torch.cuda.mem_get_info()
    assert (made.used_bytes, made.total_bytes, made.unexplained_bytes) == (total - free, total, 0)
    assert made.device_name == torch.cuda.get_device_name()
    del kept


@not_native
def test_each_tag_has_its_part():
    with cachalot.region("report weights"):
        weights = bytes_on_gpu(30 * MiB)
    others = bytes_on_gpu(20 * MiB)
    assert parts(report().row("live")) == {"default pool": 20 * MiB, "tag 'report weights'": 30 * MiB}
    del weights, others


@pages_only
def test_what_sleeps_is_not_on_the_device():
    with cachalot.region("report sleeper"):
        sleeper = bytes_on_gpu(30 * MiB)
    cachalot.release_physical("report sleeper")
    made = report()
    assert made.asleep_bytes == 30 * MiB
    assert made.live_bytes == 0
    assert "asleep, not on the device: 30.00 MiB" in str(made)
    cachalot.restore_physical("report sleeper")
    assert report().live_bytes == 30 * MiB
    del sleeper


@not_native
def test_libraries_and_tensor_pools_are_told_apart():
    from cachalot._heap.libraries import LibraryHeap

    heap = LibraryHeap("numba")
    address = heap.allocate(8 * MiB, 0)
    pool = cachalot.TensorPool((1024, 1024), initial_slots=2)
    pools = cachalot.PoolSet(64 * MiB)
    lease = pools.acquire((1024, 1024), torch.float32)
    made = report()
    assert (made.libraries["numba"], made.libraries["torch"]) == (8 * MiB, 12 * MiB)
    assert made.tensor_pools_bytes == 12 * MiB
    assert cachalot.memory_report(1).tensor_pools_bytes == 0
    assert "in use by library: numba 8.00 MiB, torch 12.00 MiB" in str(made)
    heap.free(address)
    del pool, lease, pools
    assert report().tensor_pools_bytes == 0


@pytest.mark.skipif(MODE != "native", reason="is about PyTorch's own allocator")
def test_pytorchs_own_allocator_has_a_row():
    kept = bytes_on_gpu(40 * MiB)
    made = report()
    assert made.row("torch").bytes == torch.cuda.memory_reserved() >= 40 * MiB
    assert made.cachalot_bytes == 0
    del kept


@not_native
def test_the_mempool_of_cudamallocasync_has_a_row():
    device = driver.DriverDevice(0)
    out = run_python("""
        import ctypes
        stream = torch.cuda.Stream().cuda_stream
        pointer = ctypes.c_void_p()
        allocate = ctypes.CDLL(None).cudaMallocAsync
        assert allocate(ctypes.byref(pointer), ctypes.c_size_t(5 << 20), ctypes.c_void_p(stream)) == 0
        row = cachalot.memory_report().row("mempool")
        assert row.bytes >= 5 << 20, row
        """)
    succeeds(out)
    assert device.pool_bytes() == cachalot.memory_report().row("mempool").bytes == 0


def test_a_device_that_is_not_used_stays_unused():
    out = run_python("""
        import cachalot
        from cachalot._bindings import driver
        torch.empty(1, device="cuda:0")
        made = cachalot.memory_report(1)
        assert not driver.DriverDevice(1).has_context()
        assert made.device == 1 and made.context_bytes == 0 and made.used_bytes == 0
        """)
    succeeds(out)


def test_works_without_torch_and_without_enable():
    out = run_python("""
        import sys, cachalot
        before = cachalot.memory_report()
        assert before.cachalot_bytes == 0 and before.context_bytes == 0
        from cachalot._heap.libraries import LibraryHeap
        LibraryHeap("warp").allocate(3 << 20, 0)
        made = cachalot.memory_report("cuda")
        assert made.libraries == {"warp": 3 << 20}, made.libraries
        assert made.live_bytes == 3 << 20 and "torch" not in sys.modules
        assert sum(row.bytes or 0 for row in made.rows) == made.used_bytes
        """, preamble="", fresh=True)
    succeeds(out)


OTHER = "import torch; kept = torch.empty(64 << 20, dtype=torch.uint8, device='cuda'); print(flush=True); input()"


def test_other_processes_and_the_context_have_their_memory(tmp_path):
    """The simulated context takes 100 MiB, and a tensor of 64 MiB has a segment of its size."""
    out = run_python(f"""
        import cachalot, os, subprocess, sys
        os.environ.pop("PYTORCH_CUDA_ALLOC_CONF", None)  # which says that this heap has pages
        kept = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
        other = subprocess.Popen([sys.executable, "-c", {OTHER!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        other.stdout.readline()
        made = cachalot.memory_report()
        other.communicate(b"end")
        assert sum(row.bytes or 0 for row in made.rows) == made.used_bytes
        assert made.context_bytes == 100 << 20, made
        assert made.other_processes_bytes == 164 << 20, made
        assert [part.name for part in made.row("others").parts] == [f"process {{other.pid}}"]
        assert made.unexplained_bytes == 0
        assert cachalot.memory_report().other_processes_bytes == 0
        """, fresh=True, **simulated(shared=tmp_path / "devices", context="100MiB"))
    succeeds(out)


def test_nccl_is_asked_for_its_memory():
    out = run_python("""
        import cachalot, torch.distributed as distributed
        distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1,
                                       device_id=torch.device("cuda:0"))
        tensor = torch.ones(1000, device="cuda")
        distributed.all_reduce(tensor)
        made = cachalot.memory_report()
        assert sum(row.bytes or 0 for row in made.rows) == made.used_bytes
        assert made.row("nccl").name == "NCCL, communicators: 1"
        assert 0 < made.nccl_bytes < made.used_bytes
        from cachalot._bindings import nccl
        nccl._function = lambda: None
        older = cachalot.memory_report()
        assert older.nccl_bytes is None and "older than 2.29.7" in older.row("nccl").source
        assert older.context_bytes == made.context_bytes + made.nccl_bytes
        distributed.destroy_process_group()
        assert cachalot.memory_report().nccl_bytes == 0
        """)
    succeeds(out)


def test_what_a_container_hides_is_unexplained(monkeypatch):
    kept = bytes_on_gpu(4 * MiB)
    monkeypatch.setattr(nvml.NvmlDevice, "processes", lambda device: {1: 7 * MiB})
    made = report()
    assert made.context_bytes is None
    assert made.other_processes_bytes is None
    assert "container" in made.row("context").source
    assert "other processes" in made.row("unexplained").source
    del kept


def test_a_process_whose_memory_is_not_told_is_unexplained(monkeypatch):
    seen = nvml.NvmlDevice.processes
    monkeypatch.setattr(nvml.NvmlDevice, "processes", lambda device: seen(device) | {1: None})
    kept = bytes_on_gpu(4 * MiB)
    made = report()
    assert made.context_bytes is not None
    assert made.other_processes_bytes is None
    del kept


def test_without_nvml_cuda_is_asked(monkeypatch):
    def missing():
        raise nvml.NvmlError("NVML cannot be loaded: no such file")

    kept = bytes_on_gpu(4 * MiB)
    monkeypatch.setattr(nvml, "_library", missing)
    made = report()
    free, total = torch.cuda.mem_get_info()
    assert (made.used_source, made.used_bytes, made.total_bytes) == ("cudaMemGetInfo", total - free, total)
    assert made.row("others").source == "NVML cannot be loaded: no such file"
    del kept


def test_without_nvml_an_unused_device_is_unknown():
    out = run_python("""
        import cachalot
        from cachalot._bindings import nvml
        def missing():
            raise nvml.NvmlError("none")
        nvml._library = missing
        made = cachalot.memory_report(1)
        assert made.used_bytes is None and made.unexplained_bytes is None and made.total_bytes > 0
        assert "unknown  in all" in str(made)
        """)
    succeeds(out)


def test_an_integrated_gpu_is_noted(monkeypatch):
    monkeypatch.setattr(driver.DriverDevice, "is_integrated", lambda device: True)
    assert "note: the GPU shares the host's memory" in str(report())


@pytest.mark.parametrize("bad", [-1, 99, "cpu", "cuda:99", True, 1.5, torch.device("cpu")])
def test_a_device_that_does_not_exist_is_refused(bad):
    with pytest.raises(ValueError, match="there are 2 CUDA devices"):
        cachalot.memory_report(bad)


def test_each_way_to_name_a_device():
    for device in (1, "cuda:1", torch.device("cuda:1"), torch.device("cuda", 1)):
        assert cachalot.memory_report(device).device == 1
    with torch.cuda.device(1):
        assert {cachalot.memory_report(each).device for each in (None, "cuda", torch.device("cuda"))} == {1}


def test_json_has_every_row():
    kept = bytes_on_gpu(4 * MiB)
    made = report()
    found = json.loads(made.to_json())
    assert {row["key"]: row["bytes"] for row in found["rows"]} == {row.key: row.bytes for row in made.rows}
    assert found["used_bytes"] == made.used_bytes
    with pytest.raises(KeyError, match="unexplained"):
        made.row("nothing")
    del kept


@not_native
def test_threads_report_while_others_allocate():
    stop = threading.Event()

    def allocate():
        while not stop.is_set():
            bytes_on_gpu(3 * MiB)

    worker = threading.Thread(target=allocate)
    worker.start()
    try:
        for _ in range(20):
            report()
    finally:
        stop.set()
        worker.join()


def test_takes_no_memory_of_the_device():
    kept = bytes_on_gpu(4 * MiB)
    free = torch.cuda.mem_get_info()[0]
    report()
    assert torch.cuda.mem_get_info()[0] == free
    del kept


def test_a_forked_child_is_told_why():
    out = run_python("""
        import cachalot, os
        torch.empty(1, device="cuda")
        pid = os.fork()
        if pid == 0:
            try:
                cachalot.memory_report()
            except RuntimeError as error:
                os._exit(0 if str(error) else 3)
            os._exit(4)
        assert os.waitpid(pid, 0)[1] == 0
        """)
    succeeds(out)


# --- awake_report() -------------------------------------------------------------------------------------------------------


def owners():
    return {row.owner: row.bytes for row in cachalot.awake_report().rows}


@full_only
def test_each_owner_is_told_with_the_call_that_frees_its_memory():
    with cachalot.region("awake weights"):
        weights = bytes_on_gpu(30 * MiB)
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        pooled = bytes_on_gpu(20 * MiB)
    outside = bytes_on_gpu(10 * MiB)
    found = cachalot.awake_report()
    calls = {row.owner: row.call for row in found.rows}
    sizes = {row.owner: row.bytes for row in found.rows}
    graph = f"graph or MemPool {pool.id}"
    assert sizes["tag 'awake weights'"] == 30 * MiB and calls["tag 'awake weights'"] == "cachalot.release_physical('awake weights')"
    assert sizes[graph] == 20 * MiB and calls[graph] == f"cachalot.release_physical({pool.id})"
    assert sizes["tensors outside of all regions"] == 10 * MiB
    assert re.search(r"30.00 MiB  tag 'awake weights' +cachalot.release_physical\('awake weights'\)", str(found))
    assert found.awake_bytes == sum(size or 0 for size in sizes.values())
    assert json.loads(found.to_json())["rows"][0]["owner"] == found.rows[0].owner
    if PAGES:
        for call in (calls["tag 'awake weights'"], calls[graph]):
            eval(call)
        torch.cuda.empty_cache()
        assert set(owners()) & {"tag 'awake weights'", graph, "cache"} == set()
        assert cachalot.awake_report().asleep_bytes == 50 * MiB
        cachalot.restore_physical(["awake weights", pool])
    del weights, pooled, outside, pool


@not_native
def test_libraries_and_the_cache_are_owners():
    from cachalot._heap.libraries import LibraryHeap

    heap = LibraryHeap("numba")
    address = heap.allocate(8 * MiB, 0)
    freed = bytes_on_gpu(40 * MiB)
    del freed
    found = owners()
    assert found["library numba"] == 8 * MiB and found["cache"] >= 40 * MiB and "tensors outside of all regions" not in found
    heap.free(address)
    torch.cuda.empty_cache()
    assert set(owners()) <= {"CUDA context, and more of this process"}


@pages_only
def test_plain_memory_is_an_owner():
    kept = bytes_on_gpu(6 * MiB)
    with cachalot.plain():
        plain = bytes_on_gpu(4 * MiB)
    found = owners()
    assert (found["plain memory"], found["tensors outside of all regions"]) == (4 * MiB, 6 * MiB)
    del kept, plain
