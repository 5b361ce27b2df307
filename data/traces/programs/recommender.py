# simulate: --gpu h100
"""A recommender with 26 tables of embeddings trains on batches of clicks with a varied number of items."""

import random

import torch
from torch import nn


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        rows = random.Random(12)
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows.randint(1_000, 400_000), 128, mode="sum") for _ in range(26))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 128), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(479, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))

    def forward(self, dense: torch.Tensor, sparse: list[torch.Tensor], offsets: torch.Tensor) -> torch.Tensor:
        first = self.bottom(dense)
        features = torch.stack([first] + [table(items, offsets) for table, items in zip(self.tables, sparse)], dim=1)
        pairs = features @ features.transpose(1, 2)
        lower = torch.tril_indices(27, 27, -1, device="cuda")
        return self.top(torch.cat([first, pairs[:, lower[0], lower[1]]], dim=1))


model = Recommender().cuda()
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
drawn = random.Random(13)
for _ in range(8):
    batch = 8192
    sparse = [torch.randint(0, 1_000, (batch * drawn.randint(1, 5),), device="cuda") for _ in range(26)]
    offsets = torch.arange(batch, device="cuda")
    out = model(torch.randn(batch, 13, device="cuda"), sparse, offsets)
    nn.functional.binary_cross_entropy_with_logits(out, torch.rand(batch, 1, device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
