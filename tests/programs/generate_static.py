# requires: transformers
# simulate: --gpu rtx4090
# sizes: by values
"""A LLaMA in bfloat16 generates text with a static cache, which has its full size from the beginning."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

WORDS, BATCH, PROMPT, NEW = 8000, 4, 100, 28

torch.manual_seed(0)
config = LlamaConfig(vocab_size=WORDS, hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8,
                     num_key_value_heads=2, max_position_embeddings=1024, eos_token_id=None, bos_token_id=1, pad_token_id=0)
model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
prompt = torch.randint(10, WORDS, (BATCH, PROMPT), device="cuda")
mask = torch.ones_like(prompt)

by_name = model.generate(prompt, attention_mask=mask, max_new_tokens=NEW, do_sample=False, cache_implementation="static",
                         disable_compile=True, return_dict_in_generate=True)
assert by_name.sequences.shape == (BATCH, PROMPT + NEW)
assert isinstance(by_name.past_key_values, StaticCache)

cache = StaticCache(config=config, max_cache_len=512)
sequences = model.generate(prompt, attention_mask=mask, past_key_values=cache, max_new_tokens=NEW, do_sample=True,
                           disable_compile=True)
assert sequences.shape == (BATCH, PROMPT + NEW)
assert cache.get_seq_length() == PROMPT + NEW - 1
keys = cache.layers[0].keys
assert keys.shape == (BATCH, 2, 512, 64) and keys.dtype == torch.bfloat16

with torch.no_grad():  # the loop by hand
    cache = StaticCache(config=config, max_cache_len=256)
    tokens = prompt
    out = model(tokens, past_key_values=cache, cache_position=torch.arange(PROMPT, device="cuda"))
    for i in range(NEW):
        token = out.logits[:, -1:].argmax(-1)
        tokens = torch.cat([tokens, token], 1)
        out = model(token, past_key_values=cache, cache_position=torch.tensor([PROMPT + i], device="cuda"))
        assert out.logits.shape == (BATCH, 1, WORDS)
assert tokens.shape == (BATCH, PROMPT + NEW)
print(f"{NEW} tokens three times with a static cache")
