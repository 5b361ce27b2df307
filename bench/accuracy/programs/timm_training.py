"""A model of timm in training by SGD with momentum, the default of timm's train.py, with timm's prefetching.

The peak is that after the first step: cuDNN's benchmark takes large workspaces there, one after the other and each for some
milliseconds, and the measured figures were read once a second.
"""

import argparse

import timm
import torch
from timm.data.loader import PrefetchLoader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2


class Images:
    """Images as timm's loader gives them: batches of bytes."""

    def __init__(self, batch: int, shape: tuple[int, ...], batches: int) -> None:
        self.batch, self.shape, self.batches = batch, shape, batches

    def __iter__(self):  # noqa: ANN204
        for _ in range(self.batches):
            yield torch.zeros(self.batch, *self.shape, dtype=torch.uint8), torch.zeros(self.batch, dtype=torch.long)

    def __len__(self) -> int:
        return self.batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, required=True)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    model = timm.create_model(options.model).cuda()
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9, weight_decay=2e-5)
    loss_of = LabelSmoothingCrossEntropy(0.1).cuda()
    shape = timm.data.resolve_data_config({}, model=model)["input_size"]
    first = True
    for inputs, labels in PrefetchLoader(Images(options.batch, shape, 4), device=torch.device("cuda")):
        loss = loss_of(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        loss.item()
        if first:
            torch.cuda.reset_peak_memory_stats()
            first = False


main()
