"""vLLM's sleep mode on cachalot: `vllm serve … --enable-sleep-mode --sleep-mode-backend cachalot`.

vLLM calls register() in each of its processes (the entry point vllm.general_plugins). It names the backend, and lets each worker whose
engine chose it begin with the page heap, before CUDA is in use. There vLLM takes the memory that is to sleep from TaggedMemory: the
interface of a backend has no part for that, and CuMemAllocator, which it asks, would give out memory that is not the heap's.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
from collections.abc import Callable, Generator, Iterable
from typing import Any

from .._base import environment
from .._base.log import logger
from .._heap.regions import Save, pools, region, regions, release_physical, restore_physical
from .pages import enable_pages

NAME = "cachalot"
DEFAULT_TAG = "default"
GRAPHS = "cudagraph"
# A partial wake may leave these asleep; it wakes every other tag.
_DEFERRABLE = ("weights", "kv_cache")

_Pool = tuple[int, int]


def register() -> None:
    """Makes `--sleep-mode-backend cachalot` known to vLLM. A further call in a process does nothing, as does a call in a vLLM without
    backends of sleep mode."""
    try:
        factory = _vllms("device_allocator.sleep_mode_backend").SleepModeBackendFactory
        wrapper = _vllms("v1.worker.worker_base").WorkerWrapperBase
    except ImportError as error:
        logger().info("cachalot: this vLLM has no backends of sleep mode (%s)", error)
        return
    with contextlib.suppress(ValueError):  # it is known already
        factory.register_backend(NAME, f"{__package__}.vllm_backend", "CachalotBackend")
        wrapper.init_device = _serving(wrapper.init_device)


def _serving(init_device: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns the worker's init_device, before which cachalot serves a worker that is to sleep with it."""

    @functools.wraps(init_device)
    def serve_and_init(wrapper: Any) -> Any:
        model = wrapper.vllm_config.model_config
        if model is not None and model.enable_sleep_mode and model.sleep_mode_backend == NAME:
            serve(offload_graphs=bool(getattr(model, "sleep_mode_offload_cudagraph", False)))
        return init_device(wrapper)

    return serve_and_init


def serve(*, offload_graphs: bool) -> TaggedMemory:
    """Makes cachalot the allocator of this worker, and TaggedMemory vLLM's allocator of memory that sleeps.

    Args:
        offload_graphs: the memory of CUDA graphs sleeps, too (--sleep-mode-offload-cudagraph).

    Raises:
        EnableError, ValueError: as cachalot.enable().
    """
    enable_pages()
    _copy_inputs_of_captured_all_reduces()
    memory = tagged_memory()
    if offload_graphs:
        # NCCL would register the graphs' memory, which then cannot be given back.
        environment.change({"NCCL_GRAPH_REGISTER": environment.text("NCCL_GRAPH_REGISTER", "0")})
        memory.graph_pool = _graph_pool_of_vllm
    _vllms("device_allocator.cumem").CuMemAllocator.get_instance = staticmethod(tagged_memory)
    return memory


def _copy_inputs_of_captured_all_reduces() -> None:
    """Has vLLM's all-reduce copy what a graph gives it, as with cumem: otherwise cudaIpcGetMemHandle, which refuses pages, ends the
    worker after the capture."""
    all_reduce = _vllms("distributed.device_communicators.custom_all_reduce").CustomAllreduce
    init = all_reduce.__init__

    @functools.wraps(init)
    def init_that_copies(self: Any, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **{**options, "register_graph_buffers": False})

    all_reduce.__init__ = init_that_copies


def _graph_pool_of_vllm() -> _Pool | None:
    """Returns the pool into which vLLM captures; None before it has one."""
    pool: _Pool | None = _vllms("platforms").current_platform._global_graph_pool
    return pool


def _vllms(module: str) -> Any:
    return importlib.import_module(f"vllm.{module}")


class TaggedMemory:
    """TaggedMemory is vLLM's MemAllocator over regions: what vLLM allocates with a tag sleeps with that tag.

    The content that is kept lies in pinned memory, or with CACHALOT_SLEEP_FOLDER=FOLDER in files there. One per process; vLLM calls
    it from one thread at a time.
    """

    def __init__(self) -> None:
        self.graph_pool: Callable[[], _Pool | None] = lambda: None
        self._tags: set[str] = set()

    @contextlib.contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Generator[None, None, None]:
        """Gives the tag (None: "default") what this thread allocates within the block."""
        tag = DEFAULT_TAG if tag is None else tag
        with region(tag):
            if not self._tags:
                restore_physical(tag)  # it is awake: this refuses a heap that cannot sleep, before the first sleep does
            self._tags.add(tag)
            yield

    def sleep(self, offload_tags: Iterable[str] | str | None = None) -> None:
        """Puts all tags, and graphs that take part, to sleep: the content of `offload_tags` is kept, that of others lost.

        Raises:
            torch.OutOfMemoryError: there is no room for the content. All tags that were awake are awake, with their content.
            RuntimeError: as release_physical.
        """
        keep = {DEFAULT_TAG} if offload_tags is None else _set_of(offload_tags)
        awake = self._members(asleep=False)
        kept = [member for tag, member in awake.items() if tag in keep]
        self._release_or_restore(kept)
        release_physical([member for tag, member in awake.items() if tag not in keep])
        gc.collect()
        _empty_cache()

    def discard(self, tags: Iterable[str] | str) -> None:
        """Puts tags that are awake to sleep, without their content."""
        wanted = _set_of(tags)
        release_physical([member for tag, member in self._members(asleep=False).items() if tag in wanted])

    def wake_up(self, tags: Iterable[str] | None = None) -> None:
        """Wakes `tags`, and all others but "weights" and "kv_cache"; None wakes all.

        Raises:
            torch.OutOfMemoryError: the device has too little memory for a tag; it and those behind it still sleep.
        """
        wanted = None if tags is None else _set_of(tags)
        gc.collect()
        asleep = self._members(asleep=True)
        restore_physical(
            [member for tag, member in asleep.items() if wanted is None or tag in wanted or tag not in _DEFERRABLE]
        )

    def get_current_usage(self) -> int:
        """Returns the bytes that the tags hold, those of sleeping tags included."""
        return sum(each.reserved_bytes + each.asleep_bytes for each in regions() if each.tag in self._tags)

    def is_asleep(self) -> bool:
        """Returns whether any tag is asleep."""
        return bool(self._members(asleep=True))

    def _members(self, *, asleep: bool) -> dict[str, str | _Pool]:
        """Returns the tags that are asleep, or awake with memory, each with what release_physical takes."""
        states: dict[str, bool] = {}
        for each in regions():
            if each.tag in self._tags:
                states[each.tag] = states.get(each.tag, False) or each.is_asleep
        members: dict[str, str | _Pool] = {tag: tag for tag, is_asleep in states.items() if is_asleep == asleep}
        graphs = self.graph_pool()
        if graphs is not None:
            held = [pool for pool in pools() if (pool["first"], pool["second"]) == tuple(graphs)]
            if held and (sum(pool["asleep"] for pool in held) > 0) == asleep:
                members[GRAPHS] = (graphs[0], graphs[1])
        return members

    def _release_or_restore(self, members: list[str | _Pool]) -> None:
        folder = environment.text("CACHALOT_SLEEP_FOLDER") or None
        save: Save = "pinned" if folder is None else "file"
        for count, member in enumerate(members, 1):
            try:
                release_physical([member], save=save, folder=folder)
            except Exception:
                restore_physical(members[:count])
                raise


@functools.cache
def tagged_memory() -> TaggedMemory:
    """Returns the TaggedMemory of this process."""
    return TaggedMemory()


def _set_of(tags: Iterable[str] | str) -> set[str]:
    return {tags} if isinstance(tags, str) else set(tags)


def _empty_cache() -> None:
    import torch

    torch.cuda.empty_cache()
