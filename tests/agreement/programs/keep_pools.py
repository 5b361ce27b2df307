"""Makes two CUDA graphs with a pool each, and keeps weights in a pool of their own."""

import recording
import torch

recording.begin()
pool, kept = torch.cuda.MemPool(), []
with torch.cuda.use_mem_pool(pool):
    weights = [recording.block(5 + 3 * k) for k in range(6)]
del weights[1::2]
for size in (16, 12):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        between = torch.empty(size * recording.MIB, device="cuda")
        result = between[:1024] + 1
        del between
    kept.append((graph, result))
    graph.replay()
live = [recording.block(recording.SIZE + k % 5) for k in range(12)]
del live[::3]
live.append(recording.block(40))
recording.end()
