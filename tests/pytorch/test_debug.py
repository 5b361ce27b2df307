"""Programs under CACHALOT_DEBUG=1, each in a process of its own: wrong use of memory is refused as usual, and reported with
Python's stacks.
"""

import pytest
from world import ENABLE_MODE, HANDS, MODE, PAGES, full_only, not_native, run_python, succeeds

pytestmark = not_native

CONF = "heap:pages" if PAGES else ""

PROLOGUE = """
import ctypes

def refused(call, *arguments):
    try:
        call(*arguments)
    except (RuntimeError, ValueError) as error:
        return str(error)
    raise AssertionError("it was not refused")
"""


def debugged(code, **environment):
    return run_python(PROLOGUE + code, **{"CACHALOT_DEBUG": "1", "CACHALOT_CONF": CONF} | environment)


def test_memory_reports_have_the_lines_of_the_allocation_and_of_the_free():
    process = debugged(
        HANDS + """
def make():
    return torch.empty(1000, dtype=torch.uint8, device="cuda")

def drop(tensors):
    tensors.pop()

tensors = [make()]
smash(tensors[0].data_ptr() + 1000)
drop(tensors)
[report] = cachalot.check_memory()
assert (report.kind, report.offset, report.mistake, report.message) == ("back_canary", 1000, None, "")
assert report.allocated.stack[0].startswith("make at <string>:"), report.allocated.stack
assert report.allocated.stack[1].startswith("<module> at <string>:")
assert report.freed.stack[0].startswith("drop at <string>:")
"""
    )
    succeeds(process)
    assert "  allocated:\n    #0 make at <string>:" in process.stderr


@full_only
def test_a_double_free_is_refused_and_names_the_first():
    process = debugged(
        """
def release(pointer):
    torch.cuda.caching_allocator_delete(pointer)

pointer = torch.cuda.caching_allocator_alloc(4096)
release(pointer)
message = refused(release, pointer)
assert "the block of 4096 bytes" in message and "already freed" in message, message
[report] = cachalot.check_memory()
assert (report.kind, report.address, report.requested_bytes) == ("double_free", pointer, 4096)
assert message.startswith(report.message)
for call in (report.freed, report.mistake):
    assert any(frame.startswith("release at <string>:") for frame in call.stack), call.stack
assert report.allocated.number == 1 and report.freed.number == 2
"""
    )
    succeeds(process)
    assert process.stderr.count("cachalot guard: double free by thread") == 1


@full_only
def test_frees_and_uses_of_what_is_not_allocated_are_refused_and_reported():
    succeeds(
        debugged(
            """
x = torch.empty(1000, dtype=torch.uint8, device="cuda")
refused(torch.cuda.caching_allocator_delete, x.data_ptr() + 8)
refused(torch.cuda.caching_allocator_delete, 4096)
inside, nowhere = cachalot.check_memory()
assert (inside.kind, inside.address, inside.offset) == ("invalid_free", x.data_ptr(), 8)
assert "8 bytes behind its beginning" in inside.message
assert (nowhere.kind, nowhere.device, nowhere.address, nowhere.allocated) == ("invalid_free", -1, 4096, None)
assert cachalot.check_memory() == []
"""
        )
    )


@full_only
def test_a_pool_that_is_used_after_its_release_is_reported():
    succeeds(
        debugged(
            """
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    x = torch.empty(1000, device="cuda")
del x
identity = pool.id
del pool
refused(torch._C._cuda_releasePool, 0, identity)
[report] = cachalot.check_memory()
assert report.kind == "released_pool" and f"{identity}" in report.message, report
assert report.freed.stack and report.mistake.stack
"""
        )
    )


@pytest.mark.skipif(MODE != "plug", reason="the full allocator knows by its deleter that such a tensor is not its own")
def test_record_stream_of_a_block_that_was_freed_is_reported():
    succeeds(
        debugged(
            """
x = torch.empty(1000, dtype=torch.uint8, device="cuda")
pointer, device = x.data_ptr(), x.device
del x
stale = torch.empty(0, dtype=torch.uint8, device="cuda")
stale.set_(torch._C._construct_storage_from_data_pointer(pointer, device, 1000))
message = refused(stale.record_stream, torch.cuda.Stream())
[report] = cachalot.check_memory()
assert (report.kind, report.address) == ("use_after_free", pointer)
assert report.allocated.stack[0].startswith("<module> at <string>:")
"""
        )
    )


def test_a_program_that_does_nothing_wrong_reports_nothing():
    process = debugged(
        """
import gc
stream = torch.cuda.Stream()
graph = torch.cuda.CUDAGraph()
x = torch.zeros(1000, device="cuda")
with torch.cuda.stream(stream):
    y = x + 1
    x.record_stream(stream)
with torch.cuda.graph(graph):
    z = x * 2
graph.replay()
model = torch.nn.Linear(64, 64).cuda()
for _ in range(3):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
with cachalot.TensorPool((100,)).acquire() as tensor:
    tensor.zero_()
del x, y, z, graph, model
gc.collect()
torch.cuda.synchronize()
torch.cuda.empty_cache()
assert cachalot.check_memory() == []
"""
    )
    succeeds(process)
    assert "guard" not in process.stderr


def test_threads_that_free_what_others_allocated_while_python_runs_finish():
    succeeds(
        debugged(
            """
import queue, threading

def produce(out):
    for _ in range(50):
        out.put(torch.empty(1000, device="cuda"))
    out.put(None)

def consume(tensors):
    while tensors.get() is not None:
        pass

pairs = [queue.Queue() for _ in range(3)]
threads = [threading.Thread(target=work, args=(pair,)) for pair in pairs for work in (produce, consume)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert cachalot.check_memory() == []
"""
        )
    )


def test_a_bad_cachalot_debug_is_one_clear_error():
    preamble = "import torch, cachalot\n"
    process = run_python(f"cachalot.enable(mode={ENABLE_MODE!r})", preamble=preamble, CACHALOT_DEBUG="yes")
    assert process.returncode == 1
    assert "ValueError: environment variable CACHALOT_DEBUG: 'yes' is not 1" in process.stderr


@pytest.mark.parametrize(("variable", "conf"), [("0", ""), ("", ""), ("1", "debug:False")])
def test_debug_may_be_off(variable, conf):
    conf = ",".join(filter(None, (CONF, conf)))
    process = run_python("cachalot.check_memory()", CACHALOT_DEBUG=variable, CACHALOT_CONF=conf)
    assert "RuntimeError: check_guard: the guard is off" in process.stderr


def test_debug_may_come_from_enable_and_go_without_the_guard():
    preamble = f"import torch, cachalot\ncachalot.enable('debug:True,guard:False', mode={ENABLE_MODE!r})\n"
    code = "x = torch.zeros(10, device='cuda'); assert x.data_ptr() % 2**20 == 0; assert cachalot.check_memory() == []"
    succeeds(run_python(code, preamble=preamble, CACHALOT_CONF=CONF))
