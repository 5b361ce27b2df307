# simulate: --gpu h100
"""A transformer of images of varied sizes trains; hooks move its activations to the host on one stream, and back on another."""

import random

import torch
from torch import nn

STEPS, BATCH, HIDDEN = 6, 32, 1024

to_host, to_device = torch.cuda.Stream(), torch.cuda.Stream()


def pack(saved: torch.Tensor) -> tuple[torch.device, torch.Tensor]:
    if not saved.is_cuda or saved.nbytes < 1 << 20 or isinstance(saved, nn.Parameter):
        return saved.device, saved
    to_host.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(to_host):
        on_host = torch.empty(saved.size(), dtype=saved.dtype, pin_memory=True)
        on_host.copy_(saved, non_blocking=True)
    saved.record_stream(to_host)
    return saved.device, on_host


def unpack(packed: tuple[torch.device, torch.Tensor]) -> torch.Tensor:
    device, tensor = packed
    if tensor.device == device:
        return tensor
    to_device.wait_stream(to_host)
    with torch.cuda.stream(to_device):
        tensor = tensor.to(device, non_blocking=True)
    torch.cuda.current_stream().wait_stream(to_device)
    tensor.record_stream(torch.cuda.current_stream())
    return tensor


embedding = nn.Conv2d(3, HIDDEN, 16, 16).cuda()
layer = nn.TransformerEncoderLayer(HIDDEN, 16, 4 * HIDDEN, batch_first=True, activation="gelu", norm_first=True)
encoder, head = nn.TransformerEncoder(layer, 16, enable_nested_tensor=False).cuda(), nn.Linear(HIDDEN, 1000).cuda()
parameters = [*embedding.parameters(), *encoder.parameters(), *head.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-4)
sizes = random.Random(35)
for _ in range(STEPS):
    size = sizes.randrange(160, 321, 32)
    images, labels = torch.randn(BATCH, 3, size, size, device="cuda"), torch.randint(0, 1000, (BATCH,), device="cuda")
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack), torch.autocast("cuda", torch.bfloat16):
        tokens = embedding(images).flatten(2).transpose(1, 2)
        loss = nn.functional.cross_entropy(head(encoder(tokens).mean(1)), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
