# simulate: --gpu h100
"""A stream copies the next batch to the GPU while a network of convolutions trains on the one before."""

import random

import torch
import torchvision

model = torchvision.models.resnet18().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
copies = torch.cuda.Stream()
sizes = random.Random(17)


def fetch() -> torch.Tensor:
    with torch.cuda.stream(copies):
        side = 32 * sizes.randint(5, 9)
        return torch.randn(64, 3, side, side).pin_memory().to("cuda", non_blocking=True)


following = fetch()
for _ in range(12):
    torch.cuda.current_stream().wait_stream(copies)
    images = following
    images.record_stream(torch.cuda.current_stream())
    following = fetch()
    torch.nn.functional.cross_entropy(model(images), torch.randint(0, 1000, (64,), device="cuda")).backward()
    optimizer.step()
    optimizer.zero_grad()
