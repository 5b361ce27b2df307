# simulate: --gpu h100
"""SegFormer learns to segment images by accelerate in float16; it is evaluated on images of their own sizes."""

import random

import torch
import transformers
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

CLASSES, EPOCHS, BATCH, SIZE = 150, 2, 8, 512


class Images(Dataset):
    """Training images are cut to one size, those of the evaluation are not: they come one by one, each of its own shape."""

    def __init__(self, count: int, seed: int, is_cut: bool) -> None:
        drawn = random.Random(seed)
        self.shapes = [(SIZE, SIZE) if is_cut else (drawn.randrange(384, 897, 32), drawn.randrange(384, 897, 32))
                       for _ in range(count)]

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        shape = self.shapes[index]
        return {"pixel_values": torch.rand(3, *shape), "labels": torch.randint(0, CLASSES, shape)}


accelerator = Accelerator(mixed_precision="fp16")
model = transformers.SegformerForSemanticSegmentation(transformers.SegformerConfig(
    depths=[3, 4, 6, 3], hidden_sizes=[64, 128, 320, 512], decoder_hidden_size=768, num_labels=CLASSES))
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-5)
train = DataLoader(Images(5 * BATCH - 2, 29, True), BATCH)
evaluate = DataLoader(Images(6, 30, False), 1)
model, optimizer, train, evaluate = accelerator.prepare(model, optimizer, train, evaluate)
for _ in range(EPOCHS):
    model.train()
    for batch in train:
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    right = torch.zeros((), device=accelerator.device)
    for batch in evaluate:
        with torch.no_grad():
            logits = model(pixel_values=batch["pixel_values"]).logits
        scores = torch.nn.functional.interpolate(logits, batch["labels"].shape[-2:], mode="bilinear", align_corners=False)
        predicted, labels = accelerator.gather_for_metrics((scores.argmax(1), batch["labels"]))
        right += (predicted == labels).float().mean()
