"""A classifier of torchvision (or timm's Xception) in training by Adam, as in the data set itu-rad/GPUMemNet."""

import argparse

import torch
import torchvision
from torch import nn


def network(name: str) -> nn.Module:
    if name == "xception":
        import timm
        return timm.create_model("legacy_xception", num_classes=1000)
    if name == "inception_v3":
        return torchvision.models.inception_v3(weights=None, aux_logits=False, init_weights=False)
    return torchvision.models.get_model(name, weights=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, required=True)
    options = parser.parse_args()
    size = 299 if options.model == "inception_v3" else 224
    model = network(options.model).cuda()
    model(torch.empty(2, 3, size, size).cuda())  # the summary of the model that the original prints
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    model.train()
    for _ in range(3):
        inputs, labels = torch.empty(options.batch, 3, size, size).cuda(), torch.randint(1000, (options.batch,)).cuda()
        optimizer.zero_grad()
        loss = loss_of(model(inputs), labels)
        loss.backward()
        optimizer.step()
        loss.item()


main()
