# requires: transformers
# simulate: --gpu a100
# sizes: by values
# unknown: value
"""A CLIP learns pairs of images and texts by their contrast, with gradient checkpointing; then images are classified by texts."""

import torch
from transformers import CLIPConfig, CLIPModel

BATCH, LENGTH, STEPS, WIDTH, END = 16, 32, 3, 128, 999

torch.manual_seed(0)
config = CLIPConfig(
    text_config={"vocab_size": 1000, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 3,
                 "num_attention_heads": 4, "max_position_embeddings": LENGTH, "eos_token_id": END, "bos_token_id": 1,
                 "pad_token_id": 0},
    vision_config={"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 4,
                   "image_size": 224, "patch_size": 32},
    projection_dim=WIDTH)
model = CLIPModel(config).cuda()
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
model.train()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for step in range(STEPS):
    images = torch.randn(BATCH, 3, 224, 224, device="cuda")
    texts = torch.randint(2, END, (BATCH, LENGTH))
    texts[:, -1] = END
    with torch.autocast("cuda", torch.bfloat16):
        out = model(pixel_values=images, input_ids=texts.cuda(), attention_mask=torch.ones_like(texts).cuda(), return_loss=True)
    assert out.logits_per_image.shape == out.logits_per_text.shape == (BATCH, BATCH)
    assert out.image_embeds.shape == out.text_embeds.shape == (BATCH, WIDTH)
    out.loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.logit_scale.data.clamp_(0, 4.6052)
scale = model.logit_scale.item()
assert 0 <= scale <= 4.61
model.eval()
with torch.no_grad():
    ranks = model(pixel_values=images, input_ids=texts.cuda()).logits_per_image.softmax(-1).topk(5)
assert ranks.values.shape == ranks.indices.shape == (BATCH, 5)
most = int(ranks.indices.max())
assert most < BATCH
print(f"{STEPS} steps of {BATCH} pairs")
