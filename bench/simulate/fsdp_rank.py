"""One rank of the FSDP2 training of a transformer, to be run by `cachalot simulate --world-size N`.

The default is a model like Llama 3 70B in bfloat16, with AdamW and activation checkpointing:

    cachalot simulate --gpu h100 --world-size 64 bench/simulate/fsdp_rank.py

The model is built on the meta device and sharded there, so that this rank has memory of its own part alone. Standard output
gets the parameters, the peak of allocated memory, and the host's time and memory.
"""

from __future__ import annotations

import argparse
import os
import resource
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("layers", 80), ("hidden", 8192), ("heads", 64), ("kv-heads", 8), ("mlp", 28672),
                          ("vocabulary", 128256), ("batch", 1), ("tokens", 4096), ("steps", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


class Attention(nn.Module):
    def __init__(self, size: argparse.Namespace) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = size.heads, size.kv_heads, size.hidden // size.heads
        self.query = nn.Linear(size.hidden, size.hidden, bias=False)
        self.key = nn.Linear(size.hidden, self.kv_heads * self.width, bias=False)
        self.value = nn.Linear(size.hidden, self.kv_heads * self.width, bias=False)
        self.output = nn.Linear(size.hidden, size.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        query = self.query(x).view(batch, tokens, self.heads, self.width).transpose(1, 2)
        key, value = (of(x).view(batch, tokens, self.kv_heads, self.width).transpose(1, 2)
                      for of in (self.key, self.value))
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.output(attended.transpose(1, 2).reshape(batch, tokens, hidden))


class Mlp(nn.Module):
    def __init__(self, size: argparse.Namespace) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(size.hidden, size.mlp, bias=False) for _ in range(2))
        self.down = nn.Linear(size.mlp, size.hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self, size: argparse.Namespace) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(size.hidden), nn.RMSNorm(size.hidden)
        self.attention, self.mlp = Attention(size), Mlp(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    def __init__(self, size: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.hidden)
        self.layers = nn.ModuleList(checkpoint_wrapper(Layer(size)) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.hidden)
        self.head = nn.Linear(size.hidden, size.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def sharded_model(size: argparse.Namespace) -> Transformer:
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    with torch.device("meta"):
        model = Transformer(size).to(torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model.to_empty(device="cuda")


def train(model: Transformer, size: argparse.Namespace) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.zeros(size.batch, size.tokens + 1, dtype=torch.long, device="cuda")
    for _ in range(size.steps):
        scores = model(tokens[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def main() -> None:
    began = time.monotonic()
    size = options()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    model = sharded_model(size)
    train(model, size)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    allocated = torch.cuda.max_memory_allocated() / 2**30
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {parameters / 1e9:.2f} billion parameters, "
          f"{allocated:.2f} GiB allocated at the peak; {time.monotonic() - began:.1f} s and {host:.2f} GiB of the host")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
