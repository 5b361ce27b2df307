# simulate: --gpu h100
"""DeepLabV3 learns to segment images of varied sizes, 8 in a batch."""

import random

import torch
import torchvision

model = torchvision.models.segmentation.deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
sizes = random.Random(10)
for _ in range(8):
    height, width = 32 * sizes.randint(8, 17), 32 * sizes.randint(8, 17)
    images = torch.randn(8, 3, height, width, device="cuda")
    labels = torch.randint(0, 21, (8, height, width), device="cuda")
    torch.nn.functional.cross_entropy(model(images)["out"], labels).backward()
    optimizer.step()
    optimizer.zero_grad()
