#!/usr/bin/env python3
"""Checks that the tiers of docs/support_matrix.md agree with the stages of CI, as `.ci/run --list` prints them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MATRIX = ROOT / "docs" / "support_matrix.md"
FORM = ["interface", "versions", "tier", "checked by"]


def stages_of_ci() -> tuple[set[str], set[str]]:
    """The stages of every run, and those of which a run draws some."""
    lines = subprocess.run([ROOT / ".ci" / "run", "--list"], capture_output=True, text=True, check=True).stdout.splitlines()
    words = [line.split() for line in lines]
    return {name for kind, *_, name in words if kind == "always"}, {name for kind, *_, name in words if kind == "drawn"}


def section() -> str:
    return MATRIX.read_text().split("\n## Interfaces\n", 1)[1].split("\n## ", 1)[0]


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


def check_row(row: list[str], always: set[str], drawn: set[str]) -> list[str]:
    interface, _, tier, checked_by = row
    named = names_in(checked_by)
    found = [f"{interface}: CI has no stage {name}" for name in sorted(named - always - drawn)]
    if tier not in ("1", "2", "3"):
        found.append(f"{interface}: {tier} is no tier")
    if tier == "1" and not named & always:
        found.append(f"{interface} is of tier 1, but no stage of every run checks it")
    if tier == "2" and not named & (always | drawn):
        found.append(f"{interface} is of tier 2, but no stage checks it")
    return found


def check(always: set[str], drawn: set[str]) -> list[str]:
    lines = [line for line in section().splitlines() if line.startswith("|") and not line.startswith("|---")]
    table = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    if not table or table[0] != FORM or any(len(row) != len(FORM) for row in table):
        return [f"the table of interfaces has not the columns {', '.join(FORM)}"]
    found = [line for row in table[1:] for line in check_row(row, always, drawn)]
    checking = set().union(*(names_in(row[-1]) for row in table[1:]))
    sentence = re.search(r"^No interface of others: (.*)$", section(), re.MULTILINE)
    others = names_in(sentence[1]) if sentence else set()
    line = "the line 'No interface of others'"
    found += [f"the drawn stage {name} is neither in a row nor in {line}" for name in sorted(drawn - checking - others)]
    found += [f"{name} is in a row and in {line}" for name in sorted(others & checking)]
    return found + [f"CI has no stage {name}" for name in sorted(others - always - drawn)]


def main() -> int:
    found = check(*stages_of_ci())
    for line in found:
        print(f"support_matrix.md: {line}")
    print(f"check_tiers.py: {len(found)} mistakes")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
