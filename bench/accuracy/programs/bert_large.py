"""BERT large in Hugging Face's "Model training anatomy" and "Efficient training on a single GPU", in 2022.

Trainer's loop of that time with PyTorch of that time: gradients are set to zero and stay, the optimizer updates one parameter
after the other, attention is not fused.
"""

import argparse

import torch
from transformers import BertConfig, BertForSequenceClassification


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=0, help="0: the model is loaded, and not trained")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--fp16", action="store_true")
    options = parser.parse_args()
    config = BertConfig(vocab_size=30522, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                        intermediate_size=4096)
    config._attn_implementation = "eager"
    model = BertForSequenceClassification(config).cuda()
    if options.batch == 0:
        return
    if options.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": True})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, foreach=False)
    scaler = torch.amp.GradScaler("cuda", enabled=options.fp16)
    for _ in range(3):
        for _ in range(options.accumulate):
            tokens = torch.randint(100, 30000, (options.batch, 512)).cuda()
            labels = torch.zeros(options.batch, dtype=torch.long).cuda()
            with torch.autocast("cuda", torch.float16, enabled=options.fp16):
                loss = model(input_ids=tokens, labels=labels).loss / options.accumulate
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        model.zero_grad(set_to_none=False)


main()
