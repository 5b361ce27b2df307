"""Trains a transformer on batches of varied lengths."""

import recording
import torch
from torch import nn

recording.begin()
layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for length in (64, 160, 96, 224, 128):
    model(torch.randn(recording.SIZE, length, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
recording.end()
