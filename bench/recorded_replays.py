#!/usr/bin/env python3
"""What programs reserved at their peak, as snapshots of real runs recorded it, beside what the replay of PyTorch's policy reserves.

    bench/recorded_replays.py [--command build/release/tools/cachalot] FILE...

FILE is a memory snapshot with a history, of a program with PyTorch's default settings. The exit code is 1 if a replay reserves
something else.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent


def advices(command: pathlib.Path, file: str) -> list[dict[str, Any]]:
    """Returns the advice for each device of a file."""
    told = subprocess.run([command, "advise", "--json", "--no-times", file], capture_output=True, text=True, check=False)
    if told.returncode != 0:
        sys.exit(told.stderr.strip())
    return [json.loads(line) for line in told.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares what programs reserved with replays of their histories.")
    parser.add_argument("--command", type=pathlib.Path, default=ROOT / "build/release/tools/cachalot")
    parser.add_argument("files", nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    devices = equal = unknown = 0
    print(f"{'events':>10} {'recorded':>15} {'replayed':>15}  file")
    for file in arguments.files:
        for advice in advices(arguments.command, file):
            recorded = advice["recorded_reserved_bytes"]
            replayed = next(each["peak_reserved_bytes"] for each in advice["policies"] if each["policy"] == "native")
            devices += 1
            equal += recorded == replayed
            unknown += recorded is None
            print(f"{advice['events']:>10} {'unknown' if recorded is None else recorded:>15} {replayed:>15}  {file}")
    print(f"equal: {equal} of {devices - unknown}; not known what was reserved: {unknown}")
    sys.exit(equal + unknown < devices)


if __name__ == "__main__":
    main()
