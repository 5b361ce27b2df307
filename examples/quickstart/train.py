"""Trains a small language model on batches of varied lengths. It has a leak; README.md shows how cachalot finds it.

    train.py               train
    train.py --snapshot    also write oom.pickle, a memory snapshot, if GPU memory runs out
"""

import sys

import torch

VOCABULARY, WIDTH, BATCH, STEPS = 2048, 512, 16, 40

if "--snapshot" in sys.argv:
    torch.cuda.memory._record_memory_history(stacks="python")
    torch._C._cuda_attach_out_of_memory_observer(lambda *_: torch.cuda.memory._dump_snapshot("oom.pickle"))

torch.manual_seed(0)
layers = [torch.nn.TransformerEncoderLayer(WIDTH, 8, batch_first=True, dropout=0) for _ in range(4)]
embedding, head = torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY)
model = torch.nn.Sequential(embedding, *layers, head).cuda()
optimizer = torch.optim.AdamW(model.parameters())

last_words = []
for step in range(STEPS):
    length = 64 * (4 + step * 5 % 13)
    words = torch.randint(VOCABULARY, (BATCH, length), device="cuda")
    scores = model(words)
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    last_words.append(scores[:, -1].detach())  # the leak: a view, which keeps all scores of the batch
