"""Qwen2.5 generates 2048 tokens after a prompt, with Hugging Face's transformers, in bfloat16."""

import argparse

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

TOKENS = 2048
MODELS = {
    "qwen2.5-0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
                     "num_key_value_heads": 2},
    "qwen2.5-1.5b": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28,
                     "num_attention_heads": 12, "num_key_value_heads": 2},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--prompt", type=int, required=True, help="tokens")
    options = parser.parse_args()
    torch.set_default_dtype(torch.bfloat16)
    config = Qwen2Config(vocab_size=151936, tie_word_embeddings=True, max_position_embeddings=32768,
                         **MODELS[options.model])
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config).eval()
    torch.cuda.reset_peak_memory_stats()  # weights that are loaded are not made twice, as tied ones are here
    prompt = torch.full((1, options.prompt), 100).cuda()
    model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, min_new_tokens=TOKENS,
                   max_new_tokens=TOKENS, pad_token_id=0)


main()
