#!/usr/bin/env python3
"""Checks the types of the Python package with `mypy --strict` and with pyright in strict mode (pyproject.toml).

    tests/types/check_types.py [--checkers PYTHON] [--packages PYTHON]

The checkers are packages of one interpreter (`pip install mypy 'pyright[nodejs]'`), and PyTorch is a package of the other; by
default both are of the interpreter that runs this. A checker that finds nothing in mistakes.py is an error, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pytorch" / "cachalot"
MISTAKES = Path(__file__).parent / "mistakes.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkers", metavar="PYTHON", default=sys.executable, help="has mypy and pyright")
    parser.add_argument("--packages", metavar="PYTHON", default=sys.executable, help="has PyTorch and numpy")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        mypy = [arguments.checkers, "-m", "mypy", "--python-executable", arguments.packages, "--cache-dir", cache]
        pyright = [arguments.checkers, "-m", "pyright", "--pythonpath", arguments.packages, "--project", str(ROOT)]
        # Named files take pyright's settings from their first lines alone, so the mistakes say that they are strict.
        return _failures("mypy", mypy, [str(PACKAGE)]) + _failures("pyright", pyright, [])


def _failures(name: str, command: list[str], package: list[str]) -> int:
    """Prints what the checker says of the package. Returns 0 if that is nothing and the planted mistakes are found, else 1."""
    good = _run(command + package)
    if good.returncode:
        print(f"{name}:\n{good.stdout}{good.stderr}")
    planted = _run([word for word in command if word not in ("--project", str(ROOT))] + [str(MISTAKES)])
    missed = planted.returncode != 1 or "mistakes.py" not in planted.stdout
    if missed:
        print(f"{name} does not find the mistake in {MISTAKES.relative_to(ROOT)}:\n{planted.stdout}{planted.stderr}")
    if not good.returncode and not missed:
        print(f"{name}: no errors in {PACKAGE.relative_to(ROOT)}")
    return int(bool(good.returncode) or missed)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(min(1, main()))
