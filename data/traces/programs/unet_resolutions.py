# simulate: --gpu h100
"""A UNet of diffusers learns to remove noise from latents whose resolution varies."""

import random

import diffusers
import torch

model = diffusers.UNet2DModel(
    sample_size=64, in_channels=4, out_channels=4, layers_per_block=2, block_out_channels=(128, 256, 384, 512),
    down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D")).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
sizes = random.Random(11)
for _ in range(8):
    latents = torch.randn(16, 4, 8 * sizes.randint(4, 10), 8 * sizes.randint(4, 10), device="cuda")
    noise = torch.randn_like(latents)
    times = torch.randint(0, 1000, (16,), device="cuda")
    torch.nn.functional.mse_loss(model(latents + noise, times).sample, noise).backward()
    optimizer.step()
    optimizer.zero_grad()
