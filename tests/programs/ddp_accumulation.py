# requires: torchvision
# simulate: --gpu l40s --devices 2
# launch: -m torch.distributed.run --standalone --nproc-per-node 2
# unknown: value
# sizes: by values
"""Trains a ResNet of torchvision with DDP on two ranks: gradients accumulate without a reduction, statistics are shared.

The ranks have different numbers of batches, and end together by a flag that one of them raises.
"""

import math
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchvision.models import resnet18

CLASSES, ACCUMULATE = 6, 2


def accumulate(model: DistributedDataParallel, rank: int) -> int:
    """Steps until one rank says that it is enough."""
    data = TensorDataset(torch.randn(48, 3, 64, 64), torch.arange(48) % CLASSES)
    sampler = DistributedSampler(data, shuffle=True)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
    steps, total = 0, torch.zeros(2, device="cuda")
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for i, (images, labels) in enumerate(DataLoader(data, batch_size=6, sampler=sampler, pin_memory=True)):
            is_last = (i + 1) % ACCUMULATE == 0
            with nullcontext() if is_last else model.no_sync():
                output = model(images.cuda(non_blocking=True))
                loss = torch.nn.functional.cross_entropy(output, labels.cuda(non_blocking=True))
                (loss / ACCUMULATE).backward()
            assert output.shape == (6, CLASSES)
            total += torch.stack([loss.detach(), torch.ones((), device="cuda")])
            if is_last:
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
        enough = torch.tensor(int(rank == 1 and epoch == 1), device="cuda")
        dist.all_reduce(enough, dist.ReduceOp.MAX)
        if enough.item():
            break
    dist.all_reduce(total)
    loss_sum, batches = total.tolist()
    assert batches == 16 and math.isfinite(loss_sum), (loss_sum, batches)
    assert epoch == 1 and steps == 4, (epoch, steps)
    return steps


def uneven(rank: int) -> int:
    """A rank with more batches than the other."""
    model = DistributedDataParallel(torch.nn.Linear(8, 2).cuda(), device_ids=[rank], bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = 3 + 2 * rank
    with Join([model]):
        for _ in range(batches):
            optimizer.zero_grad()
            model(torch.randn(5, 8, device="cuda")).sum().backward()
            optimizer.step()
    return batches


def main() -> None:
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    torch.manual_seed(rank)
    network = torch.nn.SyncBatchNorm.convert_sync_batchnorm(resnet18(weights=None, num_classes=CLASSES)).cuda()
    model = DistributedDataParallel(network, device_ids=[rank], gradient_as_bucket_view=True)
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    steps = accumulate(model, rank)
    batches = [None] * dist.get_world_size()
    dist.all_gather_object(batches, uneven(rank))
    assert batches == [3, 5], batches
    model.eval()
    with torch.no_grad():
        guesses = model(torch.randn(4, 3, 64, 64, device="cuda")).argmax(1)
    gathered = torch.empty(8, dtype=torch.int64, device="cuda")
    dist.all_gather_into_tensor(gathered, guesses)
    assert gathered.tolist()[4 * rank:4 * rank + 4] == guesses.tolist()
    if rank == 0:
        print(f"{steps} steps, then batches {batches}")
    dist.destroy_process_group()


main()
