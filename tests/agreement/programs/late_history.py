"""Records the last third of a training alone, on a stream of work that needs the cache that is there by then."""

import recording
import torch
from torch import nn

model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(9):
    if step == 6:
        recording.begin()
    model(torch.randn(128 * recording.SIZE * (1 + step % 4), 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
recording.end()
