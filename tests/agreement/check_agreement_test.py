"""Tests that check_agreement.py reports contradictions: planted ones, known ones that are mended, and those in what commands print."""

from __future__ import annotations

import pathlib
import stat
import sys
import tempfile
import unittest
from typing import Any

import check_agreement
import subjects
from questions import Answer

COMMAND = pathlib.Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else None


def failures(answers: list[Answer], *known: dict[str, Any]) -> list[str]:
    return check_agreement.compare(check_agreement.by_question("file", answers), list(known))


def entry(question: str, *wrong: str, files: str = "file") -> dict[str, Any]:
    return {"question": question, "wrong": list(wrong), "reason": "a reason", "files": files}


BOTH = [Answer("peak", 0, "explain", 2048), Answer("peak", 0, "check", 2048)]
OTHER = Answer("peak", 0, "advise", 4096)


class Contradictions(unittest.TestCase):
    def test_equal_answers_are_none(self) -> None:
        self.assertEqual(failures([*BOTH, Answer("peak", 0, "explain, text", "2.00 KiB")]), [])

    def test_another_number_is_one(self) -> None:
        self.assertEqual(failures([*BOTH, OTHER]), ["file: peak, device 0: 2048 by explain, check; 4096 by advise"])

    def test_another_text_is_one(self) -> None:
        [line] = failures([*BOTH, Answer("peak", 0, "explain, text", "2.01 KiB")])
        self.assertIn("2.01 KiB by explain, text", line)

    def test_devices_are_apart(self) -> None:
        self.assertEqual(failures([*BOTH, Answer("peak", 1, "advise", 4096)]), [])


class Known(unittest.TestCase):
    def test_one_that_is_found_is_no_failure(self) -> None:
        self.assertEqual(failures([*BOTH, OTHER], entry("peak", "advise")), [])

    def test_one_that_is_mended_is_a_failure(self) -> None:
        [line] = failures([*BOTH, Answer("peak", 0, "advise", 2048)], entry("peak", "advise"))
        self.assertIn("that is mended", line)

    def test_another_wrong_command_is_a_failure(self) -> None:
        self.assertEqual(len(failures([*BOTH, OTHER], entry("peak", "check"))), 2)

    def test_a_second_wrong_command_is_a_failure(self) -> None:
        self.assertEqual(len(failures([*BOTH, OTHER, Answer("peak", 0, "diff", 1)], entry("peak", "advise"))), 2)

    def test_one_that_nothing_answers_is_a_failure(self) -> None:
        [line] = failures(BOTH, entry("held", "advise"))
        self.assertIn("nothing answers", line)

    def test_one_of_a_file_that_is_not_asked_is_no_failure(self) -> None:
        self.assertEqual(failures(BOTH, entry("held", "advise", files="elsewhere")), [])


@unittest.skipUnless(COMMAND, "no command was given")
class Commands(unittest.TestCase):
    def test_a_command_that_prints_another_number_is_found(self) -> None:
        """A command whose check counts a byte more at the peak than the others do."""
        script = f"""#!/bin/sh
if [ "$1" = check ]; then {COMMAND} "$@" | sed 's/"peak_bytes":19136512/"peak_bytes":19136513/'; else exec {COMMAND} "$@"; fi
"""
        with tempfile.TemporaryDirectory() as folder:
            command = pathlib.Path(folder) / "cachalot"
            command.write_text(script)
            command.chmod(command.stat().st_mode | stat.S_IEXEC)
            answers = check_agreement.of_file(subjects.all_files()["layers"], command, pathlib.Path(folder))
        lines = check_agreement.compare(check_agreement.by_question("layers", answers), check_agreement.known_contradictions())
        self.assertTrue(lines)
        self.assertTrue(any(line.startswith("layers: requested_peak, device 0: ") and "19136513 by check" in line for line in lines), lines)


if __name__ == "__main__":
    unittest.main()
