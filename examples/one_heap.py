"""CuPy and Numba on one heap: what one library has freed serves the other, and each library's memory is counted.

    python examples/one_heap.py

Over their own allocators, CuPy's pool would keep the 256 MiB that Numba then needs. Ends with an error if that does not hold.
"""

from __future__ import annotations

import cachalot

print(cachalot.enable_all("heap:pages"))  # before or after the imports: no library is imported by it

import cupy  # noqa: E402
import numba.cuda  # noqa: E402
import numpy  # noqa: E402

MiB = 1 << 20


def free_mib() -> int:
    return int(cupy.cuda.Device().mem_info[0]) // MiB


def show(when: str) -> None:
    print(f"\n{when}: {free_mib()} MiB of the device are free")
    for row in cachalot.library_usage():
        print(f"  {row.library:<10}{row.live_bytes // MiB:>6} MiB live,{row.peak_bytes // MiB:>6} MiB at the peak")


begin = free_mib()
array = cupy.sort(cupy.arange(32 * MiB, dtype=cupy.float64)[::-1])
show("CuPy has sorted")
in_use = free_mib()

del array
cupy.cuda.get_current_stream().synchronize()
other = numba.cuda.device_array(256 * MiB, dtype=numpy.uint8)
show("Numba has what CuPy freed")

assert in_use < begin
assert free_mib() >= in_use, "Numba's array took new memory of the device"
assert {row.library: row.live_bytes for row in cachalot.library_usage()} == {"cupy": 0, "numba": 256 * MiB}
