# simulate: --gpu h100
"""A variational autoencoder of convolutions trains on batches of images."""

import torch
from torch import nn

encoder = nn.Sequential(nn.Conv2d(3, 64, 4, 2, 1), nn.ReLU(), nn.Conv2d(64, 128, 4, 2, 1), nn.ReLU(), nn.Flatten(),
                        nn.Linear(128 * 256, 512)).cuda()
decoder = nn.Sequential(nn.Linear(256, 128 * 256), nn.Unflatten(1, (128, 16, 16)), nn.ConvTranspose2d(128, 64, 4, 2, 1),
                        nn.ReLU(), nn.ConvTranspose2d(64, 3, 4, 2, 1)).cuda()
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for _ in range(10):
    images = torch.randn(96, 3, 64, 64, device="cuda")
    mean, logarithm = encoder(images).chunk(2, dim=1)
    sampled = mean + torch.randn_like(mean) * torch.exp(logarithm / 2)
    loss = nn.functional.mse_loss(decoder(sampled), images) + (mean.square() + logarithm.exp() - logarithm).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
