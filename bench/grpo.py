#!/usr/bin/env python3
"""Measures a program of GRPO-like steps: rollout, train, weight sync, with memory that legacy IPC must accept in between.

    bench/grpo.py [--build build/release] [--steps 20] [--seed 1] [--memory 64GiB]

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
        self.weights = [self.new(self.LAYER) for _ in range(self.LAYERS)]
        self.states = [self.new(2 * self.LAYER) for _ in range(self.LAYERS)]
        self.samples: list[list[object]] = []  # of the last three rollouts, which the loss looks at again

    def new(self, size: float) -> object:
        return self.torch.empty(max(1, int(size)), dtype=self.torch.uint8, device="cuda")

    def switch(self, expandable: bool) -> None:
        if self.kind != "always on":
            self.torch._C._accelerator_setAllocatorSettings(f"expandable_segments:{expandable}")

    def step(self) -> None:
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


def child(kind: str, steps: int, seed: int) -> None:
    """Runs the program and prints its peaks, or that memory ran out, as JSON."""
    if kind != "native":
        import cachalot

        cachalot.enable("heap:pages")
    import torch

    try:
        program = Program(kind, seed)
        for _ in range(steps):
            program.step()
        ended = True
    except torch.OutOfMemoryError:
        ended = False
    stats = torch.cuda.memory_stats()
    print(json.dumps({"ended": ended, "live": stats["allocated_bytes.all.peak"], "reserved": stats["reserved_bytes.all.peak"]}))


def run(kind: str, args: argparse.Namespace, memory: str) -> dict[str, int]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", default="64GiB")
    parser.add_argument("--child", choices=KINDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.child, args.steps, args.seed)
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
