#!/usr/bin/env python3
"""Compares the peak of reserved memory in snapshots of real runs with that of a replay of their policy.

    bench/recorded_replays.py [--command build/release/tools/cachalot] FILE...

FILE is a memory snapshot with a history, of a program with PyTorch's default settings or with expandable segments. The exit code is
1 if a replay reserves something else.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
from typing import Any

EXPANDABLE = "expandable_segments:True"
ROOT = pathlib.Path(__file__).resolve().parent.parent


def told_of(*command: str | pathlib.Path) -> list[dict[str, Any]]:
    """Returns the objects that a command prints, one on each line."""
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode != 0:
        sys.exit(told.stderr.strip())
    return [json.loads(line) for line in told.stdout.splitlines()]


def policy_of(command: pathlib.Path, file: str) -> str:
    """Returns the policy that the recorded program had."""
    [explanation] = told_of(command, "explain", "--json", file)
    return EXPANDABLE if EXPANDABLE in explanation["settings"] else "native"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares what programs reserved with replays of their histories.")
    parser.add_argument("--command", type=pathlib.Path, default=ROOT / "build/release/tools/cachalot")
    parser.add_argument("files", nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    devices = equal = unknown = 0
    print(f"{'events':>10} {'recorded':>15} {'replayed':>15}  file")
    for file in arguments.files:
        policy = policy_of(arguments.command, file)
        for advice in told_of(arguments.command, "advise", "--json", "--no-times", file):
            recorded = advice["recorded_reserved_bytes"]
            replayed = next(each["peak_reserved_bytes"] for each in advice["policies"] if each["policy"] == policy)
            devices += 1
            equal += recorded == replayed
            unknown += recorded is None
            print(f"{advice['events']:>10} {'unknown' if recorded is None else recorded:>15} {replayed:>15}  {file}")
    print(f"equal: {equal} of {devices - unknown}; not known what was reserved: {unknown}")
    sys.exit(equal + unknown < devices)


if __name__ == "__main__":
    main()
