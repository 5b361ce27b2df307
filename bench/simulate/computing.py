"""What computing small operations costs the host: a training step of a GPT-2 with it and without.

    bench/simulate/computing.py [--command build/release/tools/cachalot] [--rounds 5] [--python PYTHON]

Runs take turns, and the best of each kind counts. Prints milliseconds per step, their ratio, and the target.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = 2.0  # times as long

STEPS = """
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
best = float("inf")
for _ in range(20):
    began = time.perf_counter()
    step()
    best = min(best, time.perf_counter() - began)
print(best * 1e3)
"""


def milliseconds(command: str, python: str, which: str) -> float:
    done = subprocess.run([command, "simulate", "--compute", which, "--", python, "-c", STEPS],
                          capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default=str(ROOT / "build/release/tools/cachalot"))
    parser.add_argument("--python", default=os.environ.get("CACHALOT_PYTHON", sys.executable), help="with torch")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds}: at least 1 is needed")
    best = {"none": float("inf"), "small": float("inf")}
    for _ in range(options.rounds):
        for which in best:
            best[which] = min(best[which], milliseconds(options.command, options.python, which))
    ratio = best["small"] / best["none"]
    verdict = "met" if ratio <= TARGET else "MISSED"
    print(f"a step takes the host {best['none']:.1f} ms without and {best['small']:.1f} ms with computing: "
          f"{ratio:.2f} times as long; target <= {TARGET:g}: {verdict}")
    return 0 if ratio <= TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
