"""enable(late=True): cachalot takes over while PyTorch's own allocator has memory out."""

import pytest
import world
from world import run_python, succeeds

pytestmark = world.full_only

# Each program begins on PyTorch's own allocator.
TAKE_OVER = "import torch, cachalot\n"


def late(code: str, **environment: object) -> str:
    return succeeds(run_python(code, preamble=TAKE_OVER, **environment))


def test_tensors_pools_and_graphs_from_before_die_in_peace():
    late(
        """
        tensor = torch.empty(1 << 20, device="cuda")
        raw = torch.cuda.caching_allocator_alloc(1 << 20)
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            pooled = torch.empty(1 << 20, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = torch.empty(1 << 20, device="cuda")
        cachalot.enable(late=True)
        new = torch.empty(1 << 20, device="cuda")
        assert torch.cuda.memory_allocated() == 4 << 20
        tensor.record_stream(torch.cuda.Stream())
        del tensor, pooled, captured, pool, graph
        torch.cuda.caching_allocator_delete(raw)
        torch.cuda.empty_cache()
        del new
        assert torch.cuda.memory_allocated() == 0
        """
    )


def test_memory_without_caching_is_ours():
    late(
        """
        before = torch.empty(1 << 20, device="cuda")
        cachalot.enable(late=True)
        torch.cuda.caching_allocator_enable(False)
        uncached = torch.empty(1 << 20, device="cuda")
        raw = torch.cuda.caching_allocator_alloc(1 << 20)
        torch.cuda.caching_allocator_enable(True)
        torch.cuda.caching_allocator_delete(raw)
        del uncached, before
        """
    )


@pytest.mark.parametrize("ask_first", [True, False])
def test_what_is_freed_after_the_change_can_be_had_again(ask_first):
    late(
        f"""
        total = torch.cuda.mem_get_info()[1]
        before = torch.empty(int(0.6 * total), dtype=torch.uint8, device="cuda")
        cachalot.enable(late=True)
        del before
        if {ask_first}:
            torch.cuda.empty_cache()
            assert torch.cuda.mem_get_info()[0] > 0.9 * total
        torch.empty(int(0.6 * total), dtype=torch.uint8, device="cuda")
        """
    )


def test_a_limit_stays():
    late(
        """
        torch.cuda.set_per_process_memory_fraction(0.25)
        torch.empty(1, device="cuda")
        cachalot.enable(late=True)
        assert torch.cuda.get_per_process_memory_fraction() == 0.25
        """
    )


def test_only_the_device_in_use_gets_a_context():
    succeeds(
        run_python(
            """
            torch.empty(1, device="cuda")
            assert [torch._C._cuda_hasPrimaryContext(i) for i in range(torch.cuda.device_count())] == [True, False]
            """
        )
    )


def test_the_native_backend_may_be_named_in_settings():
    succeeds(
        run_python(
            """
            torch.empty(1, device="cuda")
            torch._C._accelerator_setAllocatorSettings("backend: native, max_split_size_mb: 64")
            settings = torch.cuda.memory._snapshot()["allocator_settings"]
            assert settings["max_split_size"] == 64 << 20, settings
            """
        )
    )
