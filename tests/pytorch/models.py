"""Real models, trained or served for a few steps: what they ask of an allocator.

    python models.py native|full NAME

prints one line of JSON: the peaks of allocated and reserved bytes. Kernels may do nothing (a simulated CUDA): sizes come
from shapes and from Python's random numbers, never from values on the device.
"""

from __future__ import annotations

import json
import random
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda"


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) * (width // self.heads) ** -0.5
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, mlp: nn.Module) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width, heads)
        self.mlp = mlp

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x))
        return x + self.mlp(self.norms[1](x))


class Transformer(nn.Module):
    def __init__(self, blocks: list[Block], width: int, words: int, checkpointed: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(width, words, bias=False)
        self.checkpointed = checkpointed

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return self.head(x)


class LowRank(nn.Module):
    """A frozen linear layer with a trained low-rank part (LoRA)."""

    def __init__(self, base: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


class Experts(nn.Module):
    """A mixture of experts; how many tokens each one gets changes from step to step."""

    def __init__(self, width: int, count: int, rng: random.Random) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Mlp(width) for _ in range(count))
        self.gate = nn.Linear(width, count)
        self.rng = rng

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, x.shape[-1])
        weights = self.gate(flat).softmax(-1)
        bounds = sorted(self.rng.randrange(1, len(flat)) for _ in range(len(self.experts) - 1))
        parts = torch.tensor_split(flat, bounds)
        results = [expert(part) for expert, part in zip(self.experts, parts)]
        return (torch.cat(results) * weights.amax(-1, keepdim=True)).view_as(x)


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.convolutions(x) + self.shortcut(x))


def train(model: nn.Module, batches: list[torch.Tensor], words: int) -> None:
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-4)
    for batch in batches:
        logits = model(batch)
        targets = torch.zeros(logits.numel() // words, dtype=torch.long, device=DEVICE)
        functional.cross_entropy(logits.view(-1, words), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def tokens(batch: int, length: int) -> torch.Tensor:
    return torch.zeros(batch, length, dtype=torch.long, device=DEVICE)


def gpt2() -> None:
    """GPT-2 small, on texts of varying length."""
    width, words = 768, 50257
    rng = random.Random(0)
    model = Transformer([Block(width, 12, Mlp(width)) for _ in range(12)], width, words).to(DEVICE)
    train(model, [tokens(2, rng.randrange(64, 512)) for _ in range(4)], words)


def llama_lora() -> None:
    """A LLaMA-like model with checkpointed blocks and LoRA on a frozen bfloat16 base."""
    width, words = 1024, 32000
    model = Transformer([Block(width, 16, Mlp(width)) for _ in range(8)], width, words, checkpointed=True)
    model = model.to(DEVICE, torch.bfloat16).requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv = LowRank(block.attention.qkv).to(DEVICE, torch.bfloat16)
        block.attention.out = LowRank(block.attention.out).to(DEVICE, torch.bfloat16)
    train(model, [tokens(4, 512) for _ in range(4)], words)


def mixture_of_experts() -> None:
    width, words = 512, 16000
    rng = random.Random(1)
    model = Transformer([Block(width, 8, Experts(width, 8, rng)) for _ in range(6)], width, words).to(DEVICE)
    train(model, [tokens(4, 256) for _ in range(6)], words)


def resnet() -> None:
    """A small ResNet on pictures of several resolutions, without cuDNN."""
    torch.backends.cudnn.enabled = False
    stages = [(64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)]
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        *(Residual(*stage) for stage in stages),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 1000),
    ).to(DEVICE)
    train(model, [torch.empty(8, 3, side, side, device=DEVICE) for side in (224, 160, 192, 128, 224)], 1000)


def serving() -> None:
    """Many conversations at once: each has a cache of keys and values that grows, and ends at some time."""
    rng = random.Random(2)
    width, layers = 1024, 16
    projection = nn.Linear(width, 2 * width).to(DEVICE, torch.bfloat16)
    conversations: list[tuple[int, list[torch.Tensor]]] = []
    with torch.inference_mode():
        for _ in range(120):
            if len(conversations) < 24:
                length = rng.randrange(16, 400)
                prompt = torch.empty(1, length, width, dtype=torch.bfloat16, device=DEVICE)
                caches = [projection(prompt) for _ in range(layers)]
                conversations.append((rng.randrange(4, 40), caches))
            continued = []
            for left, caches in conversations:
                if left == 0:
                    continue
                word = torch.empty(1, 1, width, dtype=torch.bfloat16, device=DEVICE)
                continued.append((left - 1, [torch.cat([cache, projection(word)], 1) for cache in caches]))
            conversations = continued


def compiled() -> None:
    """Compiled with CUDA graph trees: they live on private pools, checkpoints and the live allocations of a pool."""
    model = torch.compile(nn.Sequential(Mlp(1024), Mlp(1024)).to(DEVICE), backend="cudagraphs", dynamic=False)
    for rows in (64, 64, 64, 128, 128, 128, 64):
        model.zero_grad(set_to_none=True)
        torch.compiler.cudagraph_mark_step_begin()
        model(torch.ones(rows, 1024, device=DEVICE, requires_grad=True)).sum().backward()


def leave_weights_as_they_are() -> None:
    """Keeps weights uninitialized. Their first values do not matter, and computing them on the host takes longer than all
    else."""
    for name in ("kaiming_uniform_", "normal_", "uniform_"):
        setattr(nn.init, name, lambda tensor, *_, **__: tensor)


MODELS = {model.__name__: model for model in (gpt2, llama_lora, mixture_of_experts, resnet, serving, compiled)}


def main() -> None:
    mode, name = sys.argv[1:]
    if mode == "full":
        import cachalot

        cachalot.enable()
    leave_weights_as_they_are()
    MODELS[name]()
    stats = torch.cuda.memory_stats()
    keys = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "num_device_alloc", "allocation.all.allocated")
    print(json.dumps({key: stats[key] for key in keys}))


if __name__ == "__main__":
    main()
