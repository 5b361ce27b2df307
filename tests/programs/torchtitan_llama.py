# requires: torchtitan
# simulate: --gpu h200 --devices 2
# launch: -m torch.distributed.run --standalone --nproc-per-node 2
# unknown: value
"""Trains torchtitan's Llama on two ranks as its trainer does: FSDP, selective checkpoints of activations, its optimizers."""

import dataclasses
import logging
import math

import torch
import torch.distributed as dist
from torchtitan.components.loss import cross_entropy_loss
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.components.optimizer import build_optimizers
from torchtitan.config import JobConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.utils import clip_grad_norm_
from torchtitan.models.llama3 import Transformer, TransformerModelArgs, parallelize_llama

WORDS, BATCH, LENGTH, STEPS, LAYERS = 256, 2, 64, 3, 4
logging.getLogger().setLevel(logging.ERROR)


def settings() -> JobConfig:
    config = JobConfig()
    config.training = dataclasses.replace(config.training, seq_len=LENGTH, steps=STEPS, local_batch_size=BATCH)
    config.lr_scheduler = dataclasses.replace(config.lr_scheduler, warmup_steps=1)
    config.activation_checkpoint = dataclasses.replace(config.activation_checkpoint, mode="selective", selective_ac_option="2")
    return config


def main() -> None:
    dist.init_process_group("nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    config = settings()
    dims = ParallelDims(dp_replicate=1, dp_shard=ranks, cp=1, tp=1, pp=1, ep=1, etp=1, world_size=ranks)
    mesh = dims.world_mesh
    arguments = TransformerModelArgs(dim=128, n_layers=LAYERS, n_heads=8, n_kv_heads=2, vocab_size=WORDS, max_seq_len=LENGTH)
    with torch.device("meta"):
        model = Transformer(arguments)
    parallelize_llama(model, dims, config)
    model.to_empty(device="cuda")
    torch.manual_seed(0)
    with torch.no_grad():
        model.init_weights(buffer_device=torch.device("cuda"))
    model.train()
    assert model.tok_embeddings.weight.to_local().shape == (WORDS // ranks, 128)
    optimizers = build_optimizers([model], config.optimizer, dims)
    schedulers = build_lr_schedulers(optimizers, config.lr_scheduler, STEPS)
    for _ in range(STEPS):
        tokens = torch.randint(0, WORDS, (BATCH, LENGTH + 1), device="cuda")
        optimizers.zero_grad()
        output = model(tokens[:, :-1])
        assert output.shape == (BATCH, LENGTH, WORDS)
        loss = cross_entropy_loss(output, tokens[:, 1:])
        del output
        loss.backward()
        norm = clip_grad_norm_(list(model.parameters()), 1.0, foreach=True)
        optimizers.step()
        schedulers.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=mesh.get_group())
        assert math.isfinite(mean.item()) and math.isfinite(norm.item())
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    assert len(states) == len(list(model.parameters())) and {state["step"].item() for state in states} == {float(STEPS)}
    if rank == 0:
        print(f"{STEPS} steps of {LAYERS} layers on {ranks} ranks")
    dist.destroy_process_group()


main()
