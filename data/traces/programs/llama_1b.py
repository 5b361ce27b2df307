# simulate: --gpu h100
"""A LLaMA of 1.2 B parameters trains in bfloat16 on sequences of 2,048 tokens."""

import torch
import transformers

STEPS, BATCH, LENGTH = 4, 4, 2048

torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5504, num_hidden_layers=22, num_attention_heads=32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
for _ in range(STEPS):
    tokens = torch.randint(0, 32000, (BATCH, LENGTH), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
