"""Does a program's usual work with PyTorch's GPU memory, in a second; exits with an error if a result is wrong."""

import gc

import torch

import cachalot
from cachalot._start import config

assert cachalot.enabled_mode() == "full"
assert torch.cuda.memory.get_allocator_backend() == "cachalot"

# A training.
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 16)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for size in (64, 96, 32):
    model(torch.randn(size, 256, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
stats = torch.cuda.memory_stats()
assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated() > 0
assert cachalot.stats().items() <= dict(stats).items()  # newer versions of PyTorch have more

# History, snapshots, and the bytes that were asked for. C++ frames need addr2line, which machines without compilers lack.
torch.cuda.memory._record_memory_history(max_entries=100, stacks="python")
kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
snapshot = torch.cuda.memory._snapshot()
assert any(entry["action"] == "alloc" and entry["size"] == 3 << 20 for entry in snapshot["device_traces"][0])
assert sum(segment["total_size"] for segment in snapshot["segments"]) == torch.cuda.memory_reserved()
torch.cuda.memory._record_memory_history(None)

# A pool, a graph, another stream.
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    inside = torch.empty(1 << 20, device="cuda")
assert pool.use_count() >= 1
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    result = kept + 1
graph.replay()
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    kept.record_stream(stream)
torch.cuda.synchronize()

# Out of memory is PyTorch's own exception, and can be recovered from.
try:
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    assert "Tried to allocate" in str(error)
else:
    raise AssertionError("a PiB was there")

# Settings that a program changes.
config.set_in_torch("max_split_size_mb:64")
assert torch.cuda.memory._snapshot()["allocator_settings"]["max_split_size"] == 64 << 20

del model, optimizer, kept, inside, result, graph, pool, snapshot
gc.collect()
torch.cuda.empty_cache()
print("smoke: ok")
