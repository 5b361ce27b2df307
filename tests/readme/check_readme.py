#!/usr/bin/env python3
"""Runs the commands in a Markdown document and compares their outputs with those in the document.

    check_readme.py [--document README.md] --command build/dev/tools/cachalot [--python PYTHON --plugin build/dev]
    check_readme.py … --print      print the outputs instead, for a document that is to be written again

A block of ```console has commands, lines that begin with "$ ", each followed by what it prints on standard output and
standard error, without blank lines at its ends. In the document, "…" as a line stands for any lines, and at the end of a
line for the rest of it. A comment in front of the block may say

    <!-- varies: REGULAR EXPRESSION -->   text that differs between machines or runs; it is not compared
    <!-- run by: FILE -->                 the block is not run here, but by a test in that file

and <!-- file: NAME --> in front of a block of any language writes the block into the file NAME, for the commands behind it.

--document may be a folder of documents. Commands of a document run in one folder, in the document's order. There `cachalot`
is --command, and `python` is --python over the simulated CUDA runtime, with the package of --plugin. Without --python,
commands that need PyTorch are counted as skipped.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Iterator, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 300
NEEDS_PYTORCH = re.compile(r"\bpython\b|\.py\b|\boom\.pickle\b")  # train.py writes oom.pickle


class Block(NamedTuple):
    line: int
    lines: list[str]
    varies: list[re.Pattern[str]]
    run_by: list[str]
    file: str  # that it is written into, in place of being run


class Command(NamedTuple):
    line: int  # in the document
    words: str
    expected: list[str]
    varies: list[re.Pattern[str]]


# ---- The document -----------------------------------------------------------------------------------------------------


def blocks(text: str) -> Iterator[Block]:
    """The blocks of ```console and those that are files, each with the comments in front of it."""
    varies: list[re.Pattern[str]] = []
    run_by: list[str] = []
    file = ""
    block: Block | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if block and line.startswith("```"):
            yield block
            block = None
        elif block:
            block.lines.append(line)
        elif line == "```console" or file and line.startswith("```"):
            block = Block(number, [], varies, run_by, file)
        elif found := re.fullmatch(r"<!-- (varies|run by|file): (.*) -->", line):
            if found[1] == "varies":
                varies = [*varies, re.compile(found[2])]
            elif found[1] == "file":
                file = found[2]
            else:
                run_by = [*run_by, found[2]]
            continue
        if not block:
            varies, run_by, file = [], [], ""


def commands(block: Block) -> list[Command]:
    found: list[Command] = []
    for number, line in enumerate(block.lines, block.line + 1):
        if line.startswith("$ "):
            found.append(Command(number, line[2:], [], block.varies))
        elif found:
            found[-1].expected.append(line)
        else:
            sys.exit(f"check_readme.py: line {number}: a block begins with a command, '$ …'")
    return found


# ---- Comparing ----------------------------------------------------------------------------------------------------------


def without_what_varies(line: str, varies: list[re.Pattern[str]]) -> str:
    for pattern in varies:
        line = pattern.sub("#", line)
    return line.rstrip()


def line_agrees(expected: str, actual: str) -> bool:
    if expected.endswith("…"):
        return actual.startswith(expected[:-1].rstrip())
    return expected == actual


def agrees(expected: list[str], actual: list[str]) -> bool:
    """Returns whether the output is as expected, where "…" stands for any number of lines."""
    reached = {0}  # the numbers of lines of `actual` that the lines of `expected` so far may stand for
    for line in expected:
        if line == "…":
            reached = set(range(min(reached), len(actual) + 1)) if reached else set()
        else:
            reached = {i + 1 for i in reached if i < len(actual) and line_agrees(line, actual[i])}
    return len(actual) in reached


# ---- Running ------------------------------------------------------------------------------------------------------------


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def prepare(folder: Path, options: argparse.Namespace) -> dict[str, str]:
    """A folder with the repository's files and the programs `cachalot` and `python`; returns the environment."""
    for name in ("data", "examples"):
        (folder / name).symlink_to(ROOT / name)
    programs = folder / "bin"
    programs.mkdir()
    write_program(programs / "cachalot", f'exec "{options.command}" "$@"')
    environment = {
        name: value for name, value in os.environ.items()
        if not name.startswith(("CACHALOT_", "PYTORCH_", "LD_")) and name != "PYTHONPATH"
    }
    environment |= {"PATH": f"{programs}:{environment['PATH']}", "LC_ALL": "C.UTF-8"}
    if options.python:
        simulator = options.plugin / "simulator"
        settings = {
            "CACHALOT_CACHE_DIR": options.plugin / "python" / "cache", "CACHALOT_COMMAND": options.command,
            "PYTHONPATH": options.plugin / "python", "LD_PRELOAD": simulator / "libcachalot_simulator.so",
            "LD_LIBRARY_PATH": simulator / "driver", "CACHALOT_SIM": "${CACHALOT_SIM:-gpu:t4}",
        }
        words = " ".join(f'{name}="{value}"' for name, value in settings.items())
        write_program(programs / "python", f'{words} exec "{options.python}" -B "$@"')
        environment["CACHALOT_PYTHON"] = str(options.python)
    return environment


def output_of(command: Command, folder: Path, environment: dict[str, str]) -> list[str]:
    done = subprocess.run(
        ["bash", "-c", command.words], cwd=folder, env=environment, timeout=SECONDS,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )
    return done.stdout.strip("\n").splitlines()


def is_file(block: Block, file: str) -> bool:
    if (ROOT / file).is_file():
        return True
    print(f"line {block.line}: the file {file}, which is said to run the commands, does not exist")
    return False


def check(command: Command, actual: list[str]) -> bool:
    expected = [line if line == "…" else without_what_varies(line, command.varies) for line in command.expected]
    if agrees(expected, [without_what_varies(line, command.varies) for line in actual]):
        return True
    print(f"line {command.line}: the output of `{command.words}` is not as in the document, but:")
    print("\n".join(f"    {line}" for line in actual))
    return False


def check_document(document: Path, options: argparse.Namespace) -> Counter[str]:
    """Runs the commands of a document; returns how many were run and skipped, and how many mistakes there are."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = prepare(folder, options)
        for block in blocks(document.read_text()):
            counts["mistakes"] += sum(not is_file(block, file) for file in block.run_by)
            if block.file:
                (folder / block.file).write_text("\n".join(block.lines) + "\n")
                continue
            for command in [] if block.run_by else commands(block):
                if NEEDS_PYTORCH.search(command.words) and not options.python:
                    counts["skipped"] += 1
                    continue
                counts["run"] += 1
                actual = output_of(command, folder, environment)
                if options.print:
                    print("\n".join([f"$ {command.words}", *actual]))
                else:
                    counts["mistakes"] += not check(command, actual)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--document", type=Path, default=ROOT / "README.md", help="a document, or a folder of documents")
    parser.add_argument("--command", type=Path, required=True, help="the cachalot command")
    parser.add_argument("--python", type=Path, help="a Python that has PyTorch")
    parser.add_argument("--plugin", type=Path, help="the build folder that has the plug-in and the simulator")
    parser.add_argument("--print", action="store_true", help="print outputs and compare nothing")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    documents = sorted(options.document.glob("*.md")) if options.document.is_dir() else [options.document]
    for document in documents:
        if len(documents) > 1:
            print(document.name)
        counts += check_document(document, options)
    print(f"check_readme.py: {counts['run']} commands, {counts['mistakes']} mistakes, {counts['skipped']} skipped without PyTorch")
    return 1 if counts["mistakes"] or counts["run"] + counts["skipped"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
