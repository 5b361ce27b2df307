# simulate: --gpu h100
"""timm's ConvNeXt-base trains with automatic mixed precision and a scaled loss."""

import timm
import torch

model = timm.create_model("convnext_base").cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", enabled=True)
for _ in range(5):
    with torch.autocast("cuda", torch.float16):
        loss = torch.nn.functional.cross_entropy(
            model(torch.randn(48, 3, 224, 224, device="cuda")), torch.randint(0, 1000, (48,), device="cuda"))
    scaler.scale(loss).backward()
    optimizer.step()
    optimizer.zero_grad()
