# requires: torch
# simulate: --gpu h100 --devices 2
# launch: -m torch.distributed.run --standalone --nproc-per-node 2
# unknown: value
# sizes: by values
"""Trains a transformer with tensor parallelism and then as a pipeline of two stages, with torch.distributed."""

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel,
                                               loss_parallel, parallelize_module)

WIDTH, HEADS, WORDS, LENGTH = 64, 4, 128, 16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (one(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for one in (self.q, self.k, self.v))
        return self.o(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tensor_parallel(rank: int, ranks: int) -> int:
    mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("tp",))
    model = Model().cuda()
    split = {"words": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
             "norm": SequenceParallel(), "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False)}
    of_block = {"norm1": SequenceParallel(), "norm2": SequenceParallel(), "up": ColwiseParallel(),
                "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
                "attention.q": ColwiseParallel(), "attention.k": ColwiseParallel(), "attention.v": ColwiseParallel(),
                "attention.o": RowwiseParallel(output_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1))}
    of_block["up"] = ColwiseParallel(input_layouts=Shard(1))
    parallelize_module(model, mesh, split)
    for block in model.blocks:
        parallelize_module(block, mesh, of_block)
    assert model.blocks[0].up.weight.to_local().shape == (4 * WIDTH // ranks, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for step in range(3):
        tokens = torch.randint(0, WORDS, (2, LENGTH), device="cuda")
        dist.broadcast(tokens, 0)
        with loss_parallel():
            output = model(tokens)
            assert isinstance(output, DTensor) and output.shape == (2, LENGTH, WORDS)
            assert output.to_local().shape == (2, LENGTH, WORDS // ranks)
            loss = nn.functional.cross_entropy(output.flatten(0, 1), tokens.flatten())
            loss.backward()
            loss = loss.full_tensor()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        assert math.isfinite(norm.item()) and math.isfinite(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return step + 1


def pipeline(rank: int, ranks: int) -> int:
    device = torch.device("cuda", rank)
    model = Model()
    stage_modules = [nn.Sequential(model.words, model.blocks[0]), nn.Sequential(model.blocks[1], model.norm, model.head)]
    part = stage_modules[rank].to(device)
    stage = PipelineStage(part, rank, ranks, device)
    optimizer = torch.optim.SGD(part.parameters(), 0.1)
    steps = 0
    for schedule in (ScheduleGPipe(stage, 4, loss), Schedule1F1B(stage, 4, loss)):
        tokens = torch.randint(0, WORDS, (8, LENGTH), device=device)
        dist.broadcast(tokens, 0)
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(tokens)
        else:
            output = schedule.step(target=tokens, losses=losses)
            assert output.shape == (8, LENGTH, WORDS)
            assert len(losses) == 4 and all(math.isfinite(one.item()) for one in losses)
        assert all(one.grad is not None for one in part.parameters())
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return steps


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def main() -> None:
    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    torch.manual_seed(0)
    steps = tensor_parallel(rank, ranks), pipeline(rank, ranks)
    dist.barrier()
    if rank == 0:
        print(f"{steps[0]} and {steps[1]} steps")
    dist.destroy_process_group()


main()
