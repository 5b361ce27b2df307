#!/usr/bin/env python3
"""Measures `cachalot explain`: time and peak of host memory for each file, the best time of three.

    CACHALOT_COMMAND=build/release/tools/cachalot bench/explain.py FILE...
"""

import os
import subprocess
import sys
import time


def measured(path: str) -> tuple[float, int]:
    """Returns seconds and the peak of host memory in bytes, of a process of its own."""
    begin = time.perf_counter()
    process = subprocess.Popen([os.environ["CACHALOT_COMMAND"], "explain", "--json", path], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"explain failed on {path}")
    return time.perf_counter() - begin, usage.ru_maxrss << 10


def main() -> None:
    for path in sys.argv[1:]:
        size = os.path.getsize(path)
        runs = [measured(path) for _ in range(3 if size < 100 << 20 else 1)]
        seconds, peak = min(run[0] for run in runs), max(run[1] for run in runs)
        print(f"{size / 1e6:10.1f} MB {seconds:8.2f} s {peak / (1 << 20):9.1f} MiB  {os.path.basename(path)}")


if __name__ == "__main__":
    main()
