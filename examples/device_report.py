"""The uses of a GPU's memory: cachalot.memory_report(), before and after CuPy works.

    python examples/device_report.py

Ends with an error if the rows do not add up to the used memory.
"""

from __future__ import annotations

import cupy

import cachalot

cachalot.enable_cupy("heap:pages")
MiB = 1 << 20

array = cupy.arange(8 * MiB, dtype=cupy.float64)
total = float(array.sum())
scratch = cupy.empty(128 * MiB, dtype=cupy.uint8)
del scratch  # cached by cachalot, for the next array

report = cachalot.memory_report()
print(report)

for row in report.rows:
    if row.bytes is None:
        print(f"unknown: {row.name}, because {row.source}")

assert sum(row.bytes or 0 for row in report.rows) == report.used_bytes
assert report.libraries["cupy"] == report.live_bytes == 64 * MiB
assert report.cached_bytes is not None and report.cached_bytes >= 128 * MiB

array = None
cupy.cuda.get_current_stream().synchronize()
assert cachalot.memory_report().libraries["cupy"] == 0
