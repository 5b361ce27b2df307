# requires: timm torchvision
# simulate: --gpu a100 --devices 2
# launch: -m torch.distributed.run --standalone --nproc-per-node 2
# unknown: value
"""Trains a vision transformer that two ranks share by fully_shard, made on the meta device, with a checkpoint."""

import math
import tempfile

import timm
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

CLASSES, STEPS = 12, 3


def build(offload: OffloadPolicy) -> torch.nn.Module:
    with torch.device("meta"):
        model = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, img_size=64, depth=3)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("shard",))
    options = {"mesh": mesh, "offload_policy": offload,
               "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    model.to_empty(device="cpu" if isinstance(offload, CPUOffloadPolicy) else "cuda")
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.trunc_normal_(parameter, std=0.02)
    return model


def train(model: FSDPModule, steps: int) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=True)
    for step in range(steps):
        for micro in range(2):
            model.set_requires_gradient_sync(micro == 1)
            output = model(torch.randn(4, 3, 64, 64, device="cuda"))
            assert output.shape == (4, CLASSES) and output.dtype == torch.bfloat16
            loss = torch.nn.functional.cross_entropy(output.float(), torch.arange(4, device="cuda"))
            (loss / 2).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert math.isfinite(norm.full_tensor().item() if isinstance(norm, DTensor) else norm.item())
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        assert mean.item() >= 0
    return optimizer


def main() -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(rank)
    model = build(OffloadPolicy())
    width = model.blocks[0].mlp.fc1.weight
    assert isinstance(width, DTensor) and width.to_local().size(0) * ranks == width.size(0)
    optimizer = train(model, STEPS)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    assert (len(full) > 40 and full["head.weight"].shape == (CLASSES, 192)) if rank == 0 else not full
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder, 0)
    weights, states = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": states}, checkpoint_id=folder[0])
    checkpoint.load({"model": weights, "optimizer": states}, checkpoint_id=folder[0])
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=states)
    steps = {int(state["step"]) for state in optimizer.state.values()}
    assert steps == {STEPS}, steps
    del model, optimizer, weights, states
    train(build(CPUOffloadPolicy()), 1)
    dist.barrier()
    if rank == 0:
        print(f"{STEPS + 1} steps of {ranks} ranks")
    dist.destroy_process_group()


main()
