"""Says what the memory of a history is for, and which module has it, by the marks of owners."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from cachalot_simulator.owners import BACKWARD, MODULE, OWNED, PREFIX, Owners
from cachalot_simulator.places import frames_of

OPTIMIZER = "Optimizer.step#"  # torch's own annotation

# Files that allocate caches: those of engines, which size them to the GPU unless the program gives a size, and of Transformers.
CACHES_OF_ENGINES = ("/continuous_batching/cache.py", "/mem_cache/memory_pool.py")
CACHES = ("/cache_utils.py", "/kv_cache.py")
VLLMS_CACHE = "/vllm/v1/worker/", "allocate_kv_cache"  # a folder with other functions as well, and a part of the name of those that do
# The rest is "temporaries", freed in the pass that allocated it, and "other", for example input.
KINDS = ("parameters", "gradients", "optimizer state", "activations", "temporaries", "kept", "communication", "caches",
         "buffers", "other")


@dataclasses.dataclass
class Block:
    """An allocation. `kind` is None until something is known of it."""

    entry: dict
    path: str  # of the innermost module that ran; "" outside of all
    phase: str  # "before" the first module of a step, "forward", "backward", or "step", of an optimizer
    kind: str | None
    passes: int = 0  # backward passes that it outlived as an activation


class Attribution:
    """Follows a history of one device. Afterwards `peak` has the blocks that were live at the event of the peak."""

    def __init__(self, trace: list[dict], annotations: list[dict], owners: Owners, peak_event: int | None) -> None:
        self.peak: list[Block] = []
        self.steps: list[dict[str, Any]] = []  # after each, the live memory: `step`, `bytes` and `kinds`
        self._owners = owners
        self._live: dict[int, Block] = {}
        self._modules: list[str] = []
        self._backward_depth = 0
        self._has_run_forward = False
        self._is_in_step = False
        marks = iter_marks(annotations)
        mark = next(marks, None)
        for event, entry in enumerate(trace):
            while mark is not None and is_before(mark, entry):
                self._see_mark(mark)
                mark = next(marks, None)
            self._see(entry)
            if event == peak_event:
                self.peak = list(self._live.values())
        while mark is not None:
            self._see_mark(mark)
            mark = next(marks, None)

    def _see(self, entry: dict) -> None:
        if entry["action"] == "alloc":
            path = self._modules[-1] if self._modules else ""
            kind = kind_by_stack(frames_of(entry))
            if kind is None and path and self._backward_depth:
                kind = "activations"  # computed once more by a checkpoint
            self._live[entry["addr"]] = Block(entry, path, self._phase(), kind)
        elif entry["action"] == "free_requested":
            block = self._live.pop(entry["addr"], None)
            if block is not None and block.kind is None and block.phase != "before":
                block.kind = "temporaries"

    def _phase(self) -> str:
        if self._is_in_step:
            return "step"
        if self._modules and not self._backward_depth:
            self._has_run_forward = True
        return "backward" if self._backward_depth else "forward" if self._has_run_forward else "before"

    def _see_mark(self, mark: dict) -> None:
        begins = mark["stage"] == "START"
        if mark["name"].startswith(OPTIMIZER):
            self._is_in_step = begins
            return
        name = mark["name"][len(PREFIX):]
        if name.startswith(MODULE):
            if begins:
                self._modules.append(name[len(MODULE):])
            elif self._modules:
                self._modules.pop()
        elif name == BACKWARD:
            self._see_backward(begins)
        elif name.startswith(OWNED) and begins:
            self._see_owners(int(name[len(OWNED):]))

    def _see_backward(self, begins: bool) -> None:
        if begins and not self._backward_depth:
            for block in self._live.values():
                if block.kind is None and block.phase == "forward":
                    block.kind = "activations"
        self._backward_depth = max(0, self._backward_depth + (1 if begins else -1))  # a history may lack its beginning
        if self._backward_depth:
            return
        self._has_run_forward = False
        for block in self._live.values():
            if block.kind == "activations":
                block.passes += 1
                if block.passes > 1:  # a workspace of a library, or a result that the program keeps
                    block.kind = "kept"

    def _see_owners(self, number: int) -> None:
        for address, (kind, path) in self._owners.found[number].items():
            if block := self._live.get(address):
                block.kind = kind
                block.path = path or block.path
        if number in self._owners.steps:
            live = list(self._live.values())
            self.steps.append({"step": self._owners.steps[number], "bytes": bytes_of(live), "kinds": by_kind(live)})


def iter_marks(annotations: list[dict]) -> Iterator[dict]:
    """Iterates over the annotations of owners and of optimizers, by their time."""
    ours = (one for one in annotations if one["name"].startswith((PREFIX, OPTIMIZER)))
    return iter(sorted(ours, key=lambda one: one["time_us"]))


def is_before(mark: dict, entry: dict) -> bool:
    """In the same microsecond, what begins is before the allocation and what ends is after it."""
    return mark["time_us"] < entry["time_us"] or (mark["time_us"] == entry["time_us"] and mark["stage"] == "START")


def kind_by_stack(frames: Any) -> str | None:
    """Returns the kind that follows from the functions called by the innermost module, or, outside of modules, by the program."""
    for frame in frames:
        name = frame["filename"]
        if "/torch/distributed/" in name or name.endswith("/torch/nn/parallel/distributed.py"):
            return "communication"
        if name.endswith(CACHES) or is_engines_cache(frame):
            return "caches"
        if name.endswith("/torch/nn/modules/module.py"):
            return None
    return None


def is_of_engine(block: Block) -> bool:
    """Returns whether it is the cache of an engine, or a part of that."""
    return block.kind == "caches" and any(map(is_engines_cache, frames_of(block.entry)))


def is_engines_cache(frame: dict) -> bool:
    """Returns whether the function allocates the cache of an engine."""
    name, (folder, function) = frame["filename"], VLLMS_CACHE
    return name.endswith(CACHES_OF_ENGINES) or (folder in name and function in frame["name"])


def bytes_of(blocks: list[Block]) -> int:
    return sum(block.entry["size"] for block in blocks)


def by_kind(blocks: list[Block]) -> dict[str, int]:
    """Bytes by kind, in the order of KINDS, of those that are there."""
    sums: dict[str, int] = defaultdict(int)
    for block in blocks:
        sums[block.kind or "other"] += block.entry["size"]
    return {kind: sums[kind] for kind in KINDS if kind in sums}


def by_module(blocks: list[Block]) -> list[dict[str, Any]]:
    """Bytes by module and kind, the largest first: `path`, `bytes`, `kinds`. Without what no module has."""
    parts: dict[str, list[Block]] = defaultdict(list)
    for block in blocks:
        if block.path:
            parts[block.path].append(block)
    modules = [{"path": path, "bytes": bytes_of(part), "kinds": by_kind(part)} for path, part in parts.items()]
    return sorted(modules, key=lambda module: -module["bytes"])
