"""A generated multilayer perceptron in training, as in the data set itu-rad/GPUMemNet."""

import argparse

import torch
from torch import nn

SAMPLES = 4096
ACTIVATIONS = {"relu": nn.ReLU, "leaky_relu": nn.LeakyReLU, "prelu": nn.PReLU, "elu": nn.ELU, "selu": nn.SELU,
               "tanh": nn.Tanh, "softplus": nn.Softplus, "swish": nn.SiLU, "mish": nn.Mish, "gelu": nn.GELU,
               "identity": nn.Identity}


def widths(shape: str, inputs: int, outputs: int, depth: int) -> list[int]:
    """Returns the number of neurons of each hidden layer."""
    found, width = [], inputs
    step = (inputs - outputs) // depth
    for _ in range(depth + (shape == "bottleneck")):
        if shape == "gradual":
            width = max(width - step, outputs)
        elif shape != "uniform":
            width = max(width // 2, outputs)
        found.append(width)
    return found


def network(options: argparse.Namespace) -> nn.Sequential:
    layers: list[nn.Module] = []
    before = options.input
    for width in widths(options.shape, options.input, options.output, options.depth):
        layers.append(nn.Linear(before, width))
        if options.batch_norm:
            layers.append(nn.BatchNorm1d(width))
        layers.append(ACTIVATIONS[options.activation]())
        if options.dropout:
            layers.append(nn.Dropout(0.3))
        before = width
    layers.append(nn.Linear(before, options.output))
    if options.softmax:
        layers.append(nn.Softmax(dim=1))
    return nn.Sequential(*layers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("input", "output", "depth", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--shape", choices=("pyramid", "uniform", "bottleneck", "gradual"), required=True)
    parser.add_argument("--activation", choices=ACTIVATIONS, default="relu")
    parser.add_argument("--batch-norm", action="store_true")
    parser.add_argument("--dropout", action="store_true")
    parser.add_argument("--softmax", action="store_true", help="after the last layer")
    options = parser.parse_args()

    model = network(options).cuda()
    model(torch.rand(2, options.input).cuda())  # the summary of the model that the original prints
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters())
    epoch = [options.batch] * 2 + [SAMPLES % options.batch] * (SAMPLES % options.batch > 1)
    for batch in epoch * 2:
        inputs, labels = torch.randn(batch, options.input).cuda(), torch.randint(options.output, (batch,)).cuda()
        optimizer.zero_grad()
        loss = loss_of(model(inputs), labels)
        loss.backward()
        optimizer.step()
        loss.item()


main()
