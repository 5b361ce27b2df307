# simulate: --gpu h100
"""A GPT-2 generates answers, a frozen copy scores them, and the policy trains on them: one loop of PPO, four times."""

import random

import torch
import transformers

with torch.device("cuda"):
    policy = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    reference = transformers.GPT2LMHeadModel(transformers.GPT2Config()).requires_grad_(False)
    value = torch.nn.Linear(768, 1)
optimizer = torch.optim.AdamW([*policy.parameters(), *value.parameters()], lr=1e-5)
lengths = random.Random(15)
for _ in range(4):
    tokens = torch.randint(0, 50257, (16, lengths.randint(40, 200)), device="cuda")
    with torch.no_grad():
        cache = transformers.DynamicCache()
        out = policy(input_ids=tokens, past_key_values=cache, use_cache=True)
        for _ in range(lengths.randint(30, 100)):
            token = out.logits[:, -1:].argmax(-1)
            tokens = torch.cat([tokens, token], dim=1)
            out = policy(input_ids=token, past_key_values=cache, use_cache=True)
        old = torch.log_softmax(reference(input_ids=tokens).logits, -1).gather(2, tokens.unsqueeze(-1))
    del cache, out
    for part in range(0, 16, 4):
        some = tokens[part:part + 4]
        out = policy(input_ids=some, output_hidden_states=True)
        new = torch.log_softmax(out.logits, -1).gather(2, some.unsqueeze(-1))
        ratio = torch.exp(new - old[part:part + 4])
        (ratio.mean() + value(out.hidden_states[-1]).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
