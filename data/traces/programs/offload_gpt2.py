# simulate: --gpu h100
"""GPT-2 of 355 M parameters trains on batches of varied lengths, and keeps its activations in pinned memory of the host."""

import random

import torch
import transformers

STEPS, BATCH = 6, 4

with torch.device("cuda"):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=1024, n_layer=24, n_head=16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
lengths = random.Random(31)
for _ in range(STEPS):
    tokens = torch.randint(0, 50257, (BATCH, lengths.randint(256, 1024)), device="cuda")
    with torch.autograd.graph.save_on_cpu(pin_memory=True), torch.autocast("cuda", torch.bfloat16):
        loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
