# requires: torchao
# simulate: --gpu h100
# bytes: optimizer state = 2 * 2 * (1024**2 + 4 * 1024**2 // 256 + 4 * 256)
"""torchao: weights in 8-bit integers and floats serve, float8 trains, and AdamW8bit has its state in 8 bits."""

import torch
from torch import nn
from torchao.float8 import convert_to_float8_training
from torchao.optim import AdamW8bit
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

WIDTH, STEPS = 1024, 3


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=False)).to("cuda", torch.bfloat16)


def serve(config: object) -> int:
    """Returns the bytes of the quantized network."""
    before = torch.cuda.memory_allocated()
    model = network()
    quantize_(model, config)
    bytes_ = torch.cuda.memory_allocated() - before
    with torch.no_grad():
        assert model(torch.randn(16, WIDTH, device="cuda", dtype=torch.bfloat16)).shape == (16, WIDTH)
    return bytes_


def train() -> None:
    model = network()
    convert_to_float8_training(model)
    optimizer = AdamW8bit(model.parameters(), 1e-3)
    for _ in range(STEPS):
        model(torch.randn(16, WIDTH, device="cuda", dtype=torch.bfloat16)).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


torch.manual_seed(0)
sizes = [serve(Int8WeightOnlyConfig()), serve(Float8WeightOnlyConfig())]
assert all(2 * WIDTH**2 < one < 2 * WIDTH**2 * 1.1 for one in sizes), sizes
train()
print(f"OK: {sizes} bytes, {STEPS} steps")
