# simulate: --gpu h100
"""GPT-2 of 124 M parameters trains with gradient accumulation over four batches of 8 sequences of 1,024 tokens."""

import torch
import transformers

STEPS, ACCUMULATED, BATCH, LENGTH = 4, 4, 8, 1024

with torch.device("cuda"):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(STEPS):
    for _ in range(ACCUMULATED):
        tokens = torch.randint(0, 50257, (BATCH, LENGTH), device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens, labels=tokens).loss / ACCUMULATED
        loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
