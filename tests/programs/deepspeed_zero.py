# requires: deepspeed
# simulate: --gpu a6000 --devices 2
# launch: -m torch.distributed.run --standalone --nproc-per-node 2
# steps: 3
# sizes: by values
"""Trains a small network with DeepSpeed's ZeRO, stages 1 to 3, on two ranks, with fp16 and its own scaler of the loss."""

import logging
import math
import os

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

WIDTH, STEPS, ACCUMULATE = 64, 3, 2
deepspeed.utils.logger.setLevel(logging.ERROR)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).relu()
        return nn.functional.mse_loss(x.float(), y.float())


def settings(stage: int) -> dict:
    return {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": ACCUMULATE, "gradient_clipping": 1.0,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
            "fp16": {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 2},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}}}


def train(stage: int) -> float:
    torch.manual_seed(0)
    if stage == 3:
        with deepspeed.zero.Init(config_dict_or_path=settings(stage)):
            model = Net()
        assert model.layers[0].weight.numel() == 0 and model.layers[0].weight.ds_numel == WIDTH * WIDTH
    else:
        model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    engine, _, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=settings(stage))
    for _ in range(STEPS * ACCUMULATE):
        x = torch.randn(2, WIDTH, device=engine.device, dtype=torch.half)
        loss = engine(x, x.flip(0))
        engine.backward(loss)
        engine.step()
        assert math.isfinite(loss.item())
    assert engine.global_steps == STEPS and engine.skipped_steps == 0, (engine.global_steps, engine.skipped_steps)
    with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=stage == 3):
        assert model.layers[0].weight.shape == (WIDTH, WIDTH)
    scale = engine.optimizer.loss_scale
    assert scale >= 256, scale
    engine.destroy()
    return scale


def main() -> None:
    deepspeed.init_distributed("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    scales = [train(stage) for stage in (1, 2, 3)]
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"{STEPS} steps of each stage, scales {scales}")
    dist.destroy_process_group()


main()
