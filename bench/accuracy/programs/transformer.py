"""A generated encoder of Transformer layers in training, as in the data set itu-rad/GPUMemNet."""

import argparse

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.words = nn.Embedding(options.words, options.width)
        self.places = nn.Parameter(torch.zeros(1, options.length, options.width))
        layer = nn.TransformerEncoderLayer(options.width, options.heads, options.hidden, 0.3, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, options.layers)
        self.head = nn.Linear(options.width, options.classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.words(tokens) + self.places).mean(dim=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("classes", "width", "layers", "heads", "hidden", "length", "words", "samples", "batch"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()

    def tokens(batch: int) -> torch.Tensor:
        return torch.randint(options.words, (batch, options.length))

    model = Classifier(options).cuda()
    example = tokens(options.batch).cuda()  # the original keeps it, and prints a summary of the model
    for _ in range(2):
        model(example)
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    left = options.samples % options.batch
    for batch in ([options.batch] * 2 + [left] * (left > 0)) * 2:
        inputs, labels = tokens(batch).cuda(), torch.randint(options.classes, (batch,)).cuda()
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = loss_of(outputs, labels)
        loss.backward()
        optimizer.step()
        loss.item()
        (outputs.argmax(1) == labels).sum().item()


main()
