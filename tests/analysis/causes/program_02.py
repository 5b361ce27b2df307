"""A training that keeps the outputs of all steps for a plot."""

import torch
from watched import watch


def main():
    model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    outputs = []
    for _ in range(400):
        batch = torch.randn(2048, 1024, device="cuda")
        output = model(batch)
        output.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        outputs.append(output.detach())


watch(main)
