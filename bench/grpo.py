#!/usr/bin/env python3
"""Measures a program of GRPO-like steps: rollout, train, weight sync, with memory that legacy IPC must accept in between.

    bench/grpo.py [--build build/release] [--steps 20] [--seed 1] [--memory 64GiB]
    bench/grpo.py --csv [same options]    # the bytes at the peak of each step, which docs/pictures/grpo.svg shows
    bench/grpo.py --check docs/pictures/grpo.csv    # exit code 1 if the file has other figures

Each step rolls out (a KV cache and decoding with changing lengths), trains (micro-batches of changing lengths, saved activations,
gradients, an optimizer), and sends the weights in buckets for cudaIpcGetMemHandle, whose answer is checked. Three processes run it:

    native      PyTorch with expandable_segments:True, switched off around rollout and sync, as verl and SkyRL do
    switched    the same program on cachalot's page heap, which honours the switch
    always on   on the page heap without switches: the buckets alone are plain memory (cachalot.plain())

Prints the peaks of live and of reserved memory, their ratio, and the smallest device on which each process ends.
The exit code is 1 if `always on` is above 1.02, or runs out of memory where `native` does not.

Needs PyTorch and the simulated runtime of the build folder.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pathlib
import random
import subprocess
import sys
from typing import Any

WANTED = 1.02
MiB = 1 << 20
STEP = 16 * MiB  # of the size of a device
KINDS = ("native", "switched", "always on")


class Program:
    """The program on one kind of heap. Sizes are in bytes; lengths and with them sizes change from step to step by the seed."""

    LAYERS = 24
    LAYER = 96 * MiB  # parameters of a layer, in bfloat16
    KV = 128 * MiB  # of a layer
    BUCKET = 512 * MiB

    def __init__(self, kind: str, seed: int) -> None:
        import torch

        self.torch, self.kind, self.random = torch, kind, random.Random(seed)
        self.runtime = ctypes.CDLL(None)
        self.peaks: list[list[int]] | None = None  # of live and of reserved memory, by step, where they are wanted
        self.weights = [self.new(self.LAYER) for _ in range(self.LAYERS)]
        self.states = [self.new(2 * self.LAYER) for _ in range(self.LAYERS)]
        self.samples: list[list[object]] = []  # of the last three rollouts, which the loss looks at again

    def new(self, size: float) -> object:
        tensor = self.torch.empty(max(1, int(size)), dtype=self.torch.uint8, device="cuda")
        if self.peaks:
            stats = self.torch._C._cuda_memoryStats(0)
            now = (stats[key]["all"]["current"] for key in ("allocated_bytes", "reserved_bytes"))
            self.peaks[-1] = [max(sizes) for sizes in zip(self.peaks[-1], now, strict=True)]
        return tensor

    def switch(self, expandable: bool) -> None:
        if self.kind != "always on":
            self.torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{expandable}")

    def step(self) -> None:
        if self.peaks is not None:  # not by reset_peak_memory_stats: the page heap looks at the peak before it takes plain memory
            self.peaks.append([0, 0])
        self.rollout()
        self.train()
        self.sync()

    def rollout(self) -> None:
        self.switch(False)
        cache = [self.new(self.KV) for _ in range(self.LAYERS)]
        batch = self.random.randint(48, 96)
        samples: list[object] = []
        for _ in range(60):
            batch = max(8, batch - self.random.randint(0, 2))
            kept = []
            for _ in range(4):
                hidden, wide = self.new(batch * 0.11 * MiB), self.new(batch * 0.43 * MiB)
                kept.append(self.new(batch * 4096))
                del hidden, wide
            logits = self.new(batch * 0.25 * MiB)
            samples.append(self.new(self.random.uniform(0.2, 9) * MiB))
            del logits, kept
        del cache
        self.samples = [*self.samples[-2:], samples]
        self.torch.cuda.empty_cache()
        self.switch(True)

    def train(self) -> None:
        gradients = [self.new(self.LAYER) for _ in range(self.LAYERS)]
        for _ in range(4):
            length = self.random.randint(600, 4096)
            saved = []
            for _ in range(self.LAYERS):
                inside = self.new(length * 24_000)
                saved.append((self.new(length * 9_000), self.new(length * 4_100), self.new(length * 640)))
                del inside
            logits = self.new(length * 128_000)
            gradient = self.new(length * 128_000)
            del logits
            while saved:
                last = saved.pop()
                inside = self.new(length * 24_000)
                del last, inside
            del gradient
        for _ in gradients:
            temporary = self.new(2 * self.LAYER)
            del temporary

    def sync(self) -> None:
        self.switch(False)
        for _ in range(self.LAYERS * self.LAYER // self.BUCKET + 1):
            bucket = self.bucket()
            handle = ctypes.create_string_buffer(64)
            assert self.runtime.cudaIpcGetMemHandle(handle, ctypes.c_void_p(bucket.data_ptr())) == 0, "no handle of legacy IPC"
            del bucket
        self.switch(True)

    def bucket(self) -> object:
        if self.kind != "always on":
            return self.new(self.BUCKET)
        import cachalot

        with cachalot.plain():
            return self.new(self.BUCKET)


def child(kind: str, steps: int, seed: int, by_step: bool) -> None:
    """Runs the program and prints its peaks, also by step, and whether it ended before memory ran out, as JSON."""
    if kind != "native":
        import cachalot

        cachalot.enable("heap:pages")
    import torch

    peaks: list[list[int]] | None = [] if by_step else None
    try:
        program = Program(kind, seed)
        program.peaks = peaks
        for _ in range(steps):
            program.step()
        ended = True
    except torch.OutOfMemoryError:
        ended = False
    stats = torch.cuda.memory_stats()
    live, reserved = (stats[f"{key}.all.peak"] for key in ("allocated_bytes", "reserved_bytes"))
    print(json.dumps({"ended": ended, "live": live, "reserved": reserved, "peaks": peaks}))


def missing(build: pathlib.Path) -> str | None:
    """Returns what a build folder lacks to run the program, or None."""
    needed = ("simulator/libcachalot_simulator.so", "simulator/driver/libcuda.so.1", "python/cachalot/native/libcachalot_torch.so")
    return next((name for name in needed if not (build / name).exists()), None)


def run(kind: str, args: argparse.Namespace, memory: str) -> dict[str, Any]:
    build = pathlib.Path(args.build).resolve()
    environment = dict(os.environ)
    environment.update(
        LD_PRELOAD=str(build / "simulator/libcachalot_simulator.so"),
        LD_LIBRARY_PATH=str(build / "simulator/driver"),
        PYTHONPATH=str(build / "python"),
        CACHALOT_CACHE_DIR=str(build / "python/cache"),
        CACHALOT_SIM=f"memory:{memory}",
    )
    if kind == "native":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    command = [sys.executable, "-B", __file__, "--child", kind, "--steps", str(args.steps), "--seed", str(args.seed)]
    command += ["--csv"] if args.csv else []
    process = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    if process.returncode != 0:
        raise SystemExit(f"{kind} failed:\n{process.stderr}")
    return json.loads(process.stdout.splitlines()[-1])


def smallest(kind: str, args: argparse.Namespace, most: int) -> int:
    """Returns the bytes of the smallest device on which the program ends, a multiple of STEP."""
    low, high = 0, most // STEP + 8
    while low < high:
        middle = (low + high) // 2
        if run(kind, args, str(middle * STEP))["ended"]:
            high = middle
        else:
            low = middle + 1
    return low * STEP


def steps_as_csv(args: argparse.Namespace) -> str:
    """Returns the bytes of live and of reserved memory at the peak of each step."""
    peaks = {kind: run(kind, args, args.memory)["peaks"] for kind in KINDS}
    lines = [["step", *(f"{kind} {column}" for kind in KINDS for column in ("live", "reserved"))]]
    for step, by_kind in enumerate(zip(*peaks.values(), strict=True), 1):
        lines.append([str(size) for size in (step, *(size for sizes in by_kind for size in sizes))])
    return "".join(",".join(line) + "\n" for line in lines)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of steps: it must be a whole number, at least 1")
    return int(text)


def parsed() -> argparse.Namespace:
    """Returns the arguments; ends the program with the rule where one is invalid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--steps", type=count, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", default="64GiB")
    parser.add_argument("--csv", action="store_true", help="print the peaks of each step in place of the table")
    parser.add_argument("--check", metavar="FILE", type=pathlib.Path, help="compare a file with what --csv prints")
    parser.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    lacking = None if args.child else missing(pathlib.Path(args.build))
    if lacking is not None:
        parser.error(f"--build {args.build} has no {lacking}: build it with `./run build`, or name a build folder that has it")
    if args.check and not args.check.is_file():
        parser.error(f"--check {args.check} is no file: it must have what --csv prints")
    args.csv |= args.check is not None
    return args


def main() -> None:
    args = parsed()
    if args.child:
        return child(args.child, args.steps, args.seed, args.csv)
    if args.csv:
        text = steps_as_csv(args)
        if args.check and args.check.read_text() != text:
            raise SystemExit(f"{args.check} is not what bench/grpo.py --csv prints: write and draw it again")
        return print("" if args.check else text, end="")
    ratios, devices = {}, {}
    print(f"{'':12} {'live peak':>10} {'reserved':>10} {'ratio':>7} {'smallest device':>16}")
    for kind in KINDS:
        peaks = run(kind, args, args.memory)
        ratios[kind] = peaks["reserved"] / peaks["live"]
        devices[kind] = smallest(kind, args, peaks["reserved"])
        live, reserved, device = (f"{size / 2**30:.2f} GiB" for size in (peaks["live"], peaks["reserved"], devices[kind]))
        print(f"{kind:12} {live:>10} {reserved:>10} {ratios[kind]:7.4f} {device:>16}", flush=True)
    if ratios["always on"] > WANTED or devices["always on"] > devices["native"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
