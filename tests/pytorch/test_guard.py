"""Programs under guard:True, each in a process of its own: writes beside tensors and after their life are found, and programs
without such writes run as usual.
"""

import json
import sys
from pathlib import Path

import pytest
from world import ENABLE_MODE, HANDS, PAGES, full_only, not_native, run, run_python, simulated, succeeds

pytestmark = not_native

GUARD = "guard:True" + (",heap:pages" if PAGES else "")

def guarded(code, **environment):
    return run_python(HANDS + code, **{"CACHALOT_CONF": GUARD} | environment)


def test_a_write_behind_a_tensor_is_reported_with_its_history():
    process = guarded(
        """
import threading
x = torch.empty(1000, dtype=torch.uint8, device="cuda")
pointer = x.data_ptr()
assert pointer % 512 == 0
assert cachalot.check_memory() == []
smash(pointer + 1000, 4)
del x
[report] = cachalot.check_memory()
assert report.kind == "back_canary"
assert (report.address, report.requested_bytes, report.offset, report.device) == (pointer, 1000, 1000, 0)
assert report.allocated.thread == report.freed.thread == threading.get_native_id()
assert report.allocated.number < report.freed.number
assert report.recorded == ()
assert f"address={pointer:#x}" in repr(report) and "kind='back_canary'" in repr(report), report
assert cachalot.check_memory() == []
"""
    )
    succeeds(process)
    assert "debug:True (CACHALOT_DEBUG=1) adds stacks" in process.stderr
    assert process.stderr.count("cachalot guard: the block of 1000 bytes at") == 1


def test_a_write_before_a_live_tensor_is_found_without_a_free():
    succeeds(
        guarded(
            """
x = torch.empty(1000, dtype=torch.uint8, device="cuda")
smash(x.data_ptr() - 1)
[report] = cachalot.check_memory()
assert (report.kind, report.offset, report.freed) == ("front_canary", -1, None)
"""
        )
    )


def test_a_write_after_free_is_found():
    succeeds(
        guarded(
            """
other = torch.cuda.Stream()
x = torch.empty(1000, dtype=torch.uint8, device="cuda")
pointer = x.data_ptr()
x.record_stream(other)
del x
smash(pointer + 77)
torch.cuda.empty_cache()
[report] = cachalot.check_memory()
assert (report.kind, report.offset) == ("write_after_free", 77)
assert report.recorded == (other.cuda_stream,)
"""
        )
    )


def test_without_a_guard_check_memory_says_so():
    process = run_python("cachalot.check_memory()", CACHALOT_CONF="heap:pages" if PAGES else "")
    assert process.returncode == 1
    assert "RuntimeError: check_guard: the guard is off" in process.stderr


def test_the_option_may_come_from_enable():
    preamble = f"import torch, cachalot\ncachalot.enable('guard:True', mode={ENABLE_MODE!r})\n"
    code = "torch.zeros(10, device='cuda'); assert cachalot.check_memory() == []"
    succeeds(run_python(code, preamble=preamble, CACHALOT_CONF=""))


@full_only
def test_a_model_trains_and_nothing_is_reported():
    models = Path(__file__).parent / "models.py"
    process = run(
        [sys.executable, models, "full", "resnet"],
        CACHALOT_CONF=GUARD,
        timeout=600,
        **simulated(latency="none", memory="80GiB"),
    )
    assert json.loads(succeeds(process).splitlines()[-1])["allocated_bytes.all.peak"] > 32 << 20
    assert "guard" not in process.stderr


@full_only
def test_graphs_pools_and_multiprocessing_storages_work_under_guard():
    succeeds(
        guarded(
            """
x = torch.zeros(1000, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (x + 1) * 2
graph.replay()
torch.cuda.synchronize()
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    z = torch.empty(5000, device="cuda")
kept, gone = z.data_ptr(), torch.empty(70_000, device="cuda")
state = torch._C._cuda_getCheckpointState(0, graph.pool())
del gone, z
x.untyped_storage()._share_cuda_()
assert cachalot.check_memory() == []
del y, graph, pool
torch.cuda.empty_cache()
assert cachalot.check_memory() == []
"""
        )
    )


@full_only
def test_a_tree_of_graphs_finds_its_tensors_again():
    succeeds(
        guarded(
            """
x = torch.zeros(1000, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = x + 1
pool = graph.pool()
state = torch._C._cuda_getCheckpointState(0, pool)
assert torch._C._cuda_checkPoolLiveAllocations(0, pool, {y.data_ptr()})
owner = torch._C._construct_storage_from_data_pointer(y.data_ptr(), y.device, y.untyped_storage().nbytes())
torch._C._cuda_setCheckpointPoolState(0, state, [y.untyped_storage()._cdata], [owner._cdata])
assert torch._C._cuda_checkPoolLiveAllocations(0, pool, {owner.data_ptr()})
assert cachalot.check_memory() == []
"""
        )
    )


@pytest.mark.skipif(not PAGES, reason="segments cannot sleep")
def test_tensors_sleep_and_wake_under_guard():
    succeeds(
        guarded(
            """
with cachalot.region("weights"):
    x = torch.arange(1000, dtype=torch.int32).cuda()
for save in (True, False):
    cachalot.release_physical("weights", save=save)
    cachalot.restore_physical("weights")
    assert not save or torch.equal(x.cpu(), torch.arange(1000, dtype=torch.int32))
assert cachalot.check_memory() == []
smash(x.data_ptr() + 4000)
assert len(cachalot.check_memory()) == 1
"""
        )
    )
