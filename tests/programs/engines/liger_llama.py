# requires: liger_kernel transformers
# simulate: --gpu l4
# bytes: parameters = 2 * 17564928
# bytes: optimizer state = 4 * 17564928
"""Trains a LLaMA with Liger's kernels: norms, rotary positions, SwiGLU, and the loss that makes no tensor of all logits."""

import torch
from liger_kernel.transformers import AutoLigerKernelForCausalLM, apply_liger_kernel_to_llama
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, LENGTH, WORDS, STEPS = 4, 512, 32000, 2

assert AutoLigerKernelForCausalLM
apply_liger_kernel_to_llama()
torch.manual_seed(0)
config = LlamaConfig(vocab_size=WORDS, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for _ in range(STEPS):
    tokens = torch.randint(0, WORDS, (BATCH, LENGTH), device="cuda")
    out = model(input_ids=tokens, labels=tokens)
    assert out.logits is None
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
most = torch.cuda.max_memory_allocated()
assert most < model.num_parameters() * 2 * 4 + BATCH * LENGTH * WORDS * 4, "the logits in float32 would not fit in this"
print(f"OK: {STEPS} steps, {most >> 20} MiB at the peak")
