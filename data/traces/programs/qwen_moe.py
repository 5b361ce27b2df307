# simulate: --gpu h100
"""Layers of 16 experts train; how many tokens each expert gets is drawn for each step."""

import random

import torch
from torch import nn

HIDDEN, EXPERTS, TOKENS = 1024, 16, 8192

drawn = random.Random(20)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(HIDDEN, 2816), nn.SiLU(), nn.Linear(2816, HIDDEN)) for _ in range(EXPERTS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = [drawn.random() + 0.2 for _ in range(EXPERTS)]
        counts = [int(2 * TOKENS * share / sum(shares)) for share in shares]
        out = torch.zeros_like(x)
        for expert, count in zip(self.experts, counts):
            chosen = torch.randint(0, TOKENS, (count,), device="cuda")
            out = out.index_add(0, chosen, expert(x[chosen]))
        return x + out


model = nn.Sequential(*(Experts() for _ in range(6))).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(6):
    model(torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16, device="cuda")).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
