"""Runs a stage's commands, each a process with a time limit, and reads what they say."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import stages

ROOT = pathlib.Path(__file__).resolve().parents[2]
TAIL_LINES = 40  # of the output of a command that failed
PROGRAM = re.compile(r"(bench/gpu/[a-z_]+|bench/device_costs|tests/\w+|examples/\w+)$")
OWN_VARIABLES = re.compile(r"CACHALOT_(?!PYTHON$|DEPS$)|PYTORCH_|LD_PRELOAD$")


class Machine:
    """The surroundings of commands: the build folder, and in a rehearsal the simulated runtime, preloaded."""

    def __init__(self, build, is_rehearsal):
        self.build = build
        self.is_rehearsal = is_rehearsal
        self.python = os.environ.get("CACHALOT_PYTHON") or sys.executable
        self._why_no_torch = None

    def environment(self, simulated):
        kept = {name: value for name, value in os.environ.items() if not OWN_VARIABLES.match(name)}
        kept |= {"PYTHONPATH": str(self.build / "python"), "CACHALOT_CACHE_DIR": str(self.build / "python/cache")}
        if not self.is_rehearsal:
            return kept
        simulator = self.build / "simulator"
        return kept | {"LD_PRELOAD": str(simulator / "libcachalot_simulator.so"), "LD_LIBRARY_PATH": str(simulator / "driver"),
                       "CACHALOT_SIM": "devices:2,memory:4GiB"} | simulated

    def why_no_torch(self):
        if self._why_no_torch is None:
            code = "import torch; print(torch.version.cuda)"
            done = subprocess.run([self.python, "-c", code], capture_output=True, text=True)
            has_cuda = done.returncode == 0 and done.stdout.strip() != "None"
            self._why_no_torch = "" if has_cuda else f"{self.python} has no PyTorch with CUDA (set CACHALOT_PYTHON)"
        return self._why_no_torch

    def why_not(self, command):
        """Empty where the command can run."""
        if self.is_rehearsal and command.why_not_rehearsed:
            return command.why_not_rehearsed
        if "torch" in command.needs and self.why_no_torch():
            return self.why_no_torch()
        if command.words[0] == stages.SANITIZER and not sanitizer():
            return "there is no compute-sanitizer"
        return ""

    def missing_programs(self, command):
        """Programs of the build that the command runs, and that are not built."""
        programs = [word for word in command.words if PROGRAM.match(word)]
        if command.words[0] == stages.PYTHON:
            programs = ["python"]  # the package
        return [program for program in programs if not (self.build / program).exists()]

    def words_of(self, command, folder):
        words = [word.replace("{build}", str(self.build)) for word in command.words]
        words += command.quick if self.is_rehearsal else []
        if words[0] == stages.PYTHON:
            return [self.python, "-B", *words[1:]]
        if words[0] == stages.CTEST_PROGRAM:
            # In a folder of its own: its logs are there, also when another ctest runs this.
            (folder / "CTestTestfile.cmake").write_text(f'subdirs("{self.build}")\n')
            return ["ctest", "--test-dir", str(folder), "--output-on-failure", *words[1:]]
        if words[0] == stages.SANITIZER:
            return [sanitizer(), *[str(self.build / word) if word.startswith("tests/") else word for word in words[1:]]]
        return [str(self.build / words[0]), *words[1:]]


def sanitizer():
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")


class Outcome:
    """The output of a stage."""

    def __init__(self):
        self.facts, self.checks, self.tables, self.tails = [], [], [], []
        self.too_late = []  # checks that failed because the time was over
        self.is_cut_short = False  # by the time of the whole run, not by that of the stage

    def check(self, name, verdict, why):
        self.checks.append({"check": name, "verdict": verdict, "why": why})

    def check_too_late(self, name, why):
        self.check(name, "failed", why)
        self.too_late.append(self.checks[-1])

    def verdict(self):
        """(verdict, why)"""
        by_verdict = {verdict: [check for check in self.checks if check["verdict"] == verdict]
                      for verdict in ("failed", "not applicable", "passed")}
        failed, lacking, passed = by_verdict.values()
        if failed and self.is_cut_short and failed == self.too_late:
            return "not run", "the time was over in the middle"
        if failed:
            return "failed", f"{len(failed)} of {len(self.checks)}: {failed[0]['check']}: {failed[0]['why']}"
        if not passed:
            return ("not applicable", lacking[0]["why"]) if lacking else ("failed", "nothing was checked")
        also = f", {len(lacking)} not applicable ({lacking[0]['why']})" if lacking else ""
        return "passed", f"{len(passed)} checks{also}"


def stop(process):
    """The process and what it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def run_process(words, environment, seconds):
    """(exit status, or None where it took too long; output). Its output so far is there in either case."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            status = process.wait(timeout=max(1, seconds))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            stop(process)
            process.wait()
        output.seek(0)
        return status, output.read().decode(errors="replace")


def read_lines(text, outcome):
    """Takes the facts and checks; returns their number."""
    count = 0
    for line in text.splitlines():
        if not line.startswith("{"):
            continue
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if "fact" in said:
            outcome.facts.append(said)
        elif "check" in said:
            outcome.checks.append(said)
            count += 1
    return count


def tests_that_ran(kind, text):
    """(ran, skipped), of GoogleTest's or ctest's closing lines."""
    if kind == stages.GTEST:
        ran = re.search(r"\[ +PASSED +\] (\d+) test", text)
        skipped = re.search(r"\[ +SKIPPED +\] (\d+) test", text)
        return int(ran[1]) if ran else 0, int(skipped[1]) if skipped else 0
    total = re.search(r"tests failed out of (\d+)", text)
    skipped = len(re.findall(r"^\s*\d+ - .*\(Skipped\)$", text, re.MULTILINE))
    return (int(total[1]) if total else 0) - skipped, skipped


def judge_status(command, name, status, text, outcome):
    if status != 0:
        return outcome.check(name, "failed", f"exit status {status}")
    if command.kind in (stages.GTEST, stages.CTEST):
        ran, skipped = tests_that_ran(command.kind, text)
        if ran == 0:
            return outcome.check(name, "not applicable" if skipped else "failed", f"no test ran, {skipped} skipped")
        return outcome.check(name, "passed", f"{ran} tests, {skipped} skipped")
    if command.kind == stages.TABLE:
        outcome.tables.append(text)
        if not text.strip():
            return outcome.check(name, "failed", "it printed nothing")
    return outcome.check(name, "passed", "exit status 0")


def run_command(machine, command, seconds, outcome):
    name = " ".join(command.words[:2])
    why_not = machine.why_not(command)
    if why_not:
        return outcome.check(name, "not applicable", why_not)
    missing = machine.missing_programs(command)
    if missing:
        return outcome.check(name, "failed", f"not built: {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as folder:
        words = machine.words_of(command, pathlib.Path(folder))
        status, text = run_process(words, machine.environment(command.simulated), seconds)
    count = read_lines(text, outcome) if command.kind == stages.LINES else 0
    if status is None:
        outcome.check_too_late(name, f"it took more than {seconds:.0f} s")
    elif command.kind != stages.LINES:
        judge_status(command, name, status, text, outcome)
    elif status != 0 or count == 0:
        outcome.check(name, "failed", f"exit status {status} after {count} checks")
    if status != 0:
        outcome.tails.append("\n".join(text.splitlines()[-TAIL_LINES:]))
    return None


def run_stage(machine, stage, seconds):
    """Within `seconds`, whatever its commands do."""
    outcome = Outcome()
    end = time.monotonic() + seconds
    for command in stage.commands:
        left = end - time.monotonic()
        if left < 1:
            outcome.check_too_late(" ".join(command.words[:2]), "the time of the stage was over before")
        else:
            run_command(machine, command, left, outcome)
    return outcome
