"""A preprocessing step has memory of its own; the model needs it later."""

import torch
from watched import block, watch


def main():
    pool = torch.cuda.MemPool()
    tables = []
    with torch.cuda.use_mem_pool(pool):
        for size in (60, 80, 100, 120, 140):
            scratch = block(size)
            tables.append(block(3))
            del scratch
    weights = [block(64) for _ in range(3)]
    batch = block(300)
    del weights, batch


watch(main)
