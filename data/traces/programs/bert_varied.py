# simulate: --gpu h100
"""BERT-base learns to classify texts of varied lengths, 32 in a batch, with automatic mixed precision."""

import random

import torch
import transformers

STEPS, BATCH = 12, 32

with torch.device("cuda"):
    model = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=4))
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
lengths = random.Random(3)
for _ in range(STEPS):
    tokens = torch.randint(0, 30522, (BATCH, lengths.randint(32, 512)), device="cuda")
    labels = torch.randint(0, 4, (BATCH,), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
