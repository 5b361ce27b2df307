# simulate: --gpu h100
"""ResNet-18 trains on batches of 128 small images, and a batch of 256 is evaluated after every third step."""

import torch
import torchvision

model = torchvision.models.resnet18(num_classes=10).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for step in range(9):
    images, labels = torch.randn(128, 3, 64, 64, device="cuda"), torch.randint(0, 10, (128,), device="cuda")
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 3 == 2:
        with torch.no_grad():
            model(torch.randn(256, 3, 64, 64, device="cuda")).argmax(-1)
