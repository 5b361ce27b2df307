# simulate: --gpu h100
"""A server decodes requests that come and go: each has a cache of its own that grows by pages of 64 tokens."""

import random

import torch
from torch import nn

LAYERS, HIDDEN, MOST = 16, 2048, 24

with torch.no_grad():
    weights = [nn.Linear(HIDDEN, 4 * HIDDEN, bias=False, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)]
    drawn, requests = random.Random(16), []
    for _ in range(300):
        if len(requests) < MOST and drawn.random() < 0.5:
            tokens = drawn.randint(50, 1500)
            caches = [torch.empty(2, tokens, HIDDEN, dtype=torch.bfloat16, device="cuda") for _ in range(LAYERS)]
            requests.append({"caches": caches, "used": tokens, "left": drawn.randint(20, 120)})
        batch = torch.randn(max(len(requests), 1), HIDDEN, dtype=torch.bfloat16, device="cuda")
        for index, weight in enumerate(weights):
            batch = weight(batch)[:, :HIDDEN]
            for request in requests:
                if request["used"] % 64 == 0:
                    more = torch.empty(2, 64, HIDDEN, dtype=torch.bfloat16, device="cuda")
                    request["caches"][index] = torch.cat([request["caches"][index], more], dim=1)
        for request in requests:
            request["used"] += 1
            request["left"] -= 1
        requests = [request for request in requests if request["left"] > 0]
