"""Batches of varied sizes through pinned memory with a limit, and what PyTorch's powers of two would have pinned."""

import torch
from torch.utils.data import DataLoader

import cachalot

LIMIT = 64 << 20

cachalot.enable(pinned=True, pinned_limit=LIMIT)


class Images(torch.utils.data.Dataset):
    """Batches of 32 images, whose size changes from batch to batch."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        side = 224 + 16 * (index * 7 % 6)
        return torch.full((32, 3, side, side), index, dtype=torch.uint8)


def main():
    peak = 0
    for index, batch in enumerate(DataLoader(Images(), batch_size=None, pin_memory=True)):
        assert batch.is_pinned()
        on_gpu = batch.to("cuda", non_blocking=True)
        peak = max(peak, batch.nbytes)
        del batch  # at once: the buffer is kept until the copy is done
        torch.cuda.synchronize()  # as a step does that prints its loss
        assert on_gpu.shape[-1] == 224 + 16 * (index * 7 % 6)
    stats = torch.cuda.host_memory_stats()
    pinned = stats["allocated_bytes.peak"]
    print(f"the largest batch has {peak / 1e6:.1f} MB, for which powers of two pin {(1 << (peak - 1).bit_length()) / 1e6:.1f} MB")
    print(f"{stats['num_host_alloc']} calls pinned {pinned / 1e6:.1f} MB for {stats['active_requests.allocated']} batches")
    assert pinned <= LIMIT

    weights = torch.empty(LIMIT // 2, dtype=torch.uint8, pin_memory=True)  # the cache makes room
    try:
        torch.empty(LIMIT, dtype=torch.uint8, pin_memory=True)
    except torch.OutOfMemoryError as error:
        print(error)
    else:
        raise AssertionError("the limit does not hold")
    assert weights.is_pinned() and torch.cuda.host_memory_stats()["allocated_bytes.peak"] <= LIMIT


if __name__ == "__main__":
    main()
