"""Random programs that switch expandable_segments off and on: memory from while it is off lies as with PyTorch's allocator.

As a program of its own, this file runs one of them:

    python test_switches_native.py native|pages KIND SEED STEPS OUT [FAILED]

and writes to OUT a line of JSON a step: what was done, and what the allocator then said of its segments that are not expandable.
There are four kinds of programs:

    off     nothing is allocated while expandable_segments is on: all figures are the same
    apart   streams and pools that allocate while it is off allocate only then
    shared  any stream and pool allocates at any time; a tensor that gets memory of the other kind while it is on is freed at once
    tight   any stream allocates at any time, on a device that is too small: memory runs out first where PyTorch's allocator holds
            nearly all of it, and tensors from while expandable_segments is off are never expandable

As in differential_program.py calls of CUDA take no time and launches take very long, so that two allocators see the same world,
and pools and graphs with expandable segments stay.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import world

pytestmark = pytest.mark.skipif(not world.PAGES, reason="is about plain memory beside the page heap")

KIB, MIB = 1 << 10, 1 << 20
KINDS = ("off", "apart", "shared", "tight")
SCALE = int(os.environ.get("CACHALOT_TEST_SCALE", "1"))
STEPS = 300
TIGHT = 384 * MIB
NEARLY = 0.85
MOST_TENSORS, MOST_POOLS, MOST_GRAPHS = 120, 4, 4

Record = dict[str, Any]


def random_size(rng: random.Random) -> int:
    """Bytes: mostly small, some around the policy's boundaries, a few large."""
    kind = rng.random()
    if kind < 0.4:
        return rng.randrange(1, 64 * KIB)
    if kind < 0.65:
        return rng.randrange(64 * KIB, 2 * MIB)
    if kind < 0.85:
        return rng.choice([512, MIB, 2 * MIB, 10 * MIB, 20 * MIB]) * rng.choice([1, 2]) + rng.randrange(-1, 2)
    return rng.randrange(2 * MIB, 60 * MIB)


class Program:
    """A random program. Its next step depends on the seed alone, not on the allocator's answers."""

    def __init__(self, kind: str, seed: int, failed: set[int]) -> None:
        self.kind = kind
        self.failed = failed  # numbers of tensors that got no memory with the other allocator: freed at once
        self.rng = random.Random(f"{kind} {seed}")
        self.on = True
        self.user = 1  # the stream that uses memory of the others
        self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3))]
        self.tensors: dict[int, torch.Tensor] = {}  # by number, without those that got no memory
        self.known: list[int] = []  # numbers of all that the program has not freed
        self.made = 0
        self.pools: list[tuple[torch.cuda.MemPool, bool]] = []  # and whether it may have expandable segments
        self.graphs: list[tuple[torch.cuda.CUDAGraph, list[int]]] = []
        self.stay: list[torch.cuda.CUDAGraph] = []  # with expandable segments
        self.record: Record = {}
        self.actions: list[tuple[int, Callable[[], str]]] = [
            (40, self.allocate),
            (30, self.free),
            (4, self.use_elsewhere),
            (3, self.synchronize),
            (2, self.empty_cache),
            (5, self.capture),
            (2, self.drop_graph),
            (6, self.fill_pool),
            (2, self.drop_pool),
            (8, self.switch),
            (3, self.change_settings),
            *([(1, self.limit), (1, self.reset_statistics)] if kind == "off" else []),
        ]
        if kind == "tight":  # memory of a pool stays with it, so that later requests of the two have other chances
            self.actions = [each for each in self.actions if each[1] not in (self.fill_pool, self.capture)]
        if kind == "off":
            # PyTorch's collection of garbage may spoil a capture, and until 2.12 its threads within a pool give no cache back.
            unlike = self.capture if self.rng.random() < 0.5 else self.limit
            self.actions = [each for each in self.actions if each[1] != unlike]
            if is_small_device():
                self.actions = [each for each in self.actions if each[1] != self.fill_pool]
            self.say("expandable_segments:False")
            self.on = False

    def step(self) -> Record:
        self.record = {"placed": {}}
        ((_, action),) = self.rng.choices(self.actions, [weight for weight, _ in self.actions])
        was_on = self.on
        self.record["did"] = action()
        self.record["off"] = not (was_on or self.on)  # pools and captures, in which this changes, are not of kind `tight`
        return self.record

    # ---- tensors ----

    def allocate(self) -> str:
        if len(self.known) > MOST_TENSORS:
            return self.free()
        at = self.rng.choice(self.streams_of_now())
        with torch.cuda.stream(self.streams[at]):
            return f"on stream {at} {self.new_tensor()}"

    def streams_of_now(self) -> list[int]:
        """Indices of the streams that may allocate."""
        if self.kind != "apart":
            return [0, 1, 2, 3]
        return [1, 3] if self.on else [0, 2]

    def new_tensor(self) -> str:
        size = random_size(self.rng)
        number, self.made = self.made, self.made + 1
        if self.on and self.kind == "off":
            return "allocate nothing"
        self.known.append(number)
        try:
            tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            self.record["placed"][number] = "out of memory"
            return f"allocate {size} as {number}, without success"
        is_expandable = segment_of(tensor)["is_expandable"]
        if self.kind == "shared" and self.on and not is_expandable:
            self.record["placed"][number] = "in the other kind"
            return f"allocate {size} as {number}, in the other kind"
        self.record["placed"][number] = {"expandable": is_expandable, "legacy": has_legacy_handle(tensor)}
        if number not in self.failed:
            self.tensors[number] = tensor
        return f"allocate {size} as {number}"

    def take(self) -> int | None:
        if not self.known:
            return None
        at = self.rng.randrange(len(self.known))
        self.known[at], self.known[-1] = self.known[-1], self.known[at]
        return self.known.pop()

    def free(self) -> str:
        number = self.take()
        if number is not None:
            self.tensors.pop(number, None)
        return f"free {number}"

    def use_elsewhere(self) -> str:
        """Work on another stream uses the tensor; it is freed at once, so the free waits for that work."""
        if self.on and self.kind == "off":
            return self.free()
        number, user = self.take(), self.user
        tensor = None if number is None else self.tensors.pop(number, None)
        if tensor is not None:
            with torch.cuda.stream(self.streams[user]):
                tensor[:1].add_(1)
            tensor.record_stream(self.streams[user])
        if self.kind in ("off", "tight"):  # memory may run out, and no free may wait then
            del tensor
            self.synchronize()
        return f"use {number} on stream {user} and free it"

    def synchronize(self) -> str:
        torch.cuda.synchronize()
        if self.on and self.kind == "off":
            return "synchronize"
        self.user = self.rng.randrange(len(self.streams))
        stream = self.streams[self.streams_of_now()[0]]
        try:  # now the frees that waited are done
            torch.cuda.caching_allocator_delete(torch.cuda.caching_allocator_alloc(1, stream=stream))
        except torch.OutOfMemoryError:
            return "synchronize, without memory"
        return "synchronize"

    def empty_cache(self) -> str:
        torch.cuda.empty_cache()
        return "empty_cache"

    # ---- pools and graphs ----

    def pool(self) -> torch.cuda.MemPool:
        """One that may be used now: an old one or a new one."""
        usable = [at for at, (_, on) in enumerate(self.pools) if self.kind != "apart" or on == self.on]
        if not usable or (len(self.pools) < MOST_POOLS and self.rng.random() < 0.4):
            lends = self.kind in ("off", "tight") and self.rng.random() < 0.3
            self.pools.append((torch.cuda.MemPool(use_on_oom=lends, no_split=self.rng.random() < 0.1), self.on))
            return self.pools[-1][0]
        at = self.rng.choice(usable)
        pool, was_on = self.pools[at]
        self.pools[at] = (pool, was_on or self.on)
        return pool

    def fill_pool(self) -> str:
        torch.cuda.synchronize()
        pool = self.pool()
        did = []
        with torch.cuda.use_mem_pool(pool):
            for _ in range(self.rng.randrange(1, 8)):
                did.append(self.inside(pool))
        return f"in pool {pool.id}: {'; '.join(did)}"

    def inside(self, pool: torch.cuda.MemPool) -> str:
        """Something within a pool."""
        kind = self.rng.random()
        if kind < 0.3:
            return self.free()
        if kind < 0.4:
            return self.switch_inside(pool)
        return self.new_tensor()

    def switch_inside(self, pool: torch.cuda.MemPool) -> str:
        if self.kind == "apart":
            return "no switch"
        did = self.switch()
        self.pools = [(each, on or (each is pool and self.on)) for each, on in self.pools]
        return did

    def drop_pool(self) -> str:
        droppable = [at for at, (_, on) in enumerate(self.pools) if not on or self.kind == "off"]
        if not droppable:
            return "no pool to drop"
        torch.cuda.synchronize()
        pool, _ = self.pools.pop(self.rng.choice(droppable))
        return f"drop pool {pool.id}"

    def capture(self) -> str:
        if len(self.graphs) >= MOST_GRAPHS or (self.kind in ("apart", "off") and self.on):
            return self.drop_graph()
        graph = torch.cuda.CUDAGraph()
        began = len(self.known)
        was_on = self.on
        options = {}
        if self.rng.random() < 0.3:
            options["pool"] = self.pool().id
        if self.kind == "apart":
            options["stream"] = self.streams[2]
        did = []
        with torch.cuda.graph(graph, **options):
            for _ in range(self.rng.randrange(1, 10)):
                did.append(self.in_capture(began))
                was_on = was_on or self.on
        if options.get("pool"):
            self.pools = [(pool, on or was_on) if pool.id == options["pool"] else (pool, on) for pool, on in self.pools]
        if was_on and self.kind != "off":
            self.stay.append(graph)
        else:
            self.graphs.append((graph, []))
        return f"capture with {sorted(options)}: {'; '.join(did)}"

    def in_capture(self, began: int) -> str:
        kind = self.rng.random()
        if kind < 0.3:
            if kind < 0.15 and len(self.known) > began:  # one of the capture
                number = self.known.pop()
                self.tensors.pop(number, None)
                return f"free {number}"
            return self.free()
        if kind < 0.45 and self.kind != "apart":
            return self.switch()
        return self.new_tensor()

    def drop_graph(self) -> str:
        if not self.graphs:
            return "no graph to drop"
        torch.cuda.synchronize()
        graph, _ = self.graphs.pop(self.rng.randrange(len(self.graphs)))
        graph.reset()
        return "drop a graph"

    # ---- settings ----

    def say(self, settings: str) -> None:
        door = self.rng.choice([torch.cuda.memory._set_allocator_settings, torch._C._accelerator_setAllocatorSettings])
        door(settings)

    def random_settings(self) -> list[str]:
        chosen = []
        if self.rng.random() < 0.3:
            chosen.append(f"max_split_size_mb:{self.rng.choice([20, 24, 40, 100])}")
        if self.rng.random() < 0.2:
            chosen.append("roundup_power2_divisions:" + self.rng.choice(["4", "[256:1,512:2,1024:4,>:8]"]))
        if self.rng.random() < 0.2:
            chosen.append(f"garbage_collection_threshold:{self.rng.choice([0.3, 0.6, 0.8])}")
        return chosen

    def switch(self) -> str:
        self.on = not self.on if self.rng.random() < 0.8 else self.on
        settings = [*self.random_settings(), f"expandable_segments:{self.on}"]
        self.rng.shuffle(settings)
        self.say(",".join(settings))
        return f"switch {settings}"

    def change_settings(self) -> str:
        settings = self.random_settings() or ["max_split_size_mb:64"]
        self.say(",".join(settings))
        return f"set {settings}"

    def limit(self) -> str:
        fraction = self.rng.choice([0.3, 0.5, 1.0])
        torch.cuda.set_per_process_memory_fraction(fraction)
        return f"limit to {fraction}"

    def reset_statistics(self) -> str:
        torch.cuda.reset_peak_memory_stats()
        if self.rng.random() < 0.5:
            torch.cuda.reset_accumulated_memory_stats()
        return "reset the statistics"


# ---- figures of the allocator ----


def is_small_device() -> bool:
    return torch.cuda.mem_get_info()[1] < 1 << 30


def segment_of(tensor: torch.Tensor) -> Record:
    at = tensor.data_ptr()
    (found,) = [s for s in torch.cuda.memory_snapshot() if s["address"] <= at < s["address"] + s["total_size"]]
    return found


def has_legacy_handle(tensor: torch.Tensor) -> bool:
    runtime = ctypes.CDLL(None)
    answer = runtime.cudaIpcGetMemHandle(ctypes.create_string_buffer(64), ctypes.c_void_p(tensor.data_ptr()))
    runtime.cudaGetLastError()  # or torch's next call fails
    return answer == 0


def plain_segments(program: Program, snapshot: Record) -> list[Record]:
    """Returns those that are not expandable, in the order of their addresses, with blocks by their offset and their tensor."""
    at = {tensor.data_ptr(): number for number, tensor in program.tensors.items()}
    names = {stream.cuda_stream: index for index, stream in enumerate(program.streams)}
    segments = []
    for segment in snapshot["segments"]:
        if segment["is_expandable"]:
            continue
        start = segment.pop("address")
        segment["stream"] = names.get(segment["stream"], "of captures")
        segment.pop("frames", None)
        for block in segment["blocks"]:
            block["tensor"] = at.get(block["address"]) if block["state"] == "active_allocated" else None
            block["address"] -= start
            block.pop("frames", None)
        segments.append(segment)
    return segments


def trace(program: Program) -> list[tuple[str, list[Record]]]:
    """The history, in runs of one action. Segments that go together do so in the order of their streams' addresses: sorted."""
    names = {stream.cuda_stream: index for index, stream in enumerate(program.streams)}
    entries = torch.cuda.memory._snapshot()["device_traces"][0]
    runs = []
    for action, run in itertools.groupby(entries, lambda entry: entry["action"]):
        of_run = [[entry["size"], names.get(entry["stream"], "of captures")] for entry in run]
        runs.append((action, sorted(of_run, key=str) if action == "segment_free" else of_run))
    return runs


def figures(program: Program) -> Record:
    snapshot = torch.cuda.memory._snapshot()
    return {
        "stats": torch.cuda.memory_stats(),
        "settings": snapshot["allocator_settings"],
        "segments": plain_segments(program, snapshot),
    }


def failed_in(out: Path) -> set[int]:
    with open(out, encoding="utf-8") as lines:
        placed = [json.loads(line)["placed"] for line in lines]
    return {int(number) for each in placed for number, place in each.items() if place == "out of memory"}


def main() -> None:
    allocator, kind, seed, steps, out, *failed = sys.argv[1:]
    if allocator != "native":
        import cachalot

        cachalot.enable(f"heap:{allocator}", mode="full")
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    gc.freeze()
    torch.cuda.init()
    program = Program(kind, int(seed), failed_in(Path(failed[0])) if failed else set())
    if kind == "off":
        torch.cuda.memory._record_memory_history(context=None)
    with open(out, "w", encoding="utf-8") as lines:
        for step in range(int(steps)):
            record = program.step() | {"step": step}
            if step == int(steps) - 1:
                record["trace"] = trace(program)
            lines.write(json.dumps(record | figures(program)) + "\n")
    os._exit(0)  # PyTorch's allocator may crash as pools with expandable segments go


# ---- the test ----

# Figures of memory that is not expandable.
OF_PLAIN = ("segment.", "inactive_split.", "inactive_split_bytes.")


def compared(kind: str, record: Record) -> Record:
    """The part of a step's record that must be the same."""
    if kind == "tight":
        return {"settings": record["settings"]}
    stats = record["stats"]
    if kind != "off":
        moments = (".current",) if kind == "shared" else (".current", ".allocated", ".freed", ".peak")
        stats = {key: value for key, value in stats.items() if key.startswith(OF_PLAIN) and key.endswith(moments)}
        stats["live"] = record["stats"]["requested_bytes.all.current"] if kind == "apart" else None
    if kind == "shared":
        for block in (block for segment in record["segments"] for block in segment["blocks"]):
            block["requested_size"] *= block["state"] != "inactive"  # that of the block's last tensor remains
        for number, place in list(record["placed"].items()):
            if place == "in the other kind" or place["expandable"]:
                del record["placed"][number]
        return {name: record[name] for name in ("settings", "segments", "placed")} | {"stats": stats}
    return {name: record[name] for name in ("settings", "segments", "placed", "did")} | {
        "stats": stats,
        "trace": record.get("trace") if kind == "off" else None,
    }


def difference(expected: Any, actual: Any, path: str = "") -> str:
    """Returns the differences, each with its place."""
    if isinstance(expected, dict) and isinstance(actual, dict) and expected.keys() == actual.keys():
        parts = [difference(expected[key], actual[key], f"{path}.{key}") for key in expected]
        return "\n".join(part for part in parts if part)
    if isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        parts = [difference(a, b, f"{path}[{at}]") for at, (a, b) in enumerate(zip(expected, actual, strict=True))]
        return "\n".join(part for part in parts if part)
    return "" if expected == actual else f"{path}: native {expected}, cachalot {actual}"


def wrong_in_tight(expected: Record, actual: Record, ran_out: bool) -> str:
    """Returns the mistake in a step of a program that runs out of memory; or nothing."""
    for number, place in actual["placed"].items():
        if place == "out of memory":
            held = expected["stats"]["reserved_bytes.all.current"]
            if not ran_out and expected["placed"][number] != place and held < NEARLY * TIGHT:
                return f"{number} is out of memory, and PyTorch's allocator holds {held} bytes with it"
        elif place["legacy"] == place["expandable"] or (actual["off"] and place["expandable"]):
            return f"{number} is {place}"
    return ""


def compare(kind: str, native: Path, pages: Path) -> str:
    """Returns the first difference of two runs, with the steps before it, or nothing."""
    before: list[str] = []
    ran_out = False
    with open(native, encoding="utf-8") as first, open(pages, encoding="utf-8") as second:
        for expected_line, actual_line in zip(first, second, strict=True):
            expected, actual = json.loads(expected_line), json.loads(actual_line)
            before = [*before[-9:], expected["did"]]
            found = wrong_in_tight(expected, actual, ran_out) if kind == "tight" else ""
            ran_out = ran_out or "out of memory" in expected["placed"].values()
            found = found or difference(compared(kind, expected), compared(kind, actual))
            if found:
                return f"step {expected['step']}:\n{found}\nafter\n" + "\n".join(before)
    return ""


def device_of(kind: str, seed: int) -> dict[str, str]:
    """The device's memory: what `off` does on a small one runs out of memory as well."""
    memory = {"tight": f"{TIGHT // MIB}MiB", "off": "512MiB" if seed % 2 else "8GiB"}.get(kind, "16GiB")
    return world.simulated(latency="none", launch_ns=10**12, memory=memory)


def pytest_generate_tests(metafunc: Any) -> None:
    programs = [(kind, seed) for seed in range(3 * SCALE) for kind in KINDS]
    metafunc.parametrize("kind, seed", programs, ids=[f"{kind}-{seed}" for kind, seed in programs])


def test_what_is_allocated_while_it_is_off_lies_as_with_pytorch(kind: str, seed: int, tmp_path: Path) -> None:
    outs = {allocator: tmp_path / f"{allocator}.jsonl" for allocator in ("native", "pages")}
    for allocator, out in outs.items():
        command = [sys.executable, __file__, allocator, kind, seed, STEPS, out]
        command += [outs["native"]] if kind == "tight" and allocator == "pages" else []
        done = world.run_quickly(command, timeout=600, CACHALOT_CONF="", **device_of(kind, seed))
        if allocator == "native" and kind == "tight" and done.returncode != 0:
            pytest.skip("PyTorch's expandable segments fail, or are not told right, after memory ran out")
        world.succeeds(done)
    assert not (found := compare(kind, outs["native"], outs["pages"])), found


if __name__ == "__main__":
    main()
