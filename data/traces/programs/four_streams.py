# simulate: --gpu h100
"""Four streams run one network each on requests of varied sizes; a fifth gathers what they return."""

import random

import torch
from torch import nn

streams = [torch.cuda.Stream() for _ in range(4)]
networks = [nn.Sequential(*(nn.Conv2d(3 if i == 0 else 64, 64, 3, padding=1) for i in range(6))).cuda() for _ in streams]
sizes = random.Random(19)
with torch.no_grad():
    for _ in range(80):
        results = []
        for stream, network in zip(streams, networks):
            with torch.cuda.stream(stream):
                side = sizes.randint(100, 400)
                out = network(torch.randn(sizes.randint(1, 12), 3, side, side, device="cuda"))
                results.append(out.mean((2, 3)))
        for stream, result in zip(streams, results):
            torch.cuda.current_stream().wait_stream(stream)
            result.record_stream(torch.cuda.current_stream())
        torch.cat(results).sum()
