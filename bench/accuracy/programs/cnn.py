"""A generated convolutional network in training, as in the data set itu-rad/GPUMemNet."""

import argparse
import itertools

import torch
from torch import nn

MOST_FILTERS = 2048
ACTIVATIONS = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "prelu": nn.PReLU, "elu": nn.ELU, "selu": nn.SELU,
               "gelu": nn.GELU, "tanh": nn.Tanh, "swish": nn.SiLU, "softplus": nn.Softplus, "mish": nn.Mish}


def filters(shape: str, base: int, depth: int) -> list[int]:
    """Filters of each convolution, or of each residual block."""
    def grown(part: float) -> int:
        return min(int(base * (MOST_FILTERS / base) ** part), MOST_FILTERS)

    if shape == "residual":
        return [grown(i / depth) for i in range(depth // 2)]
    if shape == "bottleneck":
        return [2 * base] + [grown(i / (depth - 1)) for i in range(depth - 1)]
    rising = depth // 2  # hourglass
    falling = depth - rising
    return [grown(i / rising) for i in range(rising)] + [max(grown(i / falling), base) for i in range(falling)[::-1]]


class Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int, options: argparse.Namespace) -> None:
        super().__init__()
        self.body = nn.Sequential(convolution(before, after, stride, options), convolution(after, after, 1, options))
        norm = nn.BatchNorm2d(after) if options.batch_norm else nn.Identity()
        changes = before != after or stride != 1
        self.aside = nn.Sequential(nn.Conv2d(before, after, 1, stride), norm) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        aside = self.aside(x)
        return self.body(x) + aside


def convolution(before: int, after: int, stride: int, options: argparse.Namespace) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(before, after, 3, stride, 1)]
    if options.batch_norm:
        layers.append(nn.BatchNorm2d(after))
    layers.append(ACTIVATIONS[options.activation]())
    if options.dropout:
        layers.append(nn.Dropout(0.3))
    return nn.Sequential(*layers)


def network(options: argparse.Namespace) -> nn.Sequential:
    layers: list[nn.Module] = []
    size = options.size
    pairs = itertools.pairwise([options.channels, *filters(options.shape, options.filters, options.depth)])
    last = options.channels
    for index, (before, after) in enumerate(pairs):
        last = after
        if options.shape != "residual":
            layers.append(convolution(before, after, 1, options))
            continue
        stride = 2 if index % 2 == 1 and size > 7 else 1
        layers.append(Residual(before, after, stride, options))
        size //= stride
        if size <= 7:
            break
    head = nn.Linear(last, options.classes)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head, nn.Softmax(dim=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("channels", "classes", "depth", "filters", "batch", "size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--shape", choices=("bottleneck", "hourglass", "residual"), required=True)
    parser.add_argument("--activation", choices=ACTIVATIONS, required=True)
    parser.add_argument("--batch-norm", action="store_true")
    parser.add_argument("--dropout", action="store_true")
    options = parser.parse_args()

    def images() -> torch.Tensor:
        return torch.empty(options.batch, options.channels, options.size, options.size)

    model = network(options).cuda()
    example = images().cuda()  # the original keeps it, and prints a summary of the model
    model(example)
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    for _ in range(3):
        inputs, labels = images().cuda(), torch.randint(options.classes, (options.batch,)).cuda()
        optimizer.zero_grad()
        loss = loss_of(model(inputs), labels)
        loss.backward()
        optimizer.step()
        loss.item()


main()
