# requires: torch_memory_saver
# simulate: --gpu l4
# bytes: other = 64 * 2**20 + 8 * 100_000
"""torch_memory_saver pauses regions of memory: one comes back with its content, the other only with its addresses."""

import os
import sys

import torch

if "cachalot" in sys.modules:  # `cachalot run`: torch_memory_saver itself refuses expandable segments, and so the page heap
    import cachalot.torch_memory_saver

    cachalot.torch_memory_saver.install()

from torch_memory_saver import torch_memory_saver

WORDS, CACHE = 100_000, 64 << 20


def free() -> int:
    return torch.cuda.mem_get_info()[0]


torch_memory_saver.hook_mode = "torch"
torch.empty(1, device="cuda")
with torch_memory_saver.region(tag="weights", enable_cpu_backup=True):
    weights = torch.arange(WORDS, device="cuda")
with torch_memory_saver.region(tag="cache"):
    cache = torch.zeros(CACHE, dtype=torch.uint8, device="cuda")
addresses, awake = (weights.data_ptr(), cache.data_ptr()), free()
torch_memory_saver.pause()
assert free() - awake >= CACHE, "the memory is for others while it is paused"
torch_memory_saver.resume()
assert free() == awake and (weights.data_ptr(), cache.data_ptr()) == addresses
assert torch.equal(weights.cpu(), torch.arange(WORDS))
print(f"OK: {CACHE >> 20} MiB were for others meanwhile", flush=True)
# A process that ends otherwise frees its regions outside of them, which torch_memory_saver answers in this mode with exit code 1.
os._exit(0)
