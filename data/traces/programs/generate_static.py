# simulate: --gpu h100
"""A LLaMA of 1.2 B parameters generates 32 tokens for each of three batches of prompts, with a cache of fixed size."""

import random

import torch
import transformers

torch.set_default_dtype(torch.bfloat16)
with torch.device("cuda"):
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5504, num_hidden_layers=22, num_attention_heads=32))
model.eval()
sizes = random.Random(8)
with torch.no_grad():
    for _ in range(3):
        length = sizes.randint(100, 900)
        tokens = torch.randint(3, 32000, (sizes.randint(4, 16), length), device="cuda")
        cache = transformers.StaticCache(config=model.config, max_cache_len=1024)
        out = model(input_ids=tokens, past_key_values=cache, use_cache=True)
        for place in range(32):
            position = torch.full((tokens.shape[0], 1), length + place, device="cuda")
            out = model(input_ids=out.logits[:, -1:].argmax(-1), past_key_values=cache, use_cache=True, position_ids=position)
