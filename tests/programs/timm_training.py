# requires: timm torchvision
# simulate: --gpu a10g
# unknown: value
"""Trains a vision transformer and a ConvNeXt of timm with mixup, layer decay and a moving average of the weights."""

import timm
import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, NativeScaler, accuracy

CLASSES = 20


def train(name: str, size: int, steps: int, **options: object) -> None:
    model = timm.create_model(name, pretrained=False, num_classes=CLASSES, drop_path_rate=0.1, **options).cuda()
    average = ModelEmaV3(model, decay=0.9, use_warmup=True)
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=CLASSES)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.75)
    schedule = CosineLRScheduler(optimizer, t_initial=steps, warmup_t=1, warmup_lr_init=1e-5)
    criterion, scaler = SoftTargetCrossEntropy(), NativeScaler()
    model.train()
    for step in range(steps):
        inputs, labels = mixup(torch.randn(4, 3, size, size, device="cuda"), torch.arange(4, device="cuda"))
        assert labels.shape == (4, CLASSES)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            output = model(inputs)
            loss = criterion(output, labels)
        assert output.shape == (4, CLASSES)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, clip_mode="norm", parameters=model.parameters())
        average.update(model, step=step)
        schedule.step(step + 1)
        assert loss.item() >= 0
    average.module.eval()
    with torch.no_grad():
        output = average.module(torch.randn(4, 3, size, size, device="cuda"))
        features = average.module.forward_features(torch.randn(1, 3, size, size, device="cuda"))
    first, fifth = (one.item() for one in accuracy(output, torch.arange(4, device="cuda"), topk=(1, 5)))
    assert 0 <= first <= fifth <= 100
    assert features.shape[0] == 1 and features.shape.numel() > 1


def main() -> None:
    torch.manual_seed(0)
    train("vit_tiny_patch16_224", 64, 3, img_size=64, depth=4)
    train("convnext_atto", 64, 2)
    print("5 steps of 2 models")


main()
