# simulate: --gpu h100
"""A graph network trains on graphs whose numbers of nodes and edges vary."""

import random

import torch
from torch import nn

layers = nn.ModuleList(nn.Linear(2 * 256, 256) for _ in range(4)).cuda()
head = nn.Linear(256, 40).cuda()
optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], lr=1e-3)
sizes = random.Random(14)
for _ in range(12):
    nodes = sizes.randint(5_000, 60_000)
    edges = torch.randint(0, nodes, (2, nodes * sizes.randint(4, 14)), device="cuda")
    features = torch.randn(nodes, 256, device="cuda")
    for layer in layers:
        messages = features[edges[0]]
        gathered = torch.zeros_like(features).index_add(0, edges[1], messages)
        features = torch.relu(layer(torch.cat([features, gathered], dim=1)))
    labels = torch.randint(0, 40, (nodes,), device="cuda")
    nn.functional.cross_entropy(head(features), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
