"""A worker of the real vLLM around a small model: WorkerWrapperBase, gpu_worker.Worker and what they call are vLLM's, its model runner is
not. Run as a program it sleeps and wakes as many times as its argument says, and prints what it checked."""

import gc
import sys
from types import SimpleNamespace

import torch
from vllm.compilation.cudagraph_pool import capture_pool
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.plugins import load_general_plugins
from vllm.v1.worker.gpu_worker import Worker
from vllm.v1.worker.worker_base import WorkerWrapperBase

WEIGHTS = torch.arange(10_000, dtype=torch.float32).view(100, 100)
MODEL_CONFIG = {
    "enable_sleep_mode": True,
    "sleep_mode_backend": "cachalot",
    "sleep_mode_offload_cudagraph": True,
    "enable_cumem_allocator": True,
    "enable_nccl_comm_suspend": False,
    "sleep_preserve_parameter_names": ["layers.0.*"],
}


class Runner:
    """A model runner loads the model and makes the KV cache where the worker says."""

    def load_model(self, load_dummy_weights=False):
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList(torch.nn.Linear(100, 100, device="cuda") for _ in range(8))
        for layer in self.model.layers:
            layer.weight.data.copy_(WEIGHTS)
        self.model.register_buffer("scale", torch.full((7,), 3.0).cuda())

    def initialize_kv_cache(self, kv_cache_config, kv_cache_allocation_context):
        self.block_table = torch.arange(500, dtype=torch.int32).cuda()
        with kv_cache_allocation_context:
            self.kv_cache = torch.ones(100_000, dtype=torch.int32).cuda()

    def capture(self, config):
        """Captures a graph as vLLM's CUDAGraphWrapper does."""
        self.graph = torch.cuda.CUDAGraph()
        with capture_pool(current_platform.get_global_graph_pool(), config) as pool, torch.cuda.graph(self.graph, pool=pool):
            self.in_graph = self.block_table + 1

    def weights(self):
        return [layer.weight.data for layer in self.model.layers]

    def tensors(self):
        return [*self.model.state_dict().values(), self.block_table, self.kv_cache, self.in_graph]


class SmallWorker(Worker):
    """A SmallWorker is vLLM's worker, which has no ranks and begins without a model's files."""

    def __init__(self, config):
        self.vllm_config, self.model_config = config, config.model_config
        self.model_runner = Runner()
        self._sleep_mode_backend = None
        self._sleep_saved_buffers, self._sleep_saved_parameters, self._sleep_saved_draft_buffers = {}, {}, {}

    def init_device(self):
        torch.cuda.init()

    def get_draft_model(self):
        return None

    def initialize_kv_cache(self):
        """Does what Worker.initialize_from_config does with memory."""
        with self._maybe_get_memory_pool_context("runtime"):
            self.model_runner.initialize_kv_cache(None, self._maybe_get_memory_pool_context("kv_cache"))

    def synchronize_device(self):
        torch.cuda.synchronize()


def started():
    """Returns a worker that serves, by the calls of vLLM's executor."""
    load_general_plugins()
    config = VllmConfig()
    config.model_config = SimpleNamespace(**MODEL_CONFIG)
    wrapper = WorkerWrapperBase()
    wrapper.vllm_config, wrapper.worker = config, SmallWorker(config)
    wrapper.init_device()
    wrapper.load_model()
    wrapper.worker.initialize_kv_cache()
    wrapper.model_runner.capture(config)
    return wrapper.worker


def holds(tensor, expected):
    return torch.equal(tensor.cpu(), expected)


def check_levels(worker):
    """Level 1 keeps the weights; level 2 keeps the buffers and the parameters that the configuration names."""
    runner = worker.model_runner
    worker.sleep(1)
    assert torch.cuda.memory_reserved() == 0 and worker.sleep_mode_backend.state() == "SUSPENDED"
    worker.wake_up(["weights"])
    assert worker.sleep_mode_backend.state() == "SUSPENDED"
    worker.wake_up(["kv_cache"])
    assert worker.sleep_mode_backend.state() == "RUNNING"
    assert all(holds(weight, WEIGHTS) for weight in runner.weights())
    worker.sleep(2)
    worker.wake_up()
    assert [holds(weight, WEIGHTS) for weight in runner.weights()] == [True] + 7 * [False]
    assert holds(runner.model.scale, torch.full((7,), 3.0))
    for weight in runner.weights():
        weight.copy_(WEIGHTS)


def check_discard(worker):
    held = torch.cuda.memory_reserved()
    worker.discard(("kv_cache",))
    assert torch.cuda.memory_reserved() < held and worker.sleep_mode_backend.state() == "SUSPENDED"
    worker.wake_up(["kv_cache"])
    assert torch.cuda.memory_reserved() == held


def check_cycles(worker, cycles):
    runner = worker.model_runner
    addresses = [tensor.data_ptr() for tensor in runner.tensors()]
    held = torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]
    for cycle in range(cycles):
        worker.sleep(1)
        assert torch.cuda.memory_reserved() == 0, cycle
        worker.wake_up(["weights"] if cycle % 3 == 0 else None)
        if cycle % 3 == 0:
            worker.wake_up(["kv_cache"])
        assert (torch.cuda.memory_reserved(), torch.cuda.mem_get_info()[0]) == held, cycle
        assert holds(runner.weights()[0], WEIGHTS) and holds(runner.block_table, torch.arange(500, dtype=torch.int32)), cycle
        runner.graph.replay()
    assert [tensor.data_ptr() for tensor in runner.tensors()] == addresses


def main():
    worker = started()
    gc.collect()
    gc.freeze()  # vLLM collects garbage in each sleep and wake-up, and its modules are a million objects
    check_levels(worker)
    check_discard(worker)
    check_cycles(worker, int(sys.argv[1]))
    print(f"{sys.argv[1]} cycles of {type(worker).__mro__[1].__module__}")


if __name__ == "__main__":
    main()
