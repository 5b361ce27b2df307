# simulate: --gpu h100
"""A tagger of two recurrent layers trains on sentences of varied lengths."""

import random

import torch
from torch import nn

embedding, recurrent, head = nn.Embedding(20_000, 256).cuda(), nn.LSTM(256, 512, 2, batch_first=True).cuda(), nn.Linear(512, 50).cuda()
optimizer = torch.optim.Adam([*embedding.parameters(), *recurrent.parameters(), *head.parameters()], lr=1e-3)
lengths = random.Random(23)
for _ in range(20):
    words = torch.randint(0, 20_000, (64, lengths.randint(10, 120)), device="cuda")
    out, _ = recurrent(embedding(words))
    nn.functional.cross_entropy(head(out).flatten(0, 1), torch.randint(0, 50, (words.numel(),), device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
