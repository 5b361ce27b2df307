# requires: bitsandbytes peft transformers
# simulate: --gpu l4
# bytes: parameters = 2 * (4 * 512**2 + 3 * 512 * 1024) // 2 + 4 * (2 * 1000 * 512 + 5 * 512 + 139264)
# bytes: optimizer state = 8 * 139264
"""Trains LoRA by peft beside a LLaMA in 4 bits of bitsandbytes (QLoRA), with a paged optimizer."""

import bitsandbytes
import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, LAYERS, WORDS, RANK, STEPS = 512, 2, 1000, 8, 3


def in_4_bits(model: nn.Module) -> None:
    """Replaces the linear layers of the decoder, as transformers does from quantized weights."""
    for name, module in list(model.named_modules()):
        if type(module) is nn.Linear and "lm_head" not in name:
            layer = bitsandbytes.nn.Linear4bit(module.in_features, module.out_features, bias=False, compute_dtype=torch.bfloat16,
                                               quant_type="nf4")
            layer.weight = bitsandbytes.nn.Params4bit(module.weight.data, requires_grad=False, quant_type="nf4")
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, layer)


torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS,
                                     num_attention_heads=8, num_key_value_heads=8))
in_4_bits(model)
model.is_loaded_in_4bit = True
model = model.to("cuda")
packed = model.model.layers[0].self_attn.q_proj.weight
assert packed.dtype == torch.uint8 and packed.nbytes == WIDTH * WIDTH // 2
model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=16, target_modules="all-linear"))
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = bitsandbytes.optim.PagedAdamW32bit(trained, 1e-3)
for _ in range(STEPS):
    tokens = torch.randint(0, WORDS, (2, 64), device="cuda")
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"OK: {sum(p.numel() for p in trained):,} parameters beside those in 4 bits")
