"""Trains a GPT-2 of 124 million parameters on random words of up to 1024 tokens, in mixed precision: what bench/fit.sh asks about.

    gpt2.py [--batch N] [--sequence N] [--steps N]
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, LENGTH, VOCABULARY = 768, 12, 12, 1024, 50257


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.heads, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.expand = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.heads(self.norms[0](x)).chunk(3, -1)
        query, key, value = (part.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.expand(self.norms[1](x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        return self.head(self.norm(self.blocks(x)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=LENGTH, help="tokens, at most as many as by default")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(options.steps):
        words = torch.randint(VOCABULARY, (options.batch, options.sequence + 1)).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            scores = model(words[:, :-1])
            loss = functional.cross_entropy(scores.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
