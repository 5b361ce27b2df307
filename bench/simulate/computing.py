"""Measures the cost of computing small operations for the host: a training step of a GPT-2 with it and without.

    bench/simulate/computing.py [--command build/release/tools/cachalot] [--turns 20] [--python PYTHON] [--limits]

--limits prints the ratio for several limits of small operations. The programs run at once and take turns, so that a machine that
gets slower does so for all. The figures are processor time, of the best step of each. Prints milliseconds per step, their ratio,
and the target.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = 2.0  # times as long
LIMITS = [4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20]
STEPS_A_TURN = 10  # the first ones find the caches cold

STEPS = """
import sys
import time
import torch
from torch import nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, TOKENS, WORDS, BATCH = 12, 12, 768, 1024, 50257, 4

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.output = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        query, key, value = self.qkv(self.norm(x)).view(*x.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.output(attended.transpose(1, 2).reshape(x.shape)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))

with torch.device("cuda"):
    words, places, head = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
    model = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH), head)
parameters = [*words.parameters(), *places.parameters(), *model.parameters()]
optimizer = torch.optim.AdamW(parameters)

def step():
    tokens = torch.randint(0, WORDS, (BATCH, TOKENS + 1), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        scores = model(words(tokens[:, :-1]) + places(torch.arange(TOKENS, device="cuda")))
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    optimizer.zero_grad()

for _ in range(3):
    step()
for steps in sys.stdin:
    best = float("inf")
    for _ in range(int(steps)):
        began = time.process_time()
        step()
        best = min(best, time.process_time() - began)
    print(best * 1e3, flush=True)
"""


class Program:
    """The training in a simulated process, which takes steps when it is told to."""

    def __init__(self, options: argparse.Namespace, which: str, settings: str = "") -> None:
        self.process = subprocess.Popen([options.command, "simulate", "--compute", which, "--", options.python, "-c", STEPS],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env=os.environ | {"CACHALOT_SIM": settings})

    def turn(self) -> float:
        """Milliseconds of processor time that the best of some steps takes."""
        self.process.stdin.write(f"{STEPS_A_TURN}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a program ended: {self.process.communicate()[1]}")
        return float(line)

    def end(self) -> None:
        self.process.communicate()


def take_turns(options: argparse.Namespace, programs: list[Program]) -> list[list[float]]:
    times = [[program.turn() for program in programs] for _ in range(options.turns)]
    for program in programs:
        program.end()
    return times


def compare_limits(options: argparse.Namespace) -> None:
    """All programs take turns, so that the ratios are of one state of the machine."""
    programs = [Program(options, "none")]
    programs += [Program(options, "small", f"compute_bytes:{most},compute_work:{100 * most}") for most in LIMITS]
    without, *computing = map(min, zip(*take_turns(options, programs)))
    print("bytes of an operation    times as long as without computing")
    for most, time in zip(LIMITS, computing):
        print(f"{most:21,}    {time / without:.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default=str(ROOT / "build/release/tools/cachalot"))
    parser.add_argument("--python", default=os.environ.get("CACHALOT_PYTHON", sys.executable), help="with torch")
    parser.add_argument("--turns", type=int, default=20, help=f"of each program, of {STEPS_A_TURN} steps")
    parser.add_argument("--limits", action="store_true", help="compare limits of what is small")
    options = parser.parse_args()
    if options.turns < 1:
        parser.error(f"--turns {options.turns}: at least 1 is needed")
    if options.limits:
        compare_limits(options)
        return 0
    times = take_turns(options, [Program(options, "none"), Program(options, "small")])
    without, computing = map(min, zip(*times))
    middle = statistics.median(small / none for none, small in times)
    ratio = computing / without
    verdict = "met" if ratio <= TARGET else "MISSED"
    print(f"a step takes the host {without:.1f} ms without and {computing:.1f} ms with computing: {ratio:.2f} times as long "
          f"(median of the turns: {middle:.2f}); target <= {TARGET:g}: {verdict}")
    return 0 if ratio <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
