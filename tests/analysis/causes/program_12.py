"""A model of many layers and a batch of many rows."""

import torch
from watched import watch


def main():
    layers = [torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True) for _ in range(6)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for rows in (2, 4, 8, 16, 32, 64, 128):
        loss = model(torch.randn(rows, 256, 512, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


watch(main)
