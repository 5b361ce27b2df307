# simulate: --gpu h100
"""Whisper-small trains on 30 seconds of speech each, with transcripts of varied lengths."""

import random

import torch
import transformers

STEPS, BATCH = 8, 12

with torch.device("cuda"):
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(
        d_model=768, encoder_layers=12, decoder_layers=12, encoder_attention_heads=12, decoder_attention_heads=12,
        encoder_ffn_dim=3072, decoder_ffn_dim=3072))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
lengths = random.Random(5)
for _ in range(STEPS):
    sound = torch.randn(BATCH, 80, 3000, device="cuda")
    labels = torch.randint(0, 50257, (BATCH, lengths.randint(20, 300)), device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        loss = model(input_features=sound, labels=labels).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
