# simulate: --gpu h100
"""A LLaMA of 1.2 B parameters trains with activation checkpointing on batches of varied lengths."""

import random

import torch
import transformers

STEPS, BATCH = 8, 8

torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5504, num_hidden_layers=22, num_attention_heads=32))
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
lengths = random.Random(2)
for _ in range(STEPS):
    tokens = torch.randint(0, 32000, (BATCH, lengths.randint(256, 2048)), device="cuda")
    model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
