# requires: transformers
# simulate: --gpu rtx2080ti
# sizes: by values
# unknown: value
"""A BERT labels tokens of texts with padding: training with ignored labels, then the labels of the real tokens are picked."""

import torch
from transformers import BertConfig, BertForTokenClassification, get_linear_schedule_with_warmup

WORDS, LABELS, BATCH, LENGTH, STEPS = 5000, 9, 8, 128, 4

torch.manual_seed(0)
model = BertForTokenClassification(BertConfig(
    vocab_size=WORDS, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
    num_labels=LABELS)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), 5e-5)
scheduler = get_linear_schedule_with_warmup(optimizer, 1, STEPS)
generator = torch.Generator().manual_seed(1)
tokens_seen = 0
for step in range(STEPS):
    lengths = torch.randint(20, LENGTH + 1, (BATCH,), generator=generator)
    mask = torch.arange(LENGTH) < lengths[:, None]
    tokens = (torch.randint(1, WORDS, (BATCH, LENGTH), generator=generator) * mask).cuda()
    labels = torch.randint(0, LABELS, (BATCH, LENGTH), generator=generator).masked_fill(~mask, -100).cuda()
    mask = mask.cuda()
    out = model(input_ids=tokens, attention_mask=mask, labels=labels)
    assert out.logits.shape == (BATCH, LENGTH, LABELS)
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    predicted = out.logits.detach().argmax(-1)
    picked, expected = predicted[mask], labels[labels != -100]
    assert picked.shape == expected.shape == (int(lengths.sum()),)
    tokens_seen += len(picked)
    assert 0 <= (picked == expected).float().mean().item() <= 1
assert int(expected.max()) < LABELS and int(expected.min()) >= 0
print(f"{STEPS} steps, {tokens_seen} tokens labelled")
