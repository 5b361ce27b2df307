# requires: torch
# simulate: --gpu l4
# bytes: other = 5 * (48 * 2**20) + 5
"""A program turns expandable segments on and off while it runs, as trainers of language models do before they share weights."""

import torch

SIZE = 48 << 20
live = []
for on in (True, False, True):
    torch.cuda.memory._set_allocator_settings(f"expandable_segments:{on}")
    live += [torch.zeros(SIZE + i, dtype=torch.uint8, device="cuda") for i in range(3)]
    del live[::2]
    torch.cuda.empty_cache()
assert torch.cuda.memory_allocated() >= sum(one.nbytes for one in live)
assert torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
count = len(live)
live.clear()
torch.cuda.empty_cache()
assert torch.cuda.memory_allocated() == 0
print(f"OK: {count} tensors at the end")
