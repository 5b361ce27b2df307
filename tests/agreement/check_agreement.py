#!/usr/bin/env python3
"""Checks that commands never contradict each other: each question that several of them answer has one answer.

    check_agreement.py --command build/release/tools/cachalot [--part fast|files|programs] [NAME...]
    check_agreement.py --command … --part files --update

questions.py, policies.py and live.py have the questions, and which command answers them where. `fast` is some files, `files` all of them,
and `programs` runs programs by a Python that has torch; NAME is the begin of a file's name. Prints each contradiction: the file, the
question, and each answer with its commands; the exit code is 1 if there is one.

known.json lists the contradictions that are known and not mended: the question, the commands that are wrong, the reason, and the files
("made/0@1": device 1). One that is listed, and not found in its file, is a failure, too. --update writes the files of these entries anew,
those whose contradictions an entry explains; it adds no entry.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import live
import policies  # noqa: F401  adds its questions
import subjects
from questions import QUESTIONS, Answer

KNOWN = pathlib.Path(__file__).with_name("known.json")
Key = tuple[str, str, int]  # file, question, device
Dict = dict[str, Any]
Make = Callable[[pathlib.Path, pathlib.Path], list[Answer]]  # the command, a folder


@dataclass
class Group:
    """Answers that are equal."""

    answers: list[Answer]

    def text(self) -> str:
        return f"{self.answers[0].value} by {', '.join(one.command for one in self.answers)}"


def groups_of(answers: Iterable[Answer]) -> list[Group]:
    """Returns groups of equal answers: numbers first, since a text may equal two of them."""
    groups: list[Group] = []
    for one in sorted(answers, key=lambda answer: isinstance(answer.value, str)):
        equal = [group for group in groups if group.answers[0].equals(one)]
        if equal:
            equal[0].answers.append(one)
        else:
            groups.append(Group([one]))
    return groups


def by_question(file: str, answers: Iterable[Answer]) -> dict[Key, list[Answer]]:
    found: dict[Key, list[Answer]] = {}
    for one in answers:
        found.setdefault((file, one.question, one.device), []).append(one)
    return found


# ---- the list of those that are known


def known_contradictions() -> list[Dict]:
    known: list[Dict] = json.loads(KNOWN.read_text())
    return known


def name_of(key: Key) -> str:
    """Returns the name of the file and device as the list has it."""
    return key[0] if key[2] == 0 else f"{key[0]}@{key[2]}"


def explains(entry: Dict, answers: list[Answer]) -> bool:
    """Returns whether the answers agree without those of the commands that the entry calls wrong, and differ from these.

    A text need not differ: it has two places behind the point.
    """
    wrong = [one for one in answers if one.command in entry["wrong"]]
    right = groups_of(one for one in answers if one.command not in entry["wrong"])
    if not wrong or len(right) != 1:
        return False
    differ = [not right[0].answers[0].equals(one) for one in wrong]
    return any(differ) and all(differs or isinstance(one.value, str) for one, differs in zip(wrong, differ, strict=True))


def compare(found: dict[Key, list[Answer]], known: list[Dict]) -> list[str]:
    """Returns a line for each contradiction that is not listed, and for each that is listed and not found."""
    failures = []
    files = {name_of(key) for key in found}
    listed = {(file, entry["question"]): entry for entry in known for file in entry["files"].split()}
    for key, answers in found.items():
        entry = listed.pop((name_of(key), key[1]), None)
        if entry is not None and explains(entry, answers):
            continue
        groups = groups_of(answers)
        if len(groups) > 1:
            failures.append(f"{key[0]}: {key[1]}, device {key[2]}: {'; '.join(group.text() for group in groups)}")
        if entry is not None:
            wrong = ", ".join(entry["wrong"])
            failures.append(f"{name_of(key)}: {key[1]}: known.json lists {wrong}: that is mended, or is another contradiction now")
    for (file, question), entry in listed.items():
        if file in files:
            failures.append(f"{file}: {question}: known.json lists {', '.join(entry['wrong'])}, and nothing answers the question")
    return failures


def unknown_files(known: list[Dict]) -> list[str]:
    """Returns a line for each file of the list that this test does not have."""
    names = {*subjects.all_files(), *(f"programs/{name}" for name in live.PROGRAMS)}
    listed = {file for entry in known for file in entry["files"].split()}
    return [f"known.json: {file} is not a file of this test" for file in sorted(listed) if file.split("@")[0] not in names]


def update(found: dict[Key, list[Answer]], known: list[Dict]) -> None:
    """Writes the files of each entry anew; those of files that were not asked stay."""
    asked = {key[0] for key in found}
    for entry in known:
        entry["files"] = " ".join(file for file in entry["files"].split() if file.split("@")[0] not in asked)
    for key, answers in sorted(found.items()):
        entries = (entry for entry in known if entry["question"] == key[1] and explains(entry, answers))
        if (first := next(entries, None)) is not None:
            first["files"] = f"{first['files']} {name_of(key)}".strip()
    KNOWN.write_text(json.dumps([entry for entry in known if entry["files"]], indent=1, ensure_ascii=False) + "\n")


# ---- files and programs

# A small file of each kind of content.
FAST = """layers torch-2.11/rounded torch-2.15/expandable torch-2.15/fragmented torch-2.15/graph_pools torch-2.15/limited torch-2.15/middle
torch-2.15/perceptron_adam torch-2.15/pools torch-2.15/skipped torch-2.15/state_alone torch-2.15/streams torch-2.15/two_devices made/0 made/4 made/5
made/9 made/10 made/13 made/41 gpu/cs336_medium_256_inference traces/lsm""".split()


def of_file(make: subjects.Make, command: pathlib.Path, folder: pathlib.Path) -> list[Answer]:
    subject = make(command, folder)
    return [answer for question in QUESTIONS for answer in question(subject)]


def of_program(name: str, command: pathlib.Path, folder: pathlib.Path) -> list[Answer]:
    return list(live.answers_of_program(name, command, folder))


def parts_of(part: str) -> dict[str, Make]:
    if part == "programs":
        return {f"programs/{name}": functools.partial(of_program, name) for name in live.PROGRAMS}
    files = {name: functools.partial(of_file, make) for name, make in subjects.all_files().items()}
    return {name: files[name] for name in FAST} if part == "fast" else files


def answered(name: str, make: Make, command: pathlib.Path) -> tuple[dict[Key, list[Answer]], float]:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        answers = make(command, pathlib.Path(folder))
    return by_question(name, answers), time.monotonic() - begin


def arguments_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", type=pathlib.Path, required=True, help="the command")
    parser.add_argument("--part", choices=("fast", "files", "programs"), default="fast", help="which files (default: fast)")
    parser.add_argument("--update", action="store_true", help="write known.json anew")
    parser.add_argument("--times", action="store_true", help="print the time of each file")
    parser.add_argument("names", nargs="*", metavar="NAME", help="begins of names of files")
    return parser.parse_args()


def main() -> int:
    arguments = arguments_of()
    makes = {name: make for name, make in parts_of(arguments.part).items() if not arguments.names or name.startswith(tuple(arguments.names))}
    found: dict[Key, list[Answer]] = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {name: pool.submit(answered, name, make, arguments.command.resolve()) for name, make in makes.items()}
        for name, job in jobs.items():
            of_one, seconds = job.result()
            found |= of_one
            if arguments.times:
                print(f"{seconds:6.1f} s  {name}: {sum(map(len, of_one.values()))} answers", flush=True)
    if arguments.update:
        update(found, known_contradictions())
    failures = compare(found, known_contradictions()) + unknown_files(known_contradictions())
    print("\n".join(failures), end="\n" if failures else "")
    contradictions = sum(len(groups_of(answers)) > 1 for answers in found.values())
    answers = sum(map(len, found.values()))
    print(f"{len(makes)} files, {len(found)} questions, {answers} answers: {contradictions} contradictions; {len(failures)} are not as in known.json")
    return 1 if failures or not found else 0


if __name__ == "__main__":
    sys.exit(main())
