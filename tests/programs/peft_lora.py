# requires: transformers peft
# simulate: --gpu rtx4090
"""A LLaMA in bfloat16 is trained with LoRA by peft; then the adapter is merged into it."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

BATCH, LENGTH, WORDS, STEPS, RANK = 4, 512, 8000, 3, 16
WORKSPACES = 80 << 20  # of cuBLAS, for two threads

torch.manual_seed(0)
config = LlamaConfig(vocab_size=WORDS, hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8,
                     num_key_value_heads=4, max_position_embeddings=LENGTH)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
frozen = sum(p.numel() for p in model.parameters())
model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=32, lora_dropout=0.05, target_modules="all-linear"))
trained = [p for p in model.parameters() if p.requires_grad]
before = torch.cuda.memory_allocated()

optimizer = torch.optim.AdamW(trained, 2e-4)
scheduler = get_cosine_schedule_with_warmup(optimizer, 1, STEPS)
for step in range(STEPS):
    tokens = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")
    mask = torch.arange(LENGTH, device="cuda") < torch.tensor([LENGTH, 300, 200, 100], device="cuda")[:, None]
    labels = tokens.masked_fill(~mask, -100)
    out = model(input_ids=tokens, attention_mask=mask.long(), labels=labels)
    assert out.logits.shape == (BATCH, LENGTH, WORDS) and out.logits.dtype == torch.bfloat16
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    del out

assert all(p.shape[0] == RANK or p.shape[1] == RANK for p in trained)
assert len(optimizer.state) == len(trained) == 2 * 7 * 4
state_bytes = sum(one.nbytes for state in optimizer.state.values() for one in state.values() if one.is_cuda)
assert torch.cuda.memory_allocated() - before < state_bytes + WORKSPACES
merged = model.merge_and_unload()
assert sum(p.numel() for p in merged.parameters()) == frozen
print(f"{STEPS} steps of {sum(p.numel() for p in trained):,} parameters beside {frozen:,}")
