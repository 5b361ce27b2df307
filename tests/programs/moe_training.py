# requires: transformers
# simulate: --gpu l40s
# unknown: size value
# sizes: by values
"""A Qwen2-MoE is trained: each token is sent to the experts that its router chooses, with a loss that balances them."""

import torch
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

BATCH, LENGTH, WORDS, EXPERTS, CHOSEN, STEPS, LAYERS = 4, 128, 4000, 8, 2, 3, 3

torch.manual_seed(0)
config = Qwen2MoeConfig(
    vocab_size=WORDS, hidden_size=256, intermediate_size=512, moe_intermediate_size=256, shared_expert_intermediate_size=512,
    num_hidden_layers=LAYERS, num_attention_heads=8, num_key_value_heads=4, num_experts=EXPERTS, num_experts_per_tok=CHOSEN,
    decoder_sparse_step=1, output_router_logits=True, max_position_embeddings=LENGTH)
model = Qwen2MoeForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(STEPS):
    tokens = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")
    out = model(input_ids=tokens, labels=tokens)
    assert out.logits.shape == (BATCH, LENGTH, WORDS)
    assert len(out.router_logits) == LAYERS
    assert all(one.shape == (BATCH * LENGTH, EXPERTS) for one in out.router_logits)
    chosen = out.router_logits[0].float().softmax(-1).topk(CHOSEN, -1).indices
    assert chosen.shape == (BATCH * LENGTH, CHOSEN)
    assert torch.isfinite(out.loss)
    out.loss.backward()
    assert model.lm_head.weight.grad.shape == (WORDS, 256)
    optimizer.step()
    optimizer.zero_grad()
    counts = torch.bincount(chosen.flatten(), minlength=EXPERTS)
    assert counts.shape == (EXPERTS,)
print(f"{STEPS} steps with {CHOSEN} of {EXPERTS} experts for a token")
