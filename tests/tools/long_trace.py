#!/usr/bin/env python3
"""Shows that a replay's memory does not grow with its trace: makes traces of the lengths given, replays them, and prints how
much host memory each took at its peak.

    tests/tools/long_trace.py build/release/tools/cachalot 100 1000 10000     # MB of text

A trace is a thousand allocations alive at a time, on four streams, kept as gzip while it is needed. 10 GB take 2 GB of disk,
and a quarter of an hour.
"""

import os
import subprocess
import sys
import tempfile
import time

PROGRAM = """BEGIN {
  for (i = 0; written < bytes; ++i) {
    line = sprintf("a,1000000%012d,%d,%d\\n", i, 512 + i * 7919 % 4194304, i % 4)
    if (i >= 1000) line = line sprintf("f,1000000%012d\\n", i - 1000)
    printf "%s", line
    written += length(line)
  }
}"""


def make_trace(path: str, megabytes: int) -> None:
    with open(path, "wb") as file:
        text = subprocess.Popen(["awk", "-v", f"bytes={megabytes}000000", PROGRAM], stdout=subprocess.PIPE)
        subprocess.run(["gzip", "-1"], stdin=text.stdout, stdout=file, check=True)
        if text.wait() != 0:
            sys.exit("awk failed")


def replay(command: str, path: str) -> tuple[int, float, float]:
    started = time.monotonic()
    process = subprocess.Popen([command, "replay", path], stdout=subprocess.PIPE, text=True)
    report = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"the replay failed: {status}")
    events = next(line.split()[1] for line in report.splitlines() if line.split()[0] == "events")
    return int(events), time.monotonic() - started, usage.ru_maxrss / 1024


def main() -> None:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    print(f"{'MB of text':>10} {'MB on disk':>10} {'events':>12} {'seconds':>8} {'peak MiB':>9}")
    for megabytes in map(int, sys.argv[2:]):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "long.csv.gz")
            make_trace(path, megabytes)
            events, seconds, peak = replay(sys.argv[1], path)
            disk = os.path.getsize(path) / 1e6
            print(f"{megabytes:>10} {disk:>10.0f} {events:>12} {seconds:>8.0f} {peak:>9.0f}", flush=True)


if __name__ == "__main__":
    main()
