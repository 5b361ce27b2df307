"""Engines that sleep on cachalot: vLLM's backend of sleep mode, and torch_memory_saver's interface, which SGLang uses.

Call sequences are those of vLLM 0.33 and torch_memory_saver 0.0.10; test_real_engines.py has the packages
themselves. The simulated runtime keeps the content of copies up to 1 MiB.
"""

import gc
import importlib
import logging
import os
import re
import sys
import tomllib
from pathlib import Path

import engines
import pytest
import torch
from world import MODE, PAGES, MiB, bytes_on_gpu, not_native, run_python, succeeds

pages_only = pytest.mark.skipif(not PAGES, reason="segments cannot sleep")


# --- vLLM -----------------------------------------------------------------------------------------------------------------


def entry_point():
    """The entry point of the wheel."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    module, _, function = project["entry-points"]["vllm.general_plugins"]["cachalot"].partition(":")
    return getattr(importlib.import_module(module), function)


@pytest.fixture
def vllm():
    with engines.vllm():
        from cachalot._start import vllm_sleep

        vllm_sleep.tagged_memory.cache_clear()
        entry_point()()
        yield engines
        vllm_sleep.tagged_memory.cache_clear()
    wake_all()


def wake_all():
    """Leaves no tag asleep to the next test."""
    gc.collect()
    if PAGES:
        cachalot().restore_physical({region.tag for region in cachalot().regions() if region.is_asleep})


def started(**config):
    """A worker that has begun to serve."""
    worker = started_wrapper(**config).worker
    worker.load_model()
    worker.initialize_kv_cache()
    return worker


def started_wrapper(**config):
    wrapper = engines.WorkerWrapperBase(engines.model_config(**config))
    wrapper.init_device()
    return wrapper


def contents(tensors):
    return [tensor.cpu() for tensor in tensors]


def same(tensors, expected):
    return [torch.equal(tensor.cpu(), content) for tensor, content in zip(tensors, expected, strict=True)]


def reserved():
    return torch.cuda.memory_reserved()


@pages_only
def test_level_1_keeps_the_weights_and_drops_the_kv_cache(vllm):
    worker = started()
    addresses, held = [tensor.data_ptr() for tensor in worker.tensors()], reserved()
    kept = [*worker.weights, worker.buffer, worker.lora, worker.block_table]
    expected = contents(kept)
    worker.sleep(level=1)
    assert worker.backend().state() == "SUSPENDED"
    assert reserved() == 0
    worker.wake_up()
    assert worker.backend().state() == "RUNNING"
    assert all(same(kept, expected))
    assert [tensor.data_ptr() for tensor in worker.tensors()] == addresses
    assert reserved() <= held
    assert not torch.equal(worker.kv_cache.cpu(), torch.ones(100_000, dtype=torch.int32))


@pages_only
def test_level_2_drops_the_weights_and_keeps_what_runs(vllm):
    worker = started()
    runtime = [worker.lora, worker.block_table]
    expected, weights = contents(runtime), contents(worker.weights)
    worker.sleep(level=2)
    assert reserved() == 0
    worker.wake_up()
    assert all(same(runtime, expected))
    assert worker.buffer.cpu().tolist() == [3.0] * 7
    assert not any(same(worker.weights, weights))


@pages_only
def test_a_partial_wake_leaves_the_kv_cache_asleep(vllm):
    worker = started()
    expected = contents(worker.weights)
    worker.sleep()
    worker.wake_up(["weights"])
    assert worker.backend().state() == "SUSPENDED"
    asleep = {region.tag: region.is_asleep for region in cachalot().regions() if region.device == 0}
    assert asleep == {"kv_cache": True, "runtime": False, "weights": False, "workspace": False}
    assert all(same(worker.weights, expected))
    worker.wake_up(["kv_cache"])
    assert worker.backend().state() == "RUNNING"
    worker.sleep()
    worker.wake_up(["kv_cache"])
    assert worker.backend().state() == "SUSPENDED"
    worker.wake_up(None)
    assert all(same(worker.weights, expected))


@pages_only
def test_the_kv_cache_alone_is_discarded(vllm):
    worker = started()
    held = reserved()
    kv_bytes = next(region.reserved_bytes for region in cachalot().regions() if region.tag == "kv_cache")
    worker.discard(("kv_cache",))
    assert worker.backend().state() == "SUSPENDED"
    assert reserved() == held - kv_bytes
    expected = contents(worker.weights)
    worker.sleep()  # the KV cache stays as it is
    worker.wake_up()
    assert all(same(worker.weights, expected))
    assert worker.backend().state() == "RUNNING"


@pages_only
@pytest.mark.parametrize("offload", [False, True])
def test_graphs_sleep_where_vllm_asks_for_it(vllm, offload, monkeypatch):
    monkeypatch.delenv("NCCL_GRAPH_REGISTER", raising=False)
    worker = started(sleep_mode_offload_cudagraph=offload)
    assert os.environ.get("NCCL_GRAPH_REGISTER") == ("0" if offload else None)
    worker.capture()
    address = worker.in_graph.data_ptr()
    worker.sleep()
    graphs = [row for row in cachalot().awake_report().rows if row.owner.startswith("graph or MemPool")]
    assert (graphs == []) == offload
    worker.wake_up()
    assert worker.in_graph.data_ptr() == address
    if offload:
        worker.graph.replay()
    torch.cuda.synchronize()


@pages_only
def test_what_stays_awake_is_logged_with_what_would_free_it(vllm, caplog):
    worker = started()
    outside = bytes_on_gpu(6 * MiB)
    with caplog.at_level(logging.INFO, logger="vllm.cachalot"):
        worker.sleep()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "vllm.cachalot"]
    assert re.search(r"6.00 MiB  tensors outside of all regions +their end, or allocate them within cachalot.region\(tag\)", line)
    assert "asleep, " in line and "tag 'weights'" not in line
    worker.wake_up()
    del outside


@pages_only
def test_a_host_without_memory_leaves_everything_awake(vllm, monkeypatch, tmp_path):
    worker = started()
    expected = contents(worker.tensors())
    held = reserved()
    monkeypatch.setenv("CACHALOT_SLEEP_FOLDER", str(tmp_path / "none"))
    with pytest.raises(RuntimeError, match="none' .No such file or directory.; it must be a folder"):
        worker.sleep()
    assert worker.backend().state() == "RUNNING"
    assert all(same(worker.tensors(), expected))
    monkeypatch.setenv("CACHALOT_SLEEP_FOLDER", str(tmp_path))
    worker.sleep()
    assert list(tmp_path.iterdir()) == [] and reserved() == 0
    worker.wake_up()
    assert all(same(worker.weights, expected[: len(worker.weights)])) and reserved() <= held


@pages_only
def test_a_thousand_sleeps_of_a_worker_leave_no_byte_behind(vllm):
    worker = started(sleep_mode_offload_cudagraph=True)
    worker.capture()
    addresses = [tensor.data_ptr() for tensor in worker.tensors()]
    kept = [*worker.weights[:3], worker.lora, worker.block_table]
    expected = contents(kept)
    worker.sleep()
    worker.wake_up()
    torch.cuda.empty_cache()
    held, free = reserved(), torch.cuda.mem_get_info()[0]
    for cycle in range(1000):
        worker.sleep(level=1)
        worker.wake_up(["weights"] if cycle % 3 == 0 else None)
        if cycle % 3 == 0:
            worker.wake_up(["kv_cache"])
        assert (reserved(), torch.cuda.mem_get_info()[0]) == (held, free), cycle
        assert all(same(kept, expected)), cycle
    assert [tensor.data_ptr() for tensor in worker.tensors()] == addresses


@pages_only
def test_graphs_reduce_copies_since_pages_have_no_handles_of_cuda_ipc(vllm):
    started()
    assert not engines.CustomAllreduce(None, "cuda:0", register_graph_buffers=True).registers_graph_buffers


@pages_only
def test_the_backend_says_what_it_can(vllm):
    backend = started().backend()
    flags = ("is_supported", "preserves_communicators", "preserves_compiled_artifacts", "preserves_graphs_with_communicators")
    assert [getattr(type(backend), flag)() for flag in flags] == [True] * 4
    assert type(backend).supports_durable_storage() is False


@not_native
def test_plugins_may_be_loaded_twice_and_other_backends_are_left_alone(vllm):
    first = engines.WorkerWrapperBase.init_device
    entry_point()()
    assert engines.WorkerWrapperBase.init_device is first
    started_wrapper(sleep_mode_backend="cumem")
    started_wrapper(enable_sleep_mode=False)
    with pytest.raises(AssertionError, match="own allocator was asked"):
        engines.CuMemAllocator.get_instance()


@not_native
def test_a_vllm_without_backends_of_sleep_mode_is_left_alone(caplog, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with caplog.at_level(logging.INFO, logger="cachalot"):
        entry_point()()
    assert "this vLLM has no backends of sleep mode (" in caplog.text


@pytest.mark.skipif(MODE != "full", reason="is about segments")
def test_a_heap_that_cannot_sleep_is_refused_when_the_worker_starts(vllm):
    with pytest.raises(RuntimeError, match="restore_physical needs heap:pages; the heap of device 0 is 'segments'"):
        started()


@pages_only
def test_a_worker_needs_no_enable_of_its_own():
    code = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        import engines
        with engines.vllm():
            from cachalot._start.vllm_sleep import register
            register()
            wrapper = engines.WorkerWrapperBase(engines.model_config())
            wrapper.init_device()
            import cachalot
            assert cachalot.is_enabled()
            wrapper.worker.load_model()
            wrapper.worker.initialize_kv_cache()
            wrapper.worker.sleep()
            assert torch.cuda.memory_reserved() == 0, torch.cuda.memory_reserved()
            wrapper.worker.wake_up()
            assert wrapper.worker.lora.cpu()[76] == 76
    """
    succeeds(run_python(code, preamble="import torch\n", CACHALOT_CONF=""))


# --- torch_memory_saver ---------------------------------------------------------------------------------------------------


def cachalot():
    return importlib.import_module("cachalot")


@pytest.fixture
def saver():
    from cachalot._start.memory_saver import TorchMemorySaver

    yield TorchMemorySaver()
    wake_all()


@pages_only
def test_a_tag_pauses_and_resumes_at_the_same_address(saver):
    with saver.region(tag="weights", enable_cpu_backup=True):
        weights = torch.arange(1000, dtype=torch.int32).cuda()
    with saver.region(tag="weights"):
        scratch = torch.ones(1000, dtype=torch.int32).cuda()
    with saver.region(tag="kv_cache"):
        kv_cache = torch.ones(1000, dtype=torch.int32).cuda()
    addresses = [tensor.data_ptr() for tensor in (weights, scratch, kv_cache)]
    saver.pause("weights")
    assert reserved() == 2 * MiB
    saver.pause("kv_cache")
    saver.pause()
    saver.pause("never used")
    assert reserved() == 0
    saver.resume("weights")
    assert torch.equal(weights.cpu(), torch.arange(1000, dtype=torch.int32))
    assert not torch.equal(scratch.cpu(), torch.ones(1000, dtype=torch.int32))
    assert reserved() == 4 * MiB
    saver.resume()
    saver.resume("kv_cache")
    assert [tensor.data_ptr() for tensor in (weights, scratch, kv_cache)] == addresses


@pages_only
@pytest.mark.parametrize("kept", ["enable_cpu_backup", "enable_disk_backup"])
def test_what_a_paused_tensor_keeps_can_be_read(saver, kept, tmp_path):
    saver.set_disk_backup_dir(str(tmp_path))
    with saver.region(tag="weights", **{kept: True}):
        weights = [torch.arange(1000 * (i + 1), dtype=torch.int32).cuda().view(-1, 10) for i in range(5)]
    with saver.region(tag="kv_cache"):
        kv_cache = torch.ones(10).cuda()
    expected = contents(weights)
    assert saver.get_cpu_backup(weights[0]) is None
    saver.pause()
    for tensor, content in zip(weights, expected, strict=True):
        assert torch.equal(saver.get_cpu_backup(tensor), content)
        assert torch.equal(saver.get_cpu_backup(tensor[7:9], zero_copy=True), content[7:9])
    assert saver.get_cpu_backup(kv_cache) is None
    saver.resume()
    assert saver.get_cpu_backup(weights[0]) is None


@pages_only
def test_a_thousand_pauses_leave_no_byte_behind(saver, tmp_path):
    saver.set_disk_backup_dir(str(tmp_path / "made"))
    tensors = {}
    for tag, backup in {"weights": "enable_cpu_backup", "optimizer": "enable_disk_backup", "kv_cache": ""}.items():
        with saver.region(tag=tag, **({backup: True} if backup else {})):
            tensors[tag] = [torch.arange(1000 * (i + 1), dtype=torch.int32).cuda() for i in range(3)]
    kept = tensors["weights"] + tensors["optimizer"]
    expected, addresses = contents(kept), [tensor.data_ptr() for tensor in kept]
    held, free = reserved(), torch.cuda.mem_get_info()[0]
    for cycle in range(1000):
        saver.pause()
        assert reserved() == 0
        saver.resume()
        assert (reserved(), torch.cuda.mem_get_info()[0]) == (held, free), cycle
        assert all(same(kept, expected)), cycle
    assert [tensor.data_ptr() for tensor in kept] == addresses
    assert list((tmp_path / "made").iterdir()) == []


@pages_only
def test_a_graph_pauses_with_its_tag(saver):
    source = torch.arange(1000, dtype=torch.int32).cuda()
    graph = torch.cuda.CUDAGraph()
    with saver.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
        inside = source + 1
    address = inside.data_ptr()
    outside = reserved()
    saver.pause("graph")
    assert reserved() < outside
    saver.resume("graph")
    assert reserved() == outside and inside.data_ptr() == address
    graph.replay()
    torch.cuda.synchronize()
    del graph, inside
    gc.collect()
    saver.pause()  # of a graph that is gone
    del source


@pages_only
def test_disable_takes_a_thread_out_of_its_regions(saver):
    with saver.region(tag="outer"), saver.region(tag="inner"):
        with saver.disable():
            outside = bytes_on_gpu(4 * MiB)
        inside = bytes_on_gpu(8 * MiB)
    saver.pause()
    assert reserved() == 4 * MiB
    saver.resume()
    assert {region.tag: region.allocated_bytes for region in cachalot().regions()} == {"inner": 8 * MiB}
    del outside, inside


@pages_only
def test_what_cannot_be_done_is_refused_in_words(saver, monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="are both True"), saver.region(enable_cpu_backup=True, enable_disk_backup=True):
        pass
    with pytest.raises(ValueError, match="cpu_backup_backend is 'disk'"), saver.region(enable_cpu_backup=True, cpu_backup_backend="disk"):
        pass
    with pytest.raises(ValueError, match="hook_mode is 'other'"):
        saver.hook_mode = "other"
    with pytest.raises(NotImplementedError, match="retain_cpu_backup is True"):
        saver.retain_cpu_backup = True
    for bad in (torch.empty(1), torch.empty((2, 2), device="cuda").t()):
        with pytest.raises(ValueError, match="it must be contiguous and on a GPU"):
            saver.get_cpu_backup(bad)
    saver.hook_mode = "preload"
    saver.retain_cpu_backup = False
    assert (saver.enabled, saver.hook_mode, saver.retain_cpu_backup) == (True, "cachalot", False)
    monkeypatch.delenv("TMS_DISK_BACKUP_DIR", raising=False)
    with saver.region(tag="disk", enable_disk_backup=True):
        kept = torch.arange(10, dtype=torch.int32).cuda()
    with pytest.raises(ValueError, match="folder is None; it must be an existing folder"):
        saver.pause()
    monkeypatch.setenv("TMS_DISK_BACKUP_DIR", str(tmp_path))
    saver.pause()
    saver.resume()
    assert kept.cpu().tolist() == list(range(10))


@pages_only
def test_a_margin_is_a_limit():
    code = """
        from cachalot.torch_memory_saver import torch_memory_saver
        free = torch.cuda.mem_get_info()[0]
        torch_memory_saver.memory_margin_bytes = 1 << 30
        assert cachalot.limits().limit_bytes == free - (1 << 30), (cachalot.limits(), free)
    """
    succeeds(run_python(code))


INSTALLED = """
    import sys, types
    import cachalot.torch_memory_saver
    cachalot.torch_memory_saver.install()
    cachalot.torch_memory_saver.install()
    import torch_memory_saver
    assert torch_memory_saver is sys.modules["cachalot.torch_memory_saver"]
    with torch_memory_saver.configure_subprocess():
        pass
"""


@pages_only
def test_programs_that_import_torch_memory_saver_get_cachalots():
    succeeds(run_python(INSTALLED + engines.SLEEP_AND_WAKE, preamble="import torch\n", CACHALOT_CONF=""))


@pages_only
def test_one_that_was_imported_before_is_refused():
    code = """
        import sys, types
        sys.modules["torch_memory_saver"] = types.ModuleType("torch_memory_saver")
        from cachalot.torch_memory_saver import install
        try:
            install()
        except RuntimeError as error:
            assert "has been imported already" in str(error)
        else:
            raise AssertionError("not refused")
    """
    succeeds(run_python(code))


class _HookModes:
    """torch_memory_saver with pluggable hook modes (fzyzcjy/torch_memory_saver#79), small."""

    def __init__(self):
        self.factories, self.chosen = {}, None
        self.torch_memory_saver = self

    def register_hook_mode(self, name, factory, *, uses_preload):
        if name in self.factories:
            raise ValueError(f"hook mode {name!r} is registered already")
        assert not uses_preload
        self.factories[name] = factory

    def __setattr__(self, name, value):
        super().__setattr__("chosen" if name == "hook_mode" else name, value)


@not_native
def test_a_package_with_hook_modes_gets_one(monkeypatch):
    from cachalot import torch_memory_saver

    real = _HookModes()
    monkeypatch.setitem(sys.modules, "torch_memory_saver", real)
    torch_memory_saver.install()
    torch_memory_saver.install()
    assert real.chosen == "cachalot" and real.factories["cachalot"]() is torch_memory_saver.torch_memory_saver
