# requires: bitsandbytes
# simulate: --gpu l4
# bytes: optimizer state = 2 * 2 * 2048**2 + 2 * (2 * 4 * 2 * 2048**2 // 256 + 2 * 256 * 4)
# bytes: managed = 2 * 2 * 2048**2
"""Trains by AdamW8bit of bitsandbytes and by PagedAdamW8bit, whose state is managed memory, of 2 bytes for each parameter.

Beside it each block of 256 parameters has a scale, and each optimizer two tables of 256 numbers.
"""

import bitsandbytes
import torch
from torch import nn

WIDTH, LAYERS, STEPS = 2048, 2, 3


def network() -> nn.Module:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).cuda()


torch.manual_seed(0)
models = [network(), network()]
optimizers = [bitsandbytes.optim.AdamW8bit(models[0].parameters(), 1e-3),
              bitsandbytes.optim.PagedAdamW8bit(models[1].parameters(), 1e-3)]
for _ in range(STEPS):
    for model, optimizer in zip(models, optimizers):
        model(torch.randn(8, WIDTH, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
assert all(len(one.state) == LAYERS for one in optimizers)
print(f"OK: {STEPS} steps of {len(optimizers)} optimizers")
