#!/usr/bin/env python3
"""PyTorch on a GPU with each allocator: the same training must have the same losses, to the last bit.

    bench/gpu/training.py [--quick] [--compile]     PYTHONPATH holds the built package

Each allocator is a process of its own: PyTorch's own (native), its expandable segments, and cachalot over segments and over
pages. Prints lines of JSON, as the programs of bench/gpu (report.h).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ALLOCATORS = ("native", "expandable", "segments", "pages")
CACHALOT = ("segments", "pages")
SIMULATED = "the device is simulated: kernels compute nothing"
WORDS = 50257
MOST_SLOWDOWN = 1.01
LONGEST_SECONDS = 300


def say(**line):
    print(json.dumps(line), flush=True)


def fact(name, value, unit):
    say(fact=name, value=value, unit=unit)


def check(name, passed, why):
    say(check=name, verdict="passed" if passed else "failed", why=why)


def not_applicable(name, why):
    say(check=name, verdict="not applicable", why=why)


# ---- In the process of one allocator --------------------------------------------------------------------------------------


def is_simulated():
    import ctypes

    return hasattr(ctypes.CDLL(None), "cachalot_sim_clock_ns")


def build_model(torch, is_quick):
    nn = torch.nn
    width, heads, layers = (128, 4, 2) if is_quick else (768, 12, 12)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def attention(self, x):
            batch, length, _ = x.shape
            q, k, v = self.qkv(x).view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            scores = (q @ k.transpose(-1, -2)) * (width // heads) ** -0.5
            weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
            return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))

        def forward(self, x):
            x = x + self.attention(self.norms[0](x))
            return x + self.mlp(self.norms[1](x))

    torch.manual_seed(0)
    embedding, head = nn.Embedding(WORDS, width), nn.Linear(width, WORDS, bias=False)
    return nn.Sequential(embedding, *(Block() for _ in range(layers)), head).cuda()


def make_batches(torch, steps, is_quick):
    """On the host: texts of varied lengths."""
    generator = torch.Generator().manual_seed(1)
    batch, unit = (2, 8) if is_quick else (8, 64)
    lengths = [unit * (2 + step * 5 % 13) for step in range(steps)]
    return [torch.randint(WORDS, (batch, length + 1), generator=generator) for length in lengths]


def step_of(torch, model, optimizer, words):
    scores = model(words[:, :-1])
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def train(torch, is_quick):
    """Each batch is copied on a stream of its own while the model works on the one before it."""
    model = build_model(torch, is_quick)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    copies = torch.cuda.Stream()
    batches = [batch.pin_memory() for batch in make_batches(torch, 8 if is_quick else 200, is_quick)]
    losses, times = [], []

    def copy(batch):
        with torch.cuda.stream(copies):
            return batch.cuda(non_blocking=True)

    upcoming = copy(batches[0])
    for number in range(len(batches)):
        start = time.perf_counter()
        torch.cuda.current_stream().wait_stream(copies)
        words = upcoming
        words.record_stream(torch.cuda.current_stream())
        if number + 1 < len(batches):
            upcoming = copy(batches[number + 1])
        losses.append(step_of(torch, model, optimizer, words))
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return {"losses": [float(loss).hex() for loss in losses], "step_seconds": times,
            "reserved": torch.cuda.max_memory_reserved(), "allocated": torch.cuda.max_memory_allocated()}


def train_in_a_graph(torch, is_quick):
    """One graph of a whole step, replayed with new words, while memory outside of it comes and goes."""
    model = build_model(torch, is_quick)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=True)
    words = torch.zeros_like(make_batches(torch, 1, is_quick)[0]).cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step_of(torch, model, optimizer, words)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step_of(torch, model, optimizer, words)
    generator = torch.Generator().manual_seed(2)
    losses = []
    for step in range(3 if is_quick else 50):
        words.copy_(torch.randint(WORDS, words.shape, generator=generator))
        graph.replay()
        losses.append(loss.clone())
        torch.empty((step % 7 + 1) << 22, dtype=torch.uint8, device="cuda").fill_(255)
    return {"losses": [float(loss).hex() for loss in losses]}


class Texts:
    """A data set for DataLoader, whose workers are forked from this process, which uses CUDA."""

    def __init__(self, torch, is_quick):
        self.torch, self.count = torch, 4 if is_quick else 64

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.torch.randint(WORDS, (65,), generator=self.torch.Generator().manual_seed(i))


def train_from_a_loader(torch, is_quick):
    model = build_model(torch, is_quick)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = torch.utils.data.DataLoader(Texts(torch, is_quick), batch_size=2, num_workers=2, pin_memory=True,
                                         multiprocessing_context="fork")
    losses = [step_of(torch, model, optimizer, words.cuda(non_blocking=True)) for words in loader]
    return {"losses": [float(loss).hex() for loss in losses]}


def train_compiled(torch, is_quick):
    """With CUDA graphs made by torch.compile."""
    model = torch.compile(build_model(torch, is_quick), mode="reduce-overhead")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(30):
        torch.compiler.cudagraph_mark_step_begin()
        losses.append(step_of(torch, model, optimizer, torch.randint(WORDS, (4, 257), generator=generator).cuda()))
    return {"losses": [float(loss).hex() for loss in losses]}


def run_out_of_memory(torch, _):
    """The error is PyTorch's own, and all memory is there again afterwards."""
    taken, seen = [], ""
    try:
        while True:
            taken.append(torch.empty(512 << 20, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError as error:
        seen = str(error).splitlines()[0]
    count = len(taken)
    del taken
    again = torch.empty(count * (256 << 20), dtype=torch.uint8, device="cuda").fill_(1)
    return {"error": seen, "tensors": count, "again": again.numel()}


SCENARIOS = {"train": train, "graphs": train_in_a_graph, "loader": train_from_a_loader, "out_of_memory": run_out_of_memory}


def run_one(allocator, scenarios, is_quick):
    import torch

    if allocator in CACHALOT:
        import cachalot

        cachalot.enable(f"heap:{allocator}")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # memory stays as the allocator hands it out
    torch.backends.cuda.matmul.allow_tf32 = True
    results = {}
    for name in scenarios:
        try:
            results[name] = ({"compile": train_compiled} | SCENARIOS)[name](torch, is_quick)
        except Exception as error:  # the next scenario may do
            results[name] = {"failure": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    print(json.dumps(results), flush=True)


# ---- In the process that compares -----------------------------------------------------------------------------------------


def environment(allocator):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_") and name != "CACHALOT_CONF"}
    kept["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # without it cuBLAS is not deterministic
    if allocator == "expandable":
        kept["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    return kept


def results_of(allocator, scenarios, is_quick):
    """None where the process failed; it is a failed check then."""
    command = [sys.executable, "-B", __file__, "--one", allocator, "--scenarios", ",".join(scenarios)]
    command += ["--quick"] if is_quick else []
    try:
        done = subprocess.run(command, env=environment(allocator), capture_output=True, text=True, timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        check(f"{allocator}/ends", False, f"it took more than {LONGEST_SECONDS} s")
        return None
    errors = done.stderr.strip().splitlines()
    check(f"{allocator}/ends", done.returncode == 0, f"exit status {done.returncode}" + (f": {errors[-1]}" if errors else ""))
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def compare_losses(scenario, allocator, ours, native):
    name = f"{scenario}/{allocator}"
    if "failure" in ours or "failure" in native:
        return check(name, False, ours.get("failure") or f"native: {native['failure']}")
    if is_simulated():
        return not_applicable(name, SIMULATED)
    equal = sum(a == b for a, b in zip(ours["losses"], native["losses"]))
    is_same = ours["losses"] == native["losses"]
    check(name, is_same, f"{equal} of {len(native['losses'])} losses are equal to the last bit; the last is {ours['losses'][-1]}")
    return None


def compare_times(results):
    """Checks that the step takes the same time with both allocators."""
    if is_simulated():
        return not_applicable("step_time", "the device is simulated: its time is not a GPU's")
    native = results["native"]["train"]["step_seconds"][10:]
    for allocator in results:
        times = results[allocator]["train"]["step_seconds"][10:]
        ratio = statistics.median(ours / theirs for ours, theirs in zip(times, native))
        fact(f"step_time/{allocator}", 1000 * statistics.median(times), "ms")
        if allocator in CACHALOT:
            check(f"step_time/{allocator}", ratio <= MOST_SLOWDOWN, f"{ratio:.4f} times that of native, in the median")
    return None


def compare_memory(results):
    for allocator, result in results.items():
        for figure in ("reserved", "allocated"):
            fact(f"memory/{allocator}/{figure}", result["train"][figure] / 2**20, "MiB")
    pages, expandable = (results[name]["train"]["reserved"] for name in ("pages", "expandable"))
    check("memory/pages", pages <= expandable, f"{pages >> 20} MiB are reserved, {expandable >> 20} by expandable segments")


def compare_out_of_memory(allocator, ours):
    why = ours.get("failure") or f"{ours['tensors']} tensors, then: {ours['error']}"
    check(f"out_of_memory/{allocator}", "failure" not in ours and bool(ours["error"]), why)


def compare(results, scenarios):
    native = results["native"]
    for scenario in scenarios:
        for allocator, result in results.items():
            if scenario == "out_of_memory":
                compare_out_of_memory(allocator, result[scenario])
            elif allocator != "native":
                compare_losses(scenario, allocator, result[scenario], native[scenario])
    if len(results) == len(ALLOCATORS) and all("failure" not in result.get("train", {"failure": ""}) for result in results.values()):
        compare_times(results)
        compare_memory(results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model and a few steps")
    parser.add_argument("--compile", action="store_true", help="torch.compile instead of the rest")
    parser.add_argument("--one", choices=ALLOCATORS, help=argparse.SUPPRESS)
    parser.add_argument("--scenarios", type=lambda text: text.split(","), help=argparse.SUPPRESS)
    options = parser.parse_args()
    scenarios = options.scenarios or (["compile"] if options.compile else list(SCENARIOS))
    if options.one:
        return run_one(options.one, scenarios, options.quick)
    if options.compile and is_simulated():
        return not_applicable("compile", "torch.compile looks for kernels that are fast, and here they compute nothing")
    results = {allocator: results_of(allocator, scenarios, options.quick) for allocator in ALLOCATORS}
    results = {allocator: result for allocator, result in results.items() if result is not None}
    if "native" in results:
        compare(results, scenarios)
    return None


if __name__ == "__main__":
    main()
