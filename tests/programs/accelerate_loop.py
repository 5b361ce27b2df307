# requires: accelerate
# simulate: --gpu a10g
# unknown: value
"""A training loop by accelerate: bfloat16, accumulation, clipping of gradients, and a scheduler."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, BATCH, ACCUMULATED = 2, 32, 2


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


torch.manual_seed(0)
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=ACCUMULATED)
assert accelerator.device.type == "cuda"
data = TensorDataset(torch.randint(0, 1000, (256, 64)), torch.randint(0, 10, (256,)))
model = Network()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * len(data) // BATCH // ACCUMULATED)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, DataLoader(data, BATCH, shuffle=True), scheduler)

steps = 0
rates, gathered = [], []
for _ in range(EPOCHS):
    model.train()
    for tokens, labels in loader:
        with accelerator.accumulate(model):
            scores = model(tokens)
            assert scores.shape == (BATCH, 10)
            loss = nn.functional.cross_entropy(scores, labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
                is_finite = bool(torch.isfinite(norm))
                assert is_finite and norm.ndim == 0
                steps += 1
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        rates.append(scheduler.get_last_lr()[0])
    model.eval()
    with torch.no_grad():
        for tokens, labels in loader:
            predicted, expected = accelerator.gather_for_metrics((model(tokens).argmax(-1), labels))
            assert predicted.shape == expected.shape == (BATCH,)
            gathered.append(predicted)

assert steps == EPOCHS * len(data) // BATCH // ACCUMULATED
assert rates == sorted(rates, reverse=True) and len(set(rates)) == steps + 1
assert sum(map(len, gathered)) == EPOCHS * len(data)
print(f"{steps} optimizer steps, {len(gathered)} evaluated batches")
