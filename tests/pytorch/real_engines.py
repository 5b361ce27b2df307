#!/usr/bin/env python3
"""The tests of the real vLLM, torch_memory_saver and SGLang, and some others with the PyTorch that vLLM requires: the CI stage `engines`.

    python3 tests/pytorch/real_engines.py build/release PYTHON

PYTHON is an interpreter with the packages of engines_requirements.txt, vLLM and SGLang. Fails where a package is missing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from newest import Part, run_all

PARTS = (
    Part("full", ("test_enable.py", "test_sharing.py")),
    Part("pages", ("test_real_engines.py",)),
    Part("full", ("test_serving.py",)),
    Part("pages", ("test_engines.py", "test_sleep.py", "test_sharing.py")),
)


def main() -> int:
    if len(sys.argv) != 3:
        sys.exit("usage: real_engines.py BUILD PYTHON")
    os.environ["CACHALOT_TEST_ENGINES"] = "installed"
    return 0 if run_all(PARTS, Path(sys.argv[1]), sys.argv[2]) else 1


if __name__ == "__main__":
    sys.exit(main())
