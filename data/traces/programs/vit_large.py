# simulate: --gpu h100
"""ViT-large trains on batches of 64 images, with an evaluation of 128 images after every second step."""

import torch
import transformers

with torch.device("cuda"):
    model = transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=1000))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for step in range(6):
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(torch.randn(64, 3, 224, 224, device="cuda"), labels=torch.randint(0, 1000, (64,), device="cuda")).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 2 == 1:
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            model(torch.randn(128, 3, 224, 224, device="cuda")).logits.argmax(-1)
