# simulate: --gpu h100
"""A GPT-2 of six small layers trains on batches of varied lengths, with checkpoints of its activations."""

import random

import torch
import transformers

with torch.device("cuda"):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=6, n_embd=384, n_head=6, vocab_size=8192))
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
lengths = random.Random(24)
for _ in range(15):
    tokens = torch.randint(0, 8192, (8, lengths.randint(64, 512)), device="cuda")
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
