# simulate: --gpu h100
"""T5-base trains on pairs of source and target texts whose lengths vary from batch to batch."""

import random

import torch
import transformers

STEPS, BATCH = 10, 16

with torch.device("cuda"):
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(
        d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
lengths = random.Random(4)
for _ in range(STEPS):
    source = torch.randint(1, 32128, (BATCH, lengths.randint(64, 512)), device="cuda")
    target = torch.randint(1, 32128, (BATCH, lengths.randint(16, 160)), device="cuda")
    model(input_ids=source, attention_mask=torch.ones_like(source), labels=target).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
