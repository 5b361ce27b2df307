# simulate: --gpu h100
"""ResNet-50 trains on batches of 64 images whose size is drawn for each batch."""

import random

import torch
import torchvision

STEPS, BATCH = 12, 64

model = torchvision.models.resnet50().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
sizes = random.Random(9)
for _ in range(STEPS):
    side = 32 * sizes.randint(4, 10)
    images, labels = torch.randn(BATCH, 3, side, side, device="cuda"), torch.randint(0, 1000, (BATCH,), device="cuda")
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
