# requires: torchvision
# simulate: --gpu rtx3060
# unknown: size value
# sizes: by values
"""Trains Faster R-CNN and RetinaNet on images of several sizes, and detects with them.

How many boxes there are follows from values: of proposals, of non-maximum suppression, of scores.
"""

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn, retinanet_resnet50_fpn

CLASSES = 5
COUNTS = [3, 1, 2]  # boxes of each image


def images(device: str) -> list[torch.Tensor]:
    return [torch.rand(3, height, width, device=device) for height, width in ((96, 128), (120, 100), (80, 160))]


def targets(device: str) -> list[dict[str, torch.Tensor]]:
    found = []
    for count in COUNTS:
        corner = torch.rand(count, 2, device=device) * 40
        boxes = torch.cat([corner, corner + 10 + 25 * torch.rand(count, 2, device=device)], 1)
        found.append({"boxes": boxes, "labels": torch.randint(1, CLASSES, (count,), device=device)})
    return found


def train(model: torch.nn.Module, steps: int, names: set[str]) -> list[float]:
    model.train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 1e-3, momentum=0.9)
    losses = []
    for _ in range(steps):
        parts = model(images("cuda"), targets("cuda"))
        assert set(parts) == names, set(parts)
        loss = sum(parts.values())
        assert torch.isfinite(loss), parts
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@torch.no_grad()
def detect(model: torch.nn.Module, most: int) -> list[int]:
    model.eval()
    inputs = images("cuda")
    results = model(inputs)
    for image, result in zip(inputs, results):
        count = len(result["boxes"])
        assert result["boxes"].shape == (count, 4) and count <= most, result["boxes"].shape
        assert result["scores"].shape == result["labels"].shape == (count,)
        kept = result["boxes"][result["scores"] > 0.5].cpu()
        assert len(kept) <= count
        assert bool((kept[:, 2] <= image.shape[2]).all()) and bool((kept[:, 3] <= image.shape[1]).all())
    return [len(result["boxes"]) for result in results]


def main() -> None:
    torch.manual_seed(0)
    faster = fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=CLASSES,
                                                   min_size=128, max_size=192).cuda()
    names = {"loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg"}
    train(faster, 2, names)
    counts = detect(faster, 100)
    retina = retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=CLASSES, min_size=128,
                                    max_size=192, detections_per_img=50).cuda()
    train(retina, 1, {"classification", "bbox_regression"})
    counts += detect(retina, 50)
    assert len(counts) == 6
    print(f"3 steps, detections {counts}")


main()
