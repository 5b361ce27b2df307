# simulate: --gpu h100
"""Adapters of rank 16 on a LLaMA of 6.7 B parameters train on batches of varied lengths."""

import random

import peft
import torch
import transformers

STEPS, BATCH = 6, 2

torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32))
model = peft.get_peft_model(model, peft.LoraConfig(r=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
lengths = random.Random(6)
for _ in range(STEPS):
    tokens = torch.randint(0, 32000, (BATCH, lengths.randint(128, 1024)), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
