# requires: transformers
# simulate: --gpu l4
# unknown: value
# sizes: by values
# bytes: caches = (64 + 2) * 32 * 2 * 2 * 2 * 64 * 2
"""A LLaMA serves requests of several lengths by continuous batching of transformers, over a paged cache.

Each page has the keys and values of 32 tokens, for 2 layers of 2 heads with 64 numbers; two pages are never used.
"""

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

WORDS, NEW, PROMPTS = 1000, 12, (5, 30, 17, 9)

torch.manual_seed(0)
config = LlamaConfig(vocab_size=WORDS, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=2, max_position_embeddings=256)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
prompts = [torch.randint(10, WORDS, (length,)).tolist() for length in PROMPTS]
settings = GenerationConfig(max_new_tokens=NEW, do_sample=False, eos_token_id=-1, pad_token_id=0)
cache = ContinuousBatchingConfig(page_size=32, num_blocks=64, max_batch_tokens=64)
results = model.generate_batch(prompts, generation_config=settings, continuous_batching_config=cache)
assert len(results) == len(PROMPTS)
for result, prompt in zip(results.values(), prompts):
    assert result.error is None, result.error
    assert result.prompt_ids == prompt
    assert len(result.generated_tokens) == NEW, len(result.generated_tokens)
print(f"OK: {len(results)} requests of {NEW} new tokens each")
