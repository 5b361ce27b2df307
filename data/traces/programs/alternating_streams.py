# simulate: --gpu h100
"""Two streams take turns with the micro-batches of a step, and the gradients are added on the default stream."""

import random

import torch
from torch import nn

model = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 8192), nn.GELU(), nn.Linear(8192, 2048)) for _ in range(8))).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
streams = [torch.cuda.Stream() for _ in range(2)]
sizes = random.Random(21)
for _ in range(8):
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
    for micro in range(4):
        with torch.cuda.stream(streams[micro % 2]):
            model(torch.randn(sizes.randint(500, 4000), 2048, device="cuda")).square().mean().backward()
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    optimizer.step()
    optimizer.zero_grad()
