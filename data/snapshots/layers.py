"""Makes layers.pickle: a program with a stream on the side, and a snapshot of its memory with history and stacks."""

import sys

import torch


class Layer:
    def __init__(self, size):
        self.weight = torch.empty(size, size, device="cuda")

    def forward(self, batch):
        return torch.empty(len(batch), len(self.weight), device="cuda")


def step(layers, kept):
    batch = torch.empty(64, 256, device="cuda")
    for layer in layers:
        batch = layer.forward(batch)
    kept.append(batch)


def train():
    early = torch.empty(1 << 20, device="cuda")
    layers = [Layer(256)]
    torch.cuda.memory._record_memory_history(max_entries=1000, stacks="python")
    layers += [Layer(512), Layer(1024)]
    del early
    kept = []
    side = torch.cuda.Stream()
    for _ in range(4):
        step(layers, kept)
        with torch.cuda.stream(side):
            copy = torch.empty(3 << 20, device="cuda")
        copy.record_stream(torch.cuda.current_stream())
        del copy
    torch.cuda.memory._dump_snapshot(sys.argv[1])


train()
