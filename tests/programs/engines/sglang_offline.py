# requires: sglang
# simulate: --gpu h100
# unknown: value
"""SGLang's engine serves a small Llama in a process of its own: the GPU has the key-value cache that it tells, and its requests end.

The first run compiles kernels of SGLang's, by nvcc, into its cache in the home folder: that takes minutes.
"""

import json
from pathlib import Path

import sglang
import torch

LAYERS, HEADS, WIDTH = 2, 2, 64  # of the cache
REQUESTS, TOKENS = 4, 4
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
          "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": HEADS, "head_dim": WIDTH, "vocab_size": 1024,
          "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
          "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2}


def used() -> int:
    free, total = torch.cuda.mem_get_info()
    return total - free


if __name__ == "__main__":  # the engine's processes import this file
    Path("config.json").write_text(json.dumps(CONFIG))
    engine = sglang.Engine(model_path=".", load_format="dummy", skip_tokenizer_init=True, context_length=1024, disable_cuda_graph=True)
    places = engine.get_server_info()["max_total_num_tokens"]
    cache = places * LAYERS * 2 * HEADS * WIDTH * torch.bfloat16.itemsize
    assert used() >= cache >= used() * 0.9, f"a cache of {cache:,} bytes, {used():,} bytes used"
    answers = engine.generate(input_ids=[list(range(1, 9))] * REQUESTS, sampling_params={"max_new_tokens": TOKENS, "ignore_eos": True})
    assert [len(answer["output_ids"]) for answer in answers] == [TOKENS] * REQUESTS
    engine.shutdown()
    print(f"OK: {REQUESTS * TOKENS} tokens, a cache of {places:,}", flush=True)
