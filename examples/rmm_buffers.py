"""RMM, and so cuDF and cuML, on cachalot's heap: cachalot.enable_rmm().

    python examples/rmm_buffers.py

Ends with an error if a buffer is not of the heap, or its memory is not counted.
"""

from __future__ import annotations

import rmm

import cachalot

cachalot.enable_rmm()
MiB = 1 << 20

# A program on a GPU needs no `mr=`: rmm.DeviceBuffer(size=…) takes the current device's resource. This one runs over the simulated CUDA
# runtime, too, where RMM cannot ask for the current device.
resource = rmm.mr.get_per_device_resource(0)
counted = rmm.mr.StatisticsResourceAdaptor(resource)  # RMM's adaptors go over the heap


def live_bytes() -> int:
    return sum(usage.live_bytes for usage in cachalot.library_usage() if usage.library == "rmm")


address = counted.allocate(64 * MiB)
print(f"allocated at {address:#x}; RMM counts {counted.allocation_counts.current_bytes:,} bytes, cachalot {live_bytes():,}")
assert counted.allocation_counts.current_bytes == live_bytes() == 64 * MiB

counted.deallocate(address, 64 * MiB)
assert live_bytes() == 0
assert counted.allocate(64 * MiB) == address, "the memory is used again"

try:
    resource.allocate(1 << 50)
except MemoryError as error:
    print(f"MemoryError: {str(error)[:120]}…")
else:
    raise SystemExit("there cannot be so much memory")
