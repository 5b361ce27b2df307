"""The parts of vLLM that its sleep mode consists of, small: the interface of backends, the allocator that workers ask, and a worker that
makes the calls of vLLM 0.33's gpu_worker.py in their order."""

import abc
import contextlib
import logging
import sys
import types
from types import SimpleNamespace

import torch

KiB = 1 << 10

# The end of a program, after `import torch_memory_saver`.
SLEEP_AND_WAKE = """
    with torch_memory_saver.torch_memory_saver.region("weights", enable_cpu_backup=True):
        weights = torch.arange(1000, dtype=torch.int32).cuda()
    torch_memory_saver.torch_memory_saver.pause("weights")
    assert torch.cuda.memory_reserved() == 0
    torch_memory_saver.torch_memory_saver.resume("weights")
    assert weights.cpu()[999] == 999
"""


class SleepModeBackend(abc.ABC):
    def __init__(self):
        self._state = "RUNNING"

    @abc.abstractmethod
    def suspend(self, level=1): ...

    @abc.abstractmethod
    def resume(self, tags=None): ...

    def state(self):
        return self._state

    def discard(self, tags):
        raise RuntimeError("no selective discard")


class SleepModeBackendFactory:
    """Knows backends by name and imports them when a worker first sleeps."""

    _registry: dict = {}

    @classmethod
    def register_backend(cls, name, module_path, class_name):
        if name in cls._registry:
            raise ValueError(f"Sleep-mode backend '{name}' is already registered.")
        cls._registry[name] = (module_path, class_name)

    @classmethod
    def create_backend(cls, model_config):
        module, name = cls._registry[model_config.sleep_mode_backend]
        made = getattr(__import__(module, fromlist=[name]), name)
        assert made.is_supported()
        return made()


class CuMemAllocator:
    @staticmethod
    def get_instance():
        raise AssertionError("vLLM's own allocator was asked")


class Platform:
    _global_graph_pool = None

    def get_global_graph_pool(self):
        if Platform._global_graph_pool is None:
            Platform._global_graph_pool = torch.cuda.graph_pool_handle()
        return Platform._global_graph_pool


class CustomAllreduce:
    def __init__(self, group, device, *, register_graph_buffers=True):
        self.registers_graph_buffers = register_graph_buffers


class WorkerWrapperBase:
    """Holds the worker of a process, as vLLM's executors do."""

    def __init__(self, model_config):
        self.vllm_config = SimpleNamespace(model_config=model_config)
        self.worker = Worker(self.vllm_config)

    def init_device(self):
        self.worker.init_device()


class Worker:
    def __init__(self, vllm_config):
        self.vllm_config = vllm_config
        self.sleep_mode_backend = None
        self.graph = None

    def init_device(self):
        torch.cuda.init()

    def pool(self, tag):
        allocator = CuMemAllocator.get_instance()
        if tag == "weights":
            assert allocator.get_current_usage() == 0, "CuMem allocator can only be used for one instance per process."
        return allocator.use_memory_pool(tag=tag)

    def load_model(self):
        with self.pool("weights"):
            self.weights = [torch.arange(1000 * i, dtype=torch.int32).cuda() for i in range(1, 60)]
            self.buffer = torch.full((7,), 3.0).cuda()
            del self.weights[::2]  # as a quantization leaves gaps
            with self.pool("runtime"):
                self.lora = torch.arange(77, dtype=torch.int32).cuda()
        with self.pool("workspace"):
            self.workspace = torch.zeros(300 * KiB, dtype=torch.uint8, device="cuda")

    def initialize_kv_cache(self):
        with self.pool("runtime"):
            self.block_table = torch.arange(500, dtype=torch.int32).cuda()
            with self.pool("kv_cache"):
                self.kv_cache = torch.ones(100_000, dtype=torch.int32).cuda()

    def capture(self):
        self.graph, self.output = torch.cuda.CUDAGraph(), torch.zeros(500, dtype=torch.int32).cuda()
        with torch.cuda.graph(self.graph, pool=Platform().get_global_graph_pool()):
            self.in_graph = self.block_table + 1
            self.output.copy_(self.in_graph)

    def backend(self):
        if self.sleep_mode_backend is None:
            self.sleep_mode_backend = SleepModeBackendFactory.create_backend(self.vllm_config.model_config)
        return self.sleep_mode_backend

    def sleep(self, level=1):
        torch.cuda.synchronize()
        free = torch.cuda.mem_get_info()[0]
        saved = self.buffer.cpu().clone() if level == 2 else None
        self.backend().suspend(level)
        torch.cuda.synchronize()
        assert torch.cuda.mem_get_info()[0] >= free, "Memory usage increased after sleeping."
        self.saved_buffer = saved

    def wake_up(self, tags=None):
        self.backend().resume(tags)
        if (tags is None or "weights" in tags) and self.saved_buffer is not None:
            self.buffer.data.copy_(self.saved_buffer)
            self.saved_buffer = None

    def discard(self, tags):
        self.backend().discard(tags)

    def tensors(self):
        return [*self.weights, self.buffer, self.lora, self.workspace, self.block_table, self.kv_cache]


def model_config(**more):
    return SimpleNamespace(**({"enable_sleep_mode": True, "sleep_mode_backend": "cachalot", "sleep_mode_offload_cudagraph": False} | more))


@contextlib.contextmanager
def vllm():
    """`import vllm` is these parts within the block, as in a new process."""
    names = {
        "vllm": {},
        "vllm.device_allocator": {},
        "vllm.device_allocator.sleep_mode_backend": {"SleepModeBackend": SleepModeBackend, "SleepModeBackendFactory": SleepModeBackendFactory},
        "vllm.device_allocator.cumem": {"CuMemAllocator": CuMemAllocator},
        "vllm.distributed": {},
        "vllm.distributed.device_communicators": {},
        "vllm.distributed.device_communicators.custom_all_reduce": {"CustomAllreduce": CustomAllreduce},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.platforms": {"current_platform": Platform()},
        "vllm.v1": {},
        "vllm.v1.worker": {},
        "vllm.v1.worker.worker_base": {"WorkerWrapperBase": WorkerWrapperBase},
    }
    own = CuMemAllocator.get_instance, WorkerWrapperBase.init_device, CustomAllreduce.__init__
    for name, members in names.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(members)
    try:
        yield
    finally:
        for name in [*names, "cachalot._start.vllm_backend"]:
            sys.modules.pop(name, None)
        CuMemAllocator.get_instance, WorkerWrapperBase.init_device, CustomAllreduce.__init__ = staticmethod(own[0]), *own[1:]
        SleepModeBackendFactory._registry.clear()
        Platform._global_graph_pool = None
