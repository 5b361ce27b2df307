# simulate: --gpu h100 --compute all
"""Faster R-CNN trains on images of varied sizes, and then detects: how many boxes it keeps follows from its values."""

import random

import torch
import torchvision

STEPS, BATCH, CLASSES = 4, 2, 21

torch.manual_seed(36)
drawn = random.Random(37)
model = torchvision.models.detection.fasterrcnn_resnet50_fpn(
    weights=None, weights_backbone=None, num_classes=CLASSES, min_size=240, max_size=400, trainable_backbone_layers=5).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def images(count: int) -> list[torch.Tensor]:
    return [torch.rand(3, drawn.randint(240, 400), drawn.randint(240, 400), device="cuda") for _ in range(count)]


def targets(count: int) -> list[dict[str, torch.Tensor]]:
    found = []
    for boxes in (drawn.randint(1, 8) for _ in range(count)):
        corner = 150 * torch.rand(boxes, 2, device="cuda")
        found.append({"boxes": torch.cat([corner, corner + 20 + 60 * torch.rand(boxes, 2, device="cuda")], 1),
                      "labels": torch.randint(1, CLASSES, (boxes,), device="cuda")})
    return found


for _ in range(STEPS):
    model.train()
    sum(model(images(BATCH), targets(BATCH)).values()).backward()
    optimizer.step()
    optimizer.zero_grad()
model.eval()
with torch.no_grad():
    for count in (1, 3):
        kept = [len(one["boxes"]) for one in model(images(count))]
        print(f"{kept} boxes are kept")
