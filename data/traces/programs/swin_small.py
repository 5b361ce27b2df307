# simulate: --gpu h100
"""timm's Swin-small trains on batches whose last is smaller."""

import timm
import torch

model = timm.create_model("swin_small_patch4_window7_224").cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(6):
    batch = 17 if step % 3 == 2 else 32
    with torch.autocast("cuda", torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(
            model(torch.randn(batch, 3, 224, 224, device="cuda")), torch.randint(0, 1000, (batch,), device="cuda"))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
