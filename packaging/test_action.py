#!/usr/bin/env python3
"""Runs the steps of action.yml as a GitHub runner does, with a wheel, and compares what a workflow would see.

    packaging/test_action.py WHEEL [PYTHON]

Needs PyYAML. The wheel is installed without a network; PYTHON runs the simulated programs, one of which needs PyTorch and is
skipped where it has none.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
SNAPSHOTS = ROOT / "data" / "snapshots"
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


class Job(NamedTuple):
    exit_code: int
    log: str
    summary: str
    outputs: dict[str, str]


class Action:
    """action.yml. Expressions are those that it uses: inputs.NAME and steps.ID.outputs.NAME."""

    def __init__(self, path: Path) -> None:
        self._action = yaml.safe_load(path.read_text())
        assert self._action["runs"]["using"] == "composite"

    def run(self, folder: Path, python: str, **inputs: str) -> Job:
        """Runs the steps until one fails, as a job with these inputs of its `with:` in a checkout of this repository."""
        values = self._values(inputs)
        folder.mkdir()
        for name in ("output", "summary"):
            (folder / name).write_text("")
        log, status, steps = "", 0, {}
        for step in self._action["runs"]["steps"]:
            assert step["shell"] == "bash" and "if" not in step, "this test knows steps of bash without a condition"
            assert not EXPRESSION.search(step["run"]), "an input is code where it is written into a script; env: takes it"
            script = folder / "script.sh"
            script.write_text(step["run"])
            environment = self._environment(folder, python) | {
                name: self._evaluated(str(value), values, steps) for name, value in step.get("env", {}).items()
            }
            done = subprocess.run(
                ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", str(script)],
                cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
            log, status = log + done.stdout, done.returncode
            steps[step["id"]] = dict(line.split("=", 1) for line in (folder / "output").read_text().splitlines())
            (folder / "output").write_text("")
            if status:
                break
        outputs = {name: self._evaluated(one["value"], values, steps) for name, one in self._action["outputs"].items()}
        return Job(status, log, (folder / "summary").read_text(), outputs)

    def _values(self, given: dict[str, str]) -> dict[str, str]:
        declared = self._action["inputs"]
        assert given.keys() <= declared.keys(), given.keys() - declared.keys()
        missing = {name for name, one in declared.items() if one.get("required")} - given.keys()
        assert not missing, f"required: {missing}"
        return {name: str(one.get("default", "")) for name, one in declared.items()} | given

    @staticmethod
    def _environment(folder: Path, python: str) -> dict[str, str]:
        return {
            "PATH": f"{Path(python).parent}:{os.environ['PATH']}", "HOME": str(folder), "LANG": "C.UTF-8", "CI": "true",
            "GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(ROOT), "GITHUB_ACTION_PATH": str(ROOT),
            "RUNNER_TEMP": str(folder.parent),  # one for all jobs: the second finds the environment of the first
            "GITHUB_OUTPUT": str(folder / "output"), "GITHUB_STEP_SUMMARY": str(folder / "summary"), "PIP_NO_INDEX": "1",
        }  # fmt: skip

    @staticmethod
    def _evaluated(text: str, inputs: dict[str, str], steps: dict[str, dict[str, str]]) -> str:
        def value(found: re.Match[str]) -> str:
            words = found[1].split(".")
            if words[0] == "inputs" and len(words) == 2:
                return inputs[words[1]]
            assert words[0] == "steps" and words[2] == "outputs" and len(words) == 4, f"this test does not know {found[0]}"
            return steps.get(words[1], {}).get(words[3], "")

        return EXPRESSION.sub(value, text)


def expect(what: str, job: Job, exit_code: int, *in_log: str, not_in_log: str = "\0") -> None:
    lacking = [text for text in in_log if text not in job.log]
    if job.exit_code != exit_code or lacking or not_in_log in job.log:
        print(job.log)
        sys.exit(f"FAILED {what}: exit code {job.exit_code}, not {exit_code}, or the log lacks {lacking} or has {not_in_log!r}")
    print(f"ok    {what}")


def main() -> None:
    wheel, python = str(Path(sys.argv[1]).resolve()), sys.argv[2] if len(sys.argv) > 2 else sys.executable
    action = Action(ROOT / "action.yml")
    layers, fragmented = SNAPSHOTS / "layers.pickle", SNAPSHOTS / "torch-2.11" / "fragmented.pickle.gz"
    program = f"'{python}' packaging/allocate.py"
    has_torch = subprocess.run([python, "-c", "import torch"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    with tempfile.TemporaryDirectory() as name:

        def run(job: str, **inputs: str) -> Job:
            return action.run(Path(name) / job, python, package=wheel, **inputs)

        kept = run("kept", snapshot=str(layers), limits="--max-peak 20MiB --no-oom")
        expect("a snapshot within its limits passes", kept, 0, not_in_log="::error")
        assert kept.summary.startswith("```\nok      ") and kept.summary.endswith("```\n"), kept.summary
        version = subprocess.run([kept.outputs["command"], "--version"], capture_output=True, text=True, check=True).stdout
        assert version.startswith("cachalot "), version

        broken = run("broken", snapshot=f"{layers} {fragmented}", limits="--max-peak 20MiB --no-oom")
        expect("each broken limit is an error at the change", broken, 1, f"::error title=cachalot check::{fragmented}: device 0: ")
        assert broken.log.count("::error") == 2 and "BROKEN  " in broken.summary, broken

        quoted = run("quoted", snapshot=f"'{layers}'", limits="--max-leak '0/no such stage*'")
        expect("words are quoted as in a shell", quoted, 2, "no such stage*")
        expect("a misspelt limit is an error", run("misspelt", snapshot=str(layers), limits="--max-peek 1GiB"), 2, "--max-peek")
        expect("nothing to check is an error", run("nothing", limits="--no-oom"), 2, "::error title=cachalot check::neither ")
        none = action.run(Path(name) / "none", python, package="no-such-file.whl", snapshot=str(layers), limits="--no-oom")
        expect("a wheel that is not there ends the job", none, 1, "no-such-file.whl", not_in_log="::error title=cachalot check")

        expect("a program's peak is kept", run("program", program=program, gpu="t4", limits="--max-peak 1GiB --no-oom"), 0, "peak")
        over = run("over", program=program, gpu="t4", limits="--max-peak 1000MiB")
        expect("a program's peak is broken", over, 1, "device 0: 1024.00 MiB, where --max-peak allows 1000.00 MiB")
        small = run("small", program=program, simulate="--memory 512MiB", limits="--max-peak 2GiB")
        expect("a program that fails on the GPU fails the job", small, 1, "::error title=cachalot simulate::", "ended with exit code 1")
        if not has_torch:
            print("skipped: a program of PyTorch (PYTHON has none)")
        else:
            train = run(
                "train", program="examples/quickstart/train.py", simulate="--max-steps 2", gpu="t4",
                limits="--policy native --max-reserved 1GiB",
            )  # fmt: skip
            expect("a program of PyTorch is checked under a policy", train, 1, "where --max-reserved allows 1024.00 MiB")
    print("action.yml: all as a workflow expects")


if __name__ == "__main__":
    main()
