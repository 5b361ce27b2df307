#!/usr/bin/env python3
"""Tensors sent to another process by torch.multiprocessing, between cachalot and PyTorch's own allocator.

    bench/gpu/torch_sharing.py [--quick]     PYTHONPATH holds the built package

With --quick one pair alone. Each pair of allocators is a process, which starts the receiver. Prints lines of JSON, as the programs
of bench/gpu (report.h).
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys

ALLOCATORS = ("native", "segments", "pages")
COUNT = 6 << 20  # words: 24 MiB, of several pages
ADDED = 1000
LONGEST_SECONDS = 60


def is_simulated():
    return hasattr(ctypes.CDLL(None), "cachalot_sim_clock_ns")


def use(allocator):
    import torch

    if allocator != "native":
        import cachalot

        cachalot.enable(f"heap:{allocator}")
    return torch


def receive(allocator, tensors, answers):
    """In the receiver: what the tensor holds, then something else in it."""
    torch = use(allocator)
    tensor = tensors.get(timeout=LONGEST_SECONDS)
    expected = torch.arange(COUNT, dtype=torch.int32, device="cuda")
    wrong = int((tensor != expected).sum())
    tensor += ADDED
    torch.cuda.synchronize()
    answers.put(wrong)
    tensors.get(timeout=LONGEST_SECONDS)  # the sender has looked


def make_tensor(torch, sender, receiver):
    """For PyTorch's own allocator it lies in one handle."""
    if sender == "native" or receiver != "native":
        return torch.arange(COUNT, dtype=torch.int32, device="cuda")
    import cachalot

    with cachalot.contiguous():
        return torch.arange(COUNT, dtype=torch.int32, device="cuda")


def send(sender, receiver):
    """Prints the numbers of wrong words in the receiver and then here."""
    torch = use(sender)
    context = torch.multiprocessing.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    process = context.Process(target=receive, args=(receiver, tensors, answers))
    process.start()
    tensor = make_tensor(torch, sender, receiver)
    torch.cuda.synchronize()
    tensors.put(tensor)
    wrong_there = answers.get(timeout=LONGEST_SECONDS)
    wrong_here = int((tensor != torch.arange(ADDED, ADDED + COUNT, dtype=torch.int32, device="cuda")).sum())
    tensors.put(None)
    process.join(LONGEST_SECONDS)
    print(json.dumps([wrong_there, wrong_here, process.exitcode]))


def check_pair(sender, receiver):
    name = f"torch/{sender} to {receiver}"
    command = [sys.executable, "-B", __file__, sender, receiver]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        return say(name, "failed", "it took too long")
    lines = done.stderr.strip().splitlines()
    if done.returncode != 0:
        return say(name, "failed", lines[-1] if lines else f"exit status {done.returncode}")
    wrong_there, wrong_here, status = json.loads(done.stdout.splitlines()[-1])
    if status != 0:
        return say(name, "failed", f"the receiver ended with {status}")
    if is_simulated():
        return say(name, "not applicable", "the device is simulated: kernels compute nothing")
    is_right = wrong_there == 0 and wrong_here == 0
    return say(name, "passed" if is_right else "failed", f"{wrong_there} wrong words in the receiver, {wrong_here} in the sender")


def say(name, verdict, why):
    print(json.dumps({"check": name, "verdict": verdict, "why": why}), flush=True)


def main():
    if len(sys.argv) == 3:
        return send(*sys.argv[1:])
    pairs = [(sender, receiver) for sender in ALLOCATORS for receiver in ALLOCATORS if (sender, receiver) != ("native", "native")]
    for sender, receiver in [("pages", "native")] if sys.argv[1:] == ["--quick"] else pairs:
        check_pair(sender, receiver)
    return None


if __name__ == "__main__":
    main()
