#!/usr/bin/env python3
"""Plants bugs in the product, one at a time, and expects the tests to find each of them.

    python3 tests/reliability/planted_bugs.py build/release [--draw 8 | --only NAME...]
    python3 tests/reliability/planted_bugs.py --check

A bug is another text in one place of one source file (planted/*.py). Files that include it in its library are compiled again, and
the test programs are linked anew: sources and build folder stay as they are. A bug that no test notices is an error, and so is
one whose text is no longer in the source, which --check alone looks at. So that it is the bug that is noticed, the same programs
are also made in the same way without one, and the tests must have nothing to say of them.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

from planted import BUGS
from planted.bug import SOURCE, Bug
from planted.workshop import CannotBeMade, Made, Workshop, has_all

TIMEOUT = 120  # seconds; a test that takes longer hangs
ENVIRONMENT = {"CACHALOT_TEST_SCALE": "0.2", "CACHALOT_TEST_SHORTEN": "0"}
SIMULATED = {  # test programs that need the simulated runtime, and the settings with which ctest runs them
    "simulator": {"CACHALOT_SIM": "devices:2,memory:64MiB,gpu:l4"},
    "plug": {"CACHALOT_SIM": "memory:256MiB", "CACHALOT_CONF": "heap:pages"},
}


def program_of(tests: str) -> str:
    return "tests/test_" + tests.split()[0]


def notice(made: Made, tests: str, build: Path) -> str:
    """Returns the tests' output on the program; empty if they notice nothing."""
    folder, _, cases = tests.partition(" ")
    environment = {name: value for name, value in os.environ.items() if name != "CACHALOT_CONF"} | ENVIRONMENT
    preloaded = list(made.preloaded)
    if folder in SIMULATED:
        environment |= SIMULATED[folder]
        if not any("libcachalot_simulator" in path.name for path in preloaded):
            preloaded.append(build / "simulator/libcachalot_simulator.so")
    environment["LD_PRELOAD"] = ":".join(map(str, preloaded))
    command = [str(made.program), "--gtest_fail_fast", "--gtest_brief=1", f"--gtest_filter={cases or '*'}"]
    try:
        done = subprocess.run(command, cwd=build, env=environment, capture_output=True, text=True, errors="replace",
                              timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"test_{tests}: it did not end in {TIMEOUT} s"
    if done.returncode == 0:
        return ""
    failed = re.findall(r"^\[  FAILED  \] (\S+)", done.stdout, re.MULTILINE)
    return f"test_{folder} " + (failed[0].rstrip(",") if failed else f"ended with status {done.returncode}")


def find(bug: Bug, workshop: Workshop, build: Path, scratch: Path) -> str:
    """Returns the tests' output on the bug; empty if they do not notice it."""
    objects = workshop.objects(bug.library, map(program_of, bug.found_by), bug.file)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        compiled = workshop.compiled(objects, bug.file, bug.planted(), folder)
        for tests in bug.found_by:
            if said := notice(workshop.linked(program_of(tests), compiled, folder), tests, build):
                return said
    return ""


def complain_without_bug(bugs: list[Bug], workshop: Workshop, build: Path, scratch: Path) -> str:
    """Returns the output of the tests of one library's bugs without any bug; it should be empty."""
    objects = set()
    for bug in bugs:
        objects |= workshop.objects(bug.library, map(program_of, bug.found_by), bug.file)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        compiled = workshop.compiled(objects, bugs[0].file, (SOURCE / bugs[0].file).read_text(), folder)
        for tests in sorted({tests for bug in bugs for tests in bug.found_by}):
            if said := notice(workshop.linked(program_of(tests), compiled, folder), tests, build):
                return said
    return ""


def timed(work, *arguments) -> tuple[str, float]:
    began = time.monotonic()
    return work(*arguments), time.monotonic() - began


def run(bugs: list[Bug], build: Path) -> int:
    """Returns the number of bugs that the tests notice."""
    programs = sorted({program_of(tests) for bug in bugs for tests in bug.found_by})
    simulator = ["cachalot_simulator"] if any(Path(program).name[5:] in SIMULATED for program in programs) else []
    subprocess.run(["ninja", "-C", str(build), "--quiet", *programs, *simulator], check=True)
    by_library = sorted(bugs, key=lambda bug: bug.library)
    found = 0
    workers = os.cpu_count()
    with (tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(workers) as compilers,
          ThreadPoolExecutor(workers) as threads):
        workshop = Workshop(build, compilers)
        scratch = Path(name)
        searches = [threads.submit(timed, find, bug, workshop, build, scratch) for bug in bugs]
        controls = [threads.submit(complain_without_bug, list(group), workshop, build, scratch)
                    for _, group in groupby(by_library, lambda bug: bug.library)]
        for bug, search in zip(bugs, searches):
            try:
                said, seconds = search.result()
            except CannotBeMade as error:
                print(f"{bug.name}: CANNOT BE MADE: {error}", flush=True)
                continue
            print(f"{bug.name}: {said or 'NOT NOTICED'}, {seconds:.0f} s", flush=True)
            found += bool(said)
        complaints = list(filter(None, (control.result() for control in controls)))
        if complaints:
            raise SystemExit("without a bug, a test fails, too: " + ", ".join(complaints))
    return found


def at_home(bugs: list[Bug], build: Path) -> list[Bug]:
    """Returns the bugs whose library and tests the build has."""
    missing = [library for library in {bug.library for bug in bugs} if not has_all(build, [library])]
    missing += [program for program in {program_of(tests) for bug in bugs for tests in bug.found_by}
                if not has_all(build, [program])]
    if missing:
        print("not in this build:", ", ".join(sorted(missing)))
    return [bug for bug in bugs if not {bug.library, *map(program_of, bug.found_by)} & set(missing)]


def drawn(count: int, bugs: list[Bug]) -> list[Bug]:
    commit = subprocess.run(["git", "-C", str(SOURCE), "rev-parse", "HEAD"], capture_output=True, text=True)
    if commit.returncode != 0:
        raise SystemExit(f"planted_bugs.py: --draw needs a commit to draw by: {commit.stderr.strip()}")
    return random.Random(commit.stdout.strip()).sample(bugs, min(count, len(bugs)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, nargs="?", help="a build folder of Ninja's")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", nargs="+", choices=[bug.name for bug in BUGS], metavar="NAME",
                       help="of the bugs, those of these names")
    which.add_argument("--draw", type=int, choices=range(1, len(BUGS) + 1), metavar="N",
                       help="of the bugs, so many, drawn by the commit that is checked out")
    which.add_argument("--check", action="store_true", help="whether every bug can be planted; nothing is compiled")
    arguments = parser.parse_args()
    complaints = list(filter(None, (bug.complaint() for bug in BUGS)))
    if complaints or len({bug.name for bug in BUGS}) != len(BUGS):
        print("\n".join(complaints) or "two bugs have the same name")
        return 1
    if arguments.check:
        print(f"{len(BUGS)} bugs can be planted")
        return 0
    if arguments.build is None or not (arguments.build / "build.ninja").exists():
        parser.error(f"{arguments.build or 'nothing'} is no build folder of Ninja's")
    build = arguments.build.resolve()
    bugs = at_home([bug for bug in BUGS if not arguments.only or bug.name in arguments.only], build)
    if arguments.draw:
        bugs = drawn(arguments.draw, bugs)
    found = run(bugs, build)
    print(f"{found} of {len(bugs)} planted bugs were found")
    return 0 if found == len(bugs) else 1


if __name__ == "__main__":
    sys.exit(main())
