#!/usr/bin/env python3
"""Compares the purposes of memory by `cachalot explain` with the program's own knowledge.

    bench/categories.py [--build build/release] [--folder FOLDER] [--stacks all|python] [--libraries] [--all] [PROGRAM...]

Runs each program of categories_programs.py in a child process and records its history. A program says which tensors are its
parameters, gradients, optimizer state, saved activations, caches and inputs, when it has them (Truth). Memory that it never names
and frees is a temporary. Prints, for the memory at the peak (or when memory ran out), the share of bytes whose category is the
right one, and each kind of error. Workspaces of libraries, which no program knows, are left out. The exit code is 1 below 97 %.

Needs PyTorch, and the simulated runtime as the tests load it: LD_PRELOAD=B/simulator/libcachalot_simulator.so and
LD_LIBRARY_PATH=B/simulator/driver, where B is the build folder.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import dataclasses
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

import categories_programs

ROOT = pathlib.Path(__file__).resolve().parent.parent
WANTED = 0.97

# The program's names for a block, the strongest first: a gradient that is an input of the next pass is a gradient.
KINDS = ("parameters", "optimizer state", "gradients", "caches", "communication", "kept", "input", "activations")
# PyTorch's workspaces for cuBLAS and cuBLASLt, which some libraries free at the end.
WORKSPACES = (32 * 2**20, 2**20)
# The categories that are right for input, which has no category of its own unless a backward pass needs it.
OF_INPUT = ("unknown", "activations")


class Truth:
    """A program's knowledge of its memory: blocks by address, and the time of the knowledge, counted in allocations."""

    def __init__(self, stacks: str) -> None:
        self.stacks = stacks
        self.said: list[tuple[int, int, str]] = []  # allocations so far, address, kind
        self.since = 0  # allocations before the recording
        self.is_distributed = False  # DDP and FSDP have buffers that a program does not see

    def record(self) -> None:
        """Begins to record the history: before the program, unless it is named recorded_late…, which does it by itself."""
        self.since = torch.cuda.memory_stats().get("allocation.all.allocated", 0)
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks=self.stacks)

    def says(self, kind: str, *things: Any) -> None:
        """Says that tensors, or those in containers, modules and optimizers' states, are of a kind."""
        now = torch.cuda.memory_stats()["allocation.all.allocated"]
        self.said += [(now, address, kind) for address in {each for thing in things for each in _addresses(thing)}]

    def saved(self, *outputs: torch.Tensor, until: torch.Tensor | None = None) -> None:
        """Says that what autograd has saved for the backward pass of these are activations; behind `until` alone."""
        self.says("activations", list(_saved(outputs, until)))

    @contextlib.contextmanager
    def saving(self) -> Iterator[None]:
        """Says of each tensor that autograd saves meanwhile that it is an activation: also if the pass does not end."""
        def pack(tensor: torch.Tensor) -> torch.Tensor:
            self.says("activations", tensor)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield

    def gradients(self, *models: torch.nn.Module) -> None:
        """Says that the gradients of the modules' parameters are gradients."""
        self.says("gradients", [each.grad for model in models for each in model.parameters() if each.grad is not None])

    def state(self, *optimizers: torch.optim.Optimizer) -> None:
        """Says that what optimizers keep is their state."""
        self.says("optimizer state", [dict(each.state) for each in optimizers])


def _addresses(thing: Any) -> Iterator[int]:
    if isinstance(thing, torch.nn.Module):
        for tensor in [*thing.parameters(), *thing.buffers()]:
            yield from _addresses(tensor)
    elif isinstance(thing, torch.Tensor):
        inner = getattr(thing, "_local_tensor", thing)
        if inner.is_sparse:
            yield from _addresses([inner._indices(), inner._values()])
        elif inner.is_cuda and inner.untyped_storage().size():
            yield inner.untyped_storage().data_ptr()
    elif isinstance(thing, dict):
        yield from _addresses(list(thing.values()))
    elif isinstance(thing, (list, tuple, set)):
        for each in thing:
            yield from _addresses(each)


def _saved(outputs: tuple[torch.Tensor, ...], until: torch.Tensor | None) -> Iterator[torch.Tensor]:
    nodes, seen = [each.grad_fn for each in outputs], {None if until is None else until.grad_fn}
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        names = [name for name in dir(node) if name.startswith("_saved_")]
        for name in ["saved_tensors"] if hasattr(node, "saved_tensors") else names:
            value = getattr(node, name)
            yield from (each for each in (value if isinstance(value, (list, tuple)) else [value])
                        if isinstance(each, torch.Tensor))


@dataclasses.dataclass
class Block:
    address: int
    bytes: int
    begin: int
    end: int | None
    told: str


def blocks_of(command: pathlib.Path, snapshot: pathlib.Path) -> list[Block]:
    """Returns what lived at the peak."""
    told = subprocess.run([command, snapshot], capture_output=True, text=True, check=True)
    return [Block(int(row["address"]), int(row["bytes"]), int(row["begin"]), int(row["end"]) if row["end"] else None,
                  row["category"]) for row in csv.DictReader(told.stdout.splitlines())]


def run_program(program: Callable[[Truth], None], snapshot: pathlib.Path, stacks: str) -> None:
    """Runs a program in this process, and leaves its snapshot and, beside it, its truth."""
    truth = Truth(stacks)
    torch.manual_seed(0)
    torch.cuda.init()
    if not program.__name__.startswith("recorded_late"):
        truth.record()
    kept: list[Any] = []  # as at the end of a program, where its variables still live

    def keep_variables(frame: Any, event: str, _argument: Any) -> None:
        if event == "return" and frame.f_code is program.__code__:
            kept.append(dict(frame.f_locals))

    sys.setprofile(keep_variables)
    program(truth)
    sys.setprofile(None)
    torch.cuda.memory._dump_snapshot(str(snapshot))
    snapshot.with_suffix(".truth").write_bytes(pickle.dumps(truth))


def in_child(program: Callable[[Truth], None], snapshot: pathlib.Path, stacks: str) -> None:
    """Runs a program in a fork of this process."""
    child = os.fork()
    if child == 0:
        try:
            run_program(program, snapshot, stacks)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit(f"{program.__name__} failed")


def expected_of(block: Block, truth: Truth) -> str:
    """Returns what the program called a block while it lived; otherwise whether it was freed."""
    kinds = {kind for now, address, kind in truth.said if address == block.address and
             now - truth.since >= block.begin and (block.end is None or now - truth.since <= block.end)}
    if not kinds and truth.is_distributed and block.told == "communication":
        return "communication"
    is_workspace = block.end is None or (block.bytes in WORKSPACES and block.told == "kept")
    return next((kind for kind in KINDS if kind in kinds), "workspace" if is_workspace else "temporaries")


def is_right(expected: str, told: str) -> bool:
    return told in OF_INPUT if expected == "input" else told == expected


@dataclasses.dataclass
class Share:
    bytes: int
    wrong: int
    unknown: int  # of the wrong ones


def share_of(program: Callable[[Truth], None], folder: pathlib.Path, options: argparse.Namespace) -> Share:
    """Returns, and prints, how many bytes at a program's peak have the right category."""
    snapshot = folder / f"{program.__name__}.pickle"
    if not snapshot.exists():
        in_child(program, snapshot, options.stacks)
    truth: Truth = pickle.loads(snapshot.with_suffix(".truth").read_bytes())
    errors: collections.Counter[tuple[str, str]] = collections.Counter()
    share = Share(0, 0, 0)
    for block in blocks_of(options.build / "bench/categories", snapshot):
        expected = expected_of(block, truth)
        if expected == "workspace":
            continue
        share.bytes += block.bytes
        if not is_right(expected, block.told):
            errors[expected, block.told] += block.bytes
    share.wrong = errors.total()
    share.unknown = sum(amount for (_, told), amount in errors.items() if told == "unknown")
    print(f"{100 * (1 - share.wrong / share.bytes):6.1f} %  {share.bytes / 2**20:8.1f} MiB  {program.__name__}", flush=True)
    for (expected, told), amount in errors.most_common():
        if options.all or amount > 0.005 * share.bytes:
            print(f"{'':12}{amount / 2**20:8.1f} MiB  {expected}: told {told}")
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("names", nargs="*", metavar="PROGRAM", help="the programs to run (default: all)")
    parser.add_argument("--folder", type=pathlib.Path, help="keep the snapshots here; programs whose snapshot is there do not run")
    parser.add_argument("--stacks", choices=["all", "python"], default="all", help="the frames that histories have")
    parser.add_argument("--libraries", action="store_true", help="run the programs over transformers, timm and other libraries")
    parser.add_argument("--all", action="store_true", help="print each error, also of programs that are right as a whole")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or pathlib.Path(temporary)
        known = categories_programs.LIBRARY_PROGRAMS if options.libraries else categories_programs.PROGRAMS
        for name in set(options.names) - {each.__name__ for each in known}:
            parser.error(f"there is no program {name!r}")
        folder.mkdir(parents=True, exist_ok=True)
        programs = [each for each in known if not options.names or each.__name__ in options.names]
        shares = [share_of(program, folder, options) for program in programs]
    whole = sum(each.bytes for each in shares)
    right = whole - sum(each.wrong for each in shares)
    unknown = sum(each.unknown for each in shares)
    print(f"{100 * right / whole:.1f} % of {whole / 2**20:.1f} MiB are right, {100 * unknown / whole:.1f} % are told unknown; a program's "
          f"mean is {100 - 100 * sum(each.wrong / each.bytes for each in shares) / len(shares):.1f} %")
    sys.exit(right < WANTED * whole)


if __name__ == "__main__":
    main()
