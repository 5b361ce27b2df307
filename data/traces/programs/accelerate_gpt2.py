# simulate: --gpu h100
"""GPT-2 trains by accelerate, with accumulated and clipped gradients; each epoch ends with an evaluation of larger batches."""

import math
import random

import torch
import transformers
from accelerate import Accelerator
from torch.utils.data import DataLoader

WORDS, EPOCHS, BATCH, ACCUMULATED = 50257, 3, 8, 4


def texts(count: int, seed: int) -> list[torch.Tensor]:
    drawn = random.Random(seed)
    return [torch.randint(0, WORDS, (drawn.randint(64, 1024),)) for _ in range(count)]


def collate(batch: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    tokens = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(one) for one in batch], batch_first=True)
    return tokens, mask, tokens.masked_fill(mask == 0, -100)


accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=ACCUMULATED)
model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
train = DataLoader(texts(12 * BATCH - 3, 27), BATCH, shuffle=False, collate_fn=collate)
evaluate = DataLoader(texts(5 * BATCH, 28), 2 * BATCH, collate_fn=collate)
schedule = transformers.get_linear_schedule_with_warmup(optimizer, 2, math.ceil(EPOCHS * len(train) / ACCUMULATED))
model, optimizer, train, evaluate, schedule = accelerator.prepare(model, optimizer, train, evaluate, schedule)
for _ in range(EPOCHS):
    model.train()
    for tokens, mask, labels in train:
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, attention_mask=mask, labels=labels).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    losses = []
    for tokens, mask, labels in evaluate:
        with torch.no_grad():
            out = model(input_ids=tokens, attention_mask=mask, labels=labels)
        losses.append(accelerator.gather_for_metrics(out.loss.repeat(len(tokens))))
    print(f"evaluated {len(torch.cat(losses))} texts")
