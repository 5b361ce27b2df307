# requires: transformers
# simulate: --gpu t4
# unknown: value
# sizes: by values
"""A T5 is trained on pairs of texts with padding, and then translates by greedy decoding and by beams."""

import torch
from transformers import T5Config, T5ForConditionalGeneration
from transformers.optimization import Adafactor

WORDS, BATCH, SOURCE, TARGET, STEPS = 3000, 8, 64, 40, 3

torch.manual_seed(0)
config = T5Config(vocab_size=WORDS, d_model=256, d_kv=32, d_ff=1024, num_layers=3, num_decoder_layers=3, num_heads=8,
                  feed_forward_proj="gated-gelu", decoder_start_token_id=0)
model = T5ForConditionalGeneration(config).cuda()
optimizer = Adafactor(model.parameters(), scale_parameter=True, relative_step=True, warmup_init=True, lr=None)
generator = torch.Generator().manual_seed(1)


def batch() -> dict[str, torch.Tensor]:
    lengths = torch.randint(10, SOURCE + 1, (BATCH,), generator=generator)
    mask = (torch.arange(SOURCE) < lengths[:, None]).long()
    labels = torch.randint(2, WORDS, (BATCH, TARGET), generator=generator)
    labels[:, TARGET // 2:][torch.arange(BATCH) % 2 == 0] = -100
    inputs = torch.randint(2, WORDS, (BATCH, SOURCE), generator=generator) * mask
    return {"input_ids": inputs.cuda(), "attention_mask": mask.cuda(), "labels": labels.cuda()}


model.train()
for step in range(STEPS):
    with torch.autocast("cuda", torch.float16):
        out = model(**batch())
    assert out.logits.shape == (BATCH, TARGET, WORDS)
    assert out.encoder_last_hidden_state.shape == (BATCH, SOURCE, 256)
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()

model.eval()
source = batch()
source.pop("labels")
texts = model.generate(**source, max_new_tokens=20, do_sample=False)
assert texts.shape == (BATCH, 21)
beams = model.generate(**source, max_new_tokens=20, num_beams=3, no_repeat_ngram_size=2)
assert beams.shape == (BATCH, 21)
assert (beams[:, 0] == 0).all()
print(f"{STEPS} steps, texts of {texts.size(1)} and {beams.size(1)} tokens")
