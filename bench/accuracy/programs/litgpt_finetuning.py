"""A model of LitGPT in fine-tuning, whole or by LoRA, in bfloat16, with sequences of 512 tokens."""

import argparse

import torch
from litgpt.utils import chunked_cross_entropy

LENGTH = 512
PLACES = ("query", "key", "value", "projection", "mlp", "head")


def network(options: argparse.Namespace) -> torch.nn.Module:
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        if options.rank == 0:
            from litgpt.model import GPT, Config
            return GPT(Config.from_name(options.model))
        from litgpt.lora import GPT, Config, mark_only_lora_as_trainable
        places = {f"lora_{place}": place in options.places for place in PLACES}
        model = GPT(Config.from_name(options.model, lora_r=options.rank, lora_alpha=16, lora_dropout=0.05, **places))
        mark_only_lora_as_trainable(model)
        return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--rank", type=int, default=0, help="of LoRA; 0: the whole model")
    parser.add_argument("--places", nargs="+", choices=PLACES, default=[], help="of LoRA")
    options = parser.parse_args()
    model = network(options)
    model.max_seq_length = LENGTH
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
    for _ in range(3):
        tokens = torch.randint(1000, (options.batch, LENGTH)).cuda()
        parts = model(tokens, lm_head_chunk_size=128)
        parts[-1] = parts[-1][..., :-1, :]
        loss = chunked_cross_entropy(parts, tokens[..., 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


main()
