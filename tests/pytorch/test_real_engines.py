"""The real vLLM, torch_memory_saver and SGLang over cachalot, as far as they run on a simulated GPU.

Tests of a package that is not installed are skipped; with CACHALOT_TEST_ENGINES=installed they fail, as in CI's stage `engines`.
"""

import importlib
import importlib.metadata
import importlib.util
import inspect
import os
import sys
import textwrap
import tomllib
from pathlib import Path

import engines
import pytest
from world import MODE, run_python, run_quickly, start_quickly, succeeds

pytestmark = pytest.mark.skipif(MODE != "pages", reason="segments cannot sleep")
FOLDER = Path(__file__).parent


def needs(package, version):
    """Skips the test where the package is not installed, or fails it where it should be, with this version."""
    if importlib.util.find_spec(package) is not None:
        found = importlib.metadata.version(package)
        assert os.environ.get("CACHALOT_TEST_ENGINES") != "installed" or found == version, f"{package} {found} is installed"
    elif os.environ.get("CACHALOT_TEST_ENGINES") == "installed":
        pytest.fail(f"{package} is not installed")
    else:
        pytest.skip(f"{package} is not installed")


# --- vLLM -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def vllm(tmp_path):
    """The variables of a process that has vLLM, and cachalot as its wheel installs it: with its entry points."""
    needs("vllm", "0.33.0")
    project = tomllib.loads((FOLDER.parents[1] / "pyproject.toml").read_text())["project"]
    wheel = tmp_path / "cachalot-0.dist-info"
    wheel.mkdir()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: cachalot\nVersion: 0\n")
    groups = project["entry-points"].items()
    (wheel / "entry_points.txt").write_text(
        "".join(f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items()) for group, points in groups)
    )
    return {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(FOLDER), os.environ["PYTHONPATH"]]),
        "VLLM_SKIP_P2P_CHECK": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }


INTERFACE = """
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackend, SleepModeBackendFactory
    from vllm.plugins import load_general_plugins
    from vllm.v1.worker.worker_base import WorkerWrapperBase
    load_general_plugins()
    from cachalot._start.vllm_sleep import tagged_memory
    made = SleepModeBackendFactory.get_backend_class("cachalot")
    assert issubclass(made, SleepModeBackend) and not made.__abstractmethods__
    assert WorkerWrapperBase.init_device.__wrapped__ is not None
    with tagged_memory().use_memory_pool("weights"):
        weights = torch.arange(1000, dtype=torch.int32).cuda()
    with tagged_memory().use_memory_pool("kv_cache"):
        kv_cache = torch.ones(1000, dtype=torch.int32).cuda()
    backend = made()
    backend.suspend(1)
    assert backend.state() == "SUSPENDED" and torch.cuda.memory_reserved() == 0
    backend.resume(["weights"])
    assert backend.state() == "SUSPENDED" and torch.equal(weights.cpu(), torch.arange(1000, dtype=torch.int32))
    backend.resume(["kv_cache"])
    assert backend.state() == "RUNNING"
"""


def test_the_real_vllm_finds_the_entry_point_and_sleeps_on_cachalot(vllm):
    succeeds(run_python(INTERFACE, **vllm))


MEMORY = """
    import inspect
    from vllm.device_allocator import DEFERRABLE_TAGS, MemAllocator
    from cachalot._start.vllm_sleep import TaggedMemory, _DEFERRABLE
    assert _DEFERRABLE == DEFERRABLE_TAGS
    names = [name for name in vars(MemAllocator) if not name.startswith("_")]
    assert "discard" in names, names
    for name in names:
        asked, ours = (inspect.signature(getattr(each, name)).parameters for each in (MemAllocator, TaggedMemory))
        assert list(asked) == list(ours), (name, list(asked), list(ours))
        assert [each.default for each in asked.values()] == [each.default for each in ours.values()], name
"""


def test_tagged_memory_has_the_functions_of_the_real_vllms_allocators(vllm):
    succeeds(run_python(MEMORY, **vllm))


def test_a_thousand_sleeps_of_the_real_vllms_worker_leave_no_byte_behind(vllm):
    process = run_quickly([sys.executable, str(FOLDER / "vllm_worker.py"), "1000"], CACHALOT_CONF="", **vllm)
    assert "1000 cycles of vllm.v1.worker.gpu_worker" in succeeds(process)


def test_an_engine_of_the_real_vllm_captures_graphs_and_sleeps(vllm, tmp_path):
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": 0, "VLLM_USE_FLASHINFER_SAMPLER": 0, "HF_HUB_OFFLINE": 1}
    process = run_quickly([sys.executable, str(FOLDER / "vllm_engine.py"), str(tmp_path), "300"], CACHALOT_CONF="", **settings, **vllm)
    assert "300 cycles of an engine" in succeeds(process)


RANK = """
    import runpy, sys
    sys.argv[1:] = {arguments!r}
    runpy.run_path({program!r}, run_name="__main__")
"""


def test_graphs_of_two_ranks_have_the_real_vllms_all_reduce(vllm, tmp_path):
    program, group = str(FOLDER / "vllm_all_reduce.py"), str(tmp_path / "group")
    with open(os.devnull, "rb") as nothing, open(tmp_path / "output", "wb") as output:
        streams = {"stdin": nothing, "stdout": output}
        codes = [textwrap.dedent(RANK.format(program=program, arguments=[str(rank), group])) for rank in range(2)]
        ranks = [start_quickly("import torch\n" + code, **streams, CACHALOT_CONF="", **vllm) for code in codes]
        for rank in ranks:
            succeeds(rank.wait(120))
    assert (tmp_path / "output").read_text().count("captured") == 2


# --- torch_memory_saver ---------------------------------------------------------------------------------------------------


@pytest.fixture
def memory_saver():
    needs("torch_memory_saver", "0.0.10")
    return importlib.import_module("torch_memory_saver")


def public(thing):
    return {name for name in vars(thing) if not name.startswith("_")}


def test_the_real_torch_memory_savers_functions_are_all_there_with_its_parameters(memory_saver):
    from cachalot import torch_memory_saver as ours

    functions = {name for name in public(memory_saver) if not inspect.ismodule(getattr(memory_saver, name))}
    assert {"TorchMemorySaver", "configure_subprocess", "torch_memory_saver"} <= functions <= public(ours)
    real = memory_saver.TorchMemorySaver
    assert {"region", "pause", "resume"} <= public(real) <= public(ours.TorchMemorySaver)
    for name in public(real):
        asked, given = (inspect.getattr_static(each, name) for each in (real, ours.TorchMemorySaver))
        if isinstance(asked, property):
            assert isinstance(given, property) and (given.fset is not None or asked.fset is None), name
        else:
            assert parameters(asked) == parameters(given), name
    assert parameters(memory_saver.configure_subprocess) == parameters(ours.configure_subprocess)


def parameters(function):
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


def test_the_real_torch_memory_saver_works_over_cachalot(memory_saver):
    import torch
    from cachalot.torch_memory_saver import TorchMemorySaver

    facade = memory_saver.TorchMemorySaver()
    facade._impl = TorchMemorySaver()  # as register_hook_mode would
    with facade.region(tag="weights", enable_cpu_backup=True):
        weights = torch.arange(1000, dtype=torch.int32).cuda()
    graph = torch.cuda.CUDAGraph()
    with facade.cuda_graph(graph, tag="graph", enable_cpu_backup=True):
        inside = weights + 1
    facade.pause("weights")
    assert torch.equal(facade.get_cpu_backup(weights), torch.arange(1000, dtype=torch.int32))
    facade.pause("graph")
    facade.resume()
    with facade.region(), facade.disable():
        pass
    assert torch.equal(weights.cpu(), torch.arange(1000, dtype=torch.int32))
    del graph, inside


INSTALLED = """
    import cachalot.torch_memory_saver
    cachalot.torch_memory_saver.install()
    import torch_memory_saver
    if not hasattr(torch_memory_saver, "register_hook_mode"):
        assert torch_memory_saver is cachalot.torch_memory_saver
"""


def test_programs_get_cachalots_where_the_real_torch_memory_saver_is_installed(memory_saver):
    succeeds(run_python(INSTALLED + engines.SLEEP_AND_WAKE, preamble="import torch\n", CACHALOT_CONF=""))


# --- SGLang ---------------------------------------------------------------------------------------------------------------

SGLANG = """
    import cachalot.torch_memory_saver
    cachalot.torch_memory_saver.install()
    from sglang.srt.constants import GPU_MEMORY_ALL_TYPES
    from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter, import_error
    assert import_error is None
    weights_tag, kv_tag, graph_tag = "weights", "kv_cache", "cuda_graph"
    assert {weights_tag, kv_tag, graph_tag} == set(GPU_MEMORY_ALL_TYPES)
    saver = TorchMemorySaverAdapter.create(enable=True)
    saver.check_validity("test")
    assert saver.enabled
    with saver.configure_subprocess():
        pass
    with saver.region(weights_tag, enable_cpu_backup=True):
        weights = torch.arange(1000, dtype=torch.int32).cuda()
        with saver.disable():
            outside = torch.ones(1000, dtype=torch.int32).cuda()
    with saver.region(kv_tag):
        kv_cache = torch.ones(1000, dtype=torch.int32).cuda()
    graph, stream, pool = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    with saver.cuda_graph(cuda_graph=graph, pool=pool, stream=stream, tag=graph_tag, enable_cpu_backup=True):
        inside = outside + 1
    tensors = [weights, kv_cache, inside]
    addresses = [tensor.data_ptr() for tensor in tensors]
    for cycle in range(1000):
        for tag in (kv_tag, weights_tag, graph_tag):
            saver.pause(tag)
        assert torch.cuda.memory_reserved() == 2 << 20, torch.cuda.memory_reserved()
        for tag in (graph_tag, weights_tag, kv_tag):
            saver.resume(tag)
        graph.replay()
        assert torch.equal(weights.cpu(), torch.arange(1000, dtype=torch.int32)), cycle
    assert [tensor.data_ptr() for tensor in tensors] == addresses
"""


def test_the_real_sglangs_adapter_pauses_and_resumes_a_thousand_times():
    needs("sglang", "0.5.23")
    succeeds(run_python(SGLANG, preamble="import torch\n", CACHALOT_CONF=""))
