# simulate: --gpu h100 --world-size 8
"""One rank of eight trains a transformer of 1.6 B parameters whose weights are sharded (FSDP2)."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(),))
with torch.device("meta"):
    model = nn.Sequential(*(nn.TransformerEncoderLayer(2048, 16, 8192, batch_first=True, dtype=torch.bfloat16)
                            for _ in range(32)))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to_empty(device="cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for _ in range(4):
    model(torch.randn(4, 1024, 2048, dtype=torch.bfloat16, device="cuda")).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
