# requires: torchvision
# simulate: --gpu t4
# unknown: value
"""Trains a ResNet on images of several sizes in channels-last memory, with autocast and a scaler of the loss.

The scaler skips steps, and changes the scale, by whether all gradients are finite: a value that steers.
"""

import math

import torch
from torchvision.models import resnet18
from torchvision.transforms import v2

CLASSES = 10
SIZES = [64, 96, 80, 112]


def main() -> None:
    torch.manual_seed(0)
    augment = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomResizedCrop(64, antialias=True),
                          v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.25] * 3)])
    mix = v2.RandomChoice([v2.MixUp(num_classes=CLASSES), v2.CutMix(num_classes=CLASSES)])
    model = resnet18(weights=None, num_classes=CLASSES).to("cuda", memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=len(SIZES) + 1)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=3)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    steps = 0
    for size in SIZES:
        raw = torch.randint(0, 256, (8, 3, size, size), dtype=torch.uint8, device="cuda")
        labels = torch.randint(0, CLASSES, (8,), device="cuda")
        inputs, soft = mix(augment(raw) if size > 100 else raw.float().div(255), labels)
        assert soft.shape == (8, CLASSES)
        with torch.autocast("cuda", dtype=torch.float16):
            output = model(inputs.contiguous(memory_format=torch.channels_last))
            loss = criterion(output, soft)
        assert output.shape == (8, CLASSES) and output.dtype == torch.float16
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert math.isfinite(norm.item())
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() >= before, "no gradient is infinite"
        schedule.step()
        steps += 1
    assert scaler.get_scale() == 2048.0, scaler.get_scale()
    assert model.layer4[1].conv2.weight.is_contiguous(memory_format=torch.channels_last)
    assert int(model.bn1.num_batches_tracked) == steps == 4
    model.eval()
    with torch.inference_mode():
        top = model(torch.rand(2, 3, 72, 72, device="cuda")).softmax(1).topk(5)
    assert top.indices.shape == (2, 5) and max(map(max, top.indices.tolist())) < CLASSES
    print(f"{steps} steps, scale {scaler.get_scale():g}")


main()
