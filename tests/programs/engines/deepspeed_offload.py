# requires: deepspeed
# simulate: --gpu a6000 --devices 2
# launch: -m torch.distributed.run --standalone --nproc-per-node 2
# steps: 3
# bytes: optimizer state = 0
# bytes: parameters = 0
# sizes: by values
"""Trains with DeepSpeed's ZeRO 3, which has parameters and optimizer on the host and steps in several groups of parameters."""

import logging
import math
import os

os.environ["DS_SKIP_CUDA_CHECK"] = "1"

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

WIDTH, LAYERS, STEPS = 64, 4, 3
deepspeed.utils.logger.setLevel(logging.ERROR)
# DeepSpeedCPUAdam would be compiled first, which takes minutes: the step on the host is PyTorch's.
SETTINGS = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_force_ds_cpu_optimizer": False,
            "zero_allow_untested_optimizer": True,
            "zero_optimization": {"stage": 3, "reduce_bucket_size": WIDTH * WIDTH, "stage3_param_persistence_threshold": 0, "sub_group_size": WIDTH * WIDTH,
                                  "offload_param": {"device": "cpu", "pin_memory": True},
                                  "offload_optimizer": {"device": "cpu", "pin_memory": True}}}


def main() -> None:
    deepspeed.init_distributed("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=SETTINGS):
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), 1e-3), config=SETTINGS)
    groups = len(engine.optimizer.fp16_groups)
    assert groups > 1, groups
    for _ in range(STEPS):
        loss = engine(torch.randn(2, WIDTH, device=engine.device, dtype=torch.bfloat16)).float().square().mean()
        engine.backward(loss)
        engine.step()
        assert math.isfinite(loss.item())
    assert engine.global_steps == STEPS
    host = [one for one in engine.optimizer.fp32_partitioned_groups_flat]
    assert all(not one.is_cuda for one in host) and sum(one.numel() for one in host) == LAYERS * WIDTH**2 // 2
    weight = model[0].weight
    assert weight.ds_tensor.device.type == "cpu" and weight.numel() == 0
    engine.destroy()
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"OK: {STEPS} steps of {groups} groups of parameters on the host")
    dist.destroy_process_group()


main()
