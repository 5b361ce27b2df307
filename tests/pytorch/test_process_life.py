"""The life and end of a process with tensors: forked children, threads, atexit, sys.exit, os._exit, exceptions."""

import sys
import textwrap

import pytest
import torch
from world import MODE, PREAMBLE, full_only, not_native, run, run_python, succeeds

# Everything that can be alive: tensors, a graph, pinned memory, and with cachalot's pools leases, tensors and capsules.
HOLDINGS = """
    import atexit, os, sys, threading
    kept = [torch.ones(1 << shift, dtype=torch.uint8, device="cuda") for shift in range(8, 26)]
    kept[0].record_stream(torch.cuda.Stream())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = kept[3] + 1
    pinned = torch.ones(1000, pin_memory=True)
    mempool = in_mempool = None
    if HAS_MEMPOOL:
        mempool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(mempool):
            in_mempool = torch.ones(1000, device="cuda")
    if "cachalot" in sys.modules:
        pool = cachalot.TensorPool((16, 16))
        lease, pooled = pool.acquire(), pool.acquire().tensor
        capsule = pool.acquire().__dlpack__()
        pools = cachalot.PoolSet(1 << 20)
        of_set = pools.empty((16, 16))
""".replace("HAS_MEMPOOL", str(MODE != "plug"))

# The program's own code after the holdings, and the exit status it asks for.
ENDS = {
    "return": ("pass", 0),
    "sys.exit": ("sys.exit(7)", 7),
    "os._exit": ("os._exit(7)", 7),
    "sys.exit in a thread": ("t = threading.Thread(target=lambda: sys.exit(7)); t.start(); t.join()", 0),
    "tensors freed at exit": ("atexit.register(kept.clear); atexit.register(torch.cuda.empty_cache)", 0),
    "tensors made at exit": ("atexit.register(lambda: kept.append(torch.ones(1000, device='cuda')))", 0),
    "threads that still allocate": (
        """
        started = threading.Barrier(5)
        def work():
            started.wait()
            for n in range(3000):
                torch.empty(n * 100 + 1, device="cuda")
        for _ in range(4):
            threading.Thread(target=work).start()
        started.wait()
        """,
        0,
    ),
    "os._exit while threads allocate": (
        """
        started = threading.Barrier(5)
        def work():
            started.wait()
            while True:
                torch.empty(1000, device="cuda")
        for _ in range(4):
            threading.Thread(target=work, daemon=True).start()
        started.wait()
        os._exit(7)
        """,
        7,
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_a_program_ends_as_it_asks_to_and_in_silence(end):
    code, status = ENDS[end]
    process = run_python(textwrap.dedent(HOLDINGS) + textwrap.dedent(code), search_at_end=True)
    assert (process.returncode, process.stdout, process.stderr) == (status, "", "")


def test_after_an_exception_stderr_has_the_traceback_alone():
    process = run_python(textwrap.dedent(HOLDINGS) + "raise ValueError('a bug of the user')", fresh=True)
    assert process.returncode == 1
    lines = process.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "ValueError: a bug of the user"
    assert len(lines) <= 5, process.stderr


@not_native  # torch's own ends a child that drops a tensor which was recorded on another stream
@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)"])
def test_a_forked_child_drops_what_it_inherits_and_ends(end):
    code = f"""
    child = os.fork()
    if child == 0:
        if "cachalot" in sys.modules:
            lease.release()
            del pooled, capsule, of_set
            del pool, pools
        del graph, static, mempool, in_mempool
        kept.clear()
        {end}
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if "cachalot" in sys.modules:
        assert pool.stats().live == 3 and pools.stats().live == 1
    more = torch.ones(1000, device="cuda")
    """
    process = run_python(textwrap.dedent(HOLDINGS) + textwrap.dedent(code), search_at_end=True)
    succeeds(process)
    # torch's own, of the graph.
    assert [line for line in process.stderr.splitlines() if "CUDA warning: initialization error" not in line] == []


@not_native
def test_a_forked_child_is_told_why_it_gets_no_memory():
    code = """
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (
            lambda: torch._C._cuda_emptyCache(),
            lambda: pool.acquire(),
            lambda: pools.empty((16, 16)),
            lambda: pool.stats(),
            lambda: cachalot.TensorPool((16,)),
        ):
            try:
                use()
            except Exception as error:
                assert "fork" in str(error), error
                refused += 1
        os._exit(0 if refused == 5 else refused + 10)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    succeeds(run_python(textwrap.dedent(HOLDINGS) + textwrap.dedent(code), search_at_end=True))


@full_only  # torch's own allocator and its CUDAPluggableAllocator have locks that a child waits for if a thread held them
def test_children_forked_while_threads_allocate_end_without_waiting_for_them():
    code = """
    done = threading.Event()
    def work():
        n = 0
        while not done.is_set():
            n += 1
            torch.empty(n % 5000 * 100 + 1, device="cuda")
            if n % 50 == 0:
                torch.cuda.empty_cache()
                torch.cuda.memory_stats()
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        child = os.fork()
        if child == 0:
            kept.clear()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    done.set()
    for thread in threads:
        thread.join()
    """
    succeeds(run_python(textwrap.dedent(HOLDINGS) + textwrap.dedent(code), search_at_end=True, timeout=60))


def test_workers_that_are_forked_after_cuda_is_used_load_data(tmp_path):
    script = tmp_path / "loader.py"
    script.write_text(
        PREAMBLE
        + textwrap.dedent(
            """
            class Numbers(torch.utils.data.Dataset):
                def __len__(self):
                    return 64
                def __getitem__(self, i):
                    return torch.full((4,), i)

            kept = torch.ones(1 << 20, device="cuda")
            for _ in range(2):
                loader = torch.utils.data.DataLoader(
                    Numbers(), batch_size=8, num_workers=2, pin_memory=True, multiprocessing_context="fork"
                )
                total = sum(int(batch.cuda().cpu().sum()) for batch in loader)
                assert total == 4 * sum(range(64)), total
            """
        )
    )
    process = run([sys.executable, script])
    succeeds(process)
    assert process.stderr == ""
