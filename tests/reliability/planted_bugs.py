#!/usr/bin/env python3
"""Plants bugs in the allocator, one at a time, and expects test_reliability to find each of them.

    python3 tests/reliability/planted_bugs.py build/dev [--draw 8]

A bug is one line of one source file. That file alone is compiled again, into a copy of the library, with which the test
program is linked anew: sources and build folder stay as they are. A bug that no test notices is an error, and so is one
whose line is no longer in the source. So that it is the bug that is noticed, the program is first made in the same way
without one, and the tests must have nothing to say of that.
"""

import argparse
import dataclasses
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
PROGRAM = "test_reliability"
LIBRARY = "libcachalot_core.a"


@dataclasses.dataclass(frozen=True)
class Bug:
    name: str
    file: str  # in allocator/
    line: str
    instead: str


BUGS = [
    Bug("reuse before an event", "streams/deferred_frees.cpp",
        "done = device_.event_query(oldest.event);", "done = true;"),
    Bug("unmap under use", "pages/physical_pages.cpp",
        "view.last_uses.end(), [](const Ticket& use) { return use.is_done(); });",
        "view.last_uses.end(), [](const Ticket&) { return true; });"),
    Bug("missing wait", "heap/stream_clocks.cpp",
        "state_.device->stream_wait(waiter.stream().handle, mark.event);", "static_cast<void>(mark);"),
    Bug("wrong stream", "device/known_stream.cpp",
        "return device.event_record(event, stream.handle);", "return device.event_record(event, nullptr);"),
    Bug("stale alias", "pages/physical_pages.cpp", "uses.push_back(use);", ";"),
    Bug("capture violation", "growth/recovery.cpp",
        "if (id.is_default() && !state_.capturing(growing) && !pools_.thread_is_redirected(growing)) {",
        "if (id.is_default() && !pools_.thread_is_redirected(growing)) {"),
    Bug("double free", "fast_path.cpp",
        "  if (!HeapState::is_live(block, ptr)) [[unlikely]]\n    return false;\n  if ((state.modes & HeapState::kCaching) != 0) [[unlikely]]",
        "  if ((state.modes & HeapState::kCaching) != 0)"),
    Bug("free on the wrong device", "caching_allocator.cpp",
        "if (block != nullptr && &owner_of(*block) != &expected && sizes(owner_of(*block).state, *block, ptr)) {",
        "if (false) {"),
    Bug("leak on an error path", "growth/backing_calls.cpp", "      device_.release(created[i]);\n", ""),
    Bug("statistics skew", "growth/page_driver.cpp",
        "plan.new_pages * pages.page_bytes(), growing);", "plan.new_pages, growing);"),
    # Where a real driver is less kind (driver_rules_test.cpp).
    Bug("a stream is its handle", "device/known_stream.cpp",
        "if (is_legacy(handle) || (immortal && !is_per_thread(handle)))", "if (true)"),
    Bug("a destroyed stream is a reset", "device/wait_for.cpp",
        "  try {\n    device.synchronize();", "  try {"),
    Bug("a wait for the end of a stream", "heap/stream_clocks.cpp",
        "      record_epoch(*clock, growing);\n",
        "      record_epoch(*clock, growing);\n    clock->request_comes();\n"),
    Bug("a context on an unused device", "growth/page_driver.cpp", "if (!pages_.ranges().empty())", "if (true)"),
    Bug("a mapping without memory", "growth/backing_calls.cpp",
        "have_memory([&] {", "([](const auto& calls) { calls(); return true; })([&] {"),
]


class Program:
    """The test program, as the build system makes it."""

    def __init__(self, build: Path, scratch: Path) -> None:
        self._build = build
        self._scratch = scratch
        commands = subprocess.run(["ninja", "-C", str(build), "-t", "commands", PROGRAM], check=True,
                                  capture_output=True, text=True).stdout.splitlines()
        self._compile = [line for line in commands if " -c " in line]
        self._link = next(line for line in commands if f" -o tests/{PROGRAM} " in line)

    def with_bug(self, bug: Bug) -> Path:
        """The program with the bug in it."""
        original = SOURCE / "allocator" / bug.file
        text = original.read_text()
        if text.count(bug.line) == 0:
            raise SystemExit(f"{bug.name}: {bug.file} has no line '{bug.line}' any more")
        folder = self._scratch / bug.name.replace(" ", "_")
        folder.mkdir()
        mutant = folder / original.name
        mutant.write_text(text.replace(bug.line, bug.instead, 1))
        return self._made_with(original, mutant, folder)

    def without_bug(self, file: str) -> Path:
        """The program, made as one with a bug in the file is."""
        original = SOURCE / "allocator" / file
        return self._made_with(original, original, self._scratch)

    def _made_with(self, original: Path, source: Path, folder: Path) -> Path:
        """The program with another source in place of one of the library's, in a folder."""
        unit = self._unit_of(original)
        if unit != original:  # a unity file
            other = folder / unit.name
            other.write_text(unit.read_text().replace(f'"{original}"', f'"{source}"'))
            source = other
        obj = folder / f"{unit.name}.o"  # as the library calls it
        self._run(self._compile_of(unit, original.parent, source, obj))
        library = folder / LIBRARY
        shutil.copy(self._build / LIBRARY, library)
        self._run(shlex.join(["ar", "r", str(library), str(obj)]))
        program = folder / PROGRAM
        link = self._link.replace(f" -o tests/{PROGRAM} ", f" -o {shlex.quote(str(program))} ")
        self._run(link.replace(f" {LIBRARY} ", f" {shlex.quote(str(library))} "))
        return program

    def _unit_of(self, original: Path) -> Path:
        """The file that the build system compiles for a source: itself or a unity file that includes it."""
        for line in self._compile:
            unit = Path(shlex.split(line)[-1])
            if unit == original or "Unity" in unit.parts and f'"{original}"' in unit.read_text():
                return unit
        raise SystemExit(f"{original} is not compiled for {PROGRAM}")

    def _compile_of(self, unit: Path, folder: Path, source: Path, obj: Path) -> str:
        command = next(line for line in self._compile if Path(shlex.split(line)[-1]) == unit)
        words = shlex.split(command)
        quick = [word for word in words if not re.fullmatch(r"-Werror|ccache|-MD", word)]
        for flag in ("-o", "-c", "-MF", "-MT"):
            if flag in quick:
                del quick[quick.index(flag):quick.index(flag) + 2]
        quick += ["-O1", f"-I{folder}", "-o", str(obj), "-c", str(source)]
        return shlex.join(quick)

    def _run(self, command: str) -> None:
        done = subprocess.run(command, shell=True, cwd=self._build, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{command}\n{done.stdout}{done.stderr}")


def notice(program: Path) -> str:
    """What the tests say of the program; empty when they notice nothing."""
    environment = os.environ | {"CACHALOT_TEST_SCALE": "0.2", "CACHALOT_TEST_SHORTEN": "0"}
    done = subprocess.run([str(program), "--gtest_fail_fast", "--gtest_brief=1"], env=environment, capture_output=True,
                          text=True, errors="replace", timeout=600)
    if done.returncode == 0:
        return ""
    said = [line for line in done.stdout.splitlines() if re.search(r"operation \d+|threw|at the end|seed \d+:", line)]
    return said[0].strip()[:150] if said else f"it ended with status {done.returncode}"


def find(bugs: list[Bug], program: Program) -> int:
    """How many of the bugs the tests notice."""
    found = 0
    with ThreadPoolExecutor(os.cpu_count()) as threads:  # they wait for compilers and tests
        without = threads.submit(lambda: notice(program.without_bug(bugs[0].file)))
        for bug, said in zip(bugs, threads.map(lambda bug: notice(program.with_bug(bug)), bugs)):
            print(f"{bug.name}: {said or 'NOT NOTICED'}", flush=True)
            found += bool(said)
        if without.result():
            raise SystemExit(f"the program without a bug fails: {without.result()}")
    return found


def drawn(count: int) -> list[Bug]:
    commit = subprocess.run(["git", "-C", str(SOURCE), "rev-parse", "HEAD"], capture_output=True, text=True)
    if commit.returncode != 0:
        raise SystemExit(f"planted_bugs.py: --draw needs a commit to draw by: {commit.stderr.strip()}")
    chosen = random.Random(commit.stdout.strip()).sample(BUGS, count)
    print("not drawn:", ", ".join(bug.name for bug in BUGS if bug not in chosen) or "none")
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=Path, help="a build folder with test_reliability in it, by Ninja")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", choices=[bug.name for bug in BUGS], help="of the bugs, the one of this name")
    which.add_argument("--draw", type=int, choices=range(1, len(BUGS) + 1), metavar="N",
                       help="of the bugs, so many, drawn by the commit that is checked out")
    arguments = parser.parse_args()
    if not (arguments.build / "build.ninja").exists():
        parser.error(f"{arguments.build} is no build folder of Ninja's")
    bugs = drawn(arguments.draw) if arguments.draw else [bug for bug in BUGS if arguments.only in (None, bug.name)]
    with tempfile.TemporaryDirectory() as scratch:
        found = find(bugs, Program(arguments.build.resolve(), Path(scratch)))
    print(f"{found} of {len(bugs)} planted bugs were found")
    return 0 if found == len(bugs) else 1


if __name__ == "__main__":
    sys.exit(main())
