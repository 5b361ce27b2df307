"""CUDA tensors in several processes and on several GPUs: sender, receiver, memory in many pieces."""

import json
import os
from textwrap import dedent

import pytest
import torch
from world import (
    ENABLE_MODE, MODE, PAGES, PREAMBLE, full_only, not_plug, run_python, simulated, start_quickly, succeeds)

# The size of handles on a GPU with plenty of memory. The simulated one is small, and handles would be pages.
LARGE_HANDLES = {"CACHALOT_CONF": "heap:pages,page_size_mb:32"} if PAGES else {}

VERSION = 3 if torch.torch_version.TorchVersion(torch.__version__) >= "2.13" else 2  # of the bytes that are sent
NATIVE_PREAMBLE = "import torch\n"

# The code of both ends. The simulated GPU copies small pieces only: here the ends of each tensor and the bytes at each MiB.
PIECES = """
import pickle, sys
def pieces(tensor):
    starts = [0, *range(1 << 20, tensor.numel(), 1 << 20), tensor.numel() - 16]
    return [tensor[start - 8 if start % (1 << 20) == 0 and start else start :][:16] for start in starts]
def content(index, piece):
    return torch.arange(16, dtype=torch.uint8) + (16 * index + piece) % 100
"""

# A process that makes tensors, sends what opens them, waits, and tells what became of them.
SENDER = """
{make}
tensors = make()
for index, tensor in enumerate(tensors):
    for number, piece in enumerate(pieces(tensor)):
        piece.copy_(content(index, number))
torch.cuda.synchronize()
sent = [tensor.untyped_storage()._share_cuda_() for tensor in tensors]
print(pickle.dumps(sent).hex(), flush=True)
sys.stdin.readline()
print([int(tensor[0].cpu()) for tensor in tensors], flush=True)
"""

# A process that opens them, checks them, writes 177 into each, and releases them.
RECEIVER = """
torch.cuda.init()  # as torch.multiprocessing does
sent = pickle.loads(bytes.fromhex(sys.stdin.readline()))
if "before_opening" in globals():
    before_opening(sent)
storages = [torch.UntypedStorage._new_shared_cuda(*arguments) for arguments in sent]
for index, storage in enumerate(storages):
    tensor = torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage)
    for number, piece in enumerate(pieces(tensor)):
        assert torch.equal(piece.cpu(), content(index, number)), (index, number)
    tensor[:1].copy_(torch.tensor([177], dtype=torch.uint8))
torch.cuda.synchronize()
assert torch.cuda.memory_allocated() == 0
del storage, storages, tensor, piece
torch.cuda.synchronize()
print("done", flush=True)
"""


class End:
    """One of the two processes: what it is told and what it says are open files."""

    def __init__(self, preamble, code, environment):
        stdin, told = os.pipe()
        said, stdout = os.pipe()
        with open(stdin) as its_input, open(stdout, "w") as its_output:
            variables = LARGE_HANDLES | environment
            self._program = start_quickly(preamble + PIECES + code, stdin=its_input, stdout=its_output, **variables)
        self.told, self.said = open(told, "w"), open(said)

    def result(self, last_words):
        """Its exit status, what it still said, and its errors."""
        with self.told, self.said:
            self.told.write(last_words)
            self.told.close()
            still_said = self.said.read()
            done = self._program.wait(120)
        return done.returncode, still_said, done.stderr


def share(make, sender=PREAMBLE, receiver=PREAMBLE, sender_environment=None, receiver_environment=None):
    """Runs both; returns the receiver's exit status, its errors, and the first bytes that the sender then sees."""
    sending = End(sender, SENDER.format(make=dedent(make)), sender_environment or {})
    sent = sending.said.readline()
    if not sent:
        pytest.fail(sending.result("")[2])
    status, output, errors = End(receiver, RECEIVER, receiver_environment or {}).result(sent)
    sender_status, seen, sender_errors = sending.result("\n")
    assert sender_status == 0, sender_errors
    assert status != 0 or output == "done\n"
    return status, errors, seen


def assert_shared(count, result):
    status, errors, seen = result
    assert status == 0, errors
    assert json.loads(seen) == [177] * count


ONE = """
def make():
    return [torch.empty(3 << 20, dtype=torch.uint8, device="cuda")]
"""

# On the page heap these lie side by side in handles of 4, 4, 6 and 32 MiB, so that most lie in parts of two.
SEVERAL = """
def make():
    sizes = (3, 4, 6, 30, 1)
    return [torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in sizes]
"""

# A tensor in more handles than a packet may carry descriptors.
MANY = """
def make():
    return [torch.empty(600 << 20, dtype=torch.uint8, device="cuda")]
"""

# Many tensors in one handle.
TOGETHER = """
def make():
    with cachalot.contiguous():
        torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
    return [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
"""

# A tensor in the memory that every other block left, and the blocks between.
GATHERED = """
def make():
    blocks = [torch.empty(8 << 20, dtype=torch.uint8, device="cuda") for _ in range(8)]
    kept = blocks[1::2]
    del blocks
    return [torch.empty(24 << 20, dtype=torch.uint8, device="cuda"), *kept]
"""


@not_plug
@pytest.mark.parametrize("make", [ONE, SEVERAL, GATHERED], ids=["one", "several", "gathered"])
def test_tensors_are_shared_between_processes_of_one_kind(make):
    count = {ONE: 1, SEVERAL: 5, GATHERED: 4 + 1}[make]
    assert_shared(count, share(make))


# The first lines of a process without a right that containers refuse; confine() exits with 77 where the kernel forbids it.
CONFINED = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def confine(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        print(f"{{name}}: {{os.strerror(ctypes.get_errno())}}: no process can be confined here", file=sys.stderr)
        os._exit(77)
{confine}
def before_opening(sent):  # the right is really missing
    process = libc.syscall(434, int.from_bytes(sent[0][1][2:6], "little"), 0)  # pidfd_open
    taken = libc.syscall(438, process, 0, 0)  # pidfd_getfd
    assert (taken, ctypes.get_errno()) == (-1, errno.EPERM), (process, taken, ctypes.get_errno())
"""
IN_A_USER_NAMESPACE = CONFINED.format(confine='confine("unshare", 0x10000000)')
IN_A_NETWORK_NAMESPACE = CONFINED.format(confine='confine("unshare", 0x50000000)')
WITHOUT_CAPABILITIES = CONFINED.format(
    confine='confine("capset", (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())'
)
NOT_DUMPABLE = "import ctypes\nassert ctypes.CDLL(None).prctl(4, 0, 0, 0, 0) == 0  # PR_SET_DUMPABLE\n"


def share_confined(make, confinement, sender=""):
    """Shares on the page heap with a receiver that begins with `confinement`; skips where the kernel forbids that."""
    environment = {"CACHALOT_CONF": "heap:pages,page_size_mb:2"}
    result = share(make, sender + PREAMBLE, confinement + PREAMBLE, environment, environment)
    if result[0] == 77:
        pytest.skip(result[1].strip())
    return result


@pytest.mark.skipif(not PAGES, reason="is about file descriptors, which segments do without")
@pytest.mark.parametrize(
    ("sender", "receiver"), [("", IN_A_USER_NAMESPACE), (NOT_DUMPABLE, WITHOUT_CAPABILITIES)], ids=["namespace", "dumpable"]
)
@pytest.mark.parametrize(("make", "count"), [(SEVERAL, 5), (MANY, 1)], ids=["several", "many"])
def test_tensors_arrive_where_pidfd_getfd_is_refused(sender, receiver, make, count):
    assert_shared(count, share_confined(make, receiver, sender))


@pytest.mark.skipif(not PAGES, reason="is about file descriptors, which segments do without")
def test_a_receiver_without_any_way_is_told_both():
    status, errors, _ = share_confined(ONE, IN_A_NETWORK_NAMESPACE)
    assert status != 0
    assert "connect to its socket @cachalot-" in errors and "Connection refused" in errors
    assert "pidfd_getfd of process" in errors and "Operation not permitted (another user, a container" in errors


@pytest.mark.skipif(not PAGES, reason="is about file descriptors, which segments do without")
@pytest.mark.parametrize("sent_as", ["handle[:-16] + bytes(8) + handle[-8:]", "handle[: -16 - 8 * handle[18]]"], ids=["unnamed", "older"])
def test_descriptors_go_by_pidfd_getfd_where_the_sender_names_no_socket(sent_as):
    """Because it had none, or because it is a cachalot that wrote nothing behind the handles."""
    changing = f"""
def before_opening(sent):
    for index, (device, handle, *others) in enumerate(sent):
        assert handle[-8:] == b"achalot1"
        sent[index] = (device, {sent_as}, *others)
"""
    assert_shared(5, share(SEVERAL, receiver=PREAMBLE + changing))


@pytest.mark.skipif(not PAGES, reason="PyTorch's policy opens segments")
@pytest.mark.parametrize(("make", "count"), [(ONE, 1), (TOGETHER, 20)], ids=["a tensor", "tensors of a handle"])
def test_memory_that_arrives_again_is_mapped_once(make, count):
    counting = """
def before_opening(sent):
    simulator = ctypes.CDLL(None)
    def calls():
        return [simulator.cachalot_sim_calls(0, name) for name in (b"map", b"unmap")]
    before = calls()
    storages = [torch.UntypedStorage._new_shared_cuda(*arguments) for arguments in sent * 10]
    opened = calls()
    del storages
    closed = calls()
    made = [[after - before for after, before in zip(later, before)] for later in (opened, closed)]
    print(*made, end="", file=sys.stderr)
"""
    environment = {"CACHALOT_CONF": "heap:pages,page_size_mb:32"}
    status, errors, seen = share(make, PREAMBLE, "import ctypes, sys\n" + PREAMBLE + counting, environment, environment)
    assert_shared(count, (status, errors, seen))
    assert errors == "[1, 0] [1, 1]"


@full_only
@pytest.mark.parametrize("expandable", [False, True])
def test_native_processes_memory_is_opened(expandable):
    environment = {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}", "CACHALOT_CONF": ""}
    assert_shared(5, share(SEVERAL, sender=NATIVE_PREAMBLE, sender_environment=environment))


@full_only
def test_a_native_process_opens_memory_in_one_handle():
    """With expandable_segments on or off: what it opens is told by the bytes."""
    make = """
    def make():
        with cachalot.contiguous():
            return [torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in (3, 40, 1)]
    """
    for expandable in (False, True):
        environment = {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{expandable}"}
        assert_shared(3, share(make, receiver=NATIVE_PREAMBLE, receiver_environment=environment))


@pytest.mark.skipif(not PAGES, reason="is about memory in several handles")
def test_a_native_process_refuses_handles_of_several_sizes():
    status, errors, seen = share(SEVERAL, receiver=NATIVE_PREAMBLE)
    assert status != 0
    assert "unexpected or illformed shareable handle type" in errors
    assert json.loads(seen) == [0, 16, 32, 48, 64]


@full_only
def test_bytes_that_are_no_handle_are_refused_in_words():
    def refusal(handle):
        arguments = (0, handle, 512, 0, b"", 0, b"", False)
        with pytest.raises(RuntimeError) as error:
            torch.UntypedStorage._new_shared_cuda(*arguments)
        return str(error.value)

    version = VERSION.to_bytes(1, "little")

    def header(process, size, count):
        kind = (1).to_bytes(8, "little") if VERSION >= 3 else b""
        return version + b"e" + b"".join(word.to_bytes(8, "little") for word in (process, size, count)) + kind

    assert "it has at least 2" in refusal(version)
    assert "of version 9" in refusal(b"\x09c" + bytes(64))
    assert "kind 'c' has 66" in refusal(version + b"c" + bytes(63))
    assert "one of 'c', 'e' and 'p'" in refusal(version + b"q" + bytes(64))
    assert "cut short" in refusal(version + b"e" + bytes(8))
    assert "0 handles" in refusal(header(1, 2 << 20, 0))
    assert "each has 4 or 64" in refusal(header(1, 2 << 20, 2) + bytes(9))
    assert "pidfd_open of process 0" in refusal(header(0, 2 << 20, 1) + bytes(4))
    assert torch.cuda.memory_allocated() == 0


@full_only
def test_contiguous_holds_for_its_thread_and_block_alone():
    code = """
    import threading
    def handles(tensor):
        bytes = tensor.untyped_storage()._share_cuda_()[1]
        return 1 if bytes[1:2] == b"c" else int.from_bytes(bytes[18:26], "little")
    def empty():
        return torch.empty(70 << 20, dtype=torch.uint8, device="cuda")
    elsewhere = []
    with cachalot.contiguous():
        with cachalot.contiguous():
            inner = empty()
        outer = empty()
        thread = threading.Thread(target=lambda: elsewhere.append(empty()))
        thread.start()
        thread.join()
    after = empty()
    print([handles(tensor) for tensor in (inner, outer, elsewhere[0], after)])
    import os; os._exit(0)                                   # what is shared waits for its receiver
    """
    many = 3 if PAGES else 1
    assert json.loads(succeeds(run_python(code, **LARGE_HANDLES))) == [1, 1, many, many]


@pytest.mark.skipif(MODE == "plug", reason="PyTorch's plug class enables peers by itself")
def test_two_gpus_use_each_others_memory():
    """Copies both ways, memory from before and after peer access was enabled, and what the driver says of it."""
    code = """
    import ctypes
    class Location(ctypes.Structure):
        _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
    driver = ctypes.CDLL("libcuda.so.1")
    def may_use(device, tensor):
        flags = ctypes.c_ulonglong()
        place = Location(1, device)
        error = driver.cuMemGetAccess(ctypes.byref(flags), ctypes.byref(place), ctypes.c_ulonglong(tensor.data_ptr()))
        assert error == 0, error
        return flags.value != 0
    before = torch.arange(16, dtype=torch.uint8)
    first = torch.empty(6 << 20, dtype=torch.uint8, device="cuda:0")
    first[-16:].copy_(before)
    second = torch.empty(6 << 20, dtype=torch.uint8, device="cuda:1")
    second[-16:].copy_(first[-16:])                          # enables access
    assert torch.equal(second[-16:].cpu(), before)
    third = torch.empty(40 << 20, dtype=torch.uint8, device="cuda:1")
    back = torch.empty_like(first)
    back[-16:].copy_(second[-16:])
    assert torch.equal(back[-16:].cpu(), before)
    fourth = torch.empty(40 << 20, dtype=torch.uint8, device="cuda:0")
    if virtual:
        assert all(may_use(1, tensor) for tensor in (first, back, fourth))
        assert all(may_use(0, tensor) for tensor in (second, third))
        print("open")
    """
    process = run_python(f"virtual = {PAGES}\n" + dedent(code))
    assert succeeds(process) == ("open\n" if PAGES else "")
    assert "cachalot:" not in process.stderr  # no warning


@pytest.mark.skipif(MODE in ("plug", "native"), reason="PyTorch's own classes enable peers by themselves")
def test_the_pool_of_heap_async_is_opened_to_a_gpu_that_uses_it():
    code = """
    import ctypes
    driver = ctypes.CDLL("libcuda.so.1")
    def may_use_pool(device, owner):
        pool, flags = ctypes.c_void_p(), ctypes.c_int()
        assert driver.cuDeviceGetMemPool(ctypes.byref(pool), owner) == 0
        assert driver.cuMemPoolGetAccess(ctypes.byref(flags), pool, ctypes.byref((ctypes.c_int * 2)(1, device))) == 0
        return flags.value != 0
    first = torch.arange(16, dtype=torch.uint8, device="cuda:0")
    assert not may_use_pool(1, 0) and not may_use_pool(0, 1)
    second = first.to("cuda:1")                              # enables access one way
    print(may_use_pool(1, 0), may_use_pool(0, 1))
    assert torch.equal(second.to("cuda:0").cpu(), first.cpu())
    print(may_use_pool(1, 0), may_use_pool(0, 1))
    """
    assert succeeds(run_python(code, CACHALOT_CONF="heap:async")) == "False True\nTrue True\n"



@full_only
@pytest.mark.parametrize("way", ["with cachalot.plain():", "with torch.cuda.use_mem_pool(pool):"])
def test_plain_memory_is_what_legacy_ipc_takes(way):
    """On any heap; tensors of the thread before and after are the heap's own."""
    program = f"""
import ctypes

runtime = ctypes.CDLL(None)

def legacy(tensor):
    handle, at = ctypes.create_string_buffer(64), ctypes.c_void_p(tensor.data_ptr())
    return runtime.cudaIpcGetMemHandle(handle, at) == 0

def new():
    return torch.empty(30 << 20, dtype=torch.uint8, device="cuda")

pool = torch.cuda.MemPool()
cachalot.make_plain(pool)
before = new()
{way}
    plain = [new()]
    with cachalot.contiguous():
        plain.append(new())
assert all(map(legacy, plain))
after = new()
assert legacy(before) == legacy(after) == {not PAGES}
try:
    cachalot.make_plain("weights")
except TypeError as error:
    assert "pool is 'weights'; it must be a torch.cuda.MemPool" in str(error)
"""
    succeeds(run_python(program))


# --- storages that are copied to plain memory when they are shared -------------------------------------------------------------

COPYING = f"import torch\nimport cachalot\ncachalot.enable(mode={ENABLE_MODE!r}, share='copy')\n"
pages_only = pytest.mark.skipif(not PAGES, reason="memory of other heaps is plain")

# Tensors that were shared before their content was written.
SHARED_BEFORE = """
def make():
    tensors = [torch.empty(size << 20, dtype=torch.uint8, device="cuda") for size in (3, 4, 6, 30, 1)]
    views = [tensor[:] for tensor in tensors]
    before = [tensor.untyped_storage()._share_cuda_() for tensor in tensors]
    return views
"""


@full_only
@pytest.mark.parametrize("make", [SEVERAL, GATHERED, SHARED_BEFORE], ids=["several", "gathered", "before"])
@pytest.mark.parametrize("receiver", [NATIVE_PREAMBLE, PREAMBLE], ids=["native", "cachalot"])
def test_any_process_opens_storages_that_are_copied(make, receiver):
    """The receiver reads the content of before and after the sharing, and the sender sees the receiver's writes."""
    assert_shared(5, share(make, sender=COPYING, receiver=receiver, sender_environment=simulated(copy_bytes="64MiB")))


@full_only
@pytest.mark.parametrize("heap", ["heap:async", "heap:managed"])
def test_copies_of_heaps_that_share_nothing_are_opened(heap):
    environment = simulated(copy_bytes="64MiB") | {"CACHALOT_CONF": heap}
    assert_shared(5, share(SEVERAL, sender=COPYING, receiver=NATIVE_PREAMBLE, sender_environment=environment))


def run_copying(code, **variables):
    """Runs `code` with share='copy', and ends before the deleters, which wait for receivers of shared memory."""
    return run_python(dedent(code) + "\nimport os, sys; sys.stdout.flush(); sys.stderr.flush(); os._exit(0)", preamble=COPYING, **variables)


@pages_only
def test_a_shared_storage_moves_with_its_tensors():
    process = run_copying("""
    import ctypes
    runtime = ctypes.CDLL(None)
    def legacy(tensor):
        error = runtime.cudaIpcGetMemHandle(ctypes.create_string_buffer(64), ctypes.c_void_p(tensor.data_ptr()))
        runtime.cudaGetLastError()                    # torch would tell it
        return error == 0
    leaf = torch.arange(1000, dtype=torch.float32).cuda().requires_grad_()
    view, loss = leaf.detach()[10:20], (leaf * leaf).sum()
    before, live = leaf.data_ptr(), torch.cuda.memory_allocated()
    assert not legacy(leaf)
    sent = leaf.untyped_storage()._share_cuda_()
    moved = leaf.data_ptr()
    assert moved != before and view.data_ptr() == moved + 40 and legacy(leaf)
    assert torch.cuda.memory_allocated() == live
    assert torch.equal(leaf.detach().cpu(), torch.arange(1000, dtype=torch.float32))
    loss.backward()                                   # autograd saved the tensor that has moved, and takes it for unchanged
    leaf.grad = None
    view.copy_(torch.full((10,), 7.0))
    assert leaf.detach()[15].item() == 7
    assert leaf.untyped_storage()._share_cuda_()[1] == sent[1] and leaf.data_ptr() == moved
    other = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    at = other.data_ptr()
    from multiprocessing.reduction import ForkingPickler
    import torch.multiprocessing
    ForkingPickler.dumps(other)
    assert other.data_ptr() != at and legacy(other)
    with cachalot.plain():
        plain = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    at = plain.data_ptr()
    plain.untyped_storage()._share_cuda_()
    assert plain.data_ptr() == at
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.all.current"] == sum(
        block["size"] for segment in torch.cuda.memory_snapshot() for block in segment["blocks"] if block["state"] == "active_allocated")
    """)
    succeeds(process)
    told = [line for line in process.stderr.splitlines() if line.startswith("cachalot:")]
    assert told == [
        "cachalot: a storage of 4,000 bytes on cuda:0 was copied to plain memory to be shared (share='copy'); addresses "
        "of it that were taken before are invalid. Further copies are not told"
    ]


@pages_only
def test_a_copy_waits_for_work_on_other_streams():
    succeeds(run_copying("""
    import ctypes
    side = torch.cuda.Stream()
    tensor = torch.zeros(16, dtype=torch.uint8, device="cuda")
    with torch.cuda.stream(side):
        launch = ctypes.CDLL(None).cachalot_sim_launch
        launch.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        assert launch(side.cuda_stream, 10**9) == 0
        tensor.copy_(torch.arange(16, dtype=torch.uint8), non_blocking=True)
    tensor.untyped_storage()._share_cuda_()
    assert side.query()
    assert torch.equal(tensor.cpu(), torch.arange(16, dtype=torch.uint8))
    """))


@pages_only
def test_what_cannot_be_copied_stays_as_it_is():
    """During a capture, without memory, and while it sleeps; a tag with a copy cannot sleep."""
    output = succeeds(run_copying("""
    def refused(error_type, act):
        try:
            act()
        except error_type as error:
            return str(error)
        raise AssertionError("not refused")
    with cachalot.region("weights"):
        tensor = torch.ones(16, dtype=torch.uint8).cuda()
    large = torch.empty(600 << 20, dtype=torch.uint8, device="cuda")
    at = tensor.data_ptr(), large.data_ptr()
    storage = tensor.untyped_storage()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        print(refused(RuntimeError, storage._share_cuda_))
    print(refused(torch.OutOfMemoryError, large.untyped_storage()._share_cuda_).splitlines()[0])
    cachalot.release_physical("weights", save=True)
    print(refused(RuntimeError, storage._share_cuda_))
    cachalot.restore_physical("weights")
    assert at == (tensor.data_ptr(), large.data_ptr())
    storage._share_cuda_()
    print(refused(RuntimeError, lambda: cachalot.release_physical("weights")))
    assert torch.equal(tensor.cpu(), torch.ones(16, dtype=torch.uint8))
    """, **simulated(memory="1GiB")))
    capture, memory, asleep, tag = output.splitlines()
    assert "cannot become plain memory: a graph is being captured on device 0" in capture
    assert "Tried to allocate 600.00 MiB" in memory
    assert "tag 'weights' is asleep on device 0: nothing can be shared from it" in asleep
    assert "of tag 'weights' is plain memory, which cannot sleep" in tag


@full_only
def test_share_is_refused_in_words_and_by_default_moves_nothing():
    succeeds(run_python(f"""
    def refused(error_type, **arguments):
        try:
            cachalot.enable(**arguments)
        except error_type as error:
            return str(error)
        raise AssertionError("not refused")
    assert refused(ValueError, share="pages") == "share is 'pages'; it must be one of 'handles', 'copy'"
    assert "share='copy' needs an adapter" in refused(cachalot.EnableError, share="copy", mode="plug")
    cachalot.enable(mode={ENABLE_MODE!r})
    tensor = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    at = tensor.data_ptr()
    tensor.untyped_storage()._share_cuda_()
    assert tensor.data_ptr() == at
    cachalot.enable(share="handles")
    assert "with share 'handles'; it cannot change to 'copy'" in refused(cachalot.EnableError, share="copy")
    import os; os._exit(0)
    """, preamble="import torch\nimport cachalot\n"))


# One rank, whose collectives check that memory which NCCL has registered has the pages it had then.
REGISTERED = """
import torch.distributed as dist
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(1, device="cuda"))
def fill_and_empty():
    junk = [torch.empty(7 << 20, dtype=torch.uint8, device="cuda") for _ in range(40)]
    del junk[::2]
    large = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    del junk, large
    torch.cuda.empty_cache()
"""


@not_plug
def test_a_pool_that_nccl_has_registered_keeps_its_pages():
    code = REGISTERED + """
backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cuda"))
pool = torch.cuda.MemPool()
def in_pool():
    with torch.cuda.use_mem_pool(pool):
        if "cachalot" in sys.modules:
            sys.modules["cachalot"].make_plain(pool)
        return torch.ones(4 << 20, device="cuda")
tensor = in_pool()
backend.register_mem_pool(pool)
for _ in range(5):
    del tensor
    fill_and_empty()
    tensor = in_pool()
    dist.all_reduce(tensor)
backend.deregister_mem_pool(pool)
segments = [segment for segment in torch.cuda.memory_snapshot() if segment["segment_pool_id"] == pool.id]
assert segments and not any(segment["is_expandable"] for segment in segments)
"""
    succeeds(run_python("import sys\n" + code))


@not_plug
def test_segments_are_registered_as_they_come_and_deregistered_as_they_go():
    code = REGISTERED + """
torch.cuda.memory._set_allocator_settings("expandable_segments:False")
for mib in (30, 50, 30, 70):
    tensor = torch.ones(mib << 18, device="cuda")
    dist.all_reduce(tensor)
    del tensor
    fill_and_empty()
"""
    succeeds(run_python(code, TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK="1"))
