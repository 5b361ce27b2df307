# simulate: --gpu h100
"""OPT of 1.3 B parameters trains in bfloat16 on batches that are each padded to another length."""

import random

import torch
import transformers

STEPS, BATCH = 10, 4

torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = transformers.OPTForCausalLM(transformers.OPTConfig(
        hidden_size=2048, num_hidden_layers=24, ffn_dim=8192, num_attention_heads=32, word_embed_proj_dim=2048))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
lengths = random.Random(1)
for _ in range(STEPS):
    length = lengths.randint(200, 1500)
    tokens = torch.randint(0, 50272, (BATCH, length), device="cuda")
    loss = model(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
