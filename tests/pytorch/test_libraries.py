"""The heap as other libraries share it with PyTorch, without those libraries: cachalot.library_usage(), and what every
integration calls (tests/integrations has the libraries themselves).
"""

import threading

import pytest
import torch
from world import MODE, PAGES, MiB, not_native, not_pages, not_plug, run_python, succeeds

import cachalot

pytestmark = not_native

def fresh(code):
    """Runs code in a new process that has imported nothing; it must end well and say nothing of errors."""
    ended = run_python(code, fresh=True, preamble="")
    succeeds(ended)
    assert ended.stderr == ""


@pytest.fixture
def heap():
    from cachalot._heap.libraries import LibraryHeap

    return LibraryHeap("test")


def usage(library, device=0):
    rows = [row for row in cachalot.library_usage() if (row.library, row.device) == (library, device)]
    return rows[0] if rows else cachalot.LibraryUsage(library, device, 0, 0, 0, 0)


def test_a_library_and_torch_share_one_heap_and_their_bytes_add_up(heap):
    address = heap.allocate(5 * MiB, 0)
    tensor = torch.empty(3 * MiB, dtype=torch.uint8, device="cuda")
    assert usage("test").live_bytes == 5 * MiB
    assert usage("torch").live_bytes == tensor.nbytes
    assert torch.cuda.memory_allocated() == 8 * MiB
    heap.free(address)
    assert torch.cuda.memory_allocated() == 3 * MiB
    again = torch.empty(5 * MiB, dtype=torch.uint8, device="cuda")
    assert again.data_ptr() == address


def test_live_bytes_peak_and_counts_are_those_of_the_blocks(heap):
    before = usage("test")
    addresses = [heap.allocate(1000, 0) for _ in range(10)]
    for address in addresses[:9]:
        heap.free(address)
    after = usage("test")
    assert after.live_bytes - before.live_bytes == 1024
    assert after.peak_bytes == max(before.peak_bytes, before.live_bytes + 10 * 1024)
    assert (after.allocations - before.allocations, after.frees - before.frees) == (10, 9)
    heap.free(addresses[9])


def test_counts_are_exact_with_threads_that_free_each_others_memory(heap):
    before = usage("test")
    addresses = [[] for _ in range(4)]

    def allocate(mine):
        mine += [heap.allocate(512 * (1 + number % 7), 0) for number in range(500)]

    def free(mine):
        for address in mine:
            heap.free(address)

    for work, lists in ((allocate, addresses), (free, addresses[::-1])):
        threads = [threading.Thread(target=work, args=(mine,)) for mine in lists]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    after = usage("test")
    assert (after.allocations - before.allocations, after.frees - before.frees) == (2000, 2000)
    assert after.live_bytes == before.live_bytes
    assert after.peak_bytes <= before.live_bytes + 2000 * 7 * 512


def test_each_device_has_a_row_of_its_own(heap):
    address = heap.allocate(MiB, 1)
    assert (usage("test", 0).live_bytes, usage("test", 1).live_bytes) == (0, MiB)
    heap.free(address)
    assert usage("test", 1).live_bytes == 0


def test_memory_that_another_stream_uses_comes_back_after_its_work(heap):
    stream = torch.cuda.Stream()
    address = heap.allocate(7 * MiB, 0, torch.cuda.current_stream().cuda_stream)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1 << 40)
    heap.free_after(address, stream.cuda_stream)
    other = heap.allocate(7 * MiB, 0, torch.cuda.current_stream().cuda_stream)
    assert other != address
    heap.free(other)


def test_out_of_memory_is_the_librarys_own_error_with_the_whole_text():
    from cachalot._heap.libraries import LibraryHeap

    class TooBig(Exception):
        pass

    small = LibraryHeap("test", out_of_memory=TooBig)
    before = usage("test")
    with pytest.raises(TooBig, match=r"CUDA out of memory. Tried to allocate 1024.00 GiB. GPU 0 has a total capacity"):
        small.allocate(1 << 40, 0)
    assert usage("test") == before


def test_a_mistake_names_value_and_rule_and_changes_nothing(heap):
    address = heap.allocate(1000, 0)
    before = cachalot.library_usage()
    for mistake, text in (
        (lambda: heap.free(address + 512), "is not a live allocation"),
        (lambda: heap.allocate(1000, 7), "device 7 is not one of the"),
        (lambda: type(heap)("torch"), "library is 'torch'"),
        (lambda: type(heap)("test", "foo:1"), "Unrecognized key 'foo'"),
    ):
        with pytest.raises(ValueError, match=text):
            mistake()
        assert cachalot.library_usage() == before
    for wrong in (lambda: heap.allocate("1000", 0), lambda: heap.malloc(1000)):
        with pytest.raises(TypeError):
            wrong()
    heap.free(address)


def test_nothing_is_taken_for_0_bytes_and_nothing_freed_at_address_0(heap):
    before = usage("test")
    assert heap.allocate(0, 0) == 0
    heap.free(0)
    assert usage("test") == before


def test_torch_takes_the_heap_of_a_library_that_came_first():
    fresh(f"""
        import torch, cachalot
        from cachalot._heap.libraries import LibraryHeap

        def adds_up():
            rows = cachalot.library_usage()
            assert sum(row.live_bytes for row in rows) == torch.cuda.memory_allocated(0), rows
            return {{row.library: row for row in rows}}

        assert cachalot.library_usage() == ()
        heap = LibraryHeap("test", "heap:{'pages' if PAGES else 'segments'}")
        address = heap.allocate(5 << 20, 0)
        cachalot.enable(mode="{'plug' if MODE == 'plug' else 'full'}")
        tensor = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
        rows = adds_up()
        assert (rows["test"].live_bytes, rows["torch"].live_bytes) == (5 << 20, 3 << 20)
        assert rows["torch"].allocations == 1
        heap.free(address)
        assert adds_up()["test"].live_bytes == 0
    """)


def test_options_of_torch_and_of_a_library_must_agree():
    fresh("""
        import cachalot, torch
        from cachalot._heap.libraries import LibraryHeap
        LibraryHeap("test", "max_split_size_mb:64")
        try:
            cachalot.enable("max_split_size_mb:65")
        except cachalot.EnableError as error:
            assert "'max_split_size_mb:64'" in str(error) and not cachalot.is_enabled()
        else:
            raise AssertionError("it was not refused")
        cachalot.enable()
        cachalot.enable("max_split_size_mb:64")
    """)


def test_a_process_without_torch_uses_the_heap_and_ends_well():
    fresh("""
        import sys, threading
        from cachalot._heap.libraries import LibraryHeap
        import cachalot
        heap = LibraryHeap("test")
        kept = heap.allocate(1000, 0)
        threading.Thread(target=heap.free, args=(heap.allocate(1000, 0),)).start()
        class AtTheEnd:
            def __init__(self):
                self.address, self.free = heap.allocate(1000, 0), heap.free
            def __del__(self):
                self.free(self.address)
        sys.modules["kept until the end"] = AtTheEnd()
        assert "torch" not in sys.modules
    """)


def test_a_forked_child_frees_nothing_and_has_no_usage():
    fresh("""
        import os, cachalot
        from cachalot._heap.libraries import LibraryHeap
        heap = LibraryHeap("test")
        address = heap.allocate(1000, 0)
        child = os.fork()
        if child == 0:
            heap.free(address)
            os._exit(len(cachalot.library_usage()))
        assert os.waitpid(child, 0)[1] == 0
        assert [row.live_bytes for row in cachalot.library_usage()] == [1024]
    """)


def test_without_caching_allocations_are_counted_and_their_bytes_as_torch_does_not_at_all():
    fresh("""
        import os
        os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
        import cachalot
        from cachalot._heap.libraries import LibraryHeap
        heap = LibraryHeap("test")
        heap.free(heap.allocate(1000, 0))
        (row,) = cachalot.library_usage()
        assert (row.allocations, row.frees, row.live_bytes) == (1, 1, 0)
    """)


@not_plug
@not_pages
def test_enable_all_serves_torch_right_after_its_import():
    fresh("""
        import sys, cachalot
        assert "torch" in cachalot.enable_all("heap:pages").at_import and "torch" not in sys.modules
        import torch
        assert cachalot.enabled_mode() == "full" and cachalot.enable_all().enabled == ("torch",)
        tensor = torch.ones(1000, device="cuda")
        assert [(row.library, row.live_bytes) for row in cachalot.library_usage()] == [("torch", 4096)]
    """)


@not_plug
@not_pages
def test_enable_all_says_why_torch_is_left_out():
    fresh("""
        import torch, cachalot
        tensor = torch.ones(1000, device="cuda")
        result = cachalot.enable_all()
        assert result.enabled == () and not cachalot.is_enabled()
        assert "torch: CUDA is in use already: a CUDA tensor came first" in str(result)
    """)
