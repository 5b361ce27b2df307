# simulate: --gpu h100 --compute all
"""A Qwen2-MoE of 16 experts trains: each token goes to the four that its router chooses, so that values steer the sizes."""

import random

import torch
import transformers

WORDS, STEPS, BATCH = 16000, 5, 4

torch.manual_seed(33)
model = transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
    vocab_size=WORDS, hidden_size=384, intermediate_size=1024, moe_intermediate_size=512, shared_expert_intermediate_size=1024,
    num_hidden_layers=4, num_attention_heads=6, num_key_value_heads=6, num_experts=16, num_experts_per_tok=4,
    experts_implementation="eager", output_router_logits=True)).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
lengths = random.Random(34)
for _ in range(STEPS):
    tokens = torch.randint(0, WORDS, (BATCH, lengths.randint(96, 384)), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
